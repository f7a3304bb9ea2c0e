#include "mlrunner/data/features.h"

#include <algorithm>
#include <cmath>

namespace ropewalk::mlrunner {

std::string_view Trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

bool IsMissing(std::string_view text) {
  for (const char* word : {"", "NA", "N/A", "NaN", "nan", "NULL", "null", "?"})
    if (text == word) return true;
  return false;
}

void FillAndScale(std::vector<float>* features, std::int64_t columns, const std::vector<std::int64_t>& training, bool scale) {
  const auto width = static_cast<std::size_t>(columns);
  for (std::size_t column = 0; column < width; ++column) {
    double sum = 0, squares = 0;
    std::int64_t count = 0;
    for (std::int64_t row : training) {
      const double feature = (*features)[static_cast<std::size_t>(row) * width + column];
      if (std::isnan(feature)) continue;
      ++count;
      const double off = feature - sum / static_cast<double>(std::max<std::int64_t>(1, count - 1));  // Welford's: no large squares
      sum += feature;
      squares += off * (feature - sum / static_cast<double>(count));
    }
    const double mean = count == 0 ? 0 : sum / static_cast<double>(count);
    const double deviation = count == 0 ? 0 : std::sqrt(squares / static_cast<double>(count));
    const double divisor = deviation > 0 ? deviation : 1;
    for (std::size_t at = column; at < features->size(); at += width) {
      float& feature = (*features)[at];
      if (std::isnan(feature)) feature = static_cast<float>(mean);
      if (scale) feature = static_cast<float>((feature - mean) / divisor);
    }
  }
}

}  // namespace ropewalk::mlrunner
