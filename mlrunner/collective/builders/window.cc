// Neighbour mixing through one-sided windows: each rank puts its vector into a window of every out-neighbour and mixes what lies in its
// own, out = W[r][r] · in + sum of W[r][j] · window_j. `window` waits for all of this round's puts; `window_relaxed` takes what is there,
// so that a rank that stands still stops nobody.
#include "mlrunner/collective/builders/builders.h"

#include <algorithm>
#include <string>
#include <vector>

namespace ropewalk::collective {
namespace {

constexpr std::int32_t kWindowBuffer = 2;
constexpr std::int32_t kArrived = 0, kTaken = 1;  // counters

const std::vector<std::vector<double>>& W(const Request& request) { return request.mixing; }

// The ranks whose value goes into `rank`'s result, itself excepted.
std::vector<std::int32_t> InNeighbours(const Request& request, std::int32_t rank) {
  std::vector<std::int32_t> from;
  for (std::int32_t other = 0; other < request.ranks; ++other)
    if (other != rank && W(request)[rank][other] != 0) from.push_back(other);
  return from;
}

// The window at `owner` that `writer` puts into.
RangeId WindowOf(ShapeWriter& w, std::int32_t owner, std::int32_t writer) {
  std::vector<std::int32_t> from = InNeighbours(w.request(), owner);
  auto index = static_cast<std::int32_t>(std::find(from.begin(), from.end(), writer) - from.begin());
  return w.Placed(w.Whole(), w.Whole(), index);
}

Status Declare(Header* header, bool relaxed) {
  const Request& request = header->request;
  bool square = request.mixing.size() == static_cast<std::size_t>(request.ranks);
  for (const auto& row : request.mixing) square = square && row.size() == static_cast<std::size_t>(request.ranks);
  if (!square || request.op != ReduceOp::kSum || !IsFloat(request.dtype))
    return Status(Code::kInvalid, "COLL10", "window: a mixing matrix of ranks × ranks and a float sum are needed",
                  square ? "asked for is the " + std::string(Name(request.op)) + " of " + std::string(Name(request.dtype)) +
                               "; each vector is weighted and added, which needs fractions"
                         : "there are " + std::to_string(request.ranks) + " ranks, and the matrix has " +
                               std::to_string(request.mixing.size()) + " rows, or one that is shorter or longer",
                  square ? "mix f32, f64, f16 or bf16 vectors, with op kSum"
                         : "give a row for each rank, and in it a weight for each rank: 0 for those it takes nothing from");
  DeclareInOut(header);
  header->buffers.push_back({.name = "window", .role = Role::kWindow, .relaxed = relaxed});
  for (const auto& row : request.mixing)
    for (double weight : row) DeclareScale(header, weight);
  header->counter_count = relaxed ? 0 : 2;
  return {};
}
Status DeclareWindow(Header* header) { return Declare(header, false); }
Status DeclareWindowRelaxed(Header* header) { return Declare(header, true); }

void Write(Writer& w, bool relaxed) {
  const std::int32_t ranks = w.ranks(), rank = w.rank();
  const ChunkId in = w.At(kIn, w.Whole());
  std::vector<std::int32_t> to;
  for (std::int32_t other = 0; other < ranks; ++other)
    if (other != rank && W(w.request())[other][rank] != 0) to.push_back(other);
  const std::vector<std::int32_t> from = InNeighbours(w.request(), rank);

  for (std::int32_t other : to) {
    w.Put(in, other, w.At(kWindowBuffer, WindowOf(w, other, rank)));
    if (!relaxed) w.Notify(other, kArrived);
  }
  // In place the result overwrites what the puts read.
  for (std::int32_t other : to) w.Flush(other);
  if (!relaxed) w.Wait(kArrived, static_cast<std::int64_t>(from.size()));
  std::vector<Operand> operands = {Local(in, rank * ranks + rank)};
  for (std::int32_t other : from) operands.push_back(Local(w.At(kWindowBuffer, WindowOf(w, rank, other)), rank * ranks + other));
  w.Fold(Op::kReduce, operands, {.dst = w.At(kOut, w.Whole())});
  if (relaxed) return;
  // The next round's put must not come before this round's was read.
  for (std::int32_t other : from) w.Notify(other, kTaken);
  w.Wait(kTaken, static_cast<std::int64_t>(to.size()));
}
void WriteWindow(Writer& w) { Write(w, false); }
void WriteWindowRelaxed(Writer& w) { Write(w, true); }

void PromiseWindow(PostWriter& post) {
  const auto& mixing = W(post.request());
  for (std::int32_t rank = 0; rank < post.ranks(); ++rank) {
    std::vector<Term> terms;
    for (std::int32_t other = 0; other < post.ranks(); ++other)
      terms.push_back({.rank = other, .chunk = post.At(kIn, post.Whole()), .coefficient = mixing[rank][other]});
    post.Fold(rank, post.At(kOut, post.Whole()), terms);
  }
}

// What is in a window may be of an earlier round; but it is always a vector of the neighbour it belongs to.
void PromiseWindowRelaxed(PostWriter& post) {
  const auto& mixing = W(post.request());
  for (std::int32_t rank = 0; rank < post.ranks(); ++rank) {
    std::vector<Term> terms = {{.rank = rank, .chunk = post.At(kIn, post.Whole()), .coefficient = mixing[rank][rank]}};
    for (std::int32_t other : InNeighbours(post.request(), rank)) {
      ChunkId window = post.At(kWindowBuffer, WindowOf(post, rank, other));
      terms.push_back({.rank = rank, .chunk = window, .coefficient = mixing[rank][other]});
      post.Fold(rank, window, {{.rank = other, .chunk = post.At(kIn, post.Whole())}});
    }
    post.Fold(rank, post.At(kOut, post.Whole()), terms);
  }
}

}  // namespace

const Algorithm kWindow{"window", Collective::kMix, true, DeclareWindow, WriteWindow, PromiseWindow};
const Algorithm kWindowRelaxed{"window_relaxed", Collective::kMix, true, DeclareWindowRelaxed, WriteWindowRelaxed, PromiseWindowRelaxed};

}  // namespace ropewalk::collective
