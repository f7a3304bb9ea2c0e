// What a message costs between the ranks of a communicator, as the few numbers that plans are timed with. They are fitted to short
// measurements (calibrate.h takes them).
//
//   a call                   call_ns once, whatever its plan
//   a message of n bytes     overhead_ns of the sender's processor, latency_ns, n · ns_per_byte, overhead_ns of the receiver's
//   n bytes folded or copied n · reduce_ns_per_byte for each operand beyond the first, n · copy_ns_per_byte
//
// Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "mlrunner/collective/layout.h"
#include "mlrunner/collective/plan.h"

namespace ropewalk::collective {

// ns + ns_per_byte · bytes.
struct Line {
  double ns = 0, ns_per_byte = 0;
};

struct LinkModel {
  double call_ns = 0;
  double latency_ns = 0;          // α
  double overhead_ns = 0;         // o
  double ns_per_byte = 0;         // β, of a rank's link in each direction, while all ranks send
  double alone_ns_per_byte = 0;   // while it is the only one: less where ranks share processors, memory or a wire
  double reduce_ns_per_byte = 0;  // γ, beyond what taking the message costs
  double copy_ns_per_byte = 0;
  // By rank: a call that does nothing but send a vector between rank 0 and this one, while the others are idle. Of rank 0: zero.
  std::vector<Line> from_first;
};

// How long a call that moved so many bytes took.
struct Timing {
  std::int64_t bytes = 0;
  double ns = 0;
};

struct LinkTimings {
  std::int32_t ranks = 1;
  bool shares_memory = false;                // messages are folded where the sender has them
  std::vector<std::vector<Timing>> one_way;  // by rank: half of there and back between rank 0 and this one, each way a call
  std::vector<Timing> shift;                 // each rank sends so many bytes to the next one, all at the same time
  double chain_ns = 0;                       // a call of 2(P - 1) messages of a few bytes, each of which waits for the one before
  double fan_ns = 0;                         // a call in which, twice, each rank sends as few bytes to all others and takes theirs
  double fold_ns_per_byte = 0;               // two vectors added up to a third, on all ranks at the same time, by bytes of one of them
  double copy_ns_per_byte = 0;
};

// The line of least relative errors; its two numbers are not negative. One point: a level line. None: zero.
Line FitLine(std::span<const Timing> timings);

// With two ranks overhead and latency cannot be told apart, as every rank waits for every message: then all of it is latency.
LinkModel FitLinks(const LinkTimings& timings);

// How long a call takes by `plan`, in virtual time, if all ranks come at once. What a byte costs lies between the two numbers for it: as
// many ranks are taken to send at a time as there would be if all of them sent as much as the one that sends most. Fails as Simulate().
Result<double> PredictNs(const LinkModel& model, const Plan& plan, const Sizes& sizes);

}  // namespace ropewalk::collective
