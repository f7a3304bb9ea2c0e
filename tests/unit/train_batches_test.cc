// Batches that are made while a step computes: how far ahead, that nothing changes by it, when errors are told, what is left after a stop.
#include "mlrunner/train/batches.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <map>
#include <mutex>
#include <numeric>
#include <set>
#include <stdexcept>

#include "tests/unit/train_ranks.h"

namespace ropewalk::mlrunner {
namespace {

using testing::JobOf;
using testing::TrainOnThreads;

// What several ranks' samples and a test have seen of each other.
struct Seen {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::int32_t, std::vector<std::vector<std::int64_t>>> fetched;  // by rank
  std::map<std::int32_t, std::vector<std::vector<std::int64_t>>> prepared;

  std::size_t Fetched(std::int32_t rank) {
    std::lock_guard lock(mutex);
    return fetched[rank].size();
  }
  // False: not within a minute, which no machine is too busy for.
  bool WaitForFetched(std::int32_t rank, std::size_t count) {
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, std::chrono::minutes(1), [&] { return fetched[rank].size() >= count; });
  }
};

// Two features of which one is the number of the sample, and a class. `fail` says what is wrong with a sample.
class Numbered final : public Samples {
 public:
  Numbered(std::int64_t count, std::int32_t rank, Seen* seen, std::function<Status(std::int64_t)> fail = {})
      : count_(count), rank_(rank), seen_(seen), fail_(std::move(fail)) {}
  std::int64_t count() const override { return count_; }
  const std::vector<Field>& fields() const override { return fields_; }
  Status Prepare(std::span<const std::int64_t> ids) override {
    std::lock_guard lock(seen_->mutex);
    seen_->prepared[rank_].emplace_back(ids.begin(), ids.end());
    return {};
  }
  Status Fetch(std::span<const std::int64_t> ids) override {
    {
      std::lock_guard lock(seen_->mutex);
      seen_->fetched[rank_].emplace_back(ids.begin(), ids.end());
    }
    seen_->changed.notify_all();
    for (std::int64_t id : ids)
      if (fail_) RETURN_IF_ERROR(fail_(id));
    return {};
  }
  void Fill(const FillCall& call) const override {
    for (std::size_t i = 0; i < call.ids.size(); ++i) {
      if (call.field == 1) {
        static_cast<std::int32_t*>(call.rows)[i] = static_cast<std::int32_t>(call.ids[i] % 3);
      } else {
        static_cast<float*>(call.rows)[2 * i] = static_cast<float>(call.ids[i]) / 100;
        static_cast<float*>(call.rows)[2 * i + 1] = static_cast<float>(call.epoch);
      }
    }
  }
  std::uint64_t content_hash() const override { return 1; }

 private:
  std::int64_t count_;
  std::int32_t rank_;
  Seen* seen_;
  std::function<Status(std::int64_t)> fail_;
  std::vector<Field> fields_ = {{"features", Dtype::kF32, {2}}, {"label", Dtype::kI32, {}, 3}};
};

std::vector<std::string> Settings(std::vector<std::string> more) {
  std::vector<std::string> settings = {"model.hidden=3", "train.threads=1", "optimizer.learning_rate=0.01"};
  settings.insert(settings.end(), more.begin(), more.end());
  return settings;
}

testing::RunOptions On(std::int64_t count, Seen* seen, std::function<Status(std::int64_t)> fail = {}) {
  return {.load = [=](testing::ThreadGang& gang) -> Result<DataSet> {
    DataSet data;
    data.training = std::make_unique<Numbered>(count, gang.rank(), seen, fail);
    return data;
  }};
}

std::vector<std::int64_t> Flat(const std::vector<std::vector<std::int64_t>>& batches) {
  std::vector<std::int64_t> all;
  for (const auto& batch : batches) all.insert(all.end(), batch.begin(), batch.end());
  return all;
}

// A step that does not end before the next batches are there: were they made after it, it would wait for ever.
TEST(Prefetch, TheNextBatchesAreMadeWhileAStepComputes) {
  Seen seen;
  testing::RunOptions options = On(70, &seen);
  std::atomic<int> waited = 0;
  options.on_step = [&](testing::ThreadGang&, std::int64_t step) {
    if (step < 4) waited += seen.WaitForFetched(0, static_cast<std::size_t>(step) + 4);
    EXPECT_LE(seen.Fetched(0), static_cast<std::size_t>(step) + 4) << "so far ahead and no further";
  };
  auto result = TrainOnThreads(JobOf(Settings({"train.batch=10", "train.epochs=1", "train.prefetch=3"})), 1, options);
  ASSERT_TRUE(result[0].status.ok()) << result[0].status.ToString();
  EXPECT_EQ(waited, 4);
  EXPECT_EQ(result[0].losses.size(), 7u);
  EXPECT_EQ(seen.Fetched(0), 7u) << "and none that no step takes";
}

TEST(Prefetch, CanBeLeftOut) {
  Seen seen;
  testing::RunOptions options = On(70, &seen);
  options.on_step = [&](testing::ThreadGang&, std::int64_t step) { EXPECT_EQ(seen.Fetched(0), static_cast<std::size_t>(step) + 1); };
  auto result = TrainOnThreads(JobOf(Settings({"train.batch=10", "train.epochs=2", "train.prefetch=0"})), 1, options);
  ASSERT_TRUE(result[0].status.ok()) << result[0].status.ToString();
  EXPECT_EQ(seen.Fetched(0), 14u);
}

TEST(Prefetch, ChangesNoBit) {
  std::vector<double> expected;
  for (int ahead : {0, 1, 2, 9}) {
    for (std::int32_t ranks : {1, 3}) {
      Seen seen;
      auto result = TrainOnThreads(JobOf(Settings({"train.batch=9", "train.micro_batches=2", "train.dtype=f32", "train.epochs=3",
                                                   "train.prefetch=" + std::to_string(ahead)})),
                                   ranks, On(31, &seen));
      for (const auto& rank : result) ASSERT_TRUE(rank.status.ok()) << rank.status.ToString();
      if (ranks == 3) continue;  // adds in another order
      if (expected.empty()) expected = result[0].losses;
      EXPECT_EQ(result[0].losses, expected) << ahead;
    }
  }
}

// The error of a sample comes at the step that has it, with all steps before it made.
TEST(Prefetch, AnErrorComesAtItsStep) {
  Sampler sampler(1, 40);
  const std::int64_t bad = sampler.Order(0)[23];
  for (int ahead : {0, 1, 3, 8}) {
    Seen seen;
    const Status wrong(Code::kUserError, "TEST01", "sample " + std::to_string(bad) + " is wrong", "the test says so", "mend the test");
    auto result =
        TrainOnThreads(JobOf(Settings({"train.batch=4", "train.seed=1", "train.epochs=1", "train.prefetch=" + std::to_string(ahead)})), 1,
                       On(40, &seen, [&](std::int64_t id) { return id == bad ? wrong : Status(); }));
    EXPECT_EQ(result[0].status.tag(), "TEST01");
    EXPECT_EQ(result[0].status.what(), "step 5: " + wrong.what());
    EXPECT_EQ(result[0].losses.size(), 5u) << ahead;
  }
  // Beyond the last step nobody asks.
  Seen seen;
  auto result = TrainOnThreads(
      JobOf(Settings({"train.batch=4", "train.seed=1", "train.steps=5", "train.prefetch=3"})), 1,
      On(40, &seen, [&](std::int64_t id) { return id == bad ? Status(Code::kUserError, "TEST01", "w", "w", "f") : Status(); }));
  EXPECT_TRUE(result[0].status.ok()) << result[0].status.ToString();
}

TEST(Prefetch, AnExceptionIsAnErrorOfItsStep) {
  Sampler sampler(1, 40);
  const std::int64_t bad = sampler.Order(0)[17];
  Seen seen;
  auto result = TrainOnThreads(JobOf(Settings({"train.batch=4", "train.seed=1", "train.epochs=1"})), 2, On(40, &seen, [&](std::int64_t id) {
                                 if (id == bad) throw std::runtime_error("the library is unhappy");
                                 return Status();
                               }));
  int told = 0;
  for (const auto& rank : result) {
    EXPECT_FALSE(rank.status.ok()) << "a rank that fails frees the other";
    if (rank.status.tag() != "DATA15") continue;
    ++told;
    EXPECT_EQ(rank.status.why(), "the library is unhappy");
    EXPECT_EQ(rank.losses.size(), 4u);
  }
  EXPECT_EQ(told, 1);
}

// What each of so many ranks takes from a place in an epoch on, as a training would.
std::vector<std::int64_t> Taken(std::int64_t samples, std::int64_t batch, std::int32_t ranks, SamplePosition from, std::int64_t steps,
                                SamplePosition* behind) {
  std::vector<std::vector<std::int64_t>> steps_of(static_cast<std::size_t>(steps));
  for (std::int32_t rank = 0; rank < ranks; ++rank) {
    Seen seen;
    Numbered numbered(samples, rank, &seen);
    Batches batches(
        numbered,
        {.seed = 5, .samples = samples, .batch = batch, .rows = ShareOf(batch, 0, ranks).count, .rank = rank, .ranks = ranks, .ahead = 2},
        from);
    for (std::int64_t step = 0; step < steps; ++step) {
      auto next = batches.Next();
      EXPECT_TRUE(next.ok());
      const Tensor& features = *(*next)->tensors[0].inputs()[0];
      const auto* values = reinterpret_cast<const float*>(features.bytes.data());
      for (std::int64_t row = 0; row < (*next)->share.count; ++row)
        steps_of[static_cast<std::size_t>(step)].push_back(std::lround(values[2 * row] * 100));
      *behind = (*next)->behind;
    }
    std::lock_guard lock(seen.mutex);
    EXPECT_EQ(seen.prepared[rank].size(), 1u) << "once an epoch";
  }
  return Flat(steps_of);
}

// Stopped in the middle of an epoch and gone on with from there: the samples that are left and no others, each time anew and at any number
// of ranks, though the thread had made some of them already.
TEST(Prefetch, WhatIsLeftOfAnEpochIsWhatTheStepsHaveNotTaken) {
  SamplePosition middle, end;
  const std::vector<std::int64_t> first = Taken(53, 8, 2, {}, 3, &middle);
  EXPECT_EQ(middle, (SamplePosition{0, 24}));
  std::set<std::int64_t> all(first.begin(), first.end());
  std::vector<std::int64_t> rest;
  for (std::int32_t ranks : {2, 2, 1, 3, 8}) {
    const std::vector<std::int64_t> again = Taken(53, 8, ranks, middle, 4, &end);
    if (rest.empty()) rest = again;
    EXPECT_EQ(again, rest) << ranks << " ranks";
    EXPECT_EQ(end, (SamplePosition{0, 53}));
  }
  EXPECT_EQ(rest.size(), 29u);
  all.insert(rest.begin(), rest.end());
  EXPECT_EQ(all.size(), 53u) << "each sample once";
  // The next epoch has another order.
  const std::vector<std::int64_t> second = Taken(53, 8, 2, end, 7, &end);
  EXPECT_EQ(end, (SamplePosition{1, 53}));
  EXPECT_EQ(std::set<std::int64_t>(second.begin(), second.end()).size(), 53u);
  std::vector<std::int64_t> one = first;
  one.insert(one.end(), rest.begin(), rest.end());
  EXPECT_NE(second, one);
}

// 4 ranks of which one has a sample less: all rows together weigh as one batch does, and no rank has a step more than another.
TEST(Prefetch, UnevenSharesWeighRight) {
  double weights = 0, counted = 0;
  for (std::int32_t rank = 0; rank < 4; ++rank) {
    Seen seen;
    Numbered numbered(31, rank, &seen);
    Batches batches(numbered,
                    {.seed = 5, .samples = 31, .batch = 32, .rows = 8, .rank = rank, .ranks = 4, .dtype = Dtype::kF64, .ahead = 1}, {});
    const StepBatch& batch = **batches.Next();
    EXPECT_EQ(batch.share.count, rank == 3 ? 7 : 8);
    const Tensor& tensor = *batch.tensors[0].inputs().back();
    const auto* values = reinterpret_cast<const double*>(tensor.bytes.data());
    for (std::int64_t row = 0; row < 8; ++row) {
      weights += values[row];
      counted += values[row] > 0;
    }
  }
  EXPECT_NEAR(weights, 1, 1e-12);
  EXPECT_EQ(counted, 31);
}

// Held-out samples that the ranks cannot share evenly are each counted once.
TEST(Prefetch, TenHeldOutSamplesOfFourRanksAreTen) {
  Seen seen, held_out;
  testing::RunOptions options;
  options.load = [&](testing::ThreadGang& gang) -> Result<DataSet> {
    DataSet data;
    data.training = std::make_unique<Numbered>(30, gang.rank(), &seen);
    data.held_out = std::make_unique<Numbered>(10, gang.rank(), &held_out);
    return data;
  };
  auto result = TrainOnThreads(JobOf(Settings({"train.batch=8", "train.epochs=1", "train.evaluate_batch=2"})), 4, options);
  ASSERT_TRUE(result[0].status.ok()) << result[0].status.ToString();
  EXPECT_EQ(result[0].summary.held_out_labels, 10);
  std::vector<std::int64_t> all;
  for (std::int32_t rank = 0; rank < 4; ++rank) {
    const std::vector<std::int64_t> mine = Flat(held_out.fetched[rank]);
    all.insert(all.end(), mine.begin(), mine.end());
  }
  std::sort(all.begin(), all.end());
  std::vector<std::int64_t> expected(10);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(all, expected);
}

// Gone while the thread has batches in hand or waits for room.
TEST(Prefetch, EndsAtAnyMoment) {
  for (std::int64_t taken = 0; taken < 6; ++taken) {
    Seen seen;
    Numbered numbered(20, 0, &seen);
    Batches batches(numbered, {.seed = 1, .samples = 20, .batch = 4, .rows = 4, .ahead = 2}, {});
    for (std::int64_t i = 0; i < taken; ++i) ASSERT_TRUE(batches.Next().ok());
  }
}

}  // namespace
}  // namespace ropewalk::mlrunner
