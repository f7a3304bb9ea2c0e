// The ring: P - 1 steps in which each part travels round and collects, P - 1 in which the sums travel round. Segments of a part follow
// each other on each channel, so that with two channels one is summed while the other is on its way. Round is meant by the request's order:
// each link between neighbours in it carries 2N(P - 1)/P, and no other link anything.
#include "mlrunner/collective/builders/phases.h"

namespace ropewalk::collective {
namespace {

Status DeclareRing(Header* header) {
  RETURN_IF_ERROR(NeedTwoSlots(*header));
  DeclareInOut(header);
  DeclareAverage(header, true);
  header->channel_count = header->request.channels;
  return {};
}

void WriteRing(Writer& w) {
  const std::int32_t ranks = w.ranks(), lanes = w.header().channel_count;
  const Scales scales = ScalesOf(w.header(), true);
  for (std::int32_t lane = 0; lane < lanes; ++lane) {
    w.OnChannel(lane);
    w.BeginLoop(w.Part(w.Whole(), ranks, 0), kIn, lanes);
    auto part = [&](std::int32_t of) { return w.Segment(w.Part(w.Whole(), ranks, of), lane, lanes); };
    if (ranks == 1)
      w.Copy(w.At(kIn, part(0)), w.At(kOut, part(0)), scales.alone());
    else
      RingAllreduce(w, {.group = InOrder(w), .part = part, .scales = scales});
    w.EndLoop();
  }
}

// A phase's ring as one rank sees it.
struct Ring {
  Ring(Writer& writer, const Phase& of)
      : w(writer), phase(of), next(of.group.ranks[of.group.Around(1)]), previous(of.group.ranks[of.group.Around(-1)]) {}
  // The part that set out `steps` places before this rank's.
  ChunkId Part(std::int32_t buffer, std::int32_t steps) const { return w.At(buffer, phase.part(phase.group.Around(-steps))); }

  Writer& w;
  const Phase& phase;
  std::int32_t next, previous;
};

}  // namespace

std::int32_t RingReduceScatter(Writer& w, const Phase& phase, bool passes_on) {
  const Ring ring(w, phase);
  const Scales& scales = phase.scales;
  const std::int32_t size = phase.group.size();
  w.Send(ring.Part(phase.in, 0), ring.next);
  for (std::int32_t s = 1; s < size; ++s) {
    const bool is_whole = s == size - 1;  // all have been added
    const ChunkId mine = ring.Part(phase.in, s), sum = ring.Part(phase.out, s);
    const Operand from = s == 1 ? From(ring.previous, mine, scales.before) : From(ring.previous, sum);
    const bool sends = !is_whole || passes_on;
    w.Fold(sends ? Op::kRecvReduceSend : Op::kRecvReduce, {from, Local(mine, scales.before)},
           {.dst = sum, .to = sends ? ring.next : kNone, .scale = is_whole ? scales.after : kNone});
  }
  return phase.group.Around(1 - size);
}

void RingAllgather(Writer& w, const Phase& phase, bool is_passed_on) {
  const Ring ring(w, phase);
  const std::int32_t size = phase.group.size();
  if (!is_passed_on) w.Send(ring.Part(phase.out, size - 1), ring.next);
  for (std::int32_t s = size; s < 2 * size - 2; ++s) {
    const ChunkId sum = ring.Part(phase.out, s);
    w.Fold(Op::kRecvCopySend, {From(ring.previous, sum)}, {.dst = sum, .to = ring.next});
  }
  w.Recv(ring.previous, ring.Part(phase.out, 2 * size - 2));
}

void RingAllreduce(Writer& w, const Phase& phase) {
  RingReduceScatter(w, phase, true);
  RingAllgather(w, phase, true);
}

const Algorithm kRingAllreduce{"ring",    Collective::kAllreduce, false,         DeclareRing,
                               WriteRing, PromiseAllreduce,       Codecs::kNone, Follows::kRing};

}  // namespace ropewalk::collective
