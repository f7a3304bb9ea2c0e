#include "mlrunner/collective/plan.h"

#include <cstddef>
#include <iterator>

namespace ropewalk::collective {

std::string_view Name(ReduceOp op) {
  static constexpr std::string_view kNames[] = {"sum", "min", "max", "prod", "avg"};
  return kNames[static_cast<int>(op)];
}

std::string_view Name(Op op) {
  static constexpr std::string_view kNames[] = {
      "send",           "recv",   "copy",       "reduce", "recv_reduce", "recv_copy",  "recv_reduce_send",
      "recv_copy_send", "encode", "decode",     "put",    "get",         "accumulate", "notify",
      "wait",           "flush",  "contribute", "counts", "native",      "loop",       "end"};
  return kNames[static_cast<int>(op)];
}

std::string_view Name(Collective collective) {
  static constexpr std::string_view kNames[] = {"allreduce", "reduce_scatter", "allgather",  "broadcast",        "all_to_all_v",
                                                "barrier",   "send_recv",      "mix",        "allgather_v",      "reduce",
                                                "gather",    "scatter",        "all_to_all", "neighbor_exchange"};
  static_assert(std::size(kNames) == static_cast<std::size_t>(kLastCollective) + 1);
  return kNames[static_cast<int>(collective)];
}

std::string_view Name(Role role) {
  static constexpr std::string_view kNames[] = {"in", "out", "scratch", "window", "state"};
  return kNames[static_cast<int>(role)];
}

bool IsLoop(Op op) { return op == Op::kLoop || op == Op::kEndLoop; }

}  // namespace ropewalk::collective
