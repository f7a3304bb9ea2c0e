// Recursive doubling: log2(P) rounds in which pairs exchange all they have. With P = 2^k + rest, `rest` ranks hand their vector to a
// neighbour first and get the result from it. Each round's sum has its own scratch: a sum that was sent may still be read while the next
// one is stored.
#include <vector>

#include "mlrunner/collective/builders/phases.h"

namespace ropewalk::collective {
namespace {

std::int32_t Rounds(std::int32_t ranks) {
  std::int32_t rounds = 0;
  while ((2 << rounds) <= ranks) ++rounds;
  return rounds;
}

constexpr std::int32_t kSums = 2;

Status DeclareDoubling(Header* header) {
  DeclareInOut(header);
  DeclareScratch(header, "sums");
  DeclareAverage(header, true);
  return {};
}

void WriteDoubling(Writer& w) {
  const Scales scales = ScalesOf(w.header(), true);
  if (w.ranks() == 1)
    w.Copy(w.At(kIn, w.Whole()), w.At(kOut, w.Whole()), scales.alone());
  else
    DoublingAllreduce(w, {.group = AllRanks(w), .range = w.Whole(), .scratch = kSums, .scales = scales});
}

}  // namespace

void DoublingAllreduce(Writer& w, const Phase& phase) {
  const Group& group = phase.group;
  const Scales& scales = phase.scales;
  const std::int32_t place = group.place, rounds = Rounds(group.size()), rest = group.size() - (1 << rounds);
  const ChunkId in = w.At(phase.in, phase.range), out = w.At(phase.out, phase.range);
  auto sum = [&](std::int32_t round) { return w.At(phase.scratch, w.Placed(phase.range, phase.range, round)); };
  if (place < 2 * rest && place % 2 == 0) {
    w.Send(in, group.ranks[place + 1]);
    w.Recv(group.ranks[place + 1], out);
    return;
  }
  const std::int32_t index = place < 2 * rest ? place / 2 : place - rest;
  auto other_of = [&](std::int32_t round) { return index ^ (1 << round); };
  auto peer_of = [&](std::int32_t round) {
    const std::int32_t other = other_of(round);
    return group.ranks[other < rest ? 2 * other + 1 : other + rest];
  };
  if (phase.repeats)
    for (std::int32_t round = 0; round < rounds; ++round) w.Flush(peer_of(round));
  if (place < 2 * rest)
    w.Fold(Op::kRecvReduce, {From(group.ranks[place - 1], in, scales.before), Local(in, scales.before)}, {.dst = sum(0)});
  else
    w.Copy(in, sum(0), scales.before);

  for (std::int32_t round = 0; round < rounds; ++round) {
    const std::int32_t other = other_of(round), peer = peer_of(round);
    const bool last = round == rounds - 1;
    w.Send(sum(round), peer);
    Operand mine = Local(sum(round)), theirs = From(peer, sum(round));
    // The lower index first on both sides: a minimum with a NaN in it must not depend on who computes it.
    std::vector<Operand> operands = index < other ? std::vector<Operand>{mine, theirs} : std::vector<Operand>{theirs, mine};
    w.Fold(Op::kRecvReduce, operands, {.dst = last ? out : sum(round + 1), .scale = last ? scales.after : kNone});
  }
  if (place < 2 * rest) w.Send(out, group.ranks[place - 1]);
}

const Algorithm kDoublingAllreduce{"recursive_doubling", Collective::kAllreduce, false, DeclareDoubling, WriteDoubling, PromiseAllreduce};

}  // namespace ropewalk::collective
