#include "base/nearest.h"

#include <algorithm>
#include <vector>

namespace ropewalk {

std::size_t EditDistance(std::string_view a, std::string_view b) {
  constexpr std::size_t kBytesMax = 256;  // names; the cost is quadratic
  a = a.substr(0, kBytesMax);
  b = b.substr(0, kBytesMax);
  std::vector<std::size_t> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) row[j] = std::min(row[j], before[j - 2] + 1);
    }
    std::swap(before, last);
    std::swap(last, row);
  }
  return last[b.size()];
}

std::string NearestName(std::string_view name, std::span<const std::string> candidates) {
  std::size_t best = std::max<std::size_t>(1, name.size() / 3) + 1;
  std::string nearest;
  for (const std::string& candidate : candidates) {
    std::size_t edits = EditDistance(name, candidate);
    if (edits < best) {
      best = edits;
      nearest = candidate;
    }
  }
  return nearest;
}

}  // namespace ropewalk
