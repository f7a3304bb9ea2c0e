// The central parameter server: the root gets everybody's vector, folds them in the order of ranks in one step, so that it is the left
// fold, and sends the sum to all. Two rounds, of which the root's link carries all: P - 1 vectors in and as many out. With two channels the
// root folds one segment while the next one comes.
//
// With a server on each rank for its part of the vector this is `direct`.
#include "mlrunner/collective/builders/phases.h"

namespace ropewalk::collective {
namespace {

Status DeclareCentral(Header* header) {
  DeclareInOut(header);
  DeclareAverage(header, false);
  header->channel_count = header->request.channels;
  return {};
}

void WriteCentral(Writer& w) {
  const std::int32_t ranks = w.ranks(), rank = w.rank(), root = w.request().root, lanes = w.header().channel_count;
  for (std::int32_t lane = 0; lane < lanes; ++lane) {
    w.OnChannel(lane);
    w.BeginLoop(w.Whole(), kIn, lanes);
    const RangeId segment = w.Segment(w.Whole(), lane, lanes);
    const ChunkId in = w.At(kIn, segment), out = w.At(kOut, segment);
    if (rank == root) {
      FoldInOrder(w, AllRanks(w), in, ScalesOf(w.header(), false), out);
      for (std::int32_t d = 1; d < ranks; ++d) w.Send(out, w.Around(d));
    } else {
      w.Send(in, root);
      w.Recv(root, out);
    }
    w.EndLoop();
  }
}

}  // namespace

const Algorithm kCentralAllreduce{"central_ps", Collective::kAllreduce, true, DeclareCentral, WriteCentral, PromiseAllreduce};

}  // namespace ropewalk::collective
