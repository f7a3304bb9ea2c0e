// Everybody sends each peer another number of elements, known to the sender at run time: the counts travel first, then the elements.
#include "mlrunner/collective/builders/builders.h"

namespace ropewalk::collective {
namespace {

constexpr std::int32_t kMyCounts = 2, kCounts = 3;

Status DeclareAllToAllV(Header* header) {
  DeclareInOut(header);
  header->buffers[kOut].may_alias = kNone;  // pieces change their places
  header->buffers.push_back({.name = "my_counts", .role = Role::kIn, .element = Element::kCount});
  DeclareScratch(header, "counts", Element::kCount);
  return {};
}

void WriteAllToAllV(Writer& w) {
  const std::int32_t rank = w.rank(), ranks = w.ranks();
  auto entry = [&](std::int32_t buffer, std::int32_t of) { return w.At(buffer, w.Span(0, 1, 0, of)); };
  for (std::int32_t d = 1; d < ranks; ++d) w.Send(entry(kMyCounts, w.Around(d)), w.Around(d));
  w.Copy(entry(kMyCounts, rank), entry(kCounts, rank));
  for (std::int32_t d = 1; d < ranks; ++d) w.Recv(w.Around(-d), entry(kCounts, w.Around(-d)));
  w.Counts(w.At(kCounts, w.Span(0, ranks)));

  for (std::int32_t d = 1; d < ranks; ++d) w.Send(w.At(kIn, w.Table(rank, w.Around(d), false)), w.Around(d));
  w.Copy(w.At(kIn, w.Table(rank, rank, false)), w.At(kOut, w.Table(rank, rank, true)));
  for (std::int32_t d = 1; d < ranks; ++d) w.Recv(w.Around(-d), w.At(kOut, w.Table(w.Around(-d), rank, true)));
}

void PromiseAllToAllV(PostWriter& post) {
  for (std::int32_t to = 0; to < post.ranks(); ++to)
    for (std::int32_t from = 0; from < post.ranks(); ++from)
      post.Fold(to, post.At(kOut, post.Table(from, to, true)), {{.rank = from, .chunk = post.At(kIn, post.Table(from, to, false))}});
}

}  // namespace

const Algorithm kAllToAllV{"all_to_all_v", Collective::kAllToAllV, true, DeclareAllToAllV, WriteAllToAllV, PromiseAllToAllV};

}  // namespace ropewalk::collective
