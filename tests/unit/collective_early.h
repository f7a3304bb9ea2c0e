// Plans of two ranks in which a message comes while the memory that it belongs into is still in use.
//
// Thread rule: pure functions.
#pragma once

#include "mlrunner/collective/builders/builders.h"

namespace ropewalk::collective::testing {

inline constexpr std::int32_t kHeld = 2;
inline Status DeclareHeld(Header* header) {
  DeclareInOut(header);
  DeclareScratch(header, "held");
  return {};
}

// Both halves of a vector go through one place, one after the other.
inline void WriteTwice(Writer& w) {
  if (w.rank() == 0)
    for (std::int32_t half : {0, 1}) w.Send(w.At(kIn, w.Part(w.Whole(), 2, half)), 1);
  for (std::int32_t half : {0, 1}) {
    const RangeId part = w.Part(w.Whole(), 2, half);
    const ChunkId held = w.At(kHeld, w.Placed(part, part, 0));
    if (w.rank() == 1) w.Recv(0, held);
    w.Copy(w.rank() == 0 ? w.At(kIn, part) : held, w.At(kOut, part));
  }
}
inline const Algorithm kTwice{"twice", Collective::kBroadcast, true, DeclareHeld, WriteTwice, PromiseBroadcast};

// The second message is stored where, in place, the first one's sum still reads.
inline void WriteOvertakes(Writer& w) {
  const ChunkId in = w.At(kIn, w.Whole()), out = w.At(kOut, w.Whole()), held = w.At(kHeld, w.Whole());
  if (w.rank() == 0) {
    w.Send(in, 1);
    w.Send(in, 1);
    w.Copy(in, out);
    return;
  }
  w.Fold(Op::kRecvReduce, {From(0, in), Local(in)}, {.dst = held});
  w.Recv(0, out);
  w.Fold(Op::kReduce, {Local(held), Local(out)}, {.dst = out});
}
inline void PromiseOvertakes(PostWriter& post) {
  const ChunkId in = post.At(kIn, post.Whole()), out = post.At(kOut, post.Whole());
  post.Fold(0, out, {{.rank = 0, .chunk = in}});
  post.Fold(1, out, {{.rank = 0, .chunk = in, .coefficient = 2}, {.rank = 1, .chunk = in}});
}
inline const Algorithm kOvertakes{"overtakes", Collective::kAllreduce, false, DeclareHeld, WriteOvertakes, PromiseOvertakes};

}  // namespace ropewalk::collective::testing
