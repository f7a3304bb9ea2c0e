// What a message costs between the ranks of a communicator, as the few numbers that plans are timed with. They are fitted to short
// measurements (calibrate.h takes them).
//
//   a call                   call_ns once, whatever its plan
//   a message of n bytes     overhead_ns of the sender's processor, latency_ns, n · ns_per_byte, overhead_ns of the receiver's
//   n bytes folded or copied n · reduce_ns_per_byte for each operand beyond the first, n · copy_ns_per_byte
//
// What a byte costs depends on how long the vectors are: what no cache holds is got from memory, by all ranks at once. And on where the
// ranks are: those of one node share a link to the others.
//
// Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "mlrunner/collective/layout.h"
#include "mlrunner/collective/plan.h"

namespace ropewalk::collective {

// ns + ns_per_byte · bytes.
struct Line {
  double ns = 0, ns_per_byte = 0;
};

// What a byte costs in vectors of `bytes`, on average over the vector.
struct ByteCosts {
  std::int64_t bytes = 0;
  double ns_per_byte = 0, reduce_ns_per_byte = 0, copy_ns_per_byte = 0;  // as in LinkModel
  bool operator==(const ByteCosts&) const = default;
};

// [from][to]: what a call takes that does nothing but send a vector from one rank to the other, while all others are idle. Of a rank to
// itself: zero.
using PairLines = std::vector<std::vector<Line>>;

struct LinkModel {
  // Whoever takes a message reads it where the sender has it: what one rank sends to several at once, each of them takes at its own rate.
  bool reads_in_place = false;
  double call_ns = 0;
  double latency_ns = 0;          // α
  double overhead_ns = 0;         // o
  double ns_per_byte = 0;         // β, of a rank's link in each direction, while all ranks send
  double alone_ns_per_byte = 0;   // while it is the only one: less where ranks share processors, memory or a wire
  double reduce_ns_per_byte = 0;  // γ, beyond what taking the message costs
  double copy_ns_per_byte = 0;
  // Of vectors that are longer than kNearBytes, up to which the numbers above hold; by length. Empty: they hold for all.
  std::vector<ByteCosts> beyond;
  // Between nodes, where they are not all on one (the nodes are the plan's): what comes on top of latency_ns, and what a byte costs on the
  // link of a node, each way. 0: no more than within.
  double across_latency_ns = 0, across_ns_per_byte = 0;
  // By rank: a call that does nothing but send a vector between rank 0 and this one, while the others are idle. Of rank 0: zero.
  std::vector<Line> from_first;
  PairLines pairs;  // empty: not measured (CalibratePairs), and all links are taken to be alike
};

// How long a call that moved so many bytes took.
struct Timing {
  std::int64_t bytes = 0;
  double ns = 0;
};

// Of long vectors.
struct LongTiming {
  std::int64_t bytes = 0;
  double shift_ns = 0, fold_ns_per_byte = 0, copy_ns_per_byte = 0;  // as in LinkTimings
};

struct LinkTimings {
  std::int32_t ranks = 1;
  Nodes nodes;                               // of all ranks; empty: all on one
  Order order;                               // in which the chain went through them; empty: in their own
  bool shares_memory = false;                // messages are folded where the sender has them
  std::vector<std::vector<Timing>> one_way;  // by rank: half of there and back between rank 0 and this one, each way a call
  std::vector<Timing> shift;                 // each rank sends so many bytes to the next one of its node, all at the same time
  double chain_ns = 0;                       // a call of 2(P - 1) messages of a few bytes, each of which waits for the one before
  double fan_ns = 0;                         // a call in which, twice, each rank sends as few bytes to all others and takes theirs
  double fold_ns_per_byte = 0;               // two vectors added up to a third, on all ranks at the same time, by bytes of one of them
  double copy_ns_per_byte = 0;
  double doubling_ns = 0;         // a call of recursive doubling of as few bytes; 0: not measured
  std::vector<LongTiming> longs;  // beyond kNearBytes, by length
};
inline constexpr std::int64_t kNearBytes = 256 << 10;

// [a][b], a < b: half of there and back between two ranks.
using PairTimings = std::vector<std::vector<std::vector<Timing>>>;

// The line of least relative errors; its two numbers are not negative. One point: a level line. None: zero.
Line FitLine(std::span<const Timing> timings);

// With two ranks overhead and latency cannot be told apart, as every rank waits for every message: then all of it is latency. Where nodes
// have several ranks each, what is within and what is between them are told apart by rank 0's messages to either.
LinkModel FitLinks(const LinkTimings& timings);

// What a byte costs in vectors of so many bytes: linear in the time of the whole vector between the lengths that were measured, and beyond.
ByteCosts CostsAt(const LinkModel& model, std::int64_t bytes);

// As bytes that travel and lie in files: field by field, of any version of this program that has the same fields. kDataLoss (COLL35) when
// they are no model, or one whose numbers are none.
std::string Encode(const LinkModel& model);
Result<LinkModel> DecodeLinkModel(std::string_view bytes);

// Both directions of a pair get the same line. Where noise hides what a byte costs, the best rate that was seen counts.
PairLines FitPairs(const PairTimings& timings);

// How long a call takes by `plan`, in virtual time, if all ranks come at once. What a byte costs lies between the two numbers for it: as
// many ranks are taken to send at a time as there would be if all of them sent as much as the one that sends most. Where pairs were
// measured a message takes what it takes between these two, and all that a rank sends, or takes, shares the fastest of its links; of wires
// that pairs share nothing is known. Fails as Simulate().
Result<double> PredictNs(const LinkModel& model, const Plan& plan, const Sizes& sizes);

}  // namespace ropewalk::collective
