// Records of many types through caches, shuffles and actions.
#include <gtest/gtest.h>

#include <chrono>
#include <complex>
#include <map>
#include <optional>

#include "tests/unit/dag_model.h"

namespace ropewalk::dag {
namespace {

struct Visit {
  std::string page;
  std::uint32_t day;
  double seconds;
  friend bool operator==(const Visit&, const Visit&) = default;
};

struct Located {
  int id;
  float xyz[3];
};
struct Empty {
  auto operator<=>(const Empty&) const = default;
};

TEST(Types, ComeThroughCachesShufflesAndActions) {
  LocalBackend backend(3);
  Session job = backend.NewSession();
  std::vector<Visit> visits = {{"a", 1, .5}, {"b", 1, 2}, {"a", 2, .25}};
  auto in = job.FromVector(visits);
  EXPECT_EQ(in.Cache().Collect(), visits);
  auto seconds = in.Map([](const Visit& v) { return std::pair(v.page, v.seconds); }).ReduceByKey(std::plus<>());
  EXPECT_EQ(Sorted(seconds.Collect()), (std::vector<std::pair<std::string, double>>{{"a", .75}, {"b", 2}}));
  EXPECT_EQ(in.Map(&Visit::day).Distinct().Count(), 2u);
  auto tuples = job.FromVector(std::vector<std::tuple<int, std::string, std::optional<std::string>>>{{1, "x", "y"}, {2, "", std::nullopt}});
  EXPECT_EQ(tuples.Cache().Map([](const auto& t) { return std::get<2>(t).value_or("none"); }).Collect(),
            (std::vector<std::string>{"y", "none"}));
  auto flags = job.FromVector(std::vector<bool>{true, false, true});
  EXPECT_EQ(flags.Map([](bool b) { return !b; }).Cache().Collect(), (std::vector<bool>{false, true, false}));
  EXPECT_EQ(flags.CountByKey().Count(), 2u);
  auto maps = job.FromVector(std::vector<std::map<std::string, std::vector<int>>>{{{"k", {1, 2}}}, {}});
  EXPECT_EQ(maps.Cache().Map([](const auto& m) { return m.size(); }).Sum(), 1u);
  auto arrays = job.FromVector(std::vector<std::array<char, 4>>{{'a', 'b', 'c', 'd'}});
  EXPECT_EQ(arrays.Distinct().Collect().size(), 1u);
  auto locations = job.FromVector(std::vector<Located>{{1, {1, 2, 3}}, {2, {4, 5, 6}}, {1, {7, 8, 9}}});
  auto by_id = locations.Cache().KeyBy([](const Located& l) { return l.id; });
  auto highest = by_id.ReduceByKey([](const Located& a, const Located& b) { return a.xyz[2] < b.xyz[2] ? b : a; });
  EXPECT_EQ(Sorted(highest.Map([](const auto& p) { return std::pair(p.first, p.second.xyz[0]); }).Collect()),
            (std::vector<std::pair<int, float>>{{1, 7}, {2, 4}}));
  EXPECT_EQ(locations.SortBy([](const Located& l) { return -l.xyz[1]; }).Map(&Located::id).Collect(), (std::vector<int>{1, 2, 1}));
  auto waves = job.FromVector(std::vector<std::complex<double>>{{1, 2}, {3, -4}});
  EXPECT_EQ(waves.Cache().Collect(), (std::vector<std::complex<double>>{{1, 2}, {3, -4}}));
  EXPECT_EQ(waves.Sum(), std::complex<double>(4, -2));
  using Seconds = std::chrono::duration<double>;
  auto times = job.FromVector(std::vector<Seconds>{Seconds(2), Seconds(.5)});
  EXPECT_EQ(times.Sort().Collect(), (std::vector<Seconds>{Seconds(.5), Seconds(2)}));
  auto longs = job.FromVector(std::vector<long double>{3, -0.0L, 1.0L / 3, 0});
  EXPECT_EQ(longs.Distinct().Count(), 3u);
  EXPECT_EQ(longs.Sort().Collect(), (std::vector<long double>{-0.0L, 0, 1.0L / 3, 3}));
  EXPECT_EQ(longs.Sum(), 3 + 1.0L / 3);
}

TEST(Types, RecordsOfNoBytesAreCountedAllTheSame) {
  LocalBackend backend(3);
  Session job = backend.NewSession();
  auto all = [&](auto in, std::size_t n) {
    EXPECT_EQ(in.Count(), n);
    EXPECT_EQ(in.Collect().size(), n);
    EXPECT_EQ(in.Take(2).size(), std::min<std::size_t>(n, 2));
    EXPECT_EQ(in.Top(2).size(), std::min<std::size_t>(n, 2));
    EXPECT_EQ(in.Cache().Collect().size(), n);
    EXPECT_EQ(in.Sort().Collect().size(), n);
    EXPECT_EQ(in.Distinct().Count(), n > 0 ? 1u : 0u);
    EXPECT_EQ(in.Map([](const auto& r) { return std::pair(r, 1); }).ReduceByKey(std::plus<>()).Count(), n > 0 ? 1u : 0u);
    auto groups = in.Map([](const auto& r) { return std::pair(1, r); }).GroupByKey().Collect();
    EXPECT_EQ(groups.size() == 1 ? groups[0].second.size() : 0, n);
  };
  for (std::size_t n : {std::size_t(0), std::size_t(1), std::size_t(3000)}) {
    all(job.FromVector(std::vector<Empty>(n)), n);
    all(job.FromVector(std::vector<std::tuple<>>(n)), n);
  }
  backend.options.collect_bytes_max = 100;
  EXPECT_THROW(job.FromVector(std::vector<Empty>(500)).Collect(), ActionFailed) << "they take memory in main";
}

}  // namespace
}  // namespace ropewalk::dag
