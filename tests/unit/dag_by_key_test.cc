// ReduceByKey against std::map.
#include <gtest/gtest.h>

#include <map>

#include "tests/unit/dag_model.h"

namespace ropewalk::dag {
namespace {

TEST(ByKey, ReduceByKeyBothFormsOfCombiner) {
  ForPartitions([](Session& job, const Pairs& data, std::mt19937_64&) {
    std::map<std::string, std::int64_t> sum;
    std::map<std::string, std::string> text;
    for (const auto& [k, v] : data) {
      sum[k] += v;
      text[k] += std::to_string(v) + ",";
    }
    auto in = job.FromVector(data);
    EXPECT_EQ(Sorted(in.ReduceByKey(std::plus<>()).Collect()), Pairs(sum.begin(), sum.end()));
    EXPECT_EQ(Sorted(in.ReduceByKey([](std::int64_t& a, const std::int64_t& b) { a += b; }).Collect()), Pairs(sum.begin(), sum.end()));
    // Not commutative: values come in the order of the input.
    auto texts = in.MapValues([](std::int64_t v) {
                     return std::to_string(v) + ",";
                   }).ReduceByKey([](const std::string& a, const std::string& b) { return a + b; });
    EXPECT_EQ(Sorted(texts.Collect()), (std::vector<std::pair<std::string, std::string>>(text.begin(), text.end())));
  });
}

}  // namespace
}  // namespace ropewalk::dag
