// Experts in job files: a GPT with mixtures of them learns alike on any number of ranks and micro-batches, what is dropped is counted, and
// an expert that nobody asks for holds nobody up.
#include <gtest/gtest.h>

#include <fstream>
#include <regex>

#include "base/random.h"
#include "mlrunner/train/family.h"
#include "tests/unit/train_ranks.h"

namespace ropewalk::mlrunner {
namespace {

using testing::JobOf;
using testing::TrainOnThreads;

class Experts : public ::testing::Test {
 protected:
  void SetUp() override {
    Random random(2);
    std::ofstream file(Path("text"));
    for (int i = 0; i < 200; ++i) file << (random.OneIn(2) ? "the rope is tarred. " : "a walker walks the walk!\n");
  }
  std::string Path(const std::string& name) const { return folder_.path() + "/" + name; }
  TrainJob Job(int steps, std::initializer_list<std::string> more) const {
    return JobOf(testing::TinyGpt(Path("text"), steps,
                                  {{"model.layers=2", "model.experts=4", "model.experts_every=1", "train.dtype=f64", "train.batch=7",
                                    "optimizer.kind=adam", "optimizer.learning_rate=0.01"},
                                   more}));
  }
  // "dropped_tokens" of each step.
  std::vector<double> Dropped(const std::string& name) const {
    std::ifstream file(Path(name));
    const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    const std::regex wanted("\"dropped_tokens\":([0-9.]+)");
    std::vector<double> dropped;
    for (std::sregex_iterator it(text.begin(), text.end(), wanted), end; it != end; ++it) dropped.push_back(std::stod((*it)[1]));
    return dropped;
  }
  testing::TempFolder folder_;
};

TEST_F(Experts, AreTheSameOnAnyNumberOfRanks) {
  auto one = TrainOnThreads(Job(12, {"train.metrics=" + Path("one"), "model.capacity_factor=0.6"}), 1);
  ASSERT_TRUE(one[0].status.ok()) << one[0].status.ToString();
  const std::vector<double> dropped = Dropped("one");
  ASSERT_EQ(dropped.size(), 12u);
  for (double each : dropped) {
    // 7 sequences of 6 tokens choose 2 experts in each of 2 blocks; ceil(.6 * 12 / 4) = 2 places at each of 4 experts take 8 of 12.
    EXPECT_GE(each, 7 * 2 * (12 - 8));
    EXPECT_LE(each, 7 * 2 * (12 - 2));
    EXPECT_EQ(each, static_cast<double>(static_cast<int>(each)));
  }
  for (auto [ranks, parts] : {std::pair{2, 1}, std::pair{3, 1}, std::pair{2, 2}}) {
    SCOPED_TRACE(std::to_string(ranks) + " ranks, " + std::to_string(parts) + " micro-batches");
    const std::string name = "m" + std::to_string(ranks) + std::to_string(parts);
    auto many = TrainOnThreads(
        Job(12, {"train.metrics=" + Path(name), "model.capacity_factor=0.6", "train.micro_batches=" + std::to_string(parts)}), ranks);
    ASSERT_TRUE(many[0].status.ok()) << many[0].status.ToString();
    for (std::size_t i = 0; i < 12; ++i) EXPECT_NEAR(many[0].losses[i], one[0].losses[i], 1e-9) << i;
    EXPECT_EQ(Dropped(name), dropped) << "rows that fill a batch up are nobody's tokens";
    EXPECT_NEAR(many[0].summary.held_out_loss, one[0].summary.held_out_loss, 1e-9);
  }
}

TEST_F(Experts, WithRoomForAllNothingIsDropped) {
  auto ranks = TrainOnThreads(Job(3, {"train.metrics=" + Path("all"), "model.capacity_factor=4"}), 2);
  ASSERT_TRUE(ranks[0].status.ok()) << ranks[0].status.ToString();
  EXPECT_EQ(Dropped("all"), (std::vector<double>{0, 0, 0}));
}

// One expert of 8 for each of 6 tokens: in every sequence two or more have nothing to do.
TEST_F(Experts, EmptyOnesHoldNobodyUp) {
  auto one = TrainOnThreads(Job(6, {"model.experts=8", "model.top_k=1"}), 1),
       two = TrainOnThreads(Job(6, {"model.experts=8", "model.top_k=1"}), 2);
  ASSERT_TRUE(one[0].status.ok() && two[0].status.ok()) << two[0].status.ToString();
  for (std::size_t i = 0; i < 6; ++i) EXPECT_NEAR(two[0].losses[i], one[0].losses[i], 1e-9) << i;
}

TEST_F(Experts, LearnAText) {
  auto ranks = TrainOnThreads(Job(200, {"train.dtype=f32", "train.batch=16"}), 1);
  ASSERT_TRUE(ranks[0].status.ok()) << ranks[0].status.ToString();
  EXPECT_GT(ranks[0].losses.front(), 2.8);
  EXPECT_LT(ranks[0].summary.held_out_loss, 1.6);
}

TEST_F(Experts, KeysThatDoNotFitAreNamed) {
  struct Case {
    std::vector<std::string> settings;
    const char *key, *why;
  };
  for (const Case& c : {Case{{"model.top_k=1"}, "model.top_k", "there are no experts"},
                        Case{{"model.capacity_factor=2"}, "model.capacity_factor", "there are no experts"},
                        Case{{"model.experts=4", "model.top_k=5"}, "model.top_k", "there are 4 experts"},
                        Case{{"model.experts=4", "model.experts_every=5"}, "model.experts_every", "there are 4 blocks"},
                        Case{{"model.experts=4", "model.capacity_factor=0"}, "model.capacity_factor", "it lies in"}}) {
    Config config(TrainKeys());
    for (const std::string& setting : {std::string("model.kind=gpt"), std::string("data.kind=text"), std::string("data.path=/t")})
      ASSERT_TRUE(ApplySetting(&config, setting).ok());
    for (const std::string& setting : c.settings) ASSERT_TRUE(ApplySetting(&config, setting).ok()) << setting;
    const Status status = ReadTrainJob(config).status();
    EXPECT_EQ(status.tag(), "SPEC02") << c.key;
    EXPECT_NE(status.what().find(c.key), std::string::npos) << status.ToString();
    EXPECT_NE(status.why().find(c.why), std::string::npos) << status.ToString();
  }
}

}  // namespace
}  // namespace ropewalk::mlrunner
