#include "mlrunner/measure/bandwidth.h"

#include <algorithm>
#include <array>

namespace ropewalk::measure {

std::optional<double> BusFactor(std::string_view collective, std::int32_t ranks) {
  static constexpr std::array<std::string_view, 7> kSplit = {"reduce_scatter", "allgather", "allgather_v", "all_to_all",
                                                             "all_to_all_v",   "gather",    "scatter"};
  static constexpr std::array<std::string_view, 3> kWhole = {"broadcast", "reduce", "send_recv"};
  auto is_in = [&](const auto& names) { return std::find(names.begin(), names.end(), collective) != names.end(); };
  const double others = static_cast<double>(ranks - 1) / ranks;
  if (collective == "allreduce") return 2 * others;
  if (is_in(kSplit)) return others;
  if (is_in(kWhole)) return 1;
  return std::nullopt;
}

double AlgorithmGbPerS(std::int64_t bytes, double us) { return us > 0 ? static_cast<double>(bytes) / us / 1000 : 0; }

}  // namespace ropewalk::measure
