// Ranks that hold the others up: found by what they do by themselves, and named by a training in whose data one of them sleeps.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "mlrunner/train/stragglers.h"
#include "tests/unit/train_ranks.h"

namespace ropewalk::mlrunner {
namespace {

std::vector<OwnSeconds> Of(const std::vector<double>& ms) {
  std::vector<OwnSeconds> ranks;
  for (double each : ms) ranks.push_back({each * 1e-3, 0});
  return ranks;
}
std::vector<std::int32_t> Ranks(const std::vector<Straggler>& stragglers) {
  std::vector<std::int32_t> ranks;
  for (const Straggler& straggler : stragglers) ranks.push_back(straggler.rank);
  return ranks;
}

TEST(Stragglers, AreFarAboveTheMedianOfTheOthers) {
  using List = std::vector<std::int32_t>;
  const auto found = [](const std::vector<double>& ms, double ratio = 1.5) { return Ranks(FindStragglers(Of(ms), ratio)); };
  EXPECT_EQ(found({10, 10, 10, 10}), List());
  EXPECT_EQ(found({10, 10, 10, 16}), List({3}));
  EXPECT_EQ(found({10, 10, 10, 14}), List());
  EXPECT_EQ(found({10, 10, 10, 14}, 1.3), List({3}));
  EXPECT_EQ(found({40, 10, 30, 10, 10}), List({0, 2}));
  EXPECT_EQ(found({10, 20}), List({1}));
  EXPECT_EQ(found({20, 10}), List({0}));
  EXPECT_EQ(found({20, 20}), List());
  EXPECT_EQ(found({20}), List()) << "alone";
  EXPECT_EQ(found({}), List());
  EXPECT_EQ(found({.1, .1, .9}), List()) << "too little to be anybody's fault";
  EXPECT_EQ(found({1, 20, 20, 20}), List()) << "one that is fast is none";
  EXPECT_EQ(found({0, 0, 5}), List({2}));
  EXPECT_NEAR(FindStragglers(Of({10, 30, 10}), 1.5).at(0).ratio, 3, 1e-9);
}

TEST(Stragglers, OneSlowStepIsNone) {
  StragglerWatch watch({.ratio = 1.5, .steps = 5});
  for (int step = 0; step < 5; ++step) EXPECT_EQ(watch.Add({step == 2 ? 1e3 : .01, step == 3 ? .5 : .001}), step == 4);
  const OwnSeconds medians = watch.TakeMedians();
  EXPECT_EQ(medians.all, .01);
  EXPECT_EQ(medians.data, .001);
  EXPECT_FALSE(watch.Add({1, 0})) << "it begins anew";
}

TEST(Stragglers, NobodyIsLookedForWhereTheRatioIsZero) {
  StragglerWatch watch({.ratio = 0, .steps = 2});
  for (int step = 0; step < 10; ++step) EXPECT_FALSE(watch.Add({1, 0}));
}

TEST(Stragglers, AreNewsOnce) {
  StragglerWatch watch({});
  EXPECT_EQ(Ranks(watch.Judge(Of({10, 10, 30})).slow), std::vector<std::int32_t>({2}));
  EXPECT_TRUE(watch.Judge(Of({10, 10, 30})).slow.empty());
  StragglerWatch::News news = watch.Judge(Of({30, 10, 10}));
  EXPECT_EQ(Ranks(news.slow), std::vector<std::int32_t>({0}));
  EXPECT_EQ(news.over, std::vector<std::int32_t>({2}));
  news = watch.Judge(Of({30, 10, 30, 10, 10}));
  EXPECT_EQ(Ranks(news.slow), std::vector<std::int32_t>({2}));
  EXPECT_TRUE(news.over.empty());
}

// One that is slow in every other look: seven times in a hundred (1, 2, 4 ... 64), each with its end.
TEST(Stragglers, WhoComesAndGoesIsNewsEverMoreSeldom) {
  StragglerWatch watch({});
  std::size_t slow = 0, over = 0;
  for (int time = 0; time < 100; ++time) {
    const StragglerWatch::News begun = watch.Judge(Of({10, 30}));
    EXPECT_TRUE(begun.over.empty());
    slow += begun.slow.size();
    const StragglerWatch::News ended = watch.Judge(Of({10, 10}));
    EXPECT_EQ(ended.over.size(), begun.slow.size());
    over += ended.over.size();
  }
  EXPECT_EQ(slow, 7u);
  EXPECT_EQ(over, 7u);
  EXPECT_EQ(Ranks(watch.Judge(Of({30, 10})).slow), std::vector<std::int32_t>({0})) << "another rank's times are its own";
}

TEST(Stragglers, InWords) {
  EXPECT_EQ(
      ToString({2, 2.1, {.0412, .019}, .0196}, "w2"),
      "rank 2 on w2 holds the others up: 41.2 ms of its own a step, 2.1 times the 19.6 ms of its peers; to make a batch takes it 19.0 ms");
}

// Samples that take their time to be fetched.
class Slow final : public Samples {
 public:
  explicit Slow(int sleep_ms) : sleep_ms_(sleep_ms) {}
  std::int64_t count() const override { return 240; }
  const std::vector<Field>& fields() const override { return fields_; }
  Status Fetch(std::span<const std::int64_t>) override {
    std::this_thread::sleep_for(std::chrono::milliseconds(sleep_ms_));
    return {};
  }
  void Fill(const FillCall& call) const override {
    for (std::size_t i = 0; i < call.ids.size(); ++i) {
      if (call.field == 1) {
        static_cast<std::int32_t*>(call.rows)[i] = static_cast<std::int32_t>(call.ids[i] % 2);
      } else {
        static_cast<float*>(call.rows)[2 * i] = static_cast<float>(call.ids[i] % 2);
        static_cast<float*>(call.rows)[2 * i + 1] = 1;
      }
    }
  }
  std::uint64_t content_hash() const override { return 7; }

 private:
  const int sleep_ms_;
  const std::vector<Field> fields_ = {{"features", Dtype::kF32, {2}}, {"label", Dtype::kI32, {}, 2}};
};

// Three ranks, of which `slow` sleeps longer; all do where it is -1.
std::vector<testing::RankResult> Train(std::int32_t slow, const std::string& metrics, testing::Sums sums = testing::Sums::kSharedMemory,
                                       const std::vector<std::string>& more = {}) {
  testing::RunOptions options{.sums = sums};
  options.load = [slow](testing::ThreadGang& gang) -> Result<DataSet> {
    DataSet data;
    data.training = std::make_unique<Slow>(slow < 0 || gang.rank() == slow ? 40 : 8);
    return data;
  };
  std::vector<std::string> settings = {"model.hidden=4", "train.batch=12",          "train.threads=1",
                                       "train.steps=24", "train.straggler_steps=8", "train.metrics=" + metrics};
  settings.insert(settings.end(), more.begin(), more.end());
  return testing::TrainOnThreads(testing::JobOf(settings), 3, options);
}

std::string Text(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::size_t CountOf(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

// In the history, on stderr and in the metrics of the job; once, and nobody else.
TEST(Stragglers, ARankThatSleepsInItsDataIsNamedAndOnlyIt) {
  testing::TempFolder folder;
  for (const std::int32_t slow : {2, 0}) {
    const std::string metrics = folder.path() + "/of" + std::to_string(slow);
    ::testing::internal::CaptureStderr();
    const auto results = Train(slow, metrics, slow == 0 ? testing::Sums::kTcp : testing::Sums::kSharedMemory);
    const std::string said = ::testing::internal::GetCapturedStderr();
    ASSERT_TRUE(results[0].status.ok()) << results[0].status.ToString();
    ASSERT_EQ(results[0].notices.size(), 1u) << said;
    const dag::GangNotice& notice = results[0].notices[0];
    EXPECT_EQ(notice.kind, "straggler");
    EXPECT_EQ(notice.rank, slow);
    EXPECT_EQ(notice.machine, slow == 0 ? "machine0" : "here");
    EXPECT_EQ(notice.step, 8u) << "in the first steps that are looked at";
    EXPECT_GT(notice.value, 1.5);
    EXPECT_LT(notice.value, 8);
    for (std::size_t rank = 1; rank < results.size(); ++rank) EXPECT_TRUE(results[rank].notices.empty());
    const std::string name = "rank " + std::to_string(slow) + " on " + notice.machine;
    EXPECT_NE(notice.text.find(name + " holds the others up"), std::string::npos) << notice.text;
    EXPECT_EQ(CountOf(said, "warning: " + name + " holds the others up"), 1u) << said;
    EXPECT_EQ(CountOf(said, "holds the others up"), 1u) << said;
    const std::string lines = Text(metrics);
    EXPECT_EQ(CountOf(lines, "\"straggler\""), 1u);
    EXPECT_NE(lines.find("{\"step\":8,\"straggler\":{\"rank\":" + std::to_string(slow) + ","), std::string::npos) << lines;
  }
}

// The controls: all as slow as each other, so that all wait; and nobody is to be looked for.
TEST(Stragglers, WhereAllAreSlowNobodyIsNamed) {
  testing::TempFolder folder;
  for (const char* prefetch : {"2", "0"}) {
    const std::string metrics = folder.path() + "/all" + prefetch;
    const auto all = Train(-1, metrics, testing::Sums::kSharedMemory, {std::string("train.prefetch=") + prefetch});
    ASSERT_TRUE(all[0].status.ok()) << all[0].status.ToString();
    EXPECT_TRUE(all[0].notices.empty()) << all[0].notices[0].text;
    EXPECT_EQ(CountOf(Text(metrics), "straggler"), 0u);
  }
  const auto none = Train(2, folder.path() + "/none", testing::Sums::kSharedMemory, {"train.straggler_ratio=0"});
  ASSERT_TRUE(none[0].status.ok()) << none[0].status.ToString();
  EXPECT_TRUE(none[0].notices.empty());
}

// Every rank has its anatomy in the history, and rank 0 the figures of the steps and of evaluations.
TEST(Stragglers, TheHistoryHasTheStepsOfAllRanks) {
  testing::TempFolder folder;
  const auto results = Train(1, folder.path() + "/metrics");
  ASSERT_TRUE(results[0].status.ok()) << results[0].status.ToString();
  for (std::size_t rank = 0; rank < results.size(); ++rank) {
    const auto& measured = results[rank].measured;
    ASSERT_TRUE(measured.contains("anatomy"));
    ASSERT_EQ(measured.at("anatomy").size(), 24u);
    const auto& figures = measured.at("anatomy").back();
    EXPECT_EQ(measured.contains("step"), rank == 0);
    double parts = 0;
    for (const char* part : {"s/compute", "s/communication", "s/data", "s/optimizer"}) parts += figures.at(part);
    EXPECT_GT(parts, 0);
    EXPECT_LE(parts, figures.at("s/step") * 1.0001);
    if (rank != 1) EXPECT_GT(figures.at("s/communication"), figures.at("s/compute")) << "they wait for the slow one";
  }
  const auto& steps = results[0].measured.at("step");
  ASSERT_EQ(steps.size(), 24u);
  for (std::size_t step = 0; step < steps.size(); ++step) EXPECT_EQ(steps[step].at("loss"), results[0].losses[step]) << step;
  EXPECT_GT(steps[0].at("samples_per_s"), 0);
  EXPECT_EQ(steps[0].at("learning_rate"), .05);
}

}  // namespace
}  // namespace ropewalk::mlrunner
