// Halving and doubling: log2(P) rounds in which pairs exchange halves of what they still sum up, so that each rank ends with the sum of
// its own piece; log2(P) rounds back, in which the pieces grow together again. After Rabenseifner; for P that is no power of two by binary
// blocks (Rabenseifner and Träff, EuroPVM/MPI 2004):
//
//   P = 7:  ranks 0 1 2 3 | 4 5 | 6      blocks of 4, 2 and 1 ranks, each of which halves for itself
//   up:     6 sends each of 4, 5 its piece; these send each of 0..3 its piece of both blocks' sum
//   down:   the pieces of the whole sum go back the same way, and each block doubles for itself
//
// Pieces nest: the piece of rank i of a smaller block is those of ranks i, i + s, i + 2s, ... of the next larger one, s its size. So no
// rank hands its whole vector to another, and all ranks together send 2N(P-1).
#include <vector>

#include "mlrunner/collective/builders/phases.h"

namespace ropewalk::collective {
namespace {

struct Block {
  std::int32_t first = 0, bits = 0;  // 2^bits places from `first` on
  std::int32_t size() const { return 1 << bits; }
};

// Largest first.
std::vector<Block> BlocksOf(std::int32_t ranks) {
  std::vector<Block> blocks;
  std::int32_t first = 0;
  for (std::int32_t bits = 30; bits >= 0; --bits)
    if ((ranks >> bits & 1) != 0) {
      blocks.push_back({first, bits});
      first += 1 << bits;
    }
  return blocks;
}

// What is left of `range` after `bits` halvings: each keeps the half that a bit of `index` names, the lowest first.
RangeId PieceOf(Writer& w, RangeId range, std::int32_t index, std::int32_t bits) {
  for (std::int32_t bit = 0; bit < bits; ++bit) range = w.Part(range, 2, index >> bit & 1);
  return range;
}

Status DeclareHalvingDoubling(Header* header) {
  DeclareInOut(header);
  DeclareAverage(header, true);
  header->channel_count = header->request.channels;
  return {};
}

void WriteHalvingDoubling(Writer& w) {
  const std::int32_t lanes = w.header().channel_count;
  const Scales scales = ScalesOf(w.header(), true);
  for (std::int32_t lane = 0; lane < lanes; ++lane) {
    w.OnChannel(lane);
    w.BeginLoop(w.Whole(), kIn, lanes);
    const RangeId range = w.Segment(w.Whole(), lane, lanes);
    if (w.ranks() == 1)
      w.Copy(w.At(kIn, range), w.At(kOut, range), scales.alone());
    else
      HalvingDoublingAllreduce(w, {.group = AllRanks(w), .range = range, .scales = scales});
    w.EndLoop();
  }
}

}  // namespace

void HalvingDoublingAllreduce(Writer& w, const Phase& phase) {
  const std::vector<Block> blocks = BlocksOf(phase.group.size());
  std::size_t at = 0;
  while (phase.group.place >= blocks[at].first + blocks[at].size()) ++at;
  const Block& block = blocks[at];
  const Block* smaller = at + 1 < blocks.size() ? &blocks[at + 1] : nullptr;
  const Block* larger = at > 0 ? &blocks[at - 1] : nullptr;
  const std::int32_t index = phase.group.place - block.first;
  auto rank = [&](const Block& of, std::int32_t i) { return phase.group.ranks[of.first + i]; };
  auto piece = [&](std::int32_t buffer, std::int32_t i, std::int32_t bits) { return w.At(buffer, PieceOf(w, phase.range, i, bits)); };
  // Who has not been in a round yet has what it was given.
  auto source = [&](std::int32_t rounds) { return rounds == 0 ? phase.in : phase.out; };
  auto scale = [&](std::int32_t rounds) { return rounds == 0 ? phase.scales.before : kNone; };

  for (std::int32_t round = 0; round < block.bits; ++round) {
    const std::int32_t other = index ^ (1 << round);
    const bool last = round + 1 == block.bits && smaller == nullptr && larger == nullptr;
    const ChunkId kept = piece(source(round), index, round + 1);
    w.Send(piece(source(round), other, round + 1), rank(block, other));
    w.Fold(Op::kRecvReduce, {From(rank(block, other), kept, scale(round)), Local(kept, scale(round))},
           {.dst = piece(phase.out, index, round + 1), .scale = last ? phase.scales.after : kNone});
  }
  const ChunkId mine = piece(phase.out, index, block.bits);
  if (smaller != nullptr) {
    const std::int32_t below = rank(*smaller, index % smaller->size());
    w.Fold(Op::kRecvReduce, {Local(mine), From(below, piece(source(smaller->bits), index, block.bits), scale(smaller->bits))},
           {.dst = mine, .scale = larger == nullptr ? phase.scales.after : kNone});
  }
  if (larger != nullptr) {
    for (std::int32_t i = index; i < larger->size(); i += block.size())
      w.Send(piece(source(block.bits), i, larger->bits), rank(*larger, i));
    for (std::int32_t i = index; i < larger->size(); i += block.size()) w.Recv(rank(*larger, i), piece(phase.out, i, larger->bits));
  }
  if (smaller != nullptr) w.Send(mine, rank(*smaller, index % smaller->size()));
  for (std::int32_t round = block.bits - 1; round >= 0; --round) {
    const std::int32_t other = index ^ (1 << round);
    w.Send(piece(phase.out, index, round + 1), rank(block, other));
    w.Recv(rank(block, other), piece(phase.out, other, round + 1));
  }
}

const Algorithm kHalvingDoublingAllreduce{"halving_doubling",     Collective::kAllreduce, false,
                                          DeclareHalvingDoubling, WriteHalvingDoubling,   PromiseAllreduce};

}  // namespace ropewalk::collective
