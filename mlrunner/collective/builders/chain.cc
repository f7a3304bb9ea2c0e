// The pipelined chain: segments travel up from rank 0 and collect, the finished ones travel down on a second channel. The order of
// additions is that of the ranks, in the accumulator's type: the left fold.
#include "mlrunner/collective/builders/builders.h"

#include <vector>

namespace ropewalk::collective {
namespace {

Status DeclareChain(Header* header) {
  DeclareInOut(header);
  DeclareAverage(header, false);
  header->channel_count = 2;
  if (IsHalf(header->request.dtype)) DeclareScratch(header, "partial", Element::kAccumulator);
  return {};
}

void WriteChain(Writer& w) {
  const std::int32_t ranks = w.ranks(), rank = w.rank();
  const std::int32_t partial = IsHalf(w.request().dtype) ? kOut + 1 : kOut;
  const Scales scales = ScalesOf(w.header(), false);
  auto segment = [&](std::int32_t buffer) { return w.At(buffer, w.Segment(w.Whole())); };
  if (ranks == 1) {
    w.Copy(segment(kIn), segment(kOut), scales.after);
    return;
  }
  StepId sum;
  w.BeginLoop(w.Whole(), kIn);
  if (rank == 0) {
    w.Send(segment(kIn), 1);
  } else {
    std::vector<Operand> operands = {From(rank - 1, segment(rank == 1 ? kIn : partial)), Local(segment(kIn))};
    if (rank < ranks - 1)
      w.Fold(Op::kRecvReduceSend, operands, {.dst = segment(partial), .to = rank + 1});
    else
      sum = w.Fold(Op::kRecvReduce, operands, {.dst = segment(kOut), .scale = scales.after});
  }
  w.EndLoop();

  w.OnChannel(1);
  w.BeginLoop(w.Whole(), kIn);
  if (rank == ranks - 1) {
    w.After(sum);
    w.Send(segment(kOut), rank - 1);
  } else if (rank > 0) {
    w.Fold(Op::kRecvCopySend, {From(rank + 1, segment(kOut))}, {.dst = segment(kOut), .to = rank - 1});
  } else {
    w.Recv(1, segment(kOut));
  }
  w.EndLoop();
}

}  // namespace

const Algorithm kChainAllreduce{"chain", Collective::kAllreduce, true, DeclareChain, WriteChain, PromiseAllreduce};

}  // namespace ropewalk::collective
