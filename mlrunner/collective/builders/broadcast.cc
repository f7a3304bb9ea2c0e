// Broadcast from the root: a binomial tree (few rounds), or a chain of segments (each link carries the vector once, all at a time), which
// goes round the request's order from the root to who stands before it.
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
  const Request& request = w.request();
  const std::int32_t ranks = w.ranks(), mine = PlaceOf(request, w.rank()), place = w.Modulo(mine - PlaceOf(request, request.root));
  const std::int32_t next = RankAt(request, mine + 1), previous = RankAt(request, mine - 1);
  w.BeginLoop(w.Whole(), kIn);
  const ChunkId in = w.At(kIn, w.Segment(w.Whole())), out = w.At(kOut, w.Segment(w.Whole()));
  if (place == 0) {
    if (ranks > 1) w.Send(in, next);
    w.Copy(in, out);
  } else if (place < ranks - 1) {
    w.Fold(Op::kRecvCopySend, {From(previous, out)}, {.dst = out, .to = next});
  } else {
    w.Recv(previous, out);
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
const Algorithm kChainBroadcast{"broadcast_chain", Collective::kBroadcast, true,          DeclareBroadcast,
                                WriteChain,        PromiseBroadcast,       Codecs::kNone, Follows::kRing};

}  // namespace ropewalk::collective
