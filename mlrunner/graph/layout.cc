#include "mlrunner/graph/layout.h"

#include <fmt/format.h>

namespace ropewalk::mlrunner {
namespace {

std::size_t DimAt(const Layout& layout, std::size_t position) { return layout.order.empty() ? position : layout.order[position]; }

// The outer extent of each logical dimension: its size over the product of its blocks, rounded up.
Dims Outer(const Layout& layout, const Dims& dims) {
  Dims outer = dims;
  for (std::size_t d = 0; d < dims.size(); ++d) {
    std::int64_t block = 1;
    for (const Layout::Block& b : layout.blocks) block *= b.dim == d ? b.size : 1;
    outer[d] = (dims[d] + block - 1) / block;
  }
  return outer;
}

}  // namespace

std::int64_t Layout::PhysicalElements(const Dims& dims) const {
  std::int64_t elements = NumElements(Outer(*this, dims));
  for (const Block& block : blocks) elements *= block.size;
  return elements;
}

std::int64_t Layout::Offset(const Dims& dims, const Dims& index) const {
  Dims outer = Outer(*this, dims);
  Dims rest = index;
  // Inner blocks are digits of the index, the last block the fastest.
  std::int64_t inner = 0, stride = 1;
  for (auto block = blocks.rbegin(); block != blocks.rend(); ++block) {
    inner += rest[block->dim] % block->size * stride;
    rest[block->dim] /= block->size;
    stride *= block->size;
  }
  std::int64_t offset = 0;
  for (std::size_t position = 0; position < dims.size(); ++position) {
    std::size_t dim = DimAt(*this, position);
    offset = offset * outer[dim] + rest[dim];
  }
  return offset * stride + inner;
}

Dims Layout::Strides(const Dims& dims) const {
  Dims strides(dims.size());
  std::int64_t stride = 1;
  for (std::size_t position = dims.size(); position-- > 0;) {
    std::size_t dim = DimAt(*this, position);
    strides[dim] = stride;
    stride *= dims[dim];
  }
  return strides;
}

std::string Layout::ToString() const {
  if (IsRowMajor()) return "row";
  std::string text;
  for (std::uint8_t dim : order) text += std::to_string(dim);
  if (order.empty()) text = "row";
  for (const Block& block : blocks) text += fmt::format("/{}:{}", block.dim, block.size);
  return text;
}

}  // namespace ropewalk::mlrunner
