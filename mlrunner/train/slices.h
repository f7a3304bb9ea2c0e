// Slices of logical tensors: what of a tensor lies where, and which rank writes it.
//
// Thread rule: values and pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "mlrunner/graph/sharding.h"
#include "mlrunner/types/dtype.h"

namespace ropewalk::mlrunner {

Slice WholeOf(const Dims& logical);
Dims LengthsOf(const Slice& slice);
std::int64_t NumElements(const Slice& slice);
// What lies in both; where nothing does, it has no elements.
Slice Intersection(const Slice& a, const Slice& b);
// Whether it is a slice of such a tensor: as many dimensions, and no place before its beginning or behind its end.
bool IsWithin(const Slice& slice, const Dims& logical);
// "[0:2, 4:8]"
std::string ToString(const Slice& slice);

// Copies `what` from the memory of one slice into that of another. Both hold it, row-major.
void CopySlice(const Slice& what, std::size_t element_bytes, const Slice& from_slice, const std::byte* from, const Slice& to_slice,
               std::byte* to);

// A state as all ranks together hold it.
struct LogicalState {
  std::string name;
  Dtype dtype = Dtype::kF32;
  Dims dims;
  ShardingSpec sharding;
};

struct WrittenSlice {
  std::size_t state = 0;
  Slice slice;
  friend bool operator==(const WrittenSlice&, const WrittenSlice&) = default;
};

// For each of `ranks` what it writes of what it holds, so that each element of every state is written once. Of ranks that hold the same
// slice the first one writes it, or, where all states together have `spread_bytes` or more, the one that has least to write so far. All
// ranks find the same. CKPT01: a state is a sum over ranks (ShardingSpec::partial), of which none holds a part.
Result<std::vector<std::vector<WrittenSlice>>> WritersOf(const std::vector<LogicalState>& states, const Mesh& mesh, std::int32_t ranks,
                                                         std::uint64_t spread_bytes);

}  // namespace ropewalk::mlrunner
