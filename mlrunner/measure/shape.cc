#include "mlrunner/measure/shape.h"

#include <algorithm>

namespace ropewalk::measure {
namespace {

using collective::Collective;
using collective::Plan;
using collective::Role;
using collective::Sizes;

// All plans have them first, of these names.
constexpr std::int32_t kIn = 0, kOut = 1;

Sizes SizesOf(const Plan& plan, std::int64_t count) {
  Sizes sizes{.count = count};
  const auto ranks = static_cast<std::size_t>(plan.header.request.ranks);
  if (LearnsCounts(plan.header.request.collective)) sizes.table.assign(ranks * ranks, count / static_cast<std::int64_t>(ranks));
  return sizes;
}

Result<Shape> Bound(const Plan& plan, std::int64_t count) {
  Shape shape{.count = count, .sizes = SizesOf(plan, count)};
  for (const collective::Program& program : plan.programs) {
    ASSIGN_OR_RETURN(collective::Layout layout, collective::Layout::Make(plan.header, program, shape.sizes));
    shape.in_elements = std::max(shape.in_elements, layout.ElementsOf(kIn));
    shape.out_elements = std::max(shape.out_elements, layout.ElementsOf(kOut));
    std::int64_t scratch_bytes = 0;
    for (std::int32_t b = 0; b < static_cast<std::int32_t>(plan.header.buffers.size()); ++b)
      if (plan.header.buffers[static_cast<std::size_t>(b)].role == Role::kScratch)
        scratch_bytes += layout.ElementsOf(b) * layout.BytesOfElement(b);
    shape.scratch_bytes = std::max(shape.scratch_bytes, scratch_bytes);
  }
  shape.bytes = std::max(shape.in_elements, shape.out_elements) * static_cast<std::int64_t>(SizeOf(plan.header.request.dtype));
  if (!shape.sizes.table.empty()) shape.each = shape.sizes.table[0];
  return shape;
}

}  // namespace

Result<Shape> ShapeOf(const Plan& plan, std::int64_t bytes) {
  const std::int64_t ranks = plan.header.request.ranks;
  // What `count` means is the collective's affair: a whole vector, or a rank's share of one. The longest vector is a multiple of it.
  ASSIGN_OR_RETURN(const Shape unit, Bound(plan, ranks));
  const std::int64_t longest = std::max(unit.in_elements, unit.out_elements);
  if (longest == 0) return Bound(plan, 0);
  const std::int64_t elements = bytes / static_cast<std::int64_t>(SizeOf(plan.header.request.dtype));
  std::int64_t count = std::max<std::int64_t>(1, elements * ranks / longest);
  if (LearnsCounts(plan.header.request.collective)) count = std::max<std::int64_t>(1, count / ranks) * ranks;
  return Bound(plan, count);
}

}  // namespace ropewalk::measure
