// Every rank sums its own part of everybody's vector and sends the sum to all: two rounds of P - 1 messages each. The parts are folded in
// the order of ranks in one step, so this is the left fold. With two channels one segment's sums travel while the next one's parts do.
// This is also the parameter server that is divided among the ranks, each of which serves its own part.
#include <vector>

#include "mlrunner/collective/builders/phases.h"

namespace ropewalk::collective {
namespace {

Status DeclareDirect(Header* header) {
  DeclareInOut(header);
  DeclareAverage(header, false);
  header->channel_count = header->request.ranks == 1 ? 1 : header->request.channels;
  return {};
}

void WriteDirect(Writer& w) {
  const std::int32_t ranks = w.ranks(), lanes = w.header().channel_count;
  const Scales scales = ScalesOf(w.header(), false);
  if (ranks == 1) {
    w.Copy(w.At(kIn, w.Whole()), w.At(kOut, w.Whole()), scales.after);
    return;
  }
  for (std::int32_t lane = 0; lane < lanes; ++lane) {
    w.OnChannel(lane);
    w.BeginLoop(w.Part(w.Whole(), ranks, 0), kIn, lanes);
    auto part = [&](std::int32_t of) { return w.Segment(w.Part(w.Whole(), ranks, of), lane, lanes); };
    DirectAllreduce(w, {.group = AllRanks(w), .part = part, .scales = scales});
    w.EndLoop();
  }
}

}  // namespace

void FoldInOrder(Writer& w, const Group& group, ChunkId chunk, const Scales& scales, ChunkId dst) {
  std::vector<Operand> operands;
  for (std::int32_t from = 0; from < group.size(); ++from)
    operands.push_back(from == group.place ? Local(chunk, scales.before) : From(group.ranks[from], chunk, scales.before));
  w.Fold(group.size() == 1 ? Op::kReduce : Op::kRecvReduce, operands, {.dst = dst, .scale = scales.after});
}

std::int32_t DirectReduceScatter(Writer& w, const Phase& phase) {
  const Group& group = phase.group;
  const std::int32_t place = group.place;
  auto part = [&](std::int32_t of) { return w.At(phase.in, phase.part(of)); };
  // Each begins with another peer, so that nobody receives from all at once.
  for (std::int32_t d = 1; d < group.size(); ++d) w.Send(part(group.Around(d)), group.ranks[group.Around(d)]);
  FoldInOrder(w, group, part(place), phase.scales, w.At(phase.out, phase.part(place)));
  return place;
}

void DirectAllgather(Writer& w, const Phase& phase) {
  const Group& group = phase.group;
  auto part = [&](std::int32_t of) { return w.At(phase.out, phase.part(of)); };
  for (std::int32_t d = 1; d < group.size(); ++d) w.Send(part(group.place), group.ranks[group.Around(d)]);
  for (std::int32_t d = 1; d < group.size(); ++d) w.Recv(group.ranks[group.Around(-d)], part(group.Around(-d)));
}

void DirectAllreduce(Writer& w, const Phase& phase) {
  DirectReduceScatter(w, phase);
  DirectAllgather(w, phase);
}

const Algorithm kDirectAllreduce{"direct", Collective::kAllreduce, true, DeclareDirect, WriteDirect, PromiseAllreduce};

}  // namespace ropewalk::collective
