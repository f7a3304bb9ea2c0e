// The parts of all ranks, side by side, at every rank: directly from each to each, or round a ring (the request's order), where each link
// carries every part but one. And what each has when only it knows how much that is (allgather-v): counts travel first, then elements.
#include "mlrunner/collective/builders/builders.h"

namespace ropewalk::collective {
namespace {

Status DeclareDirect(Header* header) {
  DeclarePartInOut(header);
  header->channel_count = header->request.ranks == 1 ? 1 : header->request.channels;
  return {};
}

void WriteDirect(Writer& w) {
  const std::int32_t ranks = w.ranks(), rank = w.rank(), lanes = w.header().channel_count;
  for (std::int32_t lane = 0; lane < lanes; ++lane) {
    w.OnChannel(lane);
    w.BeginLoop(PartOfWhole(w, 0), kIn, lanes);
    const ChunkId in = w.At(kIn, w.Segment(PartAlone(w, rank), lane, lanes));
    auto out = [&](std::int32_t of) { return w.At(kOut, w.Segment(PartOfWhole(w, of), lane, lanes)); };
    for (std::int32_t d = 1; d < ranks; ++d) w.Send(in, w.Around(d));
    w.Copy(in, out(rank));
    for (std::int32_t d = 1; d < ranks; ++d) w.Recv(w.Around(-d), out(w.Around(-d)));
    w.EndLoop();
  }
}

Status DeclareRing(Header* header) {
  RETURN_IF_ERROR(NeedTwoSlots(*header));
  return DeclareDirect(header);
}

void WriteRing(Writer& w) {
  const std::int32_t ranks = w.ranks(), rank = w.rank(), lanes = w.header().channel_count, place = PlaceOf(w.request(), rank);
  auto at = [&](std::int32_t distance) { return RankAt(w.request(), place + distance); };
  const std::int32_t next = at(1), previous = at(-1);
  for (std::int32_t lane = 0; lane < lanes; ++lane) {
    w.OnChannel(lane);
    w.BeginLoop(PartOfWhole(w, 0), kIn, lanes);
    const ChunkId in = w.At(kIn, w.Segment(PartAlone(w, rank), lane, lanes));
    auto out = [&](std::int32_t of) { return w.At(kOut, w.Segment(PartOfWhole(w, of), lane, lanes)); };
    if (ranks > 1) w.Send(in, next);
    w.Copy(in, out(rank));
    for (std::int32_t s = 1; s < ranks - 1; ++s) w.Fold(Op::kRecvCopySend, {From(previous, out(at(-s)))}, {.dst = out(at(-s)), .to = next});
    if (ranks > 1) w.Recv(previous, out(next));
    w.EndLoop();
  }
}

constexpr std::int32_t kMyCount = 2, kCounts = 3;

Status DeclareV(Header* header) {
  DeclareInOut(header);
  header->buffers[kOut].may_alias = kNone;  // nobody knows its place before the counts have come
  header->buffers.push_back({.name = "my_counts", .role = Role::kIn, .element = Element::kCount});
  DeclareScratch(header, "counts", Element::kCount);
  return {};
}

// What a rank has for one it has for all: column 0 of the count table is all there is of it.
constexpr std::int32_t kColumn = 0;
ChunkId Given(ShapeWriter& w, std::int32_t from) { return w.At(kIn, w.Table(from, kColumn, false)); }
ChunkId Taken(ShapeWriter& w, std::int32_t from) { return w.At(kOut, w.Table(from, kColumn, true)); }

void WriteV(Writer& w) {
  const std::int32_t rank = w.rank(), ranks = w.ranks();
  const ChunkId mine = w.At(kMyCount, w.Span(0, 1));
  auto entry = [&](std::int32_t of) { return w.At(kCounts, w.Span(0, 1, 0, of)); };
  for (std::int32_t d = 1; d < ranks; ++d) w.Send(mine, w.Around(d));
  w.Copy(mine, entry(rank));
  for (std::int32_t d = 1; d < ranks; ++d) w.Recv(w.Around(-d), entry(w.Around(-d)));
  w.Counts(w.At(kCounts, w.Span(0, ranks)), kColumn);

  for (std::int32_t d = 1; d < ranks; ++d) w.Send(Given(w, rank), w.Around(d));
  w.Copy(Given(w, rank), Taken(w, rank));
  for (std::int32_t d = 1; d < ranks; ++d) w.Recv(w.Around(-d), Taken(w, w.Around(-d)));
}

void PromiseV(PostWriter& post) {
  for (std::int32_t from = 0; from < post.ranks(); ++from)
    post.Fold(kEveryRank, Taken(post, from), {{.rank = from, .chunk = Given(post, from)}});
  post.post().identical = true;
}

}  // namespace

// out of every rank = in of all, each as its part.
void PromiseAllgather(PostWriter& post) {
  for (std::int32_t from = 0; from < post.ranks(); ++from)
    post.Fold(kEveryRank, post.At(kOut, PartOfWhole(post, from)), {{.rank = from, .chunk = post.At(kIn, PartAlone(post, from))}});
  post.post().identical = true;
}

const Algorithm kDirectAllgather{"allgather_direct", Collective::kAllgather, true, DeclareDirect, WriteDirect, PromiseAllgather};
const Algorithm kRingAllgather{"allgather_ring", Collective::kAllgather, true,          DeclareRing,
                               WriteRing,        PromiseAllgather,       Codecs::kNone, Follows::kRing};
const Algorithm kAllgatherV{"allgather_v", Collective::kAllgatherV, true, DeclareV, WriteV, PromiseV};

}  // namespace ropewalk::collective
