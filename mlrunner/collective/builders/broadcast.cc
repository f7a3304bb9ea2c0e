// Broadcast from the root: a binomial tree (few rounds), or a chain of segments (each link carries the vector once, all at a time).
#include "mlrunner/collective/builders/builders.h"

namespace ropewalk::collective {
namespace {

Status DeclareBroadcast(Header* header) {
  DeclareInOut(header);
  return {};
}

void WriteTree(Writer& w) {
  const std::int32_t ranks = w.ranks(), root = w.request().root, place = w.Modulo(w.rank() - root);
  w.BeginLoop(w.Whole(), kIn);
  const ChunkId in = w.At(kIn, w.Segment(w.Whole())), out = w.At(kOut, w.Segment(w.Whole()));
  std::int32_t bit = 1;
  while (bit < ranks && (place & bit) == 0) bit <<= 1;
  if (place != 0) w.Recv(w.Modulo(place - bit + root), out);
  // The farthest first: it has most below it.
  for (bit >>= 1; bit > 0; bit >>= 1)
    if (place + bit < ranks) w.Send(place == 0 ? in : out, w.Modulo(place + bit + root));
  if (place == 0) w.Copy(in, out);
  w.EndLoop();
}

void WriteChain(Writer& w) {
  const std::int32_t ranks = w.ranks(), place = w.Modulo(w.rank() - w.request().root);
  w.BeginLoop(w.Whole(), kIn);
  const ChunkId in = w.At(kIn, w.Segment(w.Whole())), out = w.At(kOut, w.Segment(w.Whole()));
  if (place == 0) {
    if (ranks > 1) w.Send(in, w.Around(1));
    w.Copy(in, out);
  } else if (place < ranks - 1) {
    w.Fold(Op::kRecvCopySend, {From(w.Around(-1), out)}, {.dst = out, .to = w.Around(1)});
  } else {
    w.Recv(w.Around(-1), out);
  }
  w.EndLoop();
}

}  // namespace

// out of every rank = in of the root.
void PromiseBroadcast(PostWriter& post) {
  post.Fold(kEveryRank, post.At(kOut, post.Whole()), {{.rank = post.request().root, .chunk = post.At(kIn, post.Whole())}});
  post.post().identical = true;
}

const Algorithm kTreeBroadcast{"broadcast_tree", Collective::kBroadcast, true, DeclareBroadcast, WriteTree, PromiseBroadcast};
const Algorithm kChainBroadcast{"broadcast_chain", Collective::kBroadcast, true, DeclareBroadcast, WriteChain, PromiseBroadcast};

}  // namespace ropewalk::collective
