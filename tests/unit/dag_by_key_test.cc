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

// What values hold inside counts too: kilobytes behind each of a few hundred keys are more than 256 KiB of memory, whatever the kind of
// container; and a table that counts them right flushes and spills.
TEST(ByKey, MemoryInsideOfValuesCounts) {
  const std::string kilobyte(1000, 'x');
  constexpr int kKeys = 400, kRounds = 3;
  auto check = [&](auto make, auto combine, auto size) {
    using V = decltype(make(kilobyte));
    LocalBackend backend(1);
    backend.options.operator_bytes = 256u << 10;
    Session job = backend.NewSession();
    std::vector<int> numbers(kKeys * kRounds);
    for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<int>(i % kKeys);
    auto values = job.FromVector(numbers, {.partitions = 2}).Map([make, kilobyte](int n) { return std::pair(n, make(kilobyte)); });
    std::map<int, V> got;
    for (auto& [k, v] : values.ReduceByKey(combine).Collect()) got[k] = v;
    EXPECT_EQ(got.size(), std::size_t(kKeys));
    for (const auto& [k, v] : got) EXPECT_EQ(size(v), std::size_t(kRounds)) << k;
    EXPECT_GT(backend.spill.bytes, 0u) << "of " << kKeys * kRounds << " kB, or 400 kB of those that keep one";
  };
  using Texts = std::vector<std::string>;
  check([](const std::string& s) { return Texts{s}; }, [](Texts& a, const Texts& b) { a.insert(a.end(), b.begin(), b.end()); },
        [](const Texts& v) { return v.size(); });
  using Lists = std::vector<std::vector<char>>;
  check([](const std::string& s) { return Lists{{s.begin(), s.end()}}; },
        [](Lists& a, const Lists& b) { a.insert(a.end(), b.begin(), b.end()); }, [](const Lists& v) { return v.size(); });
  using Named = std::map<int, std::string>;
  check([](const std::string& s) { return Named{{0, s}}; },
        [](Named& a, const Named& b) {
          for (const auto& [k, v] : b) a[static_cast<int>(a.size())] = v;
        },
        [](const Named& m) { return m.size(); });
  // Strings that grow inside a container that does not, and a container that keeps one of two.
  using Slots = std::pair<int, std::vector<std::string>>;
  check([](const std::string& s) { return Slots(1, {s}); },
        [](Slots& a, const Slots& b) {
          a.first += b.first;
          a.second[0] += b.second[0];
        },
        [](const Slots& s) { return s.second[0].size() / 1000; });
  using First = std::tuple<int, std::optional<Texts>>;
  check([](const std::string& s) { return First(1, Texts{s}); }, [](First& a, const First& b) { std::get<0>(a) += std::get<0>(b); },
        [](const First& t) { return std::size_t(std::get<0>(t)); });
}

}  // namespace
}  // namespace ropewalk::dag
