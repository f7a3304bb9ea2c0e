// What a builder writes with: ranges and chunks by name, steps in order, one rank at a time.
//
//   void WriteBroadcast(Writer& w) {
//     auto whole = w.At(kOut, w.Whole());
//     if (w.rank() == root) w.Send(whole, next); else w.Recv(previous, whole);
//   }
//
// Thread rule: one thread; allocates (plans are built once).
#pragma once

#include <cstdint>
#include <initializer_list>
#include <vector>

#include "base/status.h"
#include "mlrunner/collective/kept_once.h"
#include "mlrunner/collective/plan.h"

namespace ropewalk::collective {

using RangeId = std::int32_t;
using ChunkId = std::int32_t;

// Ranges and chunks, each kept once. Who writes is the only one to add to `shapes`, which is empty at first.
class ShapeWriter {
 public:
  ShapeWriter(const Header& header, Shapes* shapes) : header_(header), shapes_(shapes) {}

  RangeId Nothing() { return Keep({}); }
  RangeId Whole() { return Span(1, 0); }  // [0, N)
  RangeId Span(std::int64_t count_scale, std::int64_t count_add, std::int64_t offset_scale = 0, std::int64_t offset_add = 0);
  // `index` is taken modulo `parts`, so that builders may count round the ring.
  RangeId Part(RangeId of, std::int32_t parts, std::int32_t index, std::int32_t align = 1);
  // `run` parts from `first` on.
  RangeId Parts(RangeId of, std::int32_t parts, std::int32_t first, std::int32_t run);
  RangeId Placed(RangeId of, RangeId stride_of, std::int32_t index, std::int32_t codec = kNone);
  // What `row` has for `column`: where it lies in the sender's buffer, or (by_column) in the receiver's.
  RangeId Table(std::int32_t row, std::int32_t column, bool by_column);
  RangeId Parameter(std::int32_t offset, std::int32_t count);
  ChunkId At(std::int32_t buffer, RangeId range);
  std::int32_t ranks() const { return header_.request.ranks; }
  const Request& request() const { return header_.request; }
  const Header& header() const { return header_; }

 protected:
  RangeId Keep(const Range& range);
  const Header& header_;
  Shapes* shapes_;

 private:
  KeptOnce<Range> kept_ranges_;
  KeptOnce<Chunk> kept_chunks_;
};

// Where a data step takes a value from.
inline Operand Local(ChunkId chunk, std::int32_t scale = kNone) { return {.chunk = chunk, .scale = scale}; }
inline Operand From(std::int32_t peer, ChunkId chunk, std::int32_t scale = kNone) { return {.chunk = chunk, .peer = peer, .scale = scale}; }
inline Operand Decoded(Operand operand) {
  operand.decode = true;
  return operand;
}

struct StepId {
  std::int32_t channel = 0, step = 0;
};

class Writer : public ShapeWriter {
 public:
  Writer(const Header& header, Program* program);
  std::int32_t rank() const { return program_->rank; }
  // `rank` + `distance`, round the group.
  std::int32_t Around(std::int32_t distance) const { return Modulo(rank() + distance); }
  std::int32_t Modulo(std::int32_t number) const { return ((number % ranks()) + ranks()) % ranks(); }

  // What follows is written to this channel.
  void OnChannel(std::int32_t channel, Start start = Start::kLocalCall);
  // What follows, up to EndLoop(), is done once for each segment of `largest`, which must not depend on the rank.
  void BeginLoop(RangeId largest, std::int32_t buffer, std::int32_t lanes = 1);
  void EndLoop();
  // The part of `of` that this iteration of the innermost loop handles; `of` itself outside of loops.
  RangeId Segment(RangeId of, std::int32_t lane = 0, std::int32_t lanes = 1, std::int32_t align = 1);
  // The next step waits for `step` (see Dependency).
  void After(StepId step, std::int32_t lag = 0);
  // Slots of the edge to `peer` on this channel (otherwise the request's).
  void Slots(std::int32_t peer, std::int32_t slots);

  struct Data {
    ChunkId dst = kNone;
    std::int32_t to = kNone;
    std::int32_t scale = kNone;
    ChunkId aux = kNone;
    std::int32_t codec = kNone;
  };
  StepId Fold(Op op, const std::vector<Operand>& operands, Data data);
  StepId Send(ChunkId chunk, std::int32_t to) { return Fold(Op::kSend, {Local(chunk)}, {.to = to}); }
  StepId Recv(std::int32_t from, ChunkId dst) { return Fold(Op::kRecv, {From(from, dst)}, {.dst = dst}); }
  StepId Copy(ChunkId from, ChunkId dst, std::int32_t scale = kNone) {
    return Fold(Op::kCopy, {Local(from)}, {.dst = dst, .scale = scale});
  }
  StepId Put(ChunkId chunk, std::int32_t to, ChunkId remote);
  StepId Get(std::int32_t from, ChunkId remote, ChunkId dst);
  StepId Accumulate(ChunkId chunk, std::int32_t to, ChunkId remote);
  StepId Notify(std::int32_t to, std::int32_t counter);
  StepId Wait(std::int32_t counter, std::int64_t threshold);
  StepId Flush(std::int32_t to);
  StepId Counts(ChunkId counts, std::int32_t column = kNone);
  StepId Native(Collective native, ChunkId in, ChunkId dst, std::int32_t group = kNone);

  // Puts the channels one behind the other; the writer is used up.
  void Finish();

 private:
  StepId Add(Step step, const std::vector<Operand>& operands = {});

  Program* program_;
  std::int32_t channel_ = 0;
  std::vector<std::vector<Step>> steps_;  // by channel
  std::vector<std::int32_t> open_;        // loops of the current channel
  std::vector<Dependency> after_;
};

// Claims of the postcondition.
class PostWriter : public ShapeWriter {
 public:
  PostWriter(const Header& header, Postcondition* post) : ShapeWriter(header, post), post_(post) {}
  Postcondition& post() { return *post_; }
  // out of `rank` = op over the terms.
  void Fold(std::int32_t rank, ChunkId out, const std::vector<Term>& terms);
  void Add(Claim claim, const std::vector<Term>& terms = {});

 private:
  Postcondition* post_;
};

}  // namespace ropewalk::collective
