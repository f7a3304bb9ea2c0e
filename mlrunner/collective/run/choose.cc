#include "mlrunner/collective/run/choose.h"

namespace ropewalk::collective {
namespace {

// Below, the rounds count; above, the bytes do. Measured with two and four ranks on two cores: recursive doubling and direct change places
// between 4 and 16 KiB where a vector is read in place, between 64 and 128 KiB over sockets (docs/performance.md#collectives).
constexpr std::int64_t kSmallSharedBytes = 8 << 10, kSmallTcpBytes = 64 << 10;
// Not measured.
constexpr std::int64_t kSmallBroadcastBytes = 32 << 10;
// What stays in the second cache between the one who wrote it and the one who reads it.
constexpr std::int64_t kSharedSegmentBytes = 256 << 10;
constexpr std::int64_t kTcpSegmentBytes = 512 << 10;

}  // namespace

Choice Choose(const Request& request, bool is_coded, std::int64_t count, bool shares_memory, std::int64_t segment_bytes) {
  const std::int64_t bytes = count * static_cast<std::int64_t>(SizeOf(request.dtype));
  const bool is_small = bytes <= (shares_memory ? kSmallSharedBytes : kSmallTcpBytes);
  Choice choice{.segment_bytes = segment_bytes > 0 ? segment_bytes : shares_memory ? kSharedSegmentBytes : kTcpSegmentBytes};
  switch (request.collective) {
    case Collective::kAllreduce:
      if (is_coded) {
        choice.algorithm = "sra";
        break;
      }
      choice.algorithm = is_small && !request.deterministic ? "recursive_doubling" : "direct";
      // One channel's messages travel while the other's are folded.
      if (!shares_memory && !is_small) choice.channels = 2;
      break;
    case Collective::kBroadcast:
      choice.algorithm = bytes <= kSmallBroadcastBytes ? "broadcast_tree" : "broadcast_chain";
      break;
    case Collective::kBarrier:
      choice.algorithm = "barrier";
      break;
    case Collective::kSendRecv:
      choice.algorithm = "send_recv";
      break;
    case Collective::kAllToAllV:
      choice.algorithm = "all_to_all_v";
      break;
    case Collective::kMix:
      choice.algorithm = "window";
      break;
    // Not measured: of these the ones of the fewest rounds, which for few ranks send the fewest bytes, too.
    case Collective::kReduceScatter:
      choice.algorithm = "reduce_scatter_direct";
      break;
    case Collective::kAllgather:
      choice.algorithm = "allgather_direct";
      break;
    case Collective::kAllgatherV:
      choice.algorithm = "allgather_v";
      break;
    case Collective::kReduce:
      // Up to three ranks the tree is the same, without a tree's scratch; beyond, the root would receive P - 1 vectors.
      choice.algorithm = request.deterministic ? "reduce_direct" : "reduce_tree";
      break;
    case Collective::kGather:
      choice.algorithm = "gather_direct";
      break;
    case Collective::kScatter:
      choice.algorithm = "scatter_direct";
      break;
    case Collective::kAllToAll:
      choice.algorithm = "all_to_all";
      break;
    case Collective::kNeighborExchange:
      choice.algorithm = "neighbor_exchange";
      break;
  }
  return choice;
}

std::string Describe(const Choice& choice) {
  std::string text(choice.algorithm);
  if (choice.segment_bytes > 0) text += ", segments of " + std::to_string(choice.segment_bytes) + " bytes";
  if (choice.channels > 1) text += ", " + std::to_string(choice.channels) + " channels";
  return text;
}

Chosen ChosenFor(const CollectiveCall& call, std::int32_t ranks, const Choice& choice) {
  return {.algorithm = call.algorithm.empty() ? choice.algorithm : call.algorithm,
          .request = {.collective = call.collective,
                      .dtype = call.dtype,
                      .op = call.op,
                      .ranks = ranks,
                      .root = call.root,
                      .peer = call.peer,
                      .deterministic = call.deterministic,
                      .channels = call.channels != 0 ? call.channels : choice.channels,
                      .segment_bytes = call.segment_bytes != 0 ? call.segment_bytes : choice.segment_bytes}};
}

Chosen ChooseFor(const CollectiveCall& call, std::int32_t ranks, bool shares_memory, std::int64_t segment_bytes) {
  const Request request{.collective = call.collective, .dtype = call.dtype, .ranks = ranks, .deterministic = call.deterministic};
  return ChosenFor(call, ranks, Choose(request, call.codec != nullptr, call.count, shares_memory, segment_bytes));
}

}  // namespace ropewalk::collective
