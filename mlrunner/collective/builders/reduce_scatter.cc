// The sum of each part at the rank that it belongs to: half of an allreduce.
//   direct: every rank sends the others their parts, and folds its own of all in the order of ranks, in one step: the left fold.
//   ring: a part sets out behind the rank that it belongs to, collects at each in the request's order, and has come round when it is there.
#include <vector>

#include "mlrunner/collective/builders/phases.h"

namespace ropewalk::collective {
namespace {

constexpr std::int32_t kPartial = 2;

void DeclareParts(Header* header) {
  DeclareInPartOut(header);
  header->channel_count = header->request.ranks == 1 ? 1 : header->request.channels;
}

Status DeclareDirect(Header* header) {
  DeclareParts(header);
  DeclareAverage(header, false);
  return {};
}

void WriteDirect(Writer& w) {
  const std::int32_t ranks = w.ranks(), rank = w.rank(), lanes = w.header().channel_count;
  const Scales scales = ScalesOf(w.header(), false);
  for (std::int32_t lane = 0; lane < lanes; ++lane) {
    w.OnChannel(lane);
    w.BeginLoop(PartOfWhole(w, 0), kIn, lanes);
    auto part = [&](std::int32_t of) { return w.At(kIn, w.Segment(PartOfWhole(w, of), lane, lanes)); };
    // Each begins with another peer, so that nobody receives from all at once.
    for (std::int32_t d = 1; d < ranks; ++d) w.Send(part(w.Around(d)), w.Around(d));
    FoldInOrder(w, AllRanks(w), part(rank), scales, w.At(kOut, w.Segment(PartAlone(w, rank), lane, lanes)));
    w.EndLoop();
  }
}

Status DeclareRing(Header* header) {
  RETURN_IF_ERROR(NeedTwoSlots(*header));
  DeclareParts(header);
  DeclareScratch(header, "partial");
  DeclareAverage(header, true);
  return {};
}

void WriteRing(Writer& w) {
  const std::int32_t ranks = w.ranks(), lanes = w.header().channel_count, place = PlaceOf(w.request(), w.rank());
  auto at = [&](std::int32_t distance) { return RankAt(w.request(), place + distance); };
  const std::int32_t next = at(1), previous = at(-1);
  const Scales scales = ScalesOf(w.header(), true);
  for (std::int32_t lane = 0; lane < lanes; ++lane) {
    w.OnChannel(lane);
    w.BeginLoop(PartOfWhole(w, 0), kIn, lanes);
    // Partial sums lie where their part does: one that was sent may still be read while the next one is stored.
    auto part = [&](std::int32_t buffer, std::int32_t of) { return w.At(buffer, w.Segment(PartOfWhole(w, of), lane, lanes)); };
    const ChunkId out = w.At(kOut, w.Segment(PartAlone(w, w.rank()), lane, lanes));
    if (ranks == 1) {
      w.Copy(part(kIn, 0), out, scales.alone());
    } else {
      w.Send(part(kIn, previous), next);
      for (std::int32_t s = 1; s < ranks; ++s) {
        const std::int32_t of = at(-1 - s);
        // The first hop brings another rank's own numbers, the later ones partial sums.
        const std::vector<Operand> operands = {From(previous, part(kIn, of), s == 1 ? scales.before : kNone),
                                               Local(part(kIn, of), scales.before)};
        if (s < ranks - 1)
          w.Fold(Op::kRecvReduceSend, operands, {.dst = part(kPartial, of), .to = next});
        else
          w.Fold(Op::kRecvReduce, operands, {.dst = out, .scale = scales.after});
      }
    }
    w.EndLoop();
  }
}

}  // namespace

// out of each rank = fold of its part of all ranks' in.
void PromiseReduceScatter(PostWriter& post) {
  for (std::int32_t rank = 0; rank < post.ranks(); ++rank)
    post.Fold(rank, post.At(kOut, PartAlone(post, rank)), {OfAll(post, post.At(kIn, PartOfWhole(post, rank)))});
}

const Algorithm kDirectReduceScatter{"reduce_scatter_direct", Collective::kReduceScatter, true, DeclareDirect, WriteDirect,
                                     PromiseReduceScatter};
const Algorithm kRingReduceScatter{
    "reduce_scatter_ring", Collective::kReduceScatter, false, DeclareRing, WriteRing, PromiseReduceScatter, Codecs::kNone, Follows::kRing};

}  // namespace ropewalk::collective
