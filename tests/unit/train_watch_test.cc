// What the trainer looks at on the way: evaluation, the best checkpoint, patience, steps that are no numbers, averages of the parameters.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "base/random.h"
#include "mlrunner/graph/optimizers.h"
#include "mlrunner/train/checkpoint.h"
#include "tests/unit/train_ranks.h"

namespace ropewalk::mlrunner {
namespace {

using testing::JobOf;
using testing::RankResult;
using testing::TrainOnThreads;

// Two corners; one sample may have a feature that is no number.
class Corners final : public Samples {
 public:
  Corners(std::int64_t count, std::int64_t spoilt) : count_(count), spoilt_(spoilt) {}
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
      for (std::size_t k = 0; k < 3; ++k) {
        double value = random.Unit() - .5 + (k == 0 ? static_cast<double>(id % 2) : 0);
        if (id == spoilt_ && k == 1) value = std::numeric_limits<double>::quiet_NaN();
        if (call.dtype == Dtype::kF64) {
          static_cast<double*>(call.rows)[3 * i + k] = value;
        } else {
          static_cast<float*>(call.rows)[3 * i + k] = static_cast<float>(value);
        }
      }
    }
  }
  std::uint64_t content_hash() const override { return static_cast<std::uint64_t>(count_); }

 private:
  std::int64_t count_, spoilt_;
  std::vector<Field> fields_ = {{"features", Dtype::kF32, {3}}, {"label", Dtype::kI32, {}, 2}};
};

class Watch : public ::testing::Test {
 protected:
  std::vector<RankResult> Train(std::vector<std::string> settings, std::int32_t ranks, std::int64_t spoilt = -1) {
    std::vector<std::string> all = {"model.hidden=4", "train.batch=8", "train.threads=1"};
    all.insert(all.end(), settings.begin(), settings.end());
    return TrainOnThreads(JobOf(all), ranks, {.load = [spoilt](testing::ThreadGang&) -> Result<DataSet> {
                            DataSet data;
                            data.training = std::make_unique<Corners>(32, spoilt);
                            data.held_out = std::make_unique<Corners>(50, -1);
                            return data;
                          }});
  }
  std::string Folder(const std::string& name) const { return folder_.path() + "/" + name; }
  Checkpoint Load(const std::string& path) {
    storage::LocalFileSystem files;
    auto loaded = LoadCheckpoint(files, path);
    EXPECT_TRUE(loaded.ok()) << loaded.status().ToString();
    return loaded.ok() ? *std::move(loaded) : Checkpoint();
  }
  std::vector<std::string> Checkpoints(const std::string& folder) {
    storage::LocalFileSystem files;
    auto listed = ListCheckpoints(files, folder);
    EXPECT_TRUE(listed.ok());
    return listed.ok() ? *listed : std::vector<std::string>();
  }
  std::string Text(const std::string& path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  testing::TempFolder folder_;
};

std::size_t CountOf(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST_F(Watch, EvaluatingOnTheWayChangesNoBitAndFindsTheSame) {
  for (std::int32_t ranks : {1, 2}) {
    const auto plain = Train({"train.steps=12"}, ranks);
    const auto watched = Train({"train.steps=12", "train.evaluate_every=4", "train.metrics=" + Folder("m" + std::to_string(ranks))}, ranks);
    ASSERT_TRUE(plain[0].status.ok() && watched[0].status.ok()) << watched[0].status.ToString();
    EXPECT_EQ(watched[0].losses, plain[0].losses);
    EXPECT_EQ(watched[0].summary.held_out_loss, plain[0].summary.held_out_loss);
    EXPECT_EQ(watched[0].summary.best_loss, watched[0].summary.held_out_loss) << "it still gets better";
    EXPECT_EQ(watched[0].summary.best_step, 12);
    EXPECT_EQ(plain[0].summary.best_step, -1);
    EXPECT_EQ(CountOf(Text(Folder("m" + std::to_string(ranks))), "held_out_loss"), 3u) << "the last one counts once";
  }
}

// With a rate of 0 no evaluation after the first one is better.
TEST_F(Watch, PatienceEndsItAndTheBestIsKept) {
  for (std::int32_t ranks : {1, 2}) {
    const std::string folder = Folder("c" + std::to_string(ranks));
    const std::vector<std::string> settings = {"train.steps=100",           "train.evaluate_every=3", "train.patience=2",
                                               "optimizer.learning_rate=0", "checkpoint.best=true",   "checkpoint.folder=" + folder,
                                               "checkpoint.every_steps=2"};
    const auto first = Train(settings, ranks);
    ASSERT_TRUE(first[0].status.ok()) << first[0].status.ToString();
    EXPECT_TRUE(first[0].summary.stopped_early);
    EXPECT_EQ(first[0].summary.steps, 9);
    EXPECT_EQ(first[0].summary.best_step, 3);
    const std::vector<std::string> best = Checkpoints(folder + "/best");
    ASSERT_EQ(best.size(), 1u);
    EXPECT_EQ(Load(best[0]).step, 3);
    EXPECT_EQ(Load(best[0]).best_loss, first[0].summary.best_loss);
    EXPECT_EQ(Load(Checkpoints(folder)[0]).step, 9);
    // What was found is known to who goes on.
    const auto again = Train(settings, ranks);
    ASSERT_TRUE(again[0].status.ok()) << again[0].status.ToString();
    EXPECT_TRUE(again[0].losses.empty());
    EXPECT_TRUE(again[0].summary.stopped_early);
    EXPECT_EQ(again[0].summary.best_step, 3);
    // Where a smaller loss is found, the best of before makes way for it.
    auto better = settings;
    better[3] = "optimizer.learning_rate=0.1";
    better[2] = "train.patience=3";
    better[0] = "train.steps=12";
    const auto further = Train(better, ranks);
    ASSERT_TRUE(further[0].status.ok()) << further[0].status.ToString();
    EXPECT_EQ(further[0].summary.best_step, 12);
    ASSERT_EQ(Checkpoints(folder + "/best").size(), 1u);
    EXPECT_EQ(Load(Checkpoints(folder + "/best")[0]).step, 12);
  }
}

// Each epoch of 4 steps has one with the spoilt sample: it changes nothing. A control: without the policy the training ends there.
TEST_F(Watch, AStepThatIsNoNumberIsSkippedAndCounted) {
  for (const char* kind : {"sgd", "adamw", "lamb"}) {
    for (std::int32_t ranks : {1, 2}) {
      SCOPED_TRACE(std::string(kind) + " on " + std::to_string(ranks));
      const std::string folder = Folder(std::string(kind) + std::to_string(ranks)), metrics = folder + ".jsonl";
      std::vector<std::string> settings = {
          "train.steps=12",           std::string("optimizer.kind=") + kind, "optimizer.average=0.5",    "checkpoint.keep=100",
          "checkpoint.every_steps=1", "checkpoint.folder=" + folder,         "train.metrics=" + metrics, "train.nan=skip"};
      const auto results = Train(settings, ranks, 13);
      ASSERT_TRUE(results[0].status.ok()) << results[0].status.ToString();
      EXPECT_EQ(results[0].summary.skipped, 3);
      EXPECT_TRUE(std::isfinite(results[0].summary.loss));
      ASSERT_EQ(results[0].losses.size(), 12u);
      const std::string said = Text(metrics);
      EXPECT_EQ(CountOf(said, "\"skipped\":"), 3u);
      // ReLU makes 0 of what is no number: the loss shows nothing, the gradient does.
      EXPECT_EQ(CountOf(said, "the first is that of layer0/linear/w"), 3u) << said;
      int same_steps = 0;
      for (std::int64_t step = 2; step <= 12; ++step) {
        const Checkpoint before = Load(CheckpointPath(folder, step - 1)), after = Load(CheckpointPath(folder, step));
        bool same = true;
        for (const auto& [name, tensor] : after.tensors) {
          same = same && tensor.bytes == before.tensors.at(name).bytes;
          EXPECT_TRUE(IsFinite(tensor)) << name;
        }
        EXPECT_EQ(same, CountOf(said, "{\"step\":" + std::to_string(step) + ",\"skipped\"") == 1) << "step " << step;
        same_steps += same ? 1 : 0;
      }
      EXPECT_GE(same_steps, 2);
      settings.back() = "train.nan=stop";
      settings[5] = "checkpoint.folder=" + folder + "-stop";
      EXPECT_EQ(Train(settings, ranks, 13)[0].status.tag(), "TRAIN01");
    }
  }
}

TEST_F(Watch, SkippingForEverEnds) {
  const auto results = Train({"train.steps=1000", "train.batch=32", "train.nan=skip"}, 1, 13);
  EXPECT_EQ(results[0].status.tag(), "TRAIN01");
  EXPECT_EQ(results[0].losses.size(), 99u) << results[0].status.ToString();
}

// Steps that are all numbers are those that they are without the policy.
TEST_F(Watch, SkippingNothingChangesNoBit) {
  for (const char* kind : {"sgd", "adam", "adamw", "adagrad", "lamb"}) {
    const std::string optimizer = std::string("optimizer.kind=") + kind;
    EXPECT_EQ(Train({"train.steps=10", optimizer, "train.nan=skip"}, 2)[0].losses, Train({"train.steps=10", optimizer}, 2)[0].losses)
        << kind;
  }
}

// The averages follow their recursion, and are what is counted with: parameters that are these averages count the same.
TEST_F(Watch, AveragesAreKeptAndCountedWith) {
  const std::vector<std::string> steps = {"train.steps=6", "optimizer.momentum=0", "optimizer.learning_rate=0.3"};
  auto with = steps, without = steps;
  const std::string folder = Folder("averaged"), plain = Folder("plain");
  for (const char* setting : {"optimizer.average=0.75", "checkpoint.keep=100", "checkpoint.every_steps=1"}) with.emplace_back(setting);
  with.push_back("checkpoint.folder=" + folder);
  const auto averaged = Train(with, 1);
  ASSERT_TRUE(averaged[0].status.ok()) << averaged[0].status.ToString();
  EXPECT_EQ(averaged[0].losses, Train(steps, 1)[0].losses) << "what is trained is the same";
  std::map<std::string, std::vector<double>> expected;
  Checkpoint last;
  for (std::int64_t step = 1; step <= 6; ++step) {
    last = Load(CheckpointPath(folder, step));
    for (const auto& [name, tensor] : last.tensors) {
      if (!last.tensors.contains(name + kAverage)) continue;
      const std::vector<double> p = ToRef(tensor).data;
      if (step == 1) expected[name] = p;
      for (std::size_t i = 0; i < p.size() && step > 1; ++i) expected[name][i] = .75 * expected[name][i] + .25 * p[i];
      const std::vector<double> average = ToRef(last.tensors.at(name + kAverage)).data;
      for (std::size_t i = 0; i < p.size(); ++i) EXPECT_NEAR(average[i], expected[name][i], 1e-6);
    }
  }
  EXPECT_EQ(expected.size(), 4u);
  Checkpoint moved = last;
  for (const auto& [name, unused] : expected) {
    moved.tensors[name] = last.tensors.at(name + kAverage);
    moved.tensors.erase(name + kAverage);
  }
  moved.tensors.erase("optimizer/averaged");
  storage::LocalFileSystem files;
  ASSERT_TRUE(SaveCheckpoint(files, plain, moved, {.keep = 1}).ok());
  without.push_back("checkpoint.folder=" + plain);
  const auto counted = Train(without, 1);
  ASSERT_TRUE(counted[0].status.ok()) << counted[0].status.ToString();
  EXPECT_TRUE(counted[0].losses.empty());
  EXPECT_EQ(counted[0].summary.held_out_loss, averaged[0].summary.held_out_loss);
  EXPECT_NE(Train(steps, 1)[0].summary.held_out_loss, averaged[0].summary.held_out_loss);
}

}  // namespace
}  // namespace ropewalk::mlrunner
