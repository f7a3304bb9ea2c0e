// DLRMs learn from click logs, and how well is counted: the area under the ROC curve beside its definition, beside what the log allows,
// and on any number of ranks.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "base/random.h"
#include "mlrunner/train/auc.h"
#include "tests/unit/train_ranks.h"

namespace ropewalk::mlrunner {
namespace {

using testing::JobOf;
using testing::TrainOnThreads;

// Every pair of a 1 and a 0.
double AucOfPairs(const std::vector<double>& scores, const std::vector<bool>& labels) {
  double won = 0, pairs = 0;
  for (std::size_t i = 0; i < scores.size(); ++i) {
    for (std::size_t j = 0; j < scores.size(); ++j) {
      if (!labels[i] || labels[j]) continue;
      ++pairs;
      won += scores[i] > scores[j] ? 1 : scores[i] == scores[j] ? .5 : 0;
    }
  }
  return won / pairs;
}
double AucOf(const std::vector<double>& scores, const std::vector<bool>& labels) {
  AucCounts counts;
  for (std::size_t i = 0; i < scores.size(); ++i) counts.Add(scores[i], labels[i]);
  return counts.Auc();
}

TEST(Auc, IsThePartOfPairsInOrder) {
  EXPECT_EQ(AucOf({1, 2, 3, 4}, {false, false, true, true}), 1);
  EXPECT_EQ(AucOf({1, 2, 3, 4}, {true, true, false, false}), 0);
  EXPECT_EQ(AucOf({-2, -1, 1, 2}, {false, true, false, true}), .75);
  EXPECT_EQ(AucOf({-1, 0, 1e-30, 1}, {false, true, false, true}), .875) << "what is next to zero is zero";
  EXPECT_EQ(AucOf({7, 7, 7}, {false, true, true}), .5) << "who says the same of all knows nothing";
  EXPECT_EQ(AucOf({-INFINITY, -1e9, 1e9, INFINITY}, {false, true, false, true}), .5) << "beyond 2^12 all are alike";
  EXPECT_TRUE(std::isnan(AucOf({1, 2}, {true, true})));
  EXPECT_TRUE(std::isnan(AucOf({}, {})));
  EXPECT_EQ(AucOf({1, NAN, 2}, {false, false, true}), 1);
}

TEST(Auc, OfDrawnScoresIsThatOfAllPairs) {
  const auto seed = static_cast<std::uint64_t>(::testing::UnitTest::GetInstance()->random_seed()) + 3;
  SCOPED_TRACE("seed " + std::to_string(seed));
  Random random(seed);
  for (double size : {1e-4, .1, 1.0, 30.0}) {
    std::vector<double> scores;
    std::vector<bool> labels;
    for (int i = 0; i < 1500; ++i) {
      labels.push_back(random.OneIn(4));
      scores.push_back(size * (2 * random.Unit() - 1 + (labels.back() ? .5 : 0)));
    }
    EXPECT_NEAR(AucOf(scores, labels), AucOfPairs(scores, labels), 1e-4) << size;
    // Counts of two halves add up to those of all.
    AucCounts halves[2];
    for (std::size_t i = 0; i < scores.size(); ++i) halves[i % 2].Add(scores[i], labels[i]);
    for (std::size_t i = 0; i < halves[0].counts().size(); ++i) halves[0].counts()[i] += halves[1].counts()[i];
    EXPECT_EQ(halves[0].Auc(), AucOf(scores, labels));
  }
}

// Log odds of a user and an item that only their product knows.
class ClickTraining : public ::testing::Test {
 protected:
  void SetUp() override {
    Random random(11);
    auto normal = [&] { return std::sqrt(-2 * std::log(1 - random.Unit())) * std::cos(2 * M_PI * random.Unit()); };
    std::vector<double> users(30), items(20);
    for (double& user : users) user = 4 * normal();
    for (double& item : items) item = normal();
    std::ofstream file(Path());
    file << "price,user,item,click\n";
    std::vector<double> scores;
    std::vector<bool> clicks;
    for (int i = 0; i < 6000; ++i) {
      const std::uint64_t user = random.Below(30), item = random.Below(20);
      const double price = random.Unit();
      scores.push_back(users[user] * items[item] - price);
      clicks.push_back(random.Unit() < 1 / (1 + std::exp(-scores.back())));
      file << price << ",u" << user << ",i" << item << "," << clicks.back() << "\n";
    }
    possible_ = AucOf(scores, clicks);
  }
  std::string Path() const { return folder_.path() + "/clicks.csv"; }
  TrainJob Job(std::vector<std::string> more) const {
    std::vector<std::string> settings = {"model.kind=dlrm",
                                         "model.vector=4",
                                         "model.bottom=8",
                                         "model.top=16",
                                         "data.kind=clicks",
                                         "data.path=" + Path(),
                                         "data.rows=200",
                                         "train.threads=1",
                                         "data.categories=user, item",
                                         "data.held_out=0.2",
                                         "train.batch=50",
                                         "optimizer.kind=adagrad",
                                         "optimizer.learning_rate=0.1",
                                         "optimizer.epsilon=1e-10"};
    settings.insert(settings.end(), more.begin(), more.end());
    return JobOf(settings);
  }
  testing::TempFolder folder_;
  double possible_ = 0;  // who knows the probabilities
};

TEST_F(ClickTraining, ReachesWhatTheLogAllows) {
  ASSERT_GT(possible_, .8);
  auto ranks = TrainOnThreads(Job({"train.epochs=8"}), 1);
  ASSERT_TRUE(ranks[0].status.ok()) << ranks[0].status.ToString();
  EXPECT_EQ(ranks[0].summary.labels_are, "clicks");
  EXPECT_EQ(ranks[0].summary.held_out_labels, 1200);
  EXPECT_GT(ranks[0].summary.held_out_auc, possible_ - .03) << "1200 samples say it to .012";
  EXPECT_LT(ranks[0].summary.held_out_auc, possible_ + .03);
  // The control: whoever knows neither user nor item.
  auto blind = TrainOnThreads(Job({"train.epochs=8", "data.categories=user", "data.leave_out=item", "data.rows=2"}), 1);
  ASSERT_TRUE(blind[0].status.ok()) << blind[0].status.ToString();
  EXPECT_LT(blind[0].summary.held_out_auc, .65);
  EXPECT_GT(blind[0].summary.held_out_auc, .5);
}

TEST_F(ClickTraining, RanksCountTheSame) {
  const TrainJob job =
      Job({"train.steps=30", "train.dtype=f64", "train.evaluate_every=10", "train.metrics=" + folder_.path() + "/metrics"});
  auto one = TrainOnThreads(job, 1), three = TrainOnThreads(job, 3);
  ASSERT_TRUE(one[0].status.ok()) << one[0].status.ToString();
  ASSERT_TRUE(three[0].status.ok()) << three[0].status.ToString();
  for (std::size_t i = 0; i < 30; ++i) EXPECT_NEAR(one[0].losses[i], three[0].losses[i], 1e-12) << i;
  EXPECT_EQ(one[0].summary.held_out_auc, three[0].summary.held_out_auc);
  auto real = TrainOnThreads(job, 3, {.sums = testing::Sums::kSharedMemory});
  ASSERT_TRUE(real[0].status.ok()) << real[0].status.ToString();
  EXPECT_EQ(real[0].summary.held_out_auc, one[0].summary.held_out_auc);
  std::ifstream metrics(folder_.path() + "/metrics");
  const std::string lines((std::istreambuf_iterator<char>(metrics)), std::istreambuf_iterator<char>());
  EXPECT_NE(lines.find("\"held_out_auc\":0."), std::string::npos) << lines;
}

TEST_F(ClickTraining, ModelsThatDoNotJudgeHaveNone) {
  const TrainJob job = JobOf({"model.kind=mlp", "model.hidden=4", "data.kind=csv", "data.path=" + Path(), "data.leave_out=user, item",
                              "train.steps=2", "train.threads=1"});
  auto ranks = TrainOnThreads(job, 1);
  ASSERT_TRUE(ranks[0].status.ok()) << ranks[0].status.ToString();
  EXPECT_TRUE(std::isnan(ranks[0].summary.held_out_auc));
}

}  // namespace
}  // namespace ropewalk::mlrunner
