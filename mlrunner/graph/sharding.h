// ShardingSpec: which part of a logical tensor one rank holds. On every value and every state, so that a checkpoint is addressed by
// slices of logical tensors and loads at any number of ranks.
//
// Thread rule: values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "mlrunner/graph/shape.h"

namespace ropewalk::mlrunner {

// A named grid of ranks: {"data", 4}, {"tensor", 2}. Ranks are numbered with the last axis the fastest.
struct Mesh {
  struct Axis {
    std::string name;
    std::int32_t size = 1;
    friend bool operator==(const Axis&, const Axis&) = default;
  };
  std::vector<Axis> axes;
  std::int32_t NumRanks() const;
  // Where `rank` stands on each axis.
  std::vector<std::int32_t> Coordinates(std::int32_t rank) const;
  friend bool operator==(const Mesh&, const Mesh&) = default;
};

struct ShardingSpec {
  static constexpr std::int8_t kReplicated = -1;
  std::vector<std::int8_t> dims;     // for each logical dimension the mesh axis that cuts it; empty: all replicated
  std::vector<std::int8_t> partial;  // mesh axes over which the value is a summand whose sum is the logical value

  bool IsReplicated() const;
  friend bool operator==(const ShardingSpec&, const ShardingSpec&) = default;
  // "[_, tensor] +data"
  std::string ToString(const Mesh& mesh) const;
};

// A box in a logical tensor.
struct Slice {
  Dims begin, end;
  friend bool operator==(const Slice&, const Slice&) = default;
};

// The slice that `rank` holds. A length that does not divide is cut into ceil(n/k) pieces, so the last ranks may hold less, or nothing
// (length 6 over 4 ranks: 2, 2, 2, 0).
Slice SliceOf(const Dims& logical, const ShardingSpec& spec, const Mesh& mesh, std::int32_t rank);

}  // namespace ropewalk::mlrunner
