// A program bound to sizes: symbolic ranges become offsets and lengths. Everything that does not change from one iteration of a loop to
// the next is computed here, once.
//
// Owner: whoever checks, simulates or runs; keeps a pointer to the header and the program. Thread rule: const use from many threads.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "mlrunner/collective/plan.h"

namespace ropewalk::collective {

// What is known only at run time.
struct Sizes {
  std::int64_t count = 0;                // N, in elements
  std::vector<std::int64_t> table;       // ranks × ranks, row-major: entry (i, j) = what rank i has for rank j
  std::vector<std::int64_t> parameters;  // offsets and lengths of kParameter ranges
};

struct Extent {
  std::int64_t offset = 0, count = 0;
  std::int64_t end() const { return offset + count; }
};

// Where part `index` of `count` elements lies: lengths differ by one at most, longer ones first.
Extent PartOf(std::int64_t count, std::int32_t parts, std::int32_t index);

// The bytes of `count` elements in the form of `codec`.
std::int64_t EncodedBytes(const Codec& codec, std::int64_t count);

class Layout {
 public:
  // kInvalid when a size is negative, the table is not ranks × ranks where a range needs it, or a range names what does not exist.
  static Result<Layout> Make(const Header& header, const Shapes& shapes, const std::vector<Loop>& loops, const Sizes& sizes);
  static Result<Layout> Make(const Header& header, const Program& program, const Sizes& sizes) {
    return Make(header, program, program.loops, sizes);
  }
  // One layout for all ranks of a folded program (folded.h): the ranges that `turns` marks count their part, row and column from the rank
  // that is given beside them.
  static Result<Layout> MakeTurning(const Header& header, const Program& program, std::vector<bool> turns, const Sizes& sizes);

  // Of a range or chunk, at the iterations at which the loops stand (indexed by loop; may be null outside of loops).
  // `turn`: the rank that marked ranges count from.
  Extent OfRange(std::int32_t range, const std::int64_t* iterations, std::int32_t turn = 0) const {
    return moves_[range] ? Evaluate(range, iterations, turn) : fixed_[range];
  }
  Extent OfChunk(std::int32_t chunk, const std::int64_t* iterations, std::int32_t turn = 0) const {
    return OfRange(shapes_->chunks[chunk].range, iterations, turn);
  }
  // Replaces column `column` of the count table by what the peers said; what depends on it is computed anew, without allocation.
  void SetColumn(std::int32_t column, const std::int64_t* counts);
  // Replaces the row of a rank, which it knows itself, likewise: its first columns.
  void SetRow(std::int32_t row, std::span<const std::int64_t> counts);
  // Whether the range depends on the count table.
  bool IsCounted(std::int32_t range) const;
  std::int64_t Trips(std::int32_t loop) const { return trips_[loop]; }
  std::int64_t BytesOfElement(std::int32_t buffer) const { return element_bytes_[buffer]; }
  // How long the buffer must be for everything that the program does with it.
  std::int64_t ElementsOf(std::int32_t buffer) const { return elements_[buffer]; }
  // From which element of the buffer that it may lie in on `rank` may have it.
  std::int64_t AliasOffset(std::int32_t buffer, std::int32_t rank) const {
    return header_->buffers[buffer].alias_at_part ? PartOf(sizes_.count, header_->request.ranks, rank).offset : 0;
  }
  const Sizes& sizes() const { return sizes_; }
  const Header& header() const { return *header_; }

 private:
  Status CountTrips(const std::vector<Loop>& loops, std::int32_t end, std::int32_t ranges_known);
  static Result<Layout> Make(const Header& header, const Shapes& shapes, const std::vector<Loop>& loops, std::vector<bool> turns,
                             const Sizes& sizes);
  Extent Evaluate(std::int32_t range, const std::int64_t* iterations, std::int32_t turn) const;
  void EvaluateFixed();
  std::int64_t LengthOf(std::int32_t range, std::int32_t codec, const std::int64_t* iterations, std::int32_t turn) const;

  const Header* header_ = nullptr;
  const Shapes* shapes_ = nullptr;
  Sizes sizes_;
  std::vector<Extent> fixed_;  // by range
  std::vector<bool> moves_;    // by range: depends on a loop, or on whose rank it is
  std::vector<bool> turns_;    // by range, or empty: counts from the rank
  std::vector<std::int64_t> trips_, element_bytes_, elements_;
};

// Of the elements that lie in a buffer; encoded ones are bytes.
Dtype DtypeOf(const Header& header, std::int32_t buffer);

}  // namespace ropewalk::collective
