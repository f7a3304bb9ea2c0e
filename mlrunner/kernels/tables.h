// What the reference and the fast kernels of tables share: which bag or table a place belongs to, and what is said of rows that there are
// not.
//
// Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "base/status.h"
#include "mlrunner/graph/graph.h"

namespace ropewalk::mlrunner {

// RUN05, with the place of the wrong one.
inline Status NoSuchRow(const std::string& what, std::int64_t place, std::int64_t row, std::int64_t size) {
  return Status(Code::kUserError, "RUN05", fmt::format("{} {} is {}", what, place, row), fmt::format("it must lie in [0, {})", size),
                row < 0 ? "mend the data: indices count from 0" : "mend the data, or give the table more rows");
}

// Of `n` indices that [] gives, for a table with so many rows.
template <class Indices>
Status CheckRows(const Indices& indices, std::int64_t n, std::int64_t size) {
  for (std::int64_t i = 0; i < n; ++i) {
    if (indices[i] < 0 || indices[i] >= size) return NoSuchRow("index", i, indices[i], size);
  }
  return {};
}

// bags[i]: the last bag that begins at or before i. Offsets begin with 0 and do not fall; bags may be empty.
template <class T>
Status FindBags(const T* offsets, std::int64_t count, T* bags, std::int64_t places) {
  auto wrong = [&](std::int64_t bag, std::string why) {
    return Status(Code::kUserError, "RUN05", fmt::format("bag {} of {} begins at {}", bag, count, static_cast<std::int64_t>(offsets[bag])),
                  std::move(why), "give for each bag the place of its first index: 0 first, none below the one before");
  };
  if (places > 0 && count == 0) {
    return Status(Code::kUserError, "RUN05", fmt::format("{} indices are in no bag", places), "there are no offsets",
                  "give one bag at least");
  }
  if (count > 0 && offsets[0] != 0) return wrong(0, "what lies before it would be in no bag");
  for (std::int64_t bag = 0, i = 0; bag < count; ++bag) {
    const std::int64_t end = bag + 1 < count ? static_cast<std::int64_t>(offsets[bag + 1]) : places;
    if (end < static_cast<std::int64_t>(offsets[bag])) return wrong(bag, fmt::format("the next one, or the end, comes before it: {}", end));
    if (end > places) return wrong(bag + 1, fmt::format("there are {} indices", places));
    for (; i < end; ++i) bags[i] = static_cast<T>(bag);
  }
  return {};
}

// Tables that lie one after the other, as StackedRows has them.
struct StackedTables {
  StackedTables(const Op& op, const Dims& dims) : sizes(op.attrs.Ints(Attr::kStrides)) {
    const auto axis = static_cast<std::size_t>(op.attrs.Int(Attr::kAxis));
    for (std::size_t d = axis + 1; d < dims.size(); ++d) inner *= dims[d];
    std::int64_t rows = 0;
    for (std::int64_t size : sizes) {
      first.push_back(rows);
      rows += size;
    }
  }
  std::size_t TableOf(std::int64_t place) const { return static_cast<std::size_t>(place / inner) % sizes.size(); }
  std::int64_t SampleOf(std::int64_t place) const { return place / inner / static_cast<std::int64_t>(sizes.size()); }
  std::vector<std::int64_t> sizes, first;
  std::int64_t inner = 1;  // ids of one sample for one table
};

}  // namespace ropewalk::mlrunner
