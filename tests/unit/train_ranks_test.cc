// Several ranks train what one rank trains: the same losses, sums that begin while backward goes on, and controls that must differ.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <fstream>
#include <stdexcept>

#include "base/random.h"
#include "mlrunner/data/images.h"
#include "mlrunner/graph/ops.h"
#include "tests/unit/train_ranks.h"

namespace ropewalk::mlrunner {
namespace {

using testing::JobOf;
using testing::RankResult;
using testing::TrainOnThreads;

// A text in which the next character can be learned.
std::string MakeText(const std::string& folder) {
  std::string path = folder + "/text", text;
  Random random(5);
  for (int i = 0; i < 400; ++i) text += random.OneIn(2) ? "the cat sat. " : "a dog ran! ";
  std::ofstream(path) << text;
  return path;
}

// What lies in memory once for all ranks: the first `count` of it.
class First final : public Samples {
 public:
  First(std::shared_ptr<const Samples> all, std::int64_t count) : all_(std::move(all)), count_(count) {}
  std::int64_t count() const override { return count_; }
  const std::vector<Field>& fields() const override { return all_->fields(); }
  void Fill(const FillCall& call) const override { all_->Fill(call); }
  std::uint64_t content_hash() const override { return all_->content_hash(); }

 private:
  std::shared_ptr<const Samples> all_;
  std::int64_t count_;
};

// Fashion-MNIST, read once: many ranks of many trainings would spend most of their time with unpacking it.
Result<DataSet> Clothes(testing::ThreadGang&) {
  static const Result<DataSet> read = LoadFashionMnist(kFashionMnistFolder);
  if (!read.ok()) return read.status();
  static const std::shared_ptr<const Samples> training(std::shared_ptr<void>(), read->training.get());
  static const std::shared_ptr<const Samples> held_out(std::shared_ptr<void>(), read->held_out.get());
  DataSet data;
  data.training = std::make_unique<First>(training, 301);
  data.held_out = std::make_unique<First>(held_out, 501);
  return data;
}

void ExpectFine(const std::vector<RankResult>& results) {
  for (const RankResult& result : results) ASSERT_TRUE(result.status.ok()) << result.status.ToString();
}

class TrainRanks : public ::testing::Test {
 protected:
  std::vector<std::string> Gpt(const std::string& dtype, int steps, std::vector<std::string> more = {}) {
    return testing::TinyGpt(text_, steps,
                            {{"train.batch=8", "train.dtype=" + dtype, "optimizer.kind=adamw", "optimizer.learning_rate=0.01"}, more});
  }
  static std::vector<std::string> Mlp(const std::string& dtype, int steps, std::vector<std::string> more = {}) {
    std::vector<std::string> settings = {"model.hidden=24",      "train.batch=32",        "train.steps=" + std::to_string(steps),
                                         "train.dtype=" + dtype, "train.bucket_bytes=8K", "optimizer.learning_rate=0.02",
                                         "train.threads=1"};
    settings.insert(settings.end(), more.begin(), more.end());
    return settings;
  }
  std::vector<std::string> Model(bool mlp, const std::string& dtype, int steps) { return mlp ? Mlp(dtype, steps) : Gpt(dtype, steps); }
  static testing::RunOptions DataOf(bool mlp, testing::Sums sums = testing::Sums::kInMemory) {
    testing::RunOptions options{.sums = sums};
    if (mlp) options.load = Clothes;
    return options;
  }
  testing::TempFolder folder_;
  std::string text_ = MakeText(folder_.path());
};

double WorstDifference(const std::vector<double>& a, const std::vector<double>& b) {
  EXPECT_EQ(a.size(), b.size());
  double worst = 0;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) worst = std::max(worst, std::fabs(a[i] - b[i]) / std::fabs(b[i]));
  return worst;
}

// Over sums of this test, and over those of the product.
TEST_F(TrainRanks, FourRanksAreOneInFloat64) {
  for (bool mlp : {false, true}) {
    const int steps = mlp ? 40 : 100;
    TrainJob job = JobOf(Model(mlp, "f64", steps));
    auto one = TrainOnThreads(job, 1, DataOf(mlp));
    ExpectFine(one);
    ASSERT_EQ(one[0].losses.size(), static_cast<std::size_t>(steps));
    EXPECT_LT(one[0].losses.back(), .8 * one[0].losses.front());  // it is a training, not a standstill
    for (testing::Sums sums : {testing::Sums::kInMemory, testing::Sums::kSharedMemory, testing::Sums::kTcp}) {
      SCOPED_TRACE((mlp ? "mlp, sums " : "gpt, sums ") + std::to_string(static_cast<int>(sums)));
      auto four = TrainOnThreads(job, 4, DataOf(mlp, sums));
      ExpectFine(four);
      EXPECT_LE(WorstDifference(four[0].losses, one[0].losses), 1e-9);
      for (std::size_t rank = 1; rank < 4; ++rank) EXPECT_EQ(four[rank].losses, four[0].losses);
      // Counted exactly over ranks of unequal shares.
      EXPECT_EQ(four[0].summary.held_out_labels, one[0].summary.held_out_labels);
      EXPECT_EQ(four[0].summary.held_out_hits, one[0].summary.held_out_hits);
      EXPECT_NEAR(four[0].summary.held_out_loss, one[0].summary.held_out_loss, 1e-9);
    }
  }
}

TEST_F(TrainRanks, RanksAreOneInFloat32) {
  for (bool mlp : {false, true}) {
    TrainJob job = JobOf(Model(mlp, "f32", 10));
    auto one = TrainOnThreads(job, 1, DataOf(mlp));
    ExpectFine(one);
    for (std::int32_t ranks : {2, 3, 4}) {
      auto many = TrainOnThreads(job, ranks, DataOf(mlp));
      ExpectFine(many);
      ASSERT_EQ(many[0].losses.size(), 10u);
      // The mlp's 301 samples in batches of 32: the last batch of an epoch has 13, and no number of ranks here divides it.
      EXPECT_LE(WorstDifference(many[0].losses, one[0].losses), 1e-5) << ranks;
      EXPECT_EQ(many[0].summary.held_out_labels, one[0].summary.held_out_labels);
    }
  }
}

TEST_F(TrainRanks, AsManyRanksAsABatchHasSamplesAndMore) {
  TrainJob job = JobOf(Gpt("f64", 12, {"train.batch=3"}));
  auto one = TrainOnThreads(job, 1), four = TrainOnThreads(job, 4);
  ExpectFine(one);
  ExpectFine(four);
  EXPECT_LE(WorstDifference(four[0].losses, one[0].losses), 1e-9);
}

// A rank that computes for longer than the job allows is missed by the other, with the setting that gives more.
TEST_F(TrainRanks, ARankThatIsLateIsNamedWhenTheJobsTimeIsOver) {
  auto results = TrainOnThreads(JobOf(Gpt("f32", 6, {"train.timeout=1"})), 2,
                                {.sums = testing::Sums::kSharedMemory, .on_step = [](testing::ThreadGang& gang, std::int64_t step) {
                                   if (gang.rank() == 1 && step == 3) std::this_thread::sleep_for(std::chrono::seconds(4));
                                 }});
  EXPECT_EQ(results[0].status.tag(), "COLL28") << results[0].status.ToString();
  EXPECT_NE(results[0].status.what().find("rank 1 is waited for: rank 0 has been at "), std::string::npos) << results[0].status.ToString();
  EXPECT_NE(results[0].status.fix().find("train.timeout"), std::string::npos) << results[0].status.ToString();
  EXPECT_EQ(results[1].status.tag(), "COLL28") << results[1].status.ToString();
}

// The same bits over the real communicator: what is deterministic is the sum in the order of the ranks.
TEST_F(TrainRanks, OverSharedMemoryAndTcpWithTheSameBits) {
  TrainJob job = JobOf(Gpt("f32", 20));
  for (std::int32_t ranks : {2, 3}) {
    auto expected = TrainOnThreads(job, ranks);
    ExpectFine(expected);
    for (testing::Sums sums : {testing::Sums::kSharedMemory, testing::Sums::kTcp}) {
      auto real = TrainOnThreads(job, ranks, {.sums = sums});
      ExpectFine(real);
      EXPECT_EQ(real[0].losses, expected[0].losses);
      EXPECT_EQ(real[1].losses, expected[0].losses);
      EXPECT_EQ(real[0].summary.held_out_loss, expected[0].summary.held_out_loss);
    }
  }
}

// What people see while it trains: the step, its loss, how fast it goes. Of rank 0 alone.
TEST_F(TrainRanks, TheProgressLineHasTheLossAndTheSpeed) {
  auto results = TrainOnThreads(JobOf(Gpt("f32", 7)), 2);
  ExpectFine(results);
  EXPECT_TRUE(results[1].lines.empty());
  ASSERT_FALSE(results[0].lines.empty());
  int step = 0, steps = 0, epoch = 0;
  double loss = 0, samples_per_s = 0;
  ASSERT_EQ(std::sscanf(results[0].lines[0].c_str(), "step %d of %d, epoch %d, loss %lf, %lf samples/s", &step, &steps, &epoch, &loss,
                        &samples_per_s),
            5)
      << results[0].lines[0];
  EXPECT_EQ(step, 1);
  EXPECT_EQ(steps, 7);
  EXPECT_EQ(epoch, 1);
  EXPECT_NEAR(loss, results[0].losses[0], 5e-5);
  EXPECT_GT(samples_per_s, 0);
  EXPECT_EQ(results[0].summary.loss, results[0].losses.back());
  // 7 batches of 8.
  EXPECT_NEAR(results[0].summary.samples_per_s * results[0].summary.seconds, 56, 1e-6);
}

// A rank that gives up frees the others, with a status that says so.
TEST_F(TrainRanks, ARankThatFailsFreesTheOthers) {
  TrainJob job = JobOf(Gpt("f32", 1000));
  for (testing::Sums sums : {testing::Sums::kSharedMemory, testing::Sums::kTcp}) {
    auto results = TrainOnThreads(job, 3, {.sums = sums, .on_step = [](testing::ThreadGang& gang, std::int64_t step) {
                                             if (gang.rank() == 1 && step == 3) throw std::runtime_error("user code");
                                           }});
    for (std::int32_t rank : {0, 2}) {
      EXPECT_EQ(results[rank].status.code(), Code::kUnavailable) << results[rank].status.ToString();
      EXPECT_LE(results[rank].losses.size(), 5u);
    }
  }
}

// Without the sums the ranks drift apart: the equality above is theirs.
TEST_F(TrainRanks, WithoutSumsTheRanksDiffer) {
  TrainJob job = JobOf(Gpt("f64", 30));
  auto one = TrainOnThreads(job, 1), lonely = TrainOnThreads(job, 2, {.sums = testing::Sums::kNone});
  ExpectFine(one);
  ExpectFine(lonely);
  EXPECT_NE(lonely[0].losses, lonely[1].losses);
  // Each has half of the weights, so both are compared with the whole.
  EXPECT_GT(WorstDifference(lonely[0].losses, one[0].losses), 1e-3);
}

TEST_F(TrainRanks, ACancelledTrainingEndsAtTheNextStep) {
  auto result = TrainOnThreads(JobOf(Gpt("f32", 1000)), 1, {.on_step = [](testing::ThreadGang& gang, std::int64_t step) {
                                 if (step == 4) gang.on_lost(Status(Code::kCancelled, "JOB04", "the job was cancelled"));
                               }});
  EXPECT_EQ(result[0].status.code(), Code::kCancelled) << result[0].status.ToString();
  EXPECT_EQ(result[0].losses.size(), 5u);
}

// The first bucket's sum is begun before backward ends, as soon as the first product that a parameter waits for is there, the last one's
// after it; all are waited for in updates. With micro-batches it is the last one's backward, and none begins before that.
TEST_F(TrainRanks, SumsBeginBeforeBackwardEnds) {
  for (std::int32_t parts : {1, 3}) {
    auto results = TrainOnThreads(
        JobOf(Mlp("f32", 3, {"model.hidden=64, 64", "train.bucket_bytes=1K", "train.micro_batches=" + std::to_string(parts)})), 2,
        DataOf(true));
    ExpectFine(results);
    std::int64_t last_begins = 0, backward_ends = 0, first_sum = 0, last_sum = 0, first_waited = 0;
    int sums = 0, products_before = 0;
    for (const testing::RanOp& op : results[0].times) {
      if (op.def == &kAllReduce && op.half == Half::kStart) {
        if (sums++ == 0) first_sum = op.begin_ns;
        last_sum = op.begin_ns;
      }
      if (op.def == &kAllReduce && op.half == Half::kDone && first_waited == 0) first_waited = op.begin_ns;
      if (op.def != &kMatMul || op.phase != Phase::kBackward) continue;
      if (op.micro_batch == parts - 1 && last_begins == 0) last_begins = op.begin_ns;
      products_before += op.micro_batch == parts - 1 && sums == 0;
      backward_ends = std::max(backward_ends, op.end_ns);
    }
    ASSERT_GE(sums, 3) << parts;
    EXPECT_EQ(products_before, 1) << parts;
    EXPECT_GT(first_sum, last_begins) << parts;
    EXPECT_LT(first_sum, backward_ends) << parts;
    EXPECT_GT(last_sum, backward_ends) << parts;
    EXPECT_GT(first_waited, backward_ends) << parts;
  }
}

}  // namespace
}  // namespace ropewalk::mlrunner
