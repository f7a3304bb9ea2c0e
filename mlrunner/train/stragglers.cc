#include "mlrunner/train/stragglers.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <utility>

#include <fmt/format.h>

namespace ropewalk::mlrunner {
namespace {

constexpr double kLeastExcess_s = 1e-3;

// Of an even number the mean of the two in the middle: with two peers neither of them alone is the measure.
double Median(std::vector<double> numbers) {
  if (numbers.empty()) return 0;
  const auto middle = numbers.begin() + static_cast<std::ptrdiff_t>(numbers.size() / 2);
  std::nth_element(numbers.begin(), middle, numbers.end());
  if (numbers.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(numbers.begin(), middle)) / 2;
}

}  // namespace

std::vector<Straggler> FindStragglers(std::span<const OwnSeconds> ranks, double ratio) {
  std::vector<Straggler> found;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    std::vector<double> others;
    for (std::size_t other = 0; other < ranks.size(); ++other)
      if (other != rank) others.push_back(ranks[other].all);
    const double peers_s = Median(std::move(others)), own_s = ranks[rank].all;
    if (ranks.size() < 2 || own_s <= ratio * peers_s || own_s - peers_s < kLeastExcess_s) continue;
    found.push_back({static_cast<std::int32_t>(rank), peers_s > 0 ? own_s / peers_s : own_s / kLeastExcess_s, ranks[rank], peers_s});
  }
  return found;
}

bool StragglerWatch::Add(const OwnSeconds& step) {
  if (options_.ratio <= 0) return false;
  all_.push_back(step.all);
  data_.push_back(step.data);
  return static_cast<std::int64_t>(all_.size()) >= options_.steps;
}

OwnSeconds StragglerWatch::TakeMedians() {
  const OwnSeconds medians{Median(all_), Median(data_)};
  all_.clear();
  data_.clear();
  return medians;
}

StragglerWatch::News StragglerWatch::Judge(std::span<const OwnSeconds> ranks) {
  News news;
  std::set<std::int32_t> slow;
  for (const Straggler& straggler : FindStragglers(ranks, options_.ratio)) {
    slow.insert(straggler.rank);
    if (slow_.contains(straggler.rank) || !std::has_single_bit(++times_[straggler.rank])) continue;
    named_.insert(straggler.rank);
    news.slow.push_back(straggler);
  }
  for (const std::int32_t rank : slow_)
    if (!slow.contains(rank) && named_.erase(rank) > 0) news.over.push_back(rank);
  slow_ = std::move(slow);
  return news;
}

std::string ToString(const Straggler& s, const std::string& machine) {
  return fmt::format(
      "rank {} on {} holds the others up: {:.1f} ms of its own a step, {:.1f} times the {:.1f} ms of its peers; to make a batch takes it "
      "{:.1f} ms",
      s.rank, machine, s.own.all * 1e3, s.ratio, s.peers_s * 1e3, s.own.data * 1e3);
}

}  // namespace ropewalk::mlrunner
