// The root's vector to one peer, in segments.
#include "mlrunner/collective/builders/builders.h"

#include <string>

namespace ropewalk::collective {
namespace {

Status DeclarePointToPoint(Header* header) {
  DeclareInOut(header);
  if (header->request.peer < 0 || header->request.peer >= header->request.ranks)
    return Status(Code::kInvalid, "COLL10", "send_recv: there is no rank " + std::to_string(header->request.peer),
                  "the gang has " + std::to_string(header->request.ranks) + " ranks, which count from 0",
                  "give a destination (peer) from 0 to " + std::to_string(header->request.ranks - 1));
  return {};
}

void WritePointToPoint(Writer& w) {
  const std::int32_t from = w.request().root, to = w.request().peer;
  w.BeginLoop(w.Whole(), kIn);
  const ChunkId in = w.At(kIn, w.Segment(w.Whole())), out = w.At(kOut, w.Segment(w.Whole()));
  if (from == to && w.rank() == from) {
    w.Copy(in, out);
  } else if (w.rank() == from) {
    w.Send(in, to);
  } else if (w.rank() == to) {
    w.Recv(from, out);
  }
  w.EndLoop();
}

void PromisePointToPoint(PostWriter& post) {
  post.Fold(post.request().peer, post.At(kOut, post.Whole()), {{.rank = post.request().root, .chunk = post.At(kIn, post.Whole())}});
}

}  // namespace

const Algorithm kPointToPoint{"send_recv", Collective::kSendRecv, true, DeclarePointToPoint, WritePointToPoint, PromisePointToPoint};

}  // namespace ropewalk::collective
