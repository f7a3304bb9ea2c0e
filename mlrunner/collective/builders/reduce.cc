// The sum of all ranks' vectors at the root.
//   direct: all send to the root, which folds them in the order of ranks in one step: the left fold.
//   tree: a binomial tree whose inner ranks fold what comes from below and pass it on; segments follow each other up.
#include <vector>

#include "mlrunner/collective/builders/phases.h"

namespace ropewalk::collective {
namespace {

Status DeclareDirect(Header* header) {
  DeclareInOut(header);
  DeclareAverage(header, false);
  return {};
}

void WriteDirect(Writer& w) {
  const std::int32_t root = w.request().root;
  w.BeginLoop(w.Whole(), kIn);
  const ChunkId in = w.At(kIn, w.Segment(w.Whole()));
  if (w.rank() == root)
    FoldInOrder(w, AllRanks(w), in, ScalesOf(w.header(), false), w.At(kOut, w.Segment(w.Whole())));
  else
    w.Send(in, root);
  w.EndLoop();
}

constexpr std::int32_t kPartial = 2;

Status DeclareTree(Header* header) {
  DeclareInOut(header);
  DeclareScratch(header, "partial");
  DeclareAverage(header, true);
  return {};
}

// Places count from the root; below `place` lie place + 1, place + 2, place + 4, ... up to its lowest bit.
bool IsLeaf(std::int32_t place, std::int32_t ranks) { return (place & 1) != 0 || place + 1 >= ranks; }

void WriteTree(Writer& w) {
  const std::int32_t ranks = w.ranks(), root = w.request().root, place = w.Modulo(w.rank() - root);
  const Scales scales = ScalesOf(w.header(), true);
  w.BeginLoop(w.Whole(), kIn);
  const RangeId segment = w.Segment(w.Whole());
  const ChunkId in = w.At(kIn, segment);
  std::vector<Operand> operands = {Local(in, scales.before)};
  std::int32_t bit = 1;
  for (; (place & bit) == 0 && place + bit < ranks; bit <<= 1)
    operands.push_back(From(w.Modulo(place + bit + root), in, IsLeaf(place + bit, ranks) ? scales.before : kNone));
  const std::int32_t parent = w.Modulo((place & (place - 1)) + root);
  if (place == 0)
    w.Fold(ranks == 1 ? Op::kReduce : Op::kRecvReduce, operands, {.dst = w.At(kOut, segment), .scale = scales.after});
  else if (operands.size() > 1)
    w.Fold(Op::kRecvReduceSend, operands, {.dst = w.At(kPartial, segment), .to = parent});
  else
    w.Send(in, parent);
  w.EndLoop();
}

}  // namespace

// out of the root = fold of all ranks' in.
void PromiseReduce(PostWriter& post) {
  post.Fold(post.request().root, post.At(kOut, post.Whole()), {OfAll(post, post.At(kIn, post.Whole()))});
}

const Algorithm kDirectReduce{"reduce_direct", Collective::kReduce, true, DeclareDirect, WriteDirect, PromiseReduce};
const Algorithm kTreeReduce{"reduce_tree", Collective::kReduce, false, DeclareTree, WriteTree, PromiseReduce};

}  // namespace ropewalk::collective
