// Recursive doubling: log2(P) rounds in which pairs exchange all they have. With P = 2^k + rest, `rest` ranks hand their vector to a
// neighbour first and get the result from it. Each round's sum has its own scratch: a sum that was sent may still be read while the next
// one is stored.
#include "mlrunner/collective/builders/builders.h"

#include <vector>

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
  const std::int32_t ranks = w.ranks(), rank = w.rank(), rounds = Rounds(ranks), rest = ranks - (1 << rounds);
  const Scales scales = ScalesOf(w.header(), true);
  const RangeId whole = w.Whole();
  const ChunkId in = w.At(kIn, whole), out = w.At(kOut, whole);
  auto sum = [&](std::int32_t round) { return w.At(kSums, w.Placed(whole, whole, round)); };
  if (ranks == 1) {
    w.Copy(in, out, scales.before != kNone ? scales.before : scales.after);
    return;
  }
  if (rank < 2 * rest && rank % 2 == 0) {
    w.Send(in, rank + 1);
    w.Recv(rank + 1, out);
    return;
  }
  if (rank < 2 * rest)
    w.Fold(Op::kRecvReduce, {From(rank - 1, in, scales.before), Local(in, scales.before)}, {.dst = sum(0)});
  else
    w.Copy(in, sum(0), scales.before);

  const std::int32_t index = rank < 2 * rest ? rank / 2 : rank - rest;
  for (std::int32_t round = 0; round < rounds; ++round) {
    const std::int32_t other = index ^ (1 << round), peer = other < rest ? 2 * other + 1 : other + rest;
    const bool last = round == rounds - 1;
    w.Send(sum(round), peer);
    Operand mine = Local(sum(round)), theirs = From(peer, sum(round));
    // The lower index first on both sides: a minimum with a NaN in it must not depend on who computes it.
    std::vector<Operand> operands = index < other ? std::vector<Operand>{mine, theirs} : std::vector<Operand>{theirs, mine};
    w.Fold(Op::kRecvReduce, operands, {.dst = last ? out : sum(round + 1), .scale = last ? scales.after : kNone});
  }
  if (rank < 2 * rest) w.Send(out, rank - 1);
}

}  // namespace

const Algorithm kDoublingAllreduce{"recursive_doubling", Collective::kAllreduce, false, DeclareDoubling, WriteDoubling, PromiseAllreduce};

}  // namespace ropewalk::collective
