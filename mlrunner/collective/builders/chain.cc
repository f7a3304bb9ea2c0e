// The pipelined chain: segments travel up from the first rank of the request's order and collect, the finished ones travel down on a second
// channel. Additions are made in that order, in the accumulator's type: where it is that of the ranks, the left fold. The two ranks at its
// ends send N, the others 2N: the place for who has the slowest link is an end.
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
  const std::int32_t last = w.ranks() - 1, place = PlaceOf(w.request(), w.rank());
  const std::int32_t above = RankAt(w.request(), place + 1), below = RankAt(w.request(), place - 1);
  const std::int32_t partial = IsHalf(w.request().dtype) ? kOut + 1 : kOut;
  const Scales scales = ScalesOf(w.header(), false);
  auto segment = [&](std::int32_t buffer) { return w.At(buffer, w.Segment(w.Whole())); };
  if (last == 0) {
    w.Copy(segment(kIn), segment(kOut), scales.after);
    return;
  }
  StepId sum;
  w.BeginLoop(w.Whole(), kIn);
  if (place == 0) {
    w.Send(segment(kIn), above);
  } else {
    std::vector<Operand> operands = {From(below, segment(place == 1 ? kIn : partial)), Local(segment(kIn))};
    if (place < last)
      w.Fold(Op::kRecvReduceSend, operands, {.dst = segment(partial), .to = above});
    else
      sum = w.Fold(Op::kRecvReduce, operands, {.dst = segment(kOut), .scale = scales.after});
  }
  w.EndLoop();

  w.OnChannel(1);
  w.BeginLoop(w.Whole(), kIn);
  if (place == last) {
    w.After(sum);
    w.Send(segment(kOut), below);
  } else if (place > 0) {
    w.Fold(Op::kRecvCopySend, {From(above, segment(kOut))}, {.dst = segment(kOut), .to = below});
  } else {
    w.Recv(above, segment(kOut));
  }
  w.EndLoop();
}

}  // namespace

const Algorithm kChainAllreduce{"chain",    Collective::kAllreduce, true,          DeclareChain,
                                WriteChain, PromiseAllreduce,       Codecs::kNone, Follows::kChain};

}  // namespace ropewalk::collective
