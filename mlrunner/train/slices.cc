#include "mlrunner/train/slices.h"

#include <algorithm>
#include <map>
#include <numeric>

#include <fmt/format.h>

#include "base/copy_bytes.h"

namespace ropewalk::mlrunner {

Slice WholeOf(const Dims& logical) { return {Dims(logical.size(), 0), logical}; }

Dims LengthsOf(const Slice& slice) {
  Dims lengths(slice.begin.size());
  for (std::size_t d = 0; d < lengths.size(); ++d) lengths[d] = slice.end[d] - slice.begin[d];
  return lengths;
}

std::int64_t NumElements(const Slice& slice) { return NumElements(LengthsOf(slice)); }

Slice Intersection(const Slice& a, const Slice& b) {
  Slice both = a;
  for (std::size_t d = 0; d < both.begin.size(); ++d) {
    both.begin[d] = std::max(a.begin[d], b.begin[d]);
    both.end[d] = std::max(both.begin[d], std::min(a.end[d], b.end[d]));
  }
  return both;
}

bool IsWithin(const Slice& slice, const Dims& logical) {
  if (slice.begin.size() != logical.size() || slice.end.size() != logical.size()) return false;
  for (std::size_t d = 0; d < logical.size(); ++d) {
    if (slice.begin[d] < 0 || slice.begin[d] > slice.end[d] || slice.end[d] > logical[d]) return false;
  }
  return true;
}

std::string ToString(const Slice& slice) {
  std::string text = "[";
  for (std::size_t d = 0; d < slice.begin.size(); ++d) text += fmt::format("{}{}:{}", d > 0 ? ", " : "", slice.begin[d], slice.end[d]);
  return text + "]";
}

void CopySlice(const Slice& what, std::size_t element_bytes, const Slice& from_slice, const std::byte* from, const Slice& to_slice,
               std::byte* to) {
  if (NumElements(what) == 0) return;
  const Dims lengths = LengthsOf(what), from_lengths = LengthsOf(from_slice), to_lengths = LengthsOf(to_slice);
  // Dimensions from `rows` on lie side by side in both: one copy takes them all.
  std::size_t rows = lengths.size();
  std::int64_t run = 1;
  while (rows > 0) {
    --rows;
    run *= lengths[rows];
    if (lengths[rows] != from_lengths[rows] || lengths[rows] != to_lengths[rows]) break;
  }
  const std::size_t bytes = static_cast<std::size_t>(run) * element_bytes;
  auto place = [&](const Dims& at, const Slice& in, const Dims& in_lengths) {
    std::int64_t element = 0;
    for (std::size_t d = 0; d < at.size(); ++d) element = element * in_lengths[d] + at[d] - in.begin[d];
    return static_cast<std::size_t>(element) * element_bytes;
  };
  for (Dims at = what.begin;;) {
    CopyBytes(to + place(at, to_slice, to_lengths), from + place(at, from_slice, from_lengths), bytes);
    std::size_t d = rows;
    while (d > 0 && ++at[d - 1] == what.end[d - 1]) {
      at[d - 1] = what.begin[d - 1];
      --d;
    }
    if (d == 0) return;
  }
}

Result<std::vector<std::vector<WrittenSlice>>> WritersOf(const std::vector<LogicalState>& states, const Mesh& mesh, std::int32_t ranks,
                                                         std::uint64_t spread_bytes) {
  auto bytes_of = [&](std::size_t state) {
    return static_cast<std::uint64_t>(NumElements(states[state].dims)) * SizeOf(states[state].dtype);
  };
  std::uint64_t all_bytes = 0;
  for (std::size_t i = 0; i < states.size(); ++i) all_bytes += bytes_of(i);
  // The largest first: what comes last evens out.
  std::vector<std::size_t> order(states.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return bytes_of(a) > bytes_of(b); });

  std::vector<std::vector<WrittenSlice>> writers(static_cast<std::size_t>(ranks));
  std::vector<std::uint64_t> load(writers.size(), 0);
  for (std::size_t i : order) {
    const LogicalState& state = states[i];
    if (!state.sharding.partial.empty())
      return Status(Code::kInternal, "CKPT01", fmt::format("state {} {} cannot be checkpointed", state.name, state.sharding.ToString(mesh)),
                    "each rank holds a summand of it", "add it up over the ranks first");
    std::map<Dims, std::pair<Slice, std::vector<std::size_t>>> holders;  // by where the slice begins
    for (std::int32_t rank = 0; rank < ranks; ++rank) {
      Slice slice = SliceOf(state.dims, state.sharding, mesh, rank);
      if (NumElements(slice) == 0 && NumElements(state.dims) > 0) continue;
      auto& [same, who] = holders[slice.begin];
      same = std::move(slice);
      who.push_back(static_cast<std::size_t>(rank));
    }
    for (const auto& [begin, held] : holders) {
      const auto& [slice, who] = held;
      auto least = [&](std::size_t a, std::size_t b) { return load[a] < load[b]; };
      const std::size_t writer = all_bytes < spread_bytes ? who.front() : *std::min_element(who.begin(), who.end(), least);
      writers[writer].push_back({i, slice});
      load[writer] += static_cast<std::uint64_t>(NumElements(slice)) * SizeOf(state.dtype);
    }
  }
  return writers;
}

}  // namespace ropewalk::mlrunner
