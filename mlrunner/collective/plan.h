// The collective plan: who sends which chunk to whom, what is reduced, and what must be true afterwards. A plain value: it is built,
// checked, costed, explained, simulated and run, and none of these changes it.
//
//   Plan ── header       what all ranks share: the request, the buffers, scales, codecs
//        ├─ programs[r]  the flat arrays of rank r; a rank that only runs needs its own program and the header
//        └─ post         the postcondition that Check() proves
//
// Sizes are symbolic. A program is compiled once for an (operation, dtype, algorithm, group, size class); how many elements there are, the
// count table of an all-to-all-v and the pointers come when it is bound (layout.h).
//
// Thread rule: values; sharing a const Plan among threads is fine.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "mlrunner/collective/types.h"

namespace ropewalk::collective {

inline constexpr std::int32_t kNone = -1;

// ---- what is asked for -------------------------------------------------------------------------------------------------------------

enum class Collective : std::uint8_t {
  kAllreduce,
  kReduceScatter,
  kAllgather,
  kBroadcast,
  kAllToAllV,
  kBarrier,
  kSendRecv,
  kMix,
  kAllgatherV,
  kReduce,
  kGather,
  kScatter,
  kAllToAll,
  kNeighborExchange,
};
inline constexpr Collective kLastCollective = Collective::kNeighborExchange;
// How much each rank has is known at run time only: the plan learns its count table.
constexpr bool LearnsCounts(Collective collective) { return collective == Collective::kAllToAllV || collective == Collective::kAllgatherV; }

// Whether vectors are folded into one by the operation that the request names.
constexpr bool Folds(Collective collective) {
  return collective == Collective::kAllreduce || collective == Collective::kReduceScatter || collective == Collective::kReduce;
}

// A lossy or shortening form of a chunk on the wire, described by its sizes: bytes(n) = ⌈n/bucket⌉·bucket_header_bytes + ⌈n·bits/8⌉.
// An additive codec may be applied at every hop; any other only where the plan's postcondition allows for the times it is applied.
struct Codec {
  std::string name;
  std::int64_t bits = 0;  // for each element
  std::int64_t bucket_elements = 0;
  std::int64_t bucket_header_bytes = 0;
  bool additive = false;
  bool error_feedback = false;  // what a code leaves out is kept, and added to what is encoded next
  auto operator<=>(const Codec&) const = default;
};
using MixingMatrix = std::vector<std::vector<double>>;
// A digraph: by rank, those whose vectors it receives, in the order in which they lie in its `out`.
using Neighbors = std::vector<std::vector<std::int32_t>>;
// By rank, the number of the node that it is on.
using Nodes = std::vector<std::int32_t>;
// By place, the rank that stands there: each rank once. Empty: every rank at the place of its number.
using Order = std::vector<std::int32_t>;

struct Request {
  Collective collective = Collective::kAllreduce;
  Dtype dtype = Dtype::kF32;
  ReduceOp op = ReduceOp::kSum;
  std::int32_t ranks = 1;
  std::int32_t root = 0;           // broadcast, scatter, send/recv: the source; reduce, gather: the destination
  std::int32_t peer = 0;           // send/recv: the destination
  bool deterministic = false;      // each element must be the left fold over ranks in the accumulator's type
  std::int32_t channels = 1;       // how many segments are on their way at once
  std::int64_t segment_bytes = 0;  // the largest segment; 0: chunks are not cut
  std::int32_t slots = 2;          // messages that an edge holds
  std::int32_t quorum = 0;         // eager: how many ranks must have contributed
  std::vector<Codec> codecs;       // how numbers travel; refused by algorithms that do not encode (Algorithm::codecs)
  Nodes nodes;                     // of all ranks, for hierarchical algorithms; empty: all share one
  Order order;                     // in which rings and chains pass messages on (Algorithm::follows)
  MixingMatrix mixing;             // kMix: W[i][j], the weight of rank j's value in rank i's result
  Neighbors neighbors;             // kNeighborExchange
};

// ---- memory ------------------------------------------------------------------------------------------------------------------------

enum class Role : std::uint8_t {
  kIn,       // the caller's, only read
  kOut,      // the caller's result
  kScratch,  // the library's; holds nothing at the start
  kWindow,   // the library's or the caller's; peers put, get and accumulate
  kState,    // lives on from one instance to the next: residuals, stale gradients, neighbours' copies
};

enum class Element : std::uint8_t { kPayload, kAccumulator, kByte, kCount /* int64 */ };

struct Buffer {
  std::string name;
  Role role = Role::kScratch;
  Element element = Element::kPayload;
  // The buffer in whose memory the caller may put this one (in place): where that one begins, or where this rank's part of N elements lies
  // in it. Check() proves both ways.
  std::int32_t may_alias = kNone;
  bool alias_at_part = false;
  bool relaxed = false;  // window: reads and puts are not ordered by the plan; each access is atomic for its chunk
};

// A part of a buffer as a function of the bound sizes. In elements of the buffer; ranges are nodes that name their parent.
enum class RangeKind : std::uint8_t {
  kNothing,    // a message without bytes
  kSpan,       // [offset_scale·N + offset_add, + count_scale·N + count_add), N = the bound count
  kPart,       // part `index` of `parts` of range `of` (with the `run` - 1 behind it); lengths differ by at most `align`, longer ones first
  kSegment,    // the part of `of` that this iteration of `loop` handles; `lane` of `lanes` shares its iterations with other channels
  kPlaced,     // as long as `of`, at `index` times the length of `stride_of`; with a codec both lengths are those of the encoded form
  kTable,      // entry (row, column) of the bound count table; offset = the entries before it in its row, or in its column if by_column
  kParameter,  // [parameters[row], + parameters[column]) of the bound parameters
};

struct Range {
  RangeKind kind = RangeKind::kNothing;
  bool by_column = false;
  std::int32_t codec = kNone;
  std::int32_t of = kNone, stride_of = kNone;
  std::int32_t index = 0, parts = 1, run = 1, align = 1;
  std::int32_t loop = kNone, lane = 0, lanes = 1;
  std::int32_t row = 0, column = 0;
  std::int64_t count_scale = 0, count_add = 0, offset_scale = 0, offset_add = 0;  // kTable: count_scale = elements an entry counts
  bool operator==(const Range&) const = default;
};

struct Chunk {
  std::int32_t buffer = kNone;
  std::int32_t range = kNone;
  bool operator==(const Chunk&) const = default;
};

// How often a loop runs: ⌈bytes of the largest `range` / segment_bytes / lanes⌉, at least once; or `trips` if that is set. The same on all
// ranks: `range` must not depend on the rank.
struct Loop {
  std::int32_t range = kNone;
  std::int32_t buffer = kNone;  // gives the bytes of an element
  std::int64_t segment_bytes = 0;
  std::int32_t lanes = 1;
  std::int64_t trips = 0;
  std::int32_t parent = kNone;  // the loop around it
  bool operator==(const Loop&) const = default;
};

struct Shapes {
  std::vector<Range> ranges;
  std::vector<Chunk> chunks;
  bool operator==(const Shapes&) const = default;
};

// ---- steps -------------------------------------------------------------------------------------------------------------------------

// Data steps have one normal form: result = scale · fold(op, operands in order); it is stored in `dst` and sent to `to`, each where given.
// An operand is a chunk of this rank or the next message of a peer on this channel. The fold is computed in the accumulator's type and
// rounded once.
//
// A send *posts* its chunk: the step is done when a slot of the edge is free, but the bytes may be read until the receiver's step has
// consumed the message. Check() proves that nothing overwrites them before. So a transport may read the sender's memory directly, and
// none needs memory for messages whose chunk lies in a buffer. A result that is sent but not stored lies in the slot.
enum class Op : std::uint8_t {
  kSend,            // [local] → peer
  kRecv,            // [peer] → dst, as it came
  kCopy,            // [local] → dst
  kReduce,          // [local, local, ...] → dst; k-ary
  kRecvReduce,      // [local and peer ...] → dst; k-ary
  kRecvCopy,        // [peer] → dst, scaled or converted
  kRecvReduceSend,  // [local and peer ...] → dst if given, and → peer
  kRecvCopySend,    // [peer] → dst if given, and → peer
  kEncode,          // [local] (+ aux: the residual state) → dst, bytes; and → peer if given
  kDecode,          // [bytes, local or peer, ...] → dst; operands that are marked are decoded, then folded
  kPut,             // [local] → remote chunk of `to`; one-sided
  kGet,             // remote chunk of `to` → dst; one-sided
  kAccumulate,      // [local] folded into the remote chunk of `to`; one-sided
  kNotify,          // counter of `to` += 1, after everything this channel has put there
  kWait,            // until this rank's counter ≥ threshold
  kFlush,           // until everything that this channel posted to `to`, or put and got there, is consumed or done
  kContribute,      // dst = this rank's contribution: [In, State]: In if the local call came, else State if given, else zero; aux = 1 or 0
  kCounts,          // [local int64 counts]: entry i is what rank i has for this one (or in `column`); ranges that need it are resolved now
  kNative,          // a library's own collective (`native`) over the ranks of `group`: [local] → dst
  kLoop,            // begin of `loop`; `jump` is its kEndLoop (steps are counted within their channel)
  kEndLoop,         // end of `loop`; `jump` is its kLoop; a border: a running instance may yield here to one of higher priority
};

struct Operand {
  std::int32_t chunk = kNone;  // of a peer: the length and element of the message (no memory is touched)
  std::int32_t peer = kNone;
  std::int32_t scale = kNone;  // index into the header's scales
  bool decode = false;
  bool operator==(const Operand&) const = default;
};

// The step waits until `step` of `channel` was done often enough: once more than the lag allows for each time that this step was done; a
// lag of kAllTrips: as often as it will ever be.
inline constexpr std::int32_t kAllTrips = -1;
struct Dependency {
  std::int32_t channel = 0, step = 0, lag = 0;
  bool operator==(const Dependency&) const = default;
};

struct Step {
  Op op = Op::kCopy;
  std::int32_t to = kNone;
  std::int32_t dst = kNone;     // chunk
  std::int32_t remote = kNone;  // chunk of `to`'s memory
  std::int32_t aux = kNone;     // chunk
  std::int32_t scale = kNone;
  std::int32_t codec = kNone;
  std::int32_t counter = kNone;
  std::int64_t threshold = 0;
  std::int32_t column = kNone;  // of the count table; kNone: this rank's
  std::int32_t loop = kNone, jump = kNone;
  std::int32_t group = kNone;  // index into the header's groups; kNone: all ranks
  Collective native = Collective::kAllreduce;
  std::int32_t first_operand = 0, operand_count = 0;
  std::int32_t first_dependency = 0, dependency_count = 0;
  bool operator==(const Step&) const = default;
};

// A channel runs its steps in order; channels of a rank are independent but for dependencies. Messages between two ranks are ordered
// within a channel.
enum class Start : std::uint8_t { kLocalCall, kMessage /* also without a local call: an arriving message or counter gets it going */ };
struct Channel {
  Start start = Start::kLocalCall;
  std::int32_t first_step = 0, step_count = 0;
  bool operator==(const Channel&) const = default;
};

// What this rank may have sent on `channel` to `peer` and not yet consumed there, in messages.
struct Edge {
  std::int32_t peer = 0, channel = 0, slots = 1;
  bool operator==(const Edge&) const = default;
};

struct Program : Shapes {
  std::int32_t rank = 0;
  std::vector<Loop> loops;
  std::vector<Channel> channels;
  std::vector<Step> steps;  // by channel
  std::vector<Operand> operands;
  std::vector<Dependency> dependencies;
  std::vector<Edge> edges;
  bool operator==(const Program&) const = default;
};

// ---- what must be true afterwards --------------------------------------------------------------------------------------------------

inline constexpr std::int32_t kEveryRank = -2;
inline constexpr std::int32_t kSameRank = -3;

// coefficient · element x of `chunk` of `rank` as it was at the start.
struct Term {
  std::int32_t rank = kEveryRank;
  std::int32_t chunk = kNone;
  double coefficient = 1;
};

enum class ClaimKind : std::uint8_t {
  kFold,     // out = op over the terms, each exactly once: sum over a set, permutation (one term), mixing row (coefficients)
  kQuorum,   // out = sum over the ranks that contributed (terms) and the others' state; `counter` says how many; at least `quorum`
  kBarrier,  // every rank's start comes before any rank's end
};

struct Claim {
  ClaimKind kind = ClaimKind::kFold;
  std::int32_t rank = kEveryRank;  // whose `out`
  std::int32_t out = kNone;        // chunk
  std::int32_t counter = kNone;    // chunk
  std::int32_t state = kNone;      // chunk: what a rank that did not contribute adds (kNone: nothing)
  std::int32_t first_term = 0, term_count = 0;
};

struct Postcondition : Shapes {
  std::vector<Claim> claims;
  std::vector<Term> terms;
  bool identical = false;          // all ranks hold the same bits: the same expression up to swapping the two sides of an operation
  std::int32_t encodings_max = 0;  // how often a value may have been encoded lossily on its way
};

struct Header {
  std::string algorithm;
  Request request;
  Dtype accumulator = Dtype::kF32;
  ReduceOp op = ReduceOp::kSum;  // never kAvg
  std::vector<Buffer> buffers;
  std::vector<double> scales;
  std::vector<std::vector<std::int32_t>> groups;
  std::int32_t channel_count = 0;
  std::int32_t counter_count = 0;
};

struct Plan {
  Header header;
  std::vector<Program> programs;
  Postcondition post;
};

std::string_view Name(Op op);
std::string_view Name(Collective collective);
std::string_view Name(Role role);
bool IsLoop(Op op);

}  // namespace ropewalk::collective
