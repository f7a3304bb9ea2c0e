#include "mlrunner/train/auc.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace ropewalk::mlrunner {
namespace {

constexpr int kSmallest = -20, kLargest = 12;  // powers of two
constexpr std::int64_t kEach = 1024;           // bins between two of them
constexpr std::int64_t kSide = (kLargest - kSmallest) * kEach;
constexpr std::int64_t kBins = 2 * kSide + 1;  // and one for zero, in the middle

std::int64_t BinOf(double score) {
  const double size = std::min(std::fabs(score), std::ldexp(1, kLargest) * (1 - 1.0 / 4096));
  int power = 0;
  const double part = std::frexp(size, &power);  // [.5, 1) times 2^power
  if (size == 0 || power - 1 < kSmallest) return kSide;
  const std::int64_t at = (power - 1 - kSmallest) * kEach + static_cast<std::int64_t>((part - .5) * 2 * kEach);
  return score > 0 ? kSide + 1 + at : kSide - 1 - at;
}

}  // namespace

AucCounts::AucCounts() : counts_(static_cast<std::size_t>(2 * kBins)) {}

void AucCounts::Add(double score, bool is_positive) {
  if (!std::isnan(score)) ++counts_[static_cast<std::size_t>(2 * BinOf(score) + (is_positive ? 1 : 0))];
}

double AucCounts::Auc() const {
  double below = 0, positives = 0, won = 0;  // negatives that score less; positives; pairs
  for (std::size_t bin = 0; bin < counts_.size(); bin += 2) {
    const double negative = counts_[bin], positive = counts_[bin + 1];
    won += positive * (below + negative / 2);
    below += negative;
    positives += positive;
  }
  return below > 0 && positives > 0 ? won / (below * positives) : std::numeric_limits<double>::quiet_NaN();
}

}  // namespace ropewalk::mlrunner
