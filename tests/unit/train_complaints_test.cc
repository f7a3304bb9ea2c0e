// What users of today's trainers complain of, as far as no other test has it: a rate that runs faster with more ranks, running statistics
// that a step which was left out has spoilt, shares that are not alike, memory that is out without a word of who needs it.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "base/random.h"
#include "mlrunner/graph/maths.h"
#include "mlrunner/train/checkpoint.h"
#include "mlrunner/train/schedule.h"
#include "tests/unit/train_ranks.h"

namespace ropewalk::mlrunner {
namespace {

using testing::JobOf;
using testing::TrainOnThreads;

// Pictures of two classes, one of which may have a pixel that is no number.
class Pictures final : public Samples {
 public:
  Pictures(std::int64_t count, std::int64_t spoilt) : count_(count), spoilt_(spoilt) {}
  std::int64_t count() const override { return count_; }
  const std::vector<Field>& fields() const override { return fields_; }
  void Fill(const FillCall& call) const override {
    for (std::size_t i = 0; i < call.ids.size(); ++i) {
      const std::int64_t id = call.ids[i];
      if (call.field == 1) {
        static_cast<std::int32_t*>(call.rows)[i] = static_cast<std::int32_t>(id % 2);
        continue;
      }
      Random random = Random::ForPurpose(5, static_cast<std::uint64_t>(id));
      for (std::size_t k = 0; k < kPixels; ++k) {
        double value = random.Unit() + (k % 2 == 0 ? static_cast<double>(id % 2) : 0);
        if (id == spoilt_ && k == 1) value = std::numeric_limits<double>::quiet_NaN();
        if (call.dtype == Dtype::kF64) {
          static_cast<double*>(call.rows)[kPixels * i + k] = value;
        } else {
          static_cast<float*>(call.rows)[kPixels * i + k] = static_cast<float>(value);
        }
      }
    }
  }
  std::uint64_t content_hash() const override { return static_cast<std::uint64_t>(count_); }

 private:
  static constexpr std::size_t kPixels = 64;
  std::int64_t count_, spoilt_;
  std::vector<Field> fields_ = {{"image", Dtype::kF32, {1, 8, 8}}, {"label", Dtype::kI32, {}, 2}};
};

testing::RunOptions Of(std::int64_t count, std::int64_t spoilt = -1) {
  testing::RunOptions options;
  options.load = [=](testing::ThreadGang&) -> Result<DataSet> {
    DataSet data;
    data.training = std::make_unique<Pictures>(count, spoilt);
    return data;
  };
  return options;
}

// Once a step, by its number: whatever the ranks and micro-batches, and where the training was stopped on the way.
TEST(Complaints, TheRateAdvancesOnceAStepWhateverTheNumberOfRanks) {
  testing::TempFolder folder;
  for (const std::int32_t ranks : {1, 2, 4}) {
    for (const int micro_batches : {1, 2}) {
      SCOPED_TRACE(std::to_string(ranks) + " ranks, " + std::to_string(micro_batches) + " micro-batches");
      const std::string kept = folder.path() + "/" + std::to_string(ranks) + "-" + std::to_string(micro_batches);
      TrainJob job = JobOf({"model.hidden=4", "train.batch=8", "train.threads=1", "train.steps=20", "optimizer.schedule=cosine",
                            "optimizer.warmup_steps=5", "optimizer.decay_steps=15", "checkpoint.folder=" + kept});
      job.micro_batches = micro_batches;
      std::vector<double> rates;
      for (const std::int64_t until : {7, 20}) {  // it is stopped after seven steps
        job.steps = until;
        const auto results = TrainOnThreads(job, ranks, Of(40));
        ASSERT_TRUE(results[0].status.ok()) << results[0].status.ToString();
        for (const auto& step : results[0].measured.at("step")) rates.push_back(step.at("learning_rate"));
      }
      ASSERT_EQ(rates.size(), 20u);
      for (std::int64_t step = 0; step < 20; ++step)
        EXPECT_EQ(rates[static_cast<std::size_t>(step)], LearningRateAt(job.optimizer, step, 20)) << step;
    }
  }
}

// A step that changes nothing leaves running means alone, too. Each state of the step before is there afterwards, bit for bit.
TEST(Complaints, ASkippedStepSpoilsNoRunningMean) {
  for (const std::int32_t ranks : {1, 2}) {
    for (const char* spoilt_first : {"false", "true"}) {
      SCOPED_TRACE(std::to_string(ranks) + " ranks, spoilt at the first step: " + spoilt_first);
      testing::TempFolder folder;
      const bool at_first = std::string(spoilt_first) == "true";
      // All samples in one batch: the first step has the spoilt one. Else one step of four has it.
      const auto results = TrainOnThreads(JobOf({"model.kind=resnet", "model.depth=8", at_first ? "train.batch=16" : "train.batch=4",
                                                 at_first ? "train.steps=1" : "train.steps=4", "train.threads=1", "train.nan=skip",
                                                 "checkpoint.folder=" + folder.path(), "checkpoint.every_steps=1", "checkpoint.keep=9"}),
                                          ranks, Of(16, 6));
      ASSERT_TRUE(results[0].status.ok()) << results[0].status.ToString();
      EXPECT_EQ(results[0].summary.skipped, 1);
      storage::LocalFileSystem files;
      std::vector<Checkpoint> kept;  // the oldest first
      auto listed = ListCheckpoints(files, folder.path());
      ASSERT_TRUE(listed.ok());
      for (auto path = listed->rbegin(); path != listed->rend(); ++path) {
        auto loaded = LoadCheckpoint(files, *path);
        ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
        kept.push_back(*std::move(loaded));
      }
      ASSERT_EQ(kept.size(), at_first ? 1u : 4u);
      std::size_t statistics = 0;
      for (const auto& [name, tensor] : kept.back().tensors) {
        EXPECT_TRUE(IsFinite(tensor)) << name;
        statistics += name.find("running") != std::string::npos ? 1 : 0;
      }
      EXPECT_GT(statistics, 0u) << "the model has none: the test tests nothing";
      int alike = 0;
      for (std::size_t i = 1; i < kept.size(); ++i) {
        bool same = true;
        for (const auto& [name, tensor] : kept[i].tensors) same = same && tensor.bytes == kept[i - 1].tensors.at(name).bytes;
        alike += same ? 1 : 0;
      }
      if (!at_first && !std::isnan(results[0].losses[0])) EXPECT_EQ(alike, 1) << "of the steps one changed nothing, and only one";
    }
  }
}

// 7, 8, 8 and 9 samples: what a rank has of a batch weighs by how much that is.
TEST(Complaints, BatchesThatRanksDoNotShareEvenlyEndAndWeighRight) {
  const std::vector<std::string> settings = {"model.hidden=4", "train.batch=31", "train.threads=1", "train.epochs=3", "train.dtype=f64"};
  const auto one = TrainOnThreads(JobOf(settings), 1, Of(33));
  const auto four = TrainOnThreads(JobOf(settings), 4, Of(33));  // batches of 31 and of 2: two ranks have nothing of that
  ASSERT_TRUE(one[0].status.ok() && four[0].status.ok()) << four[0].status.ToString();
  ASSERT_EQ(one[0].losses.size(), 6u);
  ASSERT_EQ(four[0].losses.size(), 6u);
  for (std::size_t step = 0; step < 6; ++step) EXPECT_NEAR(four[0].losses[step], one[0].losses[step], 1e-12) << step;
}

// Who has no memory says which rank, how much, what of it is alive at once, and what is the largest.
TEST(Complaints, OutOfMemoryIsSaidByTheRankWithWhatItNeeds) {
  TrainJob job = JobOf({"model.hidden=1024, 1024", "train.threads=1", "train.steps=1"});
  job.batch = std::int64_t{1} << 35;  // 64 TiB for each layer's values, and 128 are all that there are addresses for
  const auto results = TrainOnThreads(job, 2, Of(std::int64_t{1} << 36));
  for (std::size_t rank = 0; rank < results.size(); ++rank) {
    const Status& status = results[rank].status;
    if (status.tag() == "COLL20") continue;  // the other one was first
    EXPECT_EQ(status.tag(), "MEM01") << status.ToString();
    EXPECT_EQ(status.code(), Code::kResourceExhausted);
    EXPECT_NE(status.what().find("rank " + std::to_string(rank) + " on here has no memory for the "), std::string::npos)
        << status.ToString();
    EXPECT_NE(status.what().find("with 17179869184 rows"), std::string::npos) << status.ToString();
    EXPECT_NE(status.why().find("are alive at once"), std::string::npos) << status.why();
    EXPECT_NE(status.why().find("the largest: "), std::string::npos) << status.why();
    EXPECT_NE(status.fix().find("train.micro_batches"), std::string::npos) << status.fix();
  }
  EXPECT_TRUE(results[0].status.tag() == "MEM01" || results[1].status.tag() == "MEM01");
}

}  // namespace
}  // namespace ropewalk::mlrunner
