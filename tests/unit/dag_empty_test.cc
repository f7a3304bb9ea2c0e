// Operators and actions over nothing.
#include <gtest/gtest.h>

#include "tests/unit/dag_model.h"

namespace ropewalk::dag {
namespace {

TEST(Empty, InputsOfEveryOperatorAndAction) {
  for (std::uint32_t partitions : {1, 3}) {
    LocalBackend backend(partitions);
    Session job = backend.NewSession();
    auto none = job.FromVector(Pairs());
    EXPECT_TRUE(none.Collect().empty());
    EXPECT_EQ(none.Count(), 0u);
    EXPECT_TRUE(none.Take(5).empty());
    EXPECT_TRUE(none.Top(5).empty());
    EXPECT_FALSE(none.Reduce([](const Pair& a, const Pair&) { return a; }).has_value());
    EXPECT_EQ(none.Map([](const Pair& p) { return p.second; }).Sum(), 0);
    EXPECT_TRUE(none.ReduceByKey(std::plus<>()).Collect().empty());
    EXPECT_TRUE(none.GroupByKey().Collect().empty());
    EXPECT_TRUE(none.Distinct().Collect().empty());
    EXPECT_TRUE(none.Join(none).Collect().empty());
    EXPECT_TRUE(none.Union(none).Cache().Union(none).Collect().empty());
  }
}

}  // namespace
}  // namespace ropewalk::dag
