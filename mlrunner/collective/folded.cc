#include "mlrunner/collective/folded.h"

#include <string>
#include <utility>

#include "base/hash.h"
#include "mlrunner/collective/check/check.h"

namespace ropewalk::collective {
namespace {

class Folder {
 public:
  Folder(const Header& header, const Program& program)
      : ranks_(header.request.ranks),
        program_(program),
        fixed_(program.ranges.size(), kNone),
        turned_(program.ranges.size(), kNone),
        chunks_(program.chunks.size(), kNone) {}

  FoldedProgram Fold() {
    Program& out = folded_.program;
    out.loops = program_.loops;
    // Trips are the same on all ranks, so what loops go by is no distance; and it has to stand before what moves with them.
    for (Loop& loop : out.loops)
      if (loop.range != kNone) loop.range = Fixed(loop.range);
    out.channels = program_.channels;
    out.steps = program_.steps;
    out.operands = program_.operands;
    out.dependencies = program_.dependencies;
    for (Operand& operand : out.operands) {
      operand.peer = DistanceOf(operand.peer);
      operand.chunk = ChunkOf(operand.chunk);
    }
    for (Step& step : out.steps) {
      step.to = DistanceOf(step.to);
      step.dst = ChunkOf(step.dst);
      step.remote = ChunkOf(step.remote);
      step.aux = ChunkOf(step.aux);
      // Whose counts are learned is of no interest: in virtual time the whole table is known from the start.
      step.column = kNone;
    }
    for (Edge edge : program_.edges) {
      edge.peer = DistanceOf(edge.peer);
      out.edges.push_back(edge);
    }
    return std::move(folded_);
  }

 private:
  std::int32_t DistanceOf(std::int32_t peer) const { return peer == kNone ? kNone : Modulo(peer - program_.rank, ranks_); }
  static std::int32_t Modulo(std::int32_t number, std::int32_t of) { return ((number % of) + of) % of; }

  std::int32_t Keep(const Range& range, bool turns) {
    folded_.program.ranges.push_back(range);
    folded_.turns.push_back(turns);
    return static_cast<std::int32_t>(folded_.program.ranges.size()) - 1;
  }
  std::int32_t Fixed(std::int32_t id) {
    if (fixed_[id] != kNone) return fixed_[id];
    Range range = program_.ranges[id];
    if (range.of != kNone) range.of = Fixed(range.of);
    if (range.stride_of != kNone) range.stride_of = Fixed(range.stride_of);
    return fixed_[id] = Keep(range, false);
  }
  std::int32_t Turned(std::int32_t id) {
    if (turned_[id] != kNone) return turned_[id];
    Range range = program_.ranges[id];
    bool turns = false;
    if (range.of != kNone) range.of = Turned(range.of);
    switch (range.kind) {
      case RangeKind::kSpan:
        range.offset_scale = range.offset_add = 0;
        break;
      case RangeKind::kPart:
        // Several parts in a row are no rotation of others: they would have to go on at the first one behind the last.
        if (range.run > 1) break;
        turns = range.parts > 1;
        range.index = Modulo(range.index - program_.rank, range.parts);
        break;
      case RangeKind::kPlaced:
        range.stride_of = range.of;
        range.index = 0;
        break;
      case RangeKind::kTable:
        turns = true;
        range.by_column = false;
        range.row = DistanceOf(range.row);
        range.column = DistanceOf(range.column);
        break;
      case RangeKind::kNothing:
      case RangeKind::kSegment:
      case RangeKind::kParameter:
        break;
    }
    return turned_[id] = Keep(range, turns);
  }
  std::int32_t ChunkOf(std::int32_t id) {
    if (id == kNone || chunks_[id] != kNone) return id == kNone ? kNone : chunks_[id];
    const Chunk chunk{program_.chunks[id].buffer, Turned(program_.chunks[id].range)};
    folded_.program.chunks.push_back(chunk);
    return chunks_[id] = static_cast<std::int32_t>(folded_.program.chunks.size()) - 1;
  }

  const std::int32_t ranks_;
  const Program& program_;
  FoldedProgram folded_;
  std::vector<std::int32_t> fixed_, turned_, chunks_;  // by the program's own number: by which it is kept
};

// Of what mostly differs where anything does; equality decides.
std::uint64_t HashOf(const Program& program) {
  std::uint64_t hash = HashCombine(program.steps.size(), program.ranges.size());
  auto add = [&hash](std::int64_t number) { hash = HashCombine(hash, static_cast<std::uint64_t>(number)); };
  for (const Range& range : program.ranges) add(static_cast<std::int64_t>(range.kind) << 32 | range.index);
  for (const Step& step : program.steps) add(static_cast<std::int64_t>(step.op) << 32 | (step.to + 1));
  for (const Operand& operand : program.operands) add(static_cast<std::int64_t>(operand.peer + 1) << 32 | operand.chunk);
  return hash;
}

}  // namespace

FoldedProgram Fold(const Header& header, const Program& program) { return Folder(header, program).Fold(); }

Status FoldedPrograms::Add(const Program& program) {
  RETURN_IF_ERROR(CheckProgram(header_, program));
  RETURN_IF_ERROR(Layout::Make(header_, program, sizes_).status());
  if (program.rank != ranks())
    return Status(Code::kInvalid, "COLL02",
                  "the program of rank " + std::to_string(program.rank) + " stands where rank " + std::to_string(ranks()) + "'s should",
                  "programs follow each other by rank", "simulate what BuildPlan() returned");
  FoldedProgram folded = Fold(header_, program);
  const std::uint64_t hash = HashOf(folded.program);
  auto [begin, end] = kinds_by_hash_.equal_range(hash);
  for (auto like = begin; like != end; ++like) {
    FoldedProgram& kind = kinds_[like->second].folded;
    if (kind.turns != folded.turns || kind.program != folded.program) continue;
    ++kind.ranks;
    kind_of_rank_.push_back(like->second);
    return {};
  }
  kind_of_rank_.push_back(static_cast<std::int32_t>(kinds_.size()));
  kinds_by_hash_.emplace(hash, kind_of_rank_.back());
  Kind& kind = kinds_.emplace_back();
  kind.folded = std::move(folded);
  kind.folded.ranks = 1;
  ASSIGN_OR_RETURN(kind.layout, Layout::MakeTurning(header_, kind.folded.program, kind.folded.turns, sizes_));
  kind.course.emplace(kind.folded.program, *kind.layout);
  return {};
}

Interpreter FoldedPrograms::MakeInterpreter(std::int32_t rank) const {
  const Kind& kind = kinds_[kind_of_rank_[rank]];
  return {&kind.folded.program, &*kind.layout, &*kind.course, rank};
}

std::int64_t FoldedPrograms::steps_kept() const {
  std::int64_t steps = 0;
  for (const Kind& kind : kinds_) steps += static_cast<std::int64_t>(kind.folded.program.steps.size());
  return steps;
}

std::int64_t FoldedPrograms::steps_of_all_runs() const {
  std::int64_t steps = 0;
  for (const Kind& kind : kinds_)
    for (std::int64_t times : kind.course->total) steps += times * kind.folded.ranks;
  return steps;
}

}  // namespace ropewalk::collective
