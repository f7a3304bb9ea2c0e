// Layout: how the elements of a logical shape lie in memory. An attribute of each value; the assignment pass chooses it, ops never see it
// in
// their semantics.
//
// Thread rule: values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "mlrunner/graph/shape.h"

namespace ropewalk::mlrunner {

// The outer dimensions in the order of `order` (slowest first; empty means 0, 1, 2, ...), then the inner blocks. NCHW16c is
// {order {}, blocks {{1, 16}}}; NHWC is {order {0, 2, 3, 1}}. A blocked dimension is padded up to a multiple of its block; the padding is
// zero.
struct Layout {
  struct Block {
    std::uint8_t dim = 0;
    std::int32_t size = 0;
    friend bool operator==(const Block&, const Block&) = default;
  };
  std::vector<std::uint8_t> order;
  std::vector<Block> blocks;

  bool IsRowMajor() const { return order.empty() && blocks.empty(); }
  friend bool operator==(const Layout&, const Layout&) = default;

  // Elements that a tensor of these dims occupies, padding included.
  std::int64_t PhysicalElements(const Dims& dims) const;
  // Where the element at `index` lies, in elements.
  std::int64_t Offset(const Dims& dims, const Dims& index) const;
  // Strides in elements of a layout without blocks.
  Dims Strides(const Dims& dims) const;
  // "row", "0231", "0123/1:16".
  std::string ToString() const;
};

}  // namespace ropewalk::mlrunner
