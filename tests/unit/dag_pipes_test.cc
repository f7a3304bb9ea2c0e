// Operators that work record by record, and words: against plain loops.
#include <gtest/gtest.h>

#include <optional>

#include "dag/text.h"
#include "tests/unit/dag_model.h"

namespace ropewalk::dag {
namespace {

TEST(Pipes, MapFilterFlatMapKeyByMapValues) {
  ForPartitions([](Session& job, const Pairs& data, std::mt19937_64&) {
    std::vector<std::string> expected;
    for (const auto& [k, v] : data)
      if (v > 0)
        for (int i = 0; i < v % 3; ++i) expected.push_back(k + "/" + std::to_string(2 * v));
    auto result = job.FromVector(data)
                      .Filter([](const Pair& p) { return p.second > 0; })
                      .FlatMap([](const Pair& p) { return std::vector<Pair>(p.second % 3, p); })
                      .KeyBy([](const Pair& p) { return p.second; })
                      .MapValues([](const Pair& p) { return p.first; })
                      .Map([](const auto& kv) { return kv.second + "/" + std::to_string(2 * kv.first); });
    EXPECT_EQ(result.Collect(), expected);  // narrow operators keep the order
    Dataset<std::string> erased = result;
    EXPECT_EQ(erased.Collect(), expected);
    EXPECT_EQ(erased.Map([](const std::string& s) { return s.size(); }).Filter([](std::size_t n) { return n > 0; }).Count(),
              expected.size());
  });
}

TEST(Pipes, FlatMapWithEmitAndOptional) {
  ForPartitions([](Session& job, const Pairs& data, std::mt19937_64&) {
    std::vector<std::int64_t> twice, some;
    for (const auto& [k, v] : data) {
      twice.push_back(v);
      twice.push_back(-v);
      if (v > 3) some.push_back(v);
    }
    auto in = job.FromVector(data);
    EXPECT_EQ(in.FlatMap([](const Pair& p, Emit<std::int64_t> emit) {
                  emit(p.second);
                  emit(-p.second);
                }).Collect(),
              twice);
    EXPECT_EQ(in.FlatMap([](const Pair& p) { return p.second > 3 ? std::optional(p.second) : std::nullopt; }).Collect(), some);
  });
}

TEST(Pipes, BatchesAreLargeBehindAnErasedPipe) {
  LocalBackend backend(1);
  Session job = backend.NewSession();
  std::vector<std::string> data(10000, std::string(30, 'x'));
  Dataset<std::string> erased = job.FromVector(data).Map([](const std::string& s) { return s + "y"; });
  struct Sizes final : Stream<std::string_view> {
    StreamPtr<std::string_view> in;
    std::shared_ptr<std::vector<std::size_t>> sizes = std::make_shared<std::vector<std::size_t>>();
    Status Run(TaskContext& context, std::uint32_t partition, BatchSink<std::string_view> sink) const override {
      return in->Run(context, partition, [&](std::span<const std::string_view> batch) {
        sizes->push_back(batch.size());
        return sink(batch);
      });
    }
  };
  auto spy = std::make_shared<Sizes>();
  spy->in = erased.stream();
  EXPECT_EQ(Dataset<std::string>(erased.node(), spy).Count(), data.size());
  for (std::size_t i = 0; i + 1 < spy->sizes->size(); ++i) EXPECT_GE((*spy->sizes)[i], 1024u);
}

TEST(Pipes, WordsAreMaximalRunsOfNonSpace) {
  std::mt19937_64 random(11);
  const char alphabet[] = {' ', '\t', '\n', '\v', '\f', '\r', 'a', 'b', '\0', '\x08', '\x0e', '\x1f', '\x80', '\xff', '!', '~'};
  for (int round = 0; round < 3000; ++round) {
    std::string text(random() % 70, ' ');
    bool long_words = random() % 2;
    for (char& c : text) c = long_words && random() % 20 ? 'x' : alphabet[random() % sizeof(alphabet)];
    std::vector<std::string> expected, lazy, each;
    std::string word;
    for (char c : text + " ") {
      if (c == ' ' || (c >= '\t' && c <= '\r')) {
        if (!word.empty()) expected.push_back(std::exchange(word, ""));
      } else {
        word += c;
      }
    }
    for (std::string_view w : Words(text)) lazy.emplace_back(w);
    ForEachWord(text, [&](std::string_view w) { each.emplace_back(w); });
    ASSERT_EQ(lazy, expected);
    ASSERT_EQ(each, expected);
  }
}

}  // namespace
}  // namespace ropewalk::dag
