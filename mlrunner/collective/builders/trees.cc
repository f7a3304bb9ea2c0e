// Allreduce by trees: segments are summed up on their way to the root, and the finished ones travel down on a second channel.
//   tree: one binary tree over the ranks, counted from the request's root on.
//   double_tree: two of them for half of the vector each, so made that a rank which is an inner node of one is a leaf of the other (P even;
//     for odd P one rank is inner in both). So every link is used both ways, and no rank sends much more than 2N. After Sanders, Speck and
//     Träff ("Two-tree algorithms for full bandwidth broadcast, reduction and scan", 2009), in the form that NCCL has.
#include <algorithm>
#include <cstddef>
#include <vector>

#include "mlrunner/collective/builders/builders.h"

namespace ropewalk::collective {
namespace {

// The tree over places 0 .. ranks - 1. A place's lowest bit that is set says how high it stands; odd places are the leaves, 0 is the root,
// with one child.
//
//   ranks = 7:       0
//                    4
//                 2     6
//                1 3   5
std::int32_t ParentOf(std::int32_t place, std::int32_t ranks) {
  if (place == 0) return kNone;
  const std::int32_t bit = place & -place, parent = (place ^ bit) | bit << 1;
  return parent < ranks ? parent : place ^ bit;
}

std::vector<std::int32_t> ChildrenOf(std::int32_t place, std::int32_t ranks) {
  std::int32_t reach = place & -place;
  if (place == 0)
    for (reach = 1; reach < ranks; reach <<= 1) continue;
  reach >>= 1;
  if (reach == 0) return {};
  if (place == 0) return {reach};
  std::vector<std::int32_t> children = {place - reach};
  while (reach > 0 && place + reach >= ranks) reach >>= 1;
  if (reach > 0) children.push_back(place + reach);
  return children;
}

bool IsLeaf(std::int32_t place) { return place % 2 != 0; }

// A tree as one rank sees it.
class Tree {
 public:
  // `second`: the one that is made of the same places, the other way round or moved by one.
  Tree(const Writer& w, bool second)
      : ranks_(w.ranks()), first_(w.request().root + (second && ranks_ % 2 != 0 ? 1 : 0)), mirrored_(second && ranks_ % 2 == 0) {
    place_ = w.Modulo(w.rank() - first_);
    if (mirrored_) place_ = ranks_ - 1 - place_;
    parent_ = ParentOf(place_, ranks_);
    children_ = ChildrenOf(place_, ranks_);
  }

  // Leaf 0, inner node 1, root 2.
  int height() const { return place_ == 0 ? 2 : IsLeaf(place_) ? 0 : 1; }

  // Sums of `range` on their way to the root. Leaves send what they were given, so who takes it scales it.
  StepId WriteUp(Writer& w, RangeId range, const Scales& scales) const {
    const ChunkId in = w.At(kIn, range), out = w.At(kOut, range);
    if (children_.empty()) return w.Send(in, RankOf(parent_));
    std::vector<Operand> operands;
    for (std::int32_t child : children_)
      operands.push_back(IsLeaf(child) ? From(RankOf(child), in, scales.before) : From(RankOf(child), out));
    operands.push_back(Local(in, scales.before));
    if (parent_ == kNone) return w.Fold(Op::kRecvReduce, operands, {.dst = out, .scale = scales.after});
    return w.Fold(Op::kRecvReduceSend, operands, {.dst = out, .to = RankOf(parent_)});
  }

  // The finished sum on its way back; `up`: the step above.
  void WriteDown(Writer& w, RangeId range, StepId up) const {
    const ChunkId out = w.At(kOut, range);
    std::size_t sent = 0;
    if (parent_ == kNone) {
      w.After(up);
    } else if (children_.empty()) {
      w.Recv(RankOf(parent_), out);
    } else {
      w.Fold(Op::kRecvCopySend, {From(RankOf(parent_), out)}, {.dst = out, .to = RankOf(children_[sent++])});
    }
    for (; sent < children_.size(); ++sent) w.Send(out, RankOf(children_[sent]));
  }

 private:
  std::int32_t RankOf(std::int32_t place) const { return ((mirrored_ ? ranks_ - 1 - place : place) + first_) % ranks_; }

  std::int32_t ranks_, first_;
  bool mirrored_;
  std::int32_t place_ = 0, parent_ = kNone;
  std::vector<std::int32_t> children_;
};

Status DeclareTrees(Header* header) {
  DeclareInOut(header);
  DeclareAverage(header, true);
  header->channel_count = header->request.ranks == 1 ? 1 : 2;
  return {};
}

void WriteTrees(Writer& w, std::int32_t count) {
  const Scales scales = ScalesOf(w.header(), true);
  if (w.ranks() == 1) {
    w.Copy(w.At(kIn, w.Whole()), w.At(kOut, w.Whole()), scales.alone());
    return;
  }
  struct Half {
    Tree tree;
    RangeId range;
    StepId up;
  };
  std::vector<Half> halves;
  for (std::int32_t i = 0; i < count; ++i)
    halves.push_back({.tree = Tree(w, i > 0), .range = count == 1 ? w.Whole() : w.Part(w.Whole(), count, i), .up = {}});
  const RangeId largest = halves[0].range;
  // What a leaf sends waits for nothing, so it goes before what an inner node must wait for; on the way down the other way round.
  std::stable_sort(halves.begin(), halves.end(), [](const Half& a, const Half& b) { return a.tree.height() < b.tree.height(); });
  w.BeginLoop(largest, kIn);
  for (Half& half : halves) half.up = half.tree.WriteUp(w, w.Segment(half.range), scales);
  w.EndLoop();

  std::reverse(halves.begin(), halves.end());
  w.OnChannel(1);
  w.BeginLoop(largest, kIn);
  for (const Half& half : halves) half.tree.WriteDown(w, w.Segment(half.range), half.up);
  w.EndLoop();
}

void WriteTree(Writer& w) { WriteTrees(w, 1); }
void WriteDoubleTree(Writer& w) { WriteTrees(w, 2); }

}  // namespace

const Algorithm kTreeAllreduce{"tree", Collective::kAllreduce, false, DeclareTrees, WriteTree, PromiseAllreduce};
const Algorithm kDoubleTreeAllreduce{"double_tree", Collective::kAllreduce, false, DeclareTrees, WriteDoubleTree, PromiseAllreduce};

}  // namespace ropewalk::collective
