#include "mlrunner/train/pace.h"

#include <cmath>

#include <fmt/format.h>

namespace ropewalk::mlrunner {
namespace {

constexpr double kMemorySeconds = 30;  // after so long a step counts a third
constexpr double kSeenSeconds = 1;     // the first steps touch memory for the first time, and tell little

}  // namespace

void StepPace::Made(std::int64_t steps, double seconds) {
  const double kept = std::exp(-seconds / kMemorySeconds);
  steps_ = steps_ * kept + static_cast<double>(steps);
  seconds_ = seconds_ * kept + seconds;
}

double StepPace::SecondsFor(std::int64_t steps) const {
  return seconds_ < kSeenSeconds || steps_ <= 0 ? -1 : static_cast<double>(steps) * seconds_ / steps_;
}

std::string LeftText(double seconds) {
  if (seconds < 0) return "";
  if (seconds < 100) return fmt::format("{:.0f} s left", std::ceil(seconds));
  if (seconds < 100 * 60) return fmt::format("{:.0f} min left", seconds / 60);
  return fmt::format("{:.1f} h left", seconds / 3600);
}

}  // namespace ropewalk::mlrunner
