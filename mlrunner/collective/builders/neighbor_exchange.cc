// Every rank sends its vector along the edges of a digraph, and has the vectors of those it hears from side by side.
#include "mlrunner/collective/builders/builders.h"

#include <algorithm>
#include <string>

namespace ropewalk::collective {
namespace {

Status DeclareExchange(Header* header) {
  const Request& request = header->request;
  auto refuse = [](const std::string& what, const std::string& why) {
    return Status(Code::kInvalid, "COLL10", "neighbor_exchange: " + what, why,
                  "give for each rank those whose vectors it receives, each once; the same on all ranks");
  };
  if (request.neighbors.size() != static_cast<std::size_t>(request.ranks))
    return refuse("neighbours are needed for each of " + std::to_string(request.ranks) + " ranks",
                  "they are given for " + std::to_string(request.neighbors.size()));
  for (std::int32_t rank = 0; rank < request.ranks; ++rank)
    for (auto from = request.neighbors[rank].begin(); from != request.neighbors[rank].end(); ++from) {
      const std::string what = "rank " + std::to_string(rank) + " cannot hear from rank " + std::to_string(*from);
      if (*from < 0 || *from >= request.ranks)
        return refuse(what, "there are " + std::to_string(request.ranks) + " ranks, which count from 0");
      if (std::find(request.neighbors[rank].begin(), from, *from) != from)
        return refuse(what + " twice", "each vector is sent along an edge once, and there is one edge at most from rank to rank");
    }
  DeclareInOut(header);
  header->buffers[kOut].may_alias = kNone;  // it is sent while others come
  return {};
}

RangeId Vector(ShapeWriter& w, std::size_t place) { return w.Placed(w.Whole(), w.Whole(), static_cast<std::int32_t>(place)); }

void WriteExchange(Writer& w) {
  const Neighbors& neighbors = w.request().neighbors;
  w.BeginLoop(w.Whole(), kIn);
  const ChunkId in = w.At(kIn, w.Segment(w.Whole()));
  for (std::int32_t d = 1; d < w.ranks(); ++d) {
    const auto& theirs = neighbors[w.Around(d)];
    if (std::find(theirs.begin(), theirs.end(), w.rank()) != theirs.end()) w.Send(in, w.Around(d));
  }
  const auto& mine = neighbors[w.rank()];
  for (std::size_t place = 0; place < mine.size(); ++place) {
    const ChunkId out = w.At(kOut, w.Segment(Vector(w, place)));
    if (mine[place] == w.rank())
      w.Copy(in, out);
    else
      w.Recv(mine[place], out);
  }
  w.EndLoop();
}

void PromiseExchange(PostWriter& post) {
  const Neighbors& neighbors = post.request().neighbors;
  for (std::int32_t rank = 0; rank < post.ranks(); ++rank)
    for (std::size_t place = 0; place < neighbors[rank].size(); ++place)
      post.Fold(rank, post.At(kOut, Vector(post, place)), {{.rank = neighbors[rank][place], .chunk = post.At(kIn, post.Whole())}});
}

}  // namespace

const Algorithm kNeighborExchange{"neighbor_exchange", Collective::kNeighborExchange, true, DeclareExchange, WriteExchange,
                                  PromiseExchange};

}  // namespace ropewalk::collective
