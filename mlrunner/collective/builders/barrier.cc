// The dissemination barrier: in round k a rank tells the one 2^k further and hears from the one 2^k before; after ⌈log2 P⌉ rounds it has
// heard, directly or not, of all.
#include "mlrunner/collective/builders/builders.h"

namespace ropewalk::collective {
namespace {

Status DeclareBarrier(Header* header) {
  DeclareInOut(header);
  return {};
}

void WriteBarrier(Writer& w) {
  const ChunkId nothing = w.At(kOut, w.Nothing());
  for (std::int32_t distance = 1; distance < w.ranks(); distance *= 2) {
    w.Send(nothing, w.Around(distance));
    w.Recv(w.Around(-distance), nothing);
  }
}

void PromiseBarrier(PostWriter& post) { post.Add({.kind = ClaimKind::kBarrier}); }

}  // namespace

const Algorithm kDisseminationBarrier{"barrier", Collective::kBarrier, true, DeclareBarrier, WriteBarrier, PromiseBarrier};

}  // namespace ropewalk::collective
