// Records of many types through caches, shuffles and actions.
#include <gtest/gtest.h>

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
}

}  // namespace
}  // namespace ropewalk::dag
