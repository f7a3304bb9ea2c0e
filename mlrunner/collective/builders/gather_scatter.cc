// All ranks' parts to the root, and the root's to all ranks: directly, in segments, or by a tree, for vectors so short that the messages
// count and not their bytes. The tree halves the ranks: who has the numbers of some hands those of the half that it is not in to the first
// rank of that half, which goes on alike (gather: the other way round). So what travels are always neighbouring parts, as they lie in the
// vector, whoever the root is.
#include "mlrunner/collective/builders/builders.h"

#include <vector>

namespace ropewalk::collective {
namespace {

Status DeclareGather(Header* header) {
  DeclarePartInOut(header);
  return {};
}

void WriteGather(Writer& w) {
  const std::int32_t rank = w.rank(), root = w.request().root;
  w.BeginLoop(PartOfWhole(w, 0), kIn);
  const ChunkId in = w.At(kIn, w.Segment(PartAlone(w, rank)));
  auto out = [&](std::int32_t of) { return w.At(kOut, w.Segment(PartOfWhole(w, of))); };
  if (rank != root) {
    w.Send(in, root);
  } else {
    w.Copy(in, out(rank));
    for (std::int32_t d = 1; d < w.ranks(); ++d) w.Recv(w.Around(d), out(w.Around(d)));
  }
  w.EndLoop();
}

Status DeclareScatter(Header* header) {
  DeclareInPartOut(header);
  return {};
}

void WriteScatter(Writer& w) {
  const std::int32_t rank = w.rank(), root = w.request().root;
  w.BeginLoop(PartOfWhole(w, 0), kIn);
  const ChunkId out = w.At(kOut, w.Segment(PartAlone(w, rank)));
  auto in = [&](std::int32_t of) { return w.At(kIn, w.Segment(PartOfWhole(w, of))); };
  if (rank != root) {
    w.Recv(root, out);
  } else {
    for (std::int32_t d = 1; d < w.ranks(); ++d) w.Send(in(w.Around(d)), w.Around(d));
    w.Copy(in(rank), out);
  }
  w.EndLoop();
}

// ---- by a tree -------------------------------------------------------------------------------------------------------------------------

constexpr std::int32_t kHeld = 2;

// Some ranks that follow each other, and the one among them that has their parts.
struct Branch {
  std::int32_t holder = 0, first = 0, count = 0;
};
struct Place {
  Branch own;
  std::int32_t parent = kNone;
  std::vector<Branch> below;  // the largest first
};

Place PlaceOf(std::int32_t ranks, std::int32_t root, std::int32_t rank) {
  Place place{.own = {root, 0, ranks}};
  Branch at = place.own;
  while (at.count > 1) {
    const std::int32_t lower = (at.count + 1) / 2, middle = at.first + lower;
    Branch low{at.first, at.first, lower}, high{middle, middle, at.count - lower};
    Branch& kept = at.holder < middle ? low : high;
    const Branch& given = at.holder < middle ? high : low;
    kept.holder = at.holder;
    if (rank == at.holder) place.below.push_back(given);
    if (rank == given.holder) {
      place.own = given;
      place.parent = at.holder;
    }
    const bool is_given = rank >= given.first && rank < given.first + given.count;
    at = is_given ? given : kept;
  }
  return place;
}

RangeId PartsOf(Writer& w, const Branch& branch) { return w.Parts(w.Whole(), w.ranks(), branch.first, branch.count); }

Status DeclareTreeGather(Header* header) {
  DeclarePartInOut(header);
  DeclareScratch(header, "held");
  return {};
}

void WriteTreeGather(Writer& w) {
  const Place place = PlaceOf(w.ranks(), w.request().root, w.rank());
  const ChunkId in = w.At(kIn, PartAlone(w, w.rank()));
  if (place.own.count == 1 && place.parent != kNone) {
    w.Send(in, place.parent);
    return;
  }
  const std::int32_t held = place.parent == kNone ? kOut : kHeld;
  w.Copy(in, w.At(held, PartOfWhole(w, w.rank())));
  // The smallest first: it has least to wait for.
  for (auto branch = place.below.rbegin(); branch != place.below.rend(); ++branch) w.Recv(branch->holder, w.At(held, PartsOf(w, *branch)));
  if (place.parent != kNone) w.Send(w.At(held, PartsOf(w, place.own)), place.parent);
}

Status DeclareTreeScatter(Header* header) {
  DeclareInPartOut(header);
  DeclareScratch(header, "held");
  return {};
}

void WriteTreeScatter(Writer& w) {
  const Place place = PlaceOf(w.ranks(), w.request().root, w.rank());
  const ChunkId out = w.At(kOut, PartAlone(w, w.rank()));
  if (place.own.count == 1 && place.parent != kNone) {
    w.Recv(place.parent, out);
    return;
  }
  const std::int32_t held = place.parent == kNone ? kIn : kHeld;
  if (place.parent != kNone) w.Recv(place.parent, w.At(held, PartsOf(w, place.own)));
  for (const Branch& branch : place.below) w.Send(w.At(held, PartsOf(w, branch)), branch.holder);
  w.Copy(w.At(held, PartOfWhole(w, w.rank())), out);
}

// out of the root = in of all, each as its part.
void PromiseGather(PostWriter& post) {
  for (std::int32_t from = 0; from < post.ranks(); ++from)
    post.Fold(post.request().root, post.At(kOut, PartOfWhole(post, from)), {{.rank = from, .chunk = post.At(kIn, PartAlone(post, from))}});
}

// out of each rank = its part of the root's in.
void PromiseScatter(PostWriter& post) {
  for (std::int32_t to = 0; to < post.ranks(); ++to)
    post.Fold(to, post.At(kOut, PartAlone(post, to)), {{.rank = post.request().root, .chunk = post.At(kIn, PartOfWhole(post, to))}});
}

}  // namespace

const Algorithm kDirectGather{"gather_direct", Collective::kGather, true, DeclareGather, WriteGather, PromiseGather};
const Algorithm kTreeGather{"gather_tree", Collective::kGather, true, DeclareTreeGather, WriteTreeGather, PromiseGather};
const Algorithm kDirectScatter{"scatter_direct", Collective::kScatter, true, DeclareScatter, WriteScatter, PromiseScatter};
const Algorithm kTreeScatter{"scatter_tree", Collective::kScatter, true, DeclareTreeScatter, WriteTreeScatter, PromiseScatter};

}  // namespace ropewalk::collective
