// The ring: P - 1 steps in which each part travels round and collects, P - 1 in which the sums travel round. Segments of a part follow
// each other on each channel, so that with two channels one is summed while the other is on its way.
#include "mlrunner/collective/builders/builders.h"

#include <string>

namespace ropewalk::collective {
namespace {

Status DeclareRing(Header* header) {
  // Each rank holds one message in its slot while it waits to pass on the next: with one slot the whole ring waits.
  if (header->request.slots < 2 && header->request.ranks > 1)
    return Status(Code::kInvalid, "COLL10", "ring: two slots are needed", "every rank would wait for the next one's slot",
                  "give the request 2 slots or more (it has " + std::to_string(header->request.slots) + "), or take another algorithm");
  DeclareInOut(header);
  DeclareAverage(header, true);
  header->channel_count = header->request.channels;
  return {};
}

void WriteRing(Writer& w) {
  const std::int32_t ranks = w.ranks(), rank = w.rank(), lanes = w.header().channel_count;
  const std::int32_t next = w.Around(1), previous = w.Around(-1);
  const Scales scales = ScalesOf(w.header(), true);
  for (std::int32_t lane = 0; lane < lanes; ++lane) {
    w.OnChannel(lane);
    w.BeginLoop(w.Part(w.Whole(), ranks, 0), kIn, lanes);
    auto part = [&](std::int32_t buffer, std::int32_t of) { return w.At(buffer, w.Segment(w.Part(w.Whole(), ranks, of), lane, lanes)); };
    if (ranks == 1) {
      w.Copy(part(kIn, 0), part(kOut, 0), scales.before != kNone ? scales.before : scales.after);
    } else {
      w.Send(part(kIn, rank), next);
      for (std::int32_t s = 1; s < ranks; ++s) {
        const std::int32_t of = rank - s;
        const bool whole = s == ranks - 1;  // all have been added
        Operand from = s == 1 ? From(previous, part(kIn, of), scales.before) : From(previous, part(kOut, of));
        w.Fold(Op::kRecvReduceSend, {from, Local(part(kIn, of), scales.before)},
               {.dst = part(kOut, of), .to = next, .scale = whole ? scales.after : kNone});
      }
      for (std::int32_t s = ranks; s < 2 * ranks - 2; ++s)
        w.Fold(Op::kRecvCopySend, {From(previous, part(kOut, rank - s))}, {.dst = part(kOut, rank - s), .to = next});
      w.Recv(previous, part(kOut, rank - (2 * ranks - 2)));
    }
    w.EndLoop();
  }
}

}  // namespace

const Algorithm kRingAllreduce{"ring", Collective::kAllreduce, false, DeclareRing, WriteRing, PromiseAllreduce};

}  // namespace ropewalk::collective
