// Rows that lie in memory, side by side: which are trained on, and some of them copied by number.
//
// Thread rule: pure functions.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "base/status.h"
#include "mlrunner/data/hold_out.h"
#include "storage/io_error.h"

namespace ropewalk::mlrunner {

// `part` (0 to 1, rounded down) of the `count` rows of `path` is held out. kUserError DATA08: nothing is left.
inline Result<HoldOut> DivideRows(const std::string& path, std::int64_t count, double part) {
  HoldOut drawn = DrawHoldOut(count, part);
  if (!drawn.training.empty()) return drawn;
  return Status(Code::kUserError, "DATA08", storage::QuotedPath(path) + " has no rows to learn from",
                fmt::format("it has {} in all", count), "name a file with rows");
}

// The rows `ids` of `from` (rows, width), one after the other.
template <class From, class To>
void CopyRows(const std::vector<From>& from, std::int64_t width, std::span<const std::int64_t> ids, To* to) {
  for (std::int64_t id : ids) to = std::copy_n(from.data() + id * width, width, to);
}
template <class T>
std::vector<T> RowsOf(const std::vector<T>& from, std::int64_t width, std::span<const std::int64_t> ids) {
  std::vector<T> rows;
  rows.reserve(ids.size() * static_cast<std::size_t>(width));
  for (std::int64_t id : ids) {
    const auto first = from.begin() + id * width;
    rows.insert(rows.end(), first, first + width);
  }
  return rows;
}

}  // namespace ropewalk::mlrunner
