#include "mlrunner/collective/writer.h"

#include <algorithm>
#include <utility>

#include "base/hash.h"

namespace ropewalk::collective {

RangeId ShapeWriter::Keep(const Range& range) {
  std::uint64_t hash = static_cast<std::uint64_t>(range.kind);
  for (std::int64_t part :
       {std::int64_t{range.of}, std::int64_t{range.index}, std::int64_t{range.parts}, std::int64_t{range.run}, std::int64_t{range.loop},
        std::int64_t{range.lane}, std::int64_t{range.row}, std::int64_t{range.column}, range.offset_scale, range.offset_add})
    hash = HashCombine(hash, static_cast<std::uint64_t>(part));
  return kept_ranges_.Find(&shapes_->ranges, range, hash);
}

RangeId ShapeWriter::Span(std::int64_t count_scale, std::int64_t count_add, std::int64_t offset_scale, std::int64_t offset_add) {
  return Keep({.kind = RangeKind::kSpan,
               .count_scale = count_scale,
               .count_add = count_add,
               .offset_scale = offset_scale,
               .offset_add = offset_add});
}

RangeId ShapeWriter::Part(RangeId of, std::int32_t parts, std::int32_t index, std::int32_t align) {
  return Keep({.kind = RangeKind::kPart, .of = of, .index = ((index % parts) + parts) % parts, .parts = parts, .align = align});
}

RangeId ShapeWriter::Parts(RangeId of, std::int32_t parts, std::int32_t first, std::int32_t run) {
  return Keep({.kind = RangeKind::kPart, .of = of, .index = first, .parts = parts, .run = run});
}

RangeId ShapeWriter::Placed(RangeId of, RangeId stride_of, std::int32_t index, std::int32_t codec) {
  return Keep({.kind = RangeKind::kPlaced, .codec = codec, .of = of, .stride_of = stride_of, .index = index});
}

RangeId ShapeWriter::Table(std::int32_t row, std::int32_t column, bool by_column) {
  return Keep({.kind = RangeKind::kTable, .by_column = by_column, .row = row, .column = column, .count_scale = 1});
}

RangeId ShapeWriter::Parameter(std::int32_t offset, std::int32_t count) {
  return Keep({.kind = RangeKind::kParameter, .row = offset, .column = count});
}

ChunkId ShapeWriter::At(std::int32_t buffer, RangeId range) {
  const std::uint64_t hash = HashCombine(static_cast<std::uint64_t>(buffer), static_cast<std::uint64_t>(range));
  return kept_chunks_.Find(&shapes_->chunks, {buffer, range}, hash);
}

Writer::Writer(const Header& header, Program* program)
    : ShapeWriter(header, program), program_(program), steps_(std::max(1, header.channel_count)) {
  program_->channels.resize(steps_.size());
}

void Writer::OnChannel(std::int32_t channel, Start start) {
  channel_ = channel;
  program_->channels[channel].start = start;
}

void Writer::BeginLoop(RangeId largest, std::int32_t buffer, std::int32_t lanes) {
  auto loop = static_cast<std::int32_t>(program_->loops.size());
  program_->loops.push_back({.range = largest,
                             .buffer = buffer,
                             .segment_bytes = request().segment_bytes,
                             .lanes = lanes,
                             .parent = open_.empty() ? kNone : steps_[channel_][open_.back()].loop});
  open_.push_back(static_cast<std::int32_t>(steps_[channel_].size()));
  Add({.op = Op::kLoop, .loop = loop});
}

void Writer::EndLoop() {
  std::int32_t begin = open_.back();
  open_.pop_back();
  steps_[channel_][begin].jump = static_cast<std::int32_t>(steps_[channel_].size());
  Add({.op = Op::kEndLoop, .loop = steps_[channel_][begin].loop, .jump = begin});
}

RangeId Writer::Segment(RangeId of, std::int32_t lane, std::int32_t lanes, std::int32_t align) {
  if (open_.empty()) return of;
  return Keep(
      {.kind = RangeKind::kSegment, .of = of, .align = align, .loop = steps_[channel_][open_.back()].loop, .lane = lane, .lanes = lanes});
}

void Writer::After(StepId step, std::int32_t lag) { after_.push_back({step.channel, step.step, lag}); }

void Writer::Slots(std::int32_t peer, std::int32_t slots) {
  for (Edge& edge : program_->edges)
    if (edge.peer == peer && edge.channel == channel_) {
      edge.slots = slots;
      return;
    }
  program_->edges.push_back({peer, channel_, slots});
}

StepId Writer::Add(Step step, const std::vector<Operand>& operands) {
  step.first_operand = static_cast<std::int32_t>(program_->operands.size());
  step.operand_count = static_cast<std::int32_t>(operands.size());
  program_->operands.insert(program_->operands.end(), operands.begin(), operands.end());
  step.first_dependency = static_cast<std::int32_t>(program_->dependencies.size());
  step.dependency_count = static_cast<std::int32_t>(after_.size());
  program_->dependencies.insert(program_->dependencies.end(), after_.begin(), after_.end());
  after_.clear();
  steps_[channel_].push_back(step);
  return {channel_, static_cast<std::int32_t>(steps_[channel_].size()) - 1};
}

StepId Writer::Fold(Op op, const std::vector<Operand>& operands, Data data) {
  if (data.to != kNone && std::none_of(program_->edges.begin(), program_->edges.end(),
                                       [&](const Edge& edge) { return edge.peer == data.to && edge.channel == channel_; }))
    program_->edges.push_back({data.to, channel_, std::max(1, request().slots)});
  return Add({.op = op, .to = data.to, .dst = data.dst, .aux = data.aux, .scale = data.scale, .codec = data.codec}, operands);
}

StepId Writer::Put(ChunkId chunk, std::int32_t to, ChunkId remote) {
  return Add({.op = Op::kPut, .to = to, .remote = remote}, {Local(chunk)});
}
StepId Writer::Get(std::int32_t from, ChunkId remote, ChunkId dst) {
  return Add({.op = Op::kGet, .to = from, .dst = dst, .remote = remote});
}
StepId Writer::Accumulate(ChunkId chunk, std::int32_t to, ChunkId remote) {
  return Add({.op = Op::kAccumulate, .to = to, .remote = remote}, {Local(chunk)});
}
StepId Writer::Notify(std::int32_t to, std::int32_t counter) { return Add({.op = Op::kNotify, .to = to, .counter = counter}); }
StepId Writer::Wait(std::int32_t counter, std::int64_t threshold) {
  return Add({.op = Op::kWait, .counter = counter, .threshold = threshold});
}
StepId Writer::Flush(std::int32_t to) { return Add({.op = Op::kFlush, .to = to}); }
StepId Writer::Counts(ChunkId counts, std::int32_t column) { return Add({.op = Op::kCounts, .column = column}, {Local(counts)}); }
StepId Writer::Native(Collective native, ChunkId in, ChunkId dst, std::int32_t group) {
  return Add({.op = Op::kNative, .dst = dst, .group = group, .native = native}, {Local(in)});
}

void Writer::Finish() {
  for (std::size_t channel = 0; channel < steps_.size(); ++channel) {
    program_->channels[channel].first_step = static_cast<std::int32_t>(program_->steps.size());
    program_->channels[channel].step_count = static_cast<std::int32_t>(steps_[channel].size());
    program_->steps.insert(program_->steps.end(), steps_[channel].begin(), steps_[channel].end());
  }
}

void PostWriter::Add(Claim claim, const std::vector<Term>& terms) {
  claim.first_term = static_cast<std::int32_t>(post_->terms.size());
  claim.term_count = static_cast<std::int32_t>(terms.size());
  post_->terms.insert(post_->terms.end(), terms.begin(), terms.end());
  post_->claims.push_back(claim);
}

void PostWriter::Fold(std::int32_t rank, ChunkId out, const std::vector<Term>& terms) { Add({.rank = rank, .out = out}, terms); }

}  // namespace ropewalk::collective
