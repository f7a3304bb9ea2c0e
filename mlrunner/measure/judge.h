// Are results right? Ranks begin with small whole numbers that every rank can work out for all others, and what must come out is computed
// from the promise of the plan (its postcondition), without looking at its steps: so a plan that is proved and run by broken code, memory
// or wires is found out.
//
// Every sum, minimum, maximum and product of these numbers is exact in its type, in whatever order it is made, and compared exactly. An
// average is rounded, where sums are stored on the way once for each rank: it may be off by that.
//
// Thread rule: const use from many threads.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "mlrunner/collective/layout.h"
#include "mlrunner/collective/plan.h"

namespace ropewalk::measure {

// The numbers that ranks begin with.
class Pattern {
 public:
  Pattern(collective::Dtype dtype, collective::ReduceOp op, std::int32_t ranks);

  // In any vector of the rank, whatever its length: element `index` is this one.
  int At(std::int32_t rank, std::int64_t index) const {
    return rows_[static_cast<std::size_t>(rank) * kPeriod + static_cast<std::size_t>(index % kPeriod)];
  }
  void Fill(std::int32_t rank, void* data, std::int64_t count) const;
  collective::Dtype dtype() const { return dtype_; }

  // A prime: what is moved by a part, a segment or a page is another number there.
  static constexpr std::int64_t kPeriod = 1021;

 private:
  const collective::Dtype dtype_;
  std::vector<std::uint8_t> rows_;  // by rank
};

struct Verdict {
  std::int64_t wrong = 0;  // elements
  std::string first;       // "element 7 is 3 and should be 4"; empty: none is wrong
};

// Bytes that are no right result of any type.
void Spoil(void* data, std::int64_t bytes);

// Of what `out` of `rank` holds after a run of `plan`. What no claim is about is not looked at (what a reduce leaves on other ranks than
// the root). kInvalid BENCH21 for a promise that is not about sums of what went in.
Result<Verdict> Look(const collective::Plan& plan, const collective::Sizes& sizes, const Pattern& pattern, std::int32_t rank,
                     const void* out);

}  // namespace ropewalk::measure
