#include "mlrunner/collective/layout.h"

#include <algorithm>
#include <string>
#include <utility>

namespace ropewalk::collective {
namespace {

Extent PartsOf(Extent whole, std::int64_t parts, std::int64_t index, std::int64_t run, std::int64_t align) {
  std::int64_t units = (whole.count + align - 1) / align;
  std::int64_t each = units / parts, longer = units % parts;
  std::int64_t begin = std::min(whole.count, (each * index + std::min(index, longer)) * align);
  std::int64_t end = std::min(whole.count, (each * (index + run) + std::min(index + run, longer)) * align);
  return {whole.offset + begin, end - begin};
}

// The caller's sizes.
Status BadSizes(const std::string& what) {
  return Status(Code::kInvalid, "COLL01", what, "counts say how many elements there are, so none is negative",
                "mend the count, or the table of an all-to-all-v, that the plan is bound to");
}
// What the plan's own parts say of each other, or of sizes that it needs.
Status BadPlan(const std::string& what, const std::string& why, const std::string& fix = "mend the builder") {
  return Status(Code::kInvalid, "COLL01", what, why, fix);
}

}  // namespace

Extent PartOf(std::int64_t count, std::int32_t parts, std::int32_t index) { return PartsOf({0, count}, parts, index, 1, 1); }

std::int64_t EncodedBytes(const Codec& codec, std::int64_t count) {
  if (count == 0) return 0;
  std::int64_t bucket = codec.bucket_elements > 0 ? codec.bucket_elements : count;
  return (count + bucket - 1) / bucket * codec.bucket_header_bytes + (count * codec.bits + 7) / 8;
}

std::int64_t Layout::LengthOf(std::int32_t range, std::int32_t codec, const std::int64_t* iterations, std::int32_t turn) const {
  std::int64_t count = OfRange(range, iterations, turn).count;
  return codec == kNone ? count : EncodedBytes(header_->request.codecs[codec], count);
}

Extent Layout::Evaluate(std::int32_t id, const std::int64_t* iterations, std::int32_t turn) const {
  const Range& range = shapes_->ranges[id];
  const std::int64_t ranks = header_->request.ranks;
  auto turned = [&](std::int64_t number, std::int64_t of) { return !turns_.empty() && turns_[id] ? (number + turn) % of : number; };
  switch (range.kind) {
    case RangeKind::kNothing:
      return {};
    case RangeKind::kSpan:
      return {range.offset_scale * sizes_.count + range.offset_add, range.count_scale * sizes_.count + range.count_add};
    case RangeKind::kPart:
      return PartsOf(OfRange(range.of, iterations, turn), range.parts, turned(range.index, range.parts), range.run, range.align);
    case RangeKind::kSegment: {
      std::int64_t iteration = iterations == nullptr ? 0 : iterations[range.loop];
      return PartsOf(OfRange(range.of, iterations, turn), trips_[range.loop] * range.lanes, iteration * range.lanes + range.lane, 1,
                     range.align);
    }
    case RangeKind::kPlaced:
      return {range.index * LengthOf(range.stride_of, range.codec, iterations, turn), LengthOf(range.of, range.codec, iterations, turn)};
    case RangeKind::kTable: {
      const std::int64_t row = turned(range.row, ranks), column = turned(range.column, ranks);
      std::int64_t before = 0;
      if (range.by_column)
        for (std::int64_t above = 0; above < row; ++above) before += sizes_.table[above * ranks + column];
      else
        for (std::int64_t left = 0; left < column; ++left) before += sizes_.table[row * ranks + left];
      return {before * range.count_scale, sizes_.table[row * ranks + column] * range.count_scale};
    }
    case RangeKind::kParameter:
      return {sizes_.parameters[range.row], sizes_.parameters[range.column]};
  }
  return {};
}

void Layout::EvaluateFixed() {
  for (std::size_t id = 0; id < fixed_.size(); ++id)
    if (!moves_[id]) fixed_[id] = Evaluate(static_cast<std::int32_t>(id), nullptr, 0);
}

void Layout::SetColumn(std::int32_t column, const std::int64_t* counts) {
  for (std::int32_t row = 0; row < header_->request.ranks; ++row) sizes_.table[row * header_->request.ranks + column] = counts[row];
  EvaluateFixed();
}

void Layout::SetRow(std::int32_t row, std::span<const std::int64_t> counts) {
  std::copy(counts.begin(), counts.end(), sizes_.table.begin() + row * header_->request.ranks);
  EvaluateFixed();
}

bool Layout::IsCounted(std::int32_t range) const {
  const Range& one = shapes_->ranges[range];
  return one.kind == RangeKind::kTable || (one.of != kNone && IsCounted(one.of)) || (one.stride_of != kNone && IsCounted(one.stride_of));
}

Status Layout::CountTrips(const std::vector<Loop>& loops, std::int32_t end, std::int32_t ranges_known) {
  while (static_cast<std::int32_t>(trips_.size()) < end) {
    const Loop& loop = loops[trips_.size()];
    std::int64_t trips = loop.trips;
    if (trips <= 0) {
      if (loop.range < 0 || loop.range >= ranges_known || moves_[loop.range] || loop.buffer < 0 ||
          loop.buffer >= static_cast<std::int32_t>(header_->buffers.size()) || loop.lanes <= 0)
        return BadPlan("loop " + std::to_string(trips_.size()) + " has no length",
                       "its range or buffer does not exist, or the range stands behind one that moves with the loop, or moves itself");
      std::int64_t bytes = fixed_[loop.range].count * element_bytes_[loop.buffer];
      std::int64_t each = loop.segment_bytes * loop.lanes;
      trips = each <= 0 ? 1 : std::max<std::int64_t>(1, (bytes + each - 1) / each);
    }
    trips_.push_back(trips);
  }
  return {};
}

Result<Layout> Layout::Make(const Header& header, const Shapes& shapes, const std::vector<Loop>& loops, const Sizes& sizes) {
  return Make(header, shapes, loops, {}, sizes);
}

Result<Layout> Layout::MakeTurning(const Header& header, const Program& program, std::vector<bool> turns, const Sizes& sizes) {
  return Make(header, program, program.loops, std::move(turns), sizes);
}

Result<Layout> Layout::Make(const Header& header, const Shapes& shapes, const std::vector<Loop>& loops, std::vector<bool> turns,
                            const Sizes& sizes) {
  Layout layout;
  layout.turns_ = std::move(turns);
  layout.header_ = &header;
  layout.shapes_ = &shapes;
  layout.sizes_ = sizes;
  const std::int32_t ranks = header.request.ranks;
  if (sizes.count < 0) return BadSizes("a count of " + std::to_string(sizes.count) + " elements");
  for (std::int64_t entry : sizes.table)
    if (entry < 0) return BadSizes("the count table holds " + std::to_string(entry));

  for (const Buffer& buffer : header.buffers) {
    std::int64_t bytes = 1;
    if (buffer.element == Element::kPayload) bytes = static_cast<std::int64_t>(SizeOf(header.request.dtype));
    if (buffer.element == Element::kAccumulator) bytes = static_cast<std::int64_t>(SizeOf(header.accumulator));
    if (buffer.element == Element::kCount) bytes = 8;
    layout.element_bytes_.push_back(bytes);
  }

  const auto count = static_cast<std::int32_t>(shapes.ranges.size());
  layout.fixed_.resize(count);
  layout.moves_.assign(count, false);
  for (std::int32_t id = 0; id < count; ++id) {
    const Range& range = shapes.ranges[id];
    auto earlier = [&](std::int32_t other) { return other >= 0 && other < id; };
    auto is_rank = [&](std::int32_t rank) { return rank >= 0 && rank < ranks; };
    bool good = true;
    switch (range.kind) {
      case RangeKind::kNothing:
      case RangeKind::kSpan:
        break;
      case RangeKind::kPart:
        good = earlier(range.of) && range.parts > 0 && range.index >= 0 && range.index < range.parts && range.run > 0 &&
               range.run <= range.parts - range.index && range.align > 0;
        break;
      case RangeKind::kSegment:
        good = earlier(range.of) && range.loop >= 0 && range.loop < static_cast<std::int32_t>(loops.size()) && range.lanes > 0 &&
               range.lane >= 0 && range.lane < range.lanes && range.align > 0;
        break;
      case RangeKind::kPlaced:
        good = earlier(range.of) && earlier(range.stride_of) && range.index >= 0 &&
               (range.codec == kNone || (range.codec >= 0 && range.codec < static_cast<std::int32_t>(header.request.codecs.size())));
        break;
      case RangeKind::kTable:
        good = is_rank(range.row) && is_rank(range.column) && sizes.table.size() == static_cast<std::size_t>(ranks) * ranks;
        break;
      case RangeKind::kParameter: {
        auto given = static_cast<std::int32_t>(sizes.parameters.size());
        good = range.row >= 0 && range.row < given && range.column >= 0 && range.column < given;
        break;
      }
    }
    if (!good) {
      const std::string what = "range " + std::to_string(id) + " cannot be evaluated";
      if (range.kind == RangeKind::kTable)
        return BadPlan(what,
                       "it is an entry of a count table of ranks × ranks; the one that is bound has " + std::to_string(sizes.table.size()) +
                           " entries for " + std::to_string(ranks) + " ranks",
                       "bind such a table, or mend the builder where row or column is no rank");
      if (range.kind == RangeKind::kParameter)
        return BadPlan(what,
                       "it takes parameters " + std::to_string(range.row) + " and " + std::to_string(range.column) + " of " +
                           std::to_string(sizes.parameters.size()) + " that are bound",
                       "bind as many as the plan names");
      return BadPlan(what,
                     "it names a range that does not stand before it, a loop or codec that does not exist, or a part or lane outside of "
                     "how many there are");
    }
    // A loop's trips come from a range that stands before every range that moves with it.
    if (range.kind == RangeKind::kSegment) RETURN_IF_ERROR(layout.CountTrips(loops, range.loop + 1, id));
    layout.moves_[id] = range.kind == RangeKind::kSegment || (!layout.turns_.empty() && layout.turns_[id]) ||
                        (range.of != kNone && layout.moves_[range.of]) || (range.stride_of != kNone && layout.moves_[range.stride_of]);
    if (layout.moves_[id]) continue;
    layout.fixed_[id] = layout.Evaluate(id, nullptr, 0);
    if (layout.fixed_[id].count < 0 || layout.fixed_[id].offset < 0)
      return BadPlan("range " + std::to_string(id) + " has a negative length or offset",
                     "its length is " + std::to_string(layout.fixed_[id].count) + ", its offset " +
                         std::to_string(layout.fixed_[id].offset) + ", with the count of " + std::to_string(sizes.count) + " that is bound",
                     "mend the builder, or the parameters that are bound");
  }
  RETURN_IF_ERROR(layout.CountTrips(loops, static_cast<std::int32_t>(loops.size()), count));

  // A range that moves stays inside what it moves in, except placed ones, whose largest form is that of the first iteration.
  layout.elements_.assign(header.buffers.size(), 0);
  std::vector<std::int64_t> first(loops.size(), 0);
  for (const Chunk& chunk : shapes.chunks) {
    if (chunk.buffer == kNone || chunk.range == kNone) continue;
    if (chunk.buffer >= static_cast<std::int32_t>(header.buffers.size()) || chunk.range >= count || chunk.buffer < 0 || chunk.range < 0)
      return BadPlan("a chunk names no buffer or range", "it names buffer " + std::to_string(chunk.buffer) + " of " +
                                                             std::to_string(header.buffers.size()) + " and range " +
                                                             std::to_string(chunk.range) + " of " + std::to_string(count));
    std::int32_t around = chunk.range;
    // An entry of a table that turns moves in nothing.
    while (layout.moves_[around] && shapes.ranges[around].kind != RangeKind::kPlaced && shapes.ranges[around].of != kNone)
      around = shapes.ranges[around].of;
    std::int64_t end = layout.OfRange(around, first.data()).end();
    layout.elements_[chunk.buffer] = std::max(layout.elements_[chunk.buffer], end);
  }
  return layout;
}

Dtype DtypeOf(const Header& header, std::int32_t buffer) {
  switch (header.buffers[buffer].element) {
    case Element::kPayload:
      return header.request.dtype;
    case Element::kAccumulator:
      return header.accumulator;
    case Element::kByte:
      return Dtype::kU8;
    case Element::kCount:
      return Dtype::kI64;
  }
  return Dtype::kU8;
}

}  // namespace ropewalk::collective
