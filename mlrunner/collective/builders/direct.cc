// Every rank sums its own part of everybody's vector and sends the sum to all: two rounds of P - 1 messages each. The parts are folded in
// the order of ranks in one step, so this is the left fold. With two channels one segment's sums travel while the next one's parts do.
#include "mlrunner/collective/builders/builders.h"

#include <vector>

namespace ropewalk::collective {
namespace {

Status DeclareDirect(Header* header) {
  DeclareInOut(header);
  DeclareAverage(header, false);
  header->channel_count = header->request.ranks == 1 ? 1 : header->request.channels;
  return {};
}

void WriteDirect(Writer& w) {
  const std::int32_t ranks = w.ranks(), rank = w.rank();
  const Scales scales = ScalesOf(w.header(), false);
  if (ranks == 1) {
    w.Copy(w.At(kIn, w.Whole()), w.At(kOut, w.Whole()), scales.after);
    return;
  }
  const std::int32_t lanes = w.header().channel_count;
  for (std::int32_t lane = 0; lane < lanes; ++lane) {
    w.OnChannel(lane);
    w.BeginLoop(w.Part(w.Whole(), ranks, 0), kIn, lanes);
    auto part = [&](std::int32_t buffer, std::int32_t of) { return w.At(buffer, w.Segment(w.Part(w.Whole(), ranks, of), lane, lanes)); };
    // Each begins with another peer, so that nobody receives from all at once.
    for (std::int32_t d = 1; d < ranks; ++d) w.Send(part(kIn, w.Around(d)), w.Around(d));
    std::vector<Operand> operands;
    for (std::int32_t from = 0; from < ranks; ++from)
      operands.push_back(from == rank ? Local(part(kIn, rank)) : From(from, part(kIn, rank)));
    w.Fold(Op::kRecvReduce, operands, {.dst = part(kOut, rank), .scale = scales.after});
    for (std::int32_t d = 1; d < ranks; ++d) w.Send(part(kOut, rank), w.Around(d));
    for (std::int32_t d = 1; d < ranks; ++d) w.Recv(w.Around(-d), part(kOut, w.Around(-d)));
    w.EndLoop();
  }
}

}  // namespace

const Algorithm kDirectAllreduce{"direct", Collective::kAllreduce, true, DeclareDirect, WriteDirect, PromiseAllreduce};

}  // namespace ropewalk::collective
