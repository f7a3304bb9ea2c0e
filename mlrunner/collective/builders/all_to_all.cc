// As many elements from each rank to each: in round d every rank sends to the one d further and receives from the one d before, so that
// nobody receives from two at once.
#include "mlrunner/collective/builders/builders.h"

namespace ropewalk::collective {
namespace {

Status DeclareAllToAll(Header* header) {
  DeclareInOut(header);
  header->buffers[kOut].may_alias = kNone;  // pieces change their places
  return {};
}

// One vector of `count` elements for each rank, or of each, side by side.
RangeId Vector(ShapeWriter& w, std::int32_t rank) { return w.Placed(w.Whole(), w.Whole(), rank); }

void WriteAllToAll(Writer& w) {
  w.BeginLoop(w.Whole(), kIn);
  auto vector = [&](std::int32_t buffer, std::int32_t rank) { return w.At(buffer, w.Segment(Vector(w, rank))); };
  w.Copy(vector(kIn, w.rank()), vector(kOut, w.rank()));
  for (std::int32_t d = 1; d < w.ranks(); ++d) {
    w.Send(vector(kIn, w.Around(d)), w.Around(d));
    w.Recv(w.Around(-d), vector(kOut, w.Around(-d)));
  }
  w.EndLoop();
}

void PromiseAllToAll(PostWriter& post) {
  for (std::int32_t to = 0; to < post.ranks(); ++to)
    for (std::int32_t from = 0; from < post.ranks(); ++from)
      post.Fold(to, post.At(kOut, Vector(post, from)), {{.rank = from, .chunk = post.At(kIn, Vector(post, to))}});
}

}  // namespace

const Algorithm kAllToAll{"all_to_all", Collective::kAllToAll, true, DeclareAllToAll, WriteAllToAll, PromiseAllToAll};

}  // namespace ropewalk::collective
