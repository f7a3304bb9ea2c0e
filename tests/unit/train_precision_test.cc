// Mixed precision in the trainer: bf16 and f16 learn as f32 does, the scale of the loss is found, kept and the same on all ranks, and
// gradients are summed in f32.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <stdexcept>

#include "base/hash.h"
#include "base/random.h"
#include "mlrunner/graph/grad.h"
#include "mlrunner/graph/maths.h"
#include "mlrunner/graph/ops.h"
#include "mlrunner/graph/optimizers.h"
#include "mlrunner/train/checkpoint.h"
#include "mlrunner/train/gradients.h"
#include "mlrunner/train/loss_scale.h"
#include "mlrunner/train/step_graph.h"
#include "tests/unit/bands.h"
#include "tests/unit/train_ranks.h"

namespace ropewalk::mlrunner {
namespace {

using testing::Bands;
using testing::JobOf;
using testing::RankResult;
using testing::TrainOnThreads;

// Sequences of which some places are masked: from none to all of them.
class Uneven : public Samples {
 public:
  std::int64_t count() const override { return 60; }
  const std::vector<Field>& fields() const override { return fields_; }
  void Fill(const FillCall& call) const override {
    for (std::size_t i = 0; i < call.ids.size(); ++i) {
      for (std::int64_t place = 0; place < kLength; ++place) {
        const std::size_t at = i * kLength + static_cast<std::size_t>(place);
        const bool is_masked = place < Labels(call.ids[i]);
        const auto symbol =
            static_cast<std::int32_t>(HashCombine(static_cast<std::uint64_t>(call.ids[i]), static_cast<std::uint64_t>(place)) % 5);
        if (call.field == 1) {  // real numbers come in what the job computes with
          if (call.dtype == Dtype::kF64) {
            static_cast<double*>(call.rows)[at] = is_masked;
          } else {
            static_cast<float*>(call.rows)[at] = is_masked;
          }
        } else {
          static_cast<std::int32_t*>(call.rows)[at] = call.field == 0 && is_masked ? 5 : symbol;
        }
      }
    }
  }
  std::int64_t NumLabels(std::span<const std::int64_t> ids) const override {
    std::int64_t labels = 0;
    for (std::int64_t id : ids) labels += Labels(id);
    return labels;
  }
  std::uint64_t content_hash() const override { return 2; }

 private:
  static constexpr std::int64_t kLength = 6;
  static std::int64_t Labels(std::int64_t id) { return id * 5 % (kLength + 1); }
  std::vector<Field> fields_ = {
      {"tokens", Dtype::kI32, {kLength}, 6}, {"mask", Dtype::kF32, {kLength}}, {"original", Dtype::kI32, {kLength}, 6}};
};

class Precision : public ::testing::Test {
 protected:
  Precision() {
    std::string text;
    Random random(7);
    for (int i = 0; i < 200; ++i) text += random.OneIn(2) ? "the cat sat. " : "a dog ran! ";
    std::ofstream(folder_.path() + "/text") << text;
  }
  std::vector<std::string> Gpt(int steps, std::vector<std::string> more = {}) {
    return testing::TinyGpt(folder_.path() + "/text", steps,
                            {{"train.batch=22", "model.layers=2", "model.width=16", "optimizer.learning_rate=0.1"}, std::move(more)});
  }
  std::vector<std::string> Cnn(int steps, std::vector<std::string> more = {}) {
    std::vector<std::string> all = {"model.kind=cnn",
                                    "model.maps=8",
                                    "train.batch=16",
                                    "train.steps=" + std::to_string(steps),
                                    "train.threads=1",
                                    "train.bucket_bytes=8K",
                                    "optimizer.learning_rate=0.02"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  RankResult Train(const std::vector<std::string>& settings, std::int32_t ranks = 1, testing::RunOptions options = {}) {
    std::vector<RankResult> results = TrainOnThreads(JobOf(settings), ranks, options);
    for (const RankResult& result : results) {
      EXPECT_TRUE(result.status.ok()) << result.status.ToString();
      EXPECT_EQ(result.losses, results[0].losses);
    }
    return results[0];
  }
  static testing::RunOptions OnBands() {
    testing::RunOptions options;
    options.load = [](testing::ThreadGang&) -> Result<DataSet> {
      return DataSet{std::make_unique<Bands>(64), std::make_unique<Bands>(64)};
    };
    return options;
  }
  // In these steps the last rank's first result of an op of f32 is another one.
  static testing::RunOptions WithFault(const OpDef& def, float value, const std::function<bool(std::uint64_t step)>& in_step) {
    testing::RunOptions options = OnBands();
    options.kernels = [&def, value, in_step](testing::ThreadGang& gang, KernelTable* table) {
      if (gang.rank() + 1 != gang.ranks()) return;
      const KernelMaker maker = table->Makers(Device::kCpu, Dtype::kF32).at(&def);
      table->Add(def, Device::kCpu, Dtype::kF32, [maker, value, in_step](const KernelRequest& r) -> Result<CompiledKernel> {
        ASSIGN_OR_RETURN(CompiledKernel kernel, maker(r));
        kernel.run = [run = kernel.run, value, in_step](const KernelCall& call) {
          RETURN_IF_ERROR(run(call));
          if (in_step(call.run.step)) *static_cast<float*>(call.out[0]) = value;
          return Status();
        };
        return kernel;
      });
    };
    return options;
  }
  // A gradient of the logits that f16 has no number for. Forward and the loss are as ever.
  static testing::RunOptions WithTooLarge(const std::function<bool(std::uint64_t step)>& in_step) {
    return WithFault(kCrossEntropyGrad, 1e30f, in_step);
  }
  std::map<std::string, Tensor> Newest(const std::string& folder, std::int64_t step) {
    storage::LocalFileSystem files;
    auto loaded = LoadCheckpoint(files, CheckpointPath(folder, step));
    EXPECT_TRUE(loaded.ok()) << loaded.status().ToString();
    return loaded.ok() ? std::move(loaded->tensors) : std::map<std::string, Tensor>();
  }
  testing::TempFolder folder_;
};

double Worst(const std::vector<double>& a, const std::vector<double>& b) {
  EXPECT_EQ(a.size(), b.size());
  double worst = 0;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) worst = std::max(worst, std::fabs(a[i] - b[i]) / std::fabs(b[i]));
  return worst;
}

double Scalar(const Tensor& tensor) { return ToRef(tensor).data.at(0); }

TEST_F(Precision, KeysAreRead) {
  EXPECT_EQ(JobOf({"data.path=x"}).precision, Dtype::kF32);
  const TrainJob job = JobOf({"data.path=x", "train.precision=bf16", "train.recompute=sqrt"});
  EXPECT_EQ(job.precision, Dtype::kBF16);
  EXPECT_EQ(job.recompute, RecomputeMarks::kRoots);
  const std::vector<std::string> settings = AsSettings(job);
  for (const char* setting : {"train.precision=bf16", "train.recompute=sqrt"})
    EXPECT_EQ(std::count(settings.begin(), settings.end(), setting), 1) << setting;
  for (const char* bad : {"train.precision=f64", "train.recompute=all"}) {
    Config config(TrainKeys());
    ASSERT_TRUE(ApplySetting(&config, bad).ok());
    EXPECT_EQ(ReadTrainJob(config).status().tag(), "SPEC02") << bad;
  }
  Config both(TrainKeys());
  ASSERT_TRUE(ApplySetting(&both, "train.precision=bf16").ok() && ApplySetting(&both, "train.dtype=f64").ok());
  EXPECT_EQ(ReadTrainJob(both).status().tag(), "SPEC02");
}

// Of 25 steps each loss lies within 2% of that of f32, and the control, a rate that is a tenth larger, does not.
TEST_F(Precision, AGptLearnsAsInF32) {
  const std::vector<double> single = Train(Gpt(25)).losses;
  EXPECT_LT(single.back(), .75 * single.front());
  for (const char* precision : {"bf16", "f16"}) {
    const RankResult mixed = Train(Gpt(25, {std::string("train.precision=") + precision}));
    std::printf("gpt %s: %.2g\n", precision, Worst(mixed.losses, single));
    EXPECT_LT(Worst(mixed.losses, single), .02) << precision;
    EXPECT_NE(mixed.losses, single);
    EXPECT_EQ(mixed.summary.skipped, 0);
  }
  const double other = Worst(Train(Gpt(25, {"optimizer.learning_rate=0.11"})).losses, single);
  std::printf("gpt, larger rate: %.2g\n", other);
  EXPECT_GT(other, .02);
}

TEST_F(Precision, ACnnLearnsAsInF32) {
  const std::vector<double> single = Train(Cnn(20), 1, OnBands()).losses;
  EXPECT_LT(single.back(), .75 * single.front());
  for (const char* precision : {"bf16", "f16"}) {
    const std::vector<double> mixed = Train(Cnn(20, {std::string("train.precision=") + precision}), 1, OnBands()).losses;
    std::printf("cnn %s: %.2g\n", precision, Worst(mixed, single));
    EXPECT_LT(Worst(mixed, single), .05) << precision;
    EXPECT_NE(mixed, single);
  }
  const double other = Worst(Train(Cnn(20, {"optimizer.learning_rate=0.022"}), 1, OnBands()).losses, single);
  std::printf("cnn, larger rate: %.2g\n", other);
  EXPECT_GT(other, .05);
}

// Micro-batches round at the same places, but for sums.
TEST_F(Precision, RanksAndMicroBatchesAreOneBatch) {
  for (const char* precision : {"bf16", "f16"}) {
    const std::string key = std::string("train.precision=") + precision;
    const std::vector<double> whole = Train(Gpt(10, {key, "optimizer.clip_norm=0.5"})).losses;
    EXPECT_LT(Worst(Train(Gpt(10, {key, "optimizer.clip_norm=0.5", "train.micro_batches=3"}), 2).losses, whole), 2e-3) << precision;
  }
}

// The scale comes off before the norm is bounded: a step is as long as its bound says.
TEST_F(Precision, AClippedStepOfF16HasItsLength) {
  auto after = [&](const std::string& name, std::vector<std::string> more) {
    more.insert(more.begin(), {"train.precision=f16", "optimizer.momentum=0", "optimizer.clip_norm=0.05",
                               "checkpoint.folder=" + folder_.path() + "/" + name});
    Train(Gpt(1, more), 2);
    return Newest(folder_.path() + "/" + name, 1);
  };
  const auto start = after("start", {"optimizer.learning_rate=0"}), end = after("end", {"optimizer.learning_rate=0.5"});
  double squares = 0;
  for (const auto& [name, tensor] : end) {
    const RefTensor x = ToRef(start.at(name)), y = ToRef(tensor);
    for (std::size_t i = 0; i < x.data.size(); ++i) squares += (x.data[i] - y.data[i]) * (x.data[i] - y.data[i]);
  }
  EXPECT_NEAR(std::sqrt(squares), .5 * .05, 1e-6);
  EXPECT_EQ(Scalar(end.at(kLossScale)), kFirstLossScale);
}

bool IsThirdOrSixth(std::uint64_t step) { return step == 2 || step == 5; }

// Gradients of one rank do not fit: no rank makes that step, and all halve the scale.
TEST_F(Precision, WhatOneRankFindsAllLeaveOut) {
  const std::string folder = folder_.path() + "/checkpoints";
  const std::vector<std::string> settings =
      Cnn(8, {"train.precision=f16", "checkpoint.every_steps=1", "checkpoint.keep=20", "checkpoint.folder=" + folder,
              "optimizer.kind=adamw", "optimizer.learning_rate=0.002", "train.metrics=" + folder + ".jsonl"});
  const RankResult result = Train(settings, 2, WithTooLarge(IsThirdOrSixth));
  ASSERT_EQ(result.losses.size(), 8u);
  for (double loss : result.losses) EXPECT_TRUE(std::isfinite(loss));
  EXPECT_EQ(result.summary.skipped, 2);
  double scale = kFirstLossScale, clean = 0;
  for (std::uint64_t step = 0; step < 8; ++step) {
    const bool is_left_out = IsThirdOrSixth(step);
    if (is_left_out) scale /= 2;
    clean = is_left_out ? 0 : clean + 1;
    const auto after = Newest(folder, static_cast<std::int64_t>(step) + 1);
    EXPECT_EQ(Scalar(after.at(kLossScale)), scale) << step;
    EXPECT_EQ(Scalar(after.at(kCleanSteps)), clean) << step;
    if (step == 0) continue;
    const auto before = Newest(folder, static_cast<std::int64_t>(step));
    bool same = true;
    for (const auto& [name, tensor] : after) {
      EXPECT_TRUE(IsFinite(tensor)) << name;
      if (!name.starts_with(kLossScale)) same = same && tensor.bytes == before.at(name).bytes;
    }
    EXPECT_EQ(same, is_left_out) << step;
  }
  std::ifstream metrics(folder + ".jsonl");
  const std::string said{std::istreambuf_iterator<char>(metrics), {}};
  EXPECT_NE(said.find("\"loss_scale\":65536"), std::string::npos) << said;
  EXPECT_NE(said.find("the loss was scaled by 65536, which is halved"), std::string::npos) << said;
}

// Scale and count are states: a training that was interrupted between two halvings goes on bit for bit.
TEST_F(Precision, AResumedTrainingGoesOnWithItsScale) {
  auto with = [&](const std::string& name) {
    return JobOf(Cnn(
        8, {"train.precision=f16", "checkpoint.every_steps=1", "checkpoint.keep=20", "checkpoint.folder=" + folder_.path() + "/" + name}));
  };
  const std::vector<RankResult> whole = TrainOnThreads(with("whole"), 2, WithTooLarge(IsThirdOrSixth));
  ASSERT_TRUE(whole[0].status.ok()) << whole[0].status.ToString();
  testing::RunOptions stopped = WithTooLarge(IsThirdOrSixth);
  stopped.on_step = [](testing::ThreadGang&, std::int64_t step) {
    if (step == 4) throw std::runtime_error("the power is gone");
  };
  TrainOnThreads(with("stopped"), 2, stopped);
  const std::vector<RankResult> rest = TrainOnThreads(with("stopped"), 2, WithTooLarge(IsThirdOrSixth));
  ASSERT_TRUE(rest[0].status.ok()) << rest[0].status.ToString();
  const std::int64_t from = rest[0].summary.resumed_from;
  ASSERT_TRUE(from == 3 || from == 4) << from;
  EXPECT_EQ(rest[0].losses, std::vector<double>(whole[0].losses.begin() + from, whole[0].losses.end()));
  const auto a = Newest(folder_.path() + "/whole", 8), b = Newest(folder_.path() + "/stopped", 8);
  EXPECT_EQ(Scalar(a.at(kLossScale)), kFirstLossScale / 4);
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, tensor] : a) EXPECT_EQ(tensor.bytes, b.at(name).bytes) << name;
}

// Gradients that never fit end the training; and a loss that is no number is not what scales are for.
TEST_F(Precision, AScaleIsNotLookedForForEver) {
  const std::vector<std::string> settings = Cnn(1000, {"train.precision=f16"});
  const auto forever = TrainOnThreads(JobOf(settings), 1, WithTooLarge([](std::uint64_t) { return true; }));
  EXPECT_EQ(forever[0].status.tag(), "TRAIN01");
  EXPECT_EQ(forever[0].losses.size(), 99u);
  EXPECT_NE(forever[0].status.ToString().find("the search for a loss scale"), std::string::npos) << forever[0].status.ToString();
  const auto spoilt = TrainOnThreads(JobOf(settings), 1, WithFault(kCrossEntropy, NAN, [](std::uint64_t step) { return step == 3; }));
  EXPECT_EQ(spoilt[0].status.tag(), "TRAIN01");
  EXPECT_EQ(spoilt[0].losses.size(), 3u);
  EXPECT_NE(spoilt[0].status.ToString().find("step 3: the loss is nan"), std::string::npos) << spoilt[0].status.ToString();
}

TEST(LossScale, DoublesAfterCleanStepsAndHasAnEnd) {
  Builder b;
  const LossScale scale = NewLossScale(b);
  Value ok = b.Input("ok", Dtype::kBool, {});
  AdjustLossScale(b, scale, ok);
  auto graph = b.Finish();
  ASSERT_TRUE(graph.ok()) << graph.status().ToString();
  auto executable = Compile(*graph, {}, DefaultProgram(*graph), CpuKernels());
  ASSERT_TRUE(executable.ok());
  StateStore states;
  auto run = [&](bool clean, int times) {
    const Tensor flag = ToTensor(Dtype::kBool, RefTensor::Scalar(clean));
    RunInputs inputs;
    inputs.micro_batches[0] = {&flag};
    for (int i = 0; i < times; ++i) EXPECT_TRUE((*executable)->Run(inputs, states).ok());
    return Scalar(states.Get(kLossScale));
  };
  EXPECT_EQ(run(true, 1999), 65536);
  EXPECT_EQ(run(true, 1), 131072);
  EXPECT_EQ(run(true, 1999), 131072);
  EXPECT_EQ(run(false, 1), 65536) << "and the count begins anew";
  EXPECT_EQ(run(true, 1999), 65536);
  EXPECT_EQ(run(true, 1), 131072);
  EXPECT_EQ(run(true, 16'000), kLossScaleMax);
  EXPECT_EQ(run(false, 30), kLossScaleMax / (1 << 30));
}

// 1,024 gradients of bf16, by both ways to add micro-batches up; the control is a sum of bf16, which stops growing.
TEST(Accumulate, ManyGradientsOf16Bits) {
  constexpr int kCount = 1024, kWidth = 64;
  constexpr std::uint64_t kSeed = 17;
  std::printf("seed %llu\n", static_cast<unsigned long long>(kSeed));
  Random random(kSeed);
  std::vector<Tensor> gradients;
  std::vector<double> exact(kWidth);
  for (int i = 0; i < kCount; ++i) {
    RefTensor g{{kWidth}, std::vector<double>(kWidth)};
    for (int k = 0; k < kWidth; ++k)
      exact[static_cast<std::size_t>(k)] += g.data[static_cast<std::size_t>(k)] = RoundTo(Dtype::kBF16, .5 + random.Unit());
    gradients.push_back(ToTensor(Dtype::kBF16, g));
  }
  enum class Way { kWeighted, kMean, kControl };
  for (Way way : {Way::kWeighted, Way::kMean, Way::kControl}) {
    Builder b;
    Value g = b.Input("g", Dtype::kBF16, {kWidth});
    Parameter w = b.NewParameter("w", {kWidth}, Initializer::Zeros(), Dtype::kBF16);
    Value of_g = Grad(ReduceSum(w * g), {w})[0].Dense();
    ASSERT_EQ(of_g.dtype(), Dtype::kBF16);
    std::vector<Value> beside;
    double scale = 1;
    if (way == Way::kWeighted) {
      b.Output("sum", SumOverMicroBatches(b, {w}, {of_g}, &beside, BetweenScope(b, {w}))[0].Dense());
    } else if (way == Way::kMean) {
      b.Output("sum", AccumulateGradients(b, {w}, {of_g}, kCount)[0].Dense());
      scale = kCount;
    } else {
      StateId sum = b.NewState("sum", StateKind::kAccumulator, {Dtype::kBF16, {kWidth}}, Initializer::Zeros());
      {
        Scope scope = UpdateScope(b, w);
        scope.region = RegionKind::kBackward;
        scope.parameter = {};
        auto guard = b.With(scope);
        b.Assign(sum, b.Read(sum) + of_g);
      }
      auto guard = b.With(UpdateScope(b, w));
      b.Output("sum", Identity(b, b.Read(sum)));
    }
    auto graph = b.Finish();
    ASSERT_TRUE(graph.ok()) << graph.status().ToString();
    auto executable = Compile(*graph, {}, StepProgram(*graph, kCount), CpuKernels());
    ASSERT_TRUE(executable.ok()) << executable.status().ToString();
    RunInputs inputs;
    inputs.micro_batches.clear();
    for (const Tensor& tensor : gradients) inputs.micro_batches.push_back({&tensor});
    StateStore states;
    auto ran = (*executable)->Run(inputs, states);
    ASSERT_TRUE(ran.ok()) << ran.status().ToString();
    const RefTensor sum = ToRef(ran->outputs[0][0]);
    double worst = 0;
    for (std::size_t k = 0; k < kWidth; ++k) worst = std::max(worst, std::fabs(sum.data[k] * scale - exact[k]) / exact[k]);
    std::printf("way %d: %.2g\n", static_cast<int>(way), worst);
    if (way == Way::kControl) {
      EXPECT_GT(worst, 1e-1);
    } else {
      EXPECT_LT(worst, 1e-3);
    }
  }
}

// Micro-batches with unlike numbers of labels, some with none, are one batch: what is weighted is labels, not samples or parts.
TEST(Accumulate, VariableLengthsAreOneBatch) {
  testing::RunOptions options;
  options.load = [](testing::ThreadGang&) -> Result<DataSet> { return DataSet{std::make_unique<Uneven>(), std::make_unique<Uneven>()}; };
  auto losses = [&](std::int32_t parts, std::int32_t ranks) {
    TrainJob job;
    job.model = {.kind = "bert", .layers = 1, .width = 8, .heads = 2, .length = 6, .more = {{"inner", "16"}}};
    job.optimizer.learning_rate = .1;
    job.dtype = Dtype::kF64;
    job.batch = 14;
    job.steps = 30;
    job.threads = 1;
    job.micro_batches = parts;
    const auto results = TrainOnThreads(job, ranks, options);
    EXPECT_TRUE(results[0].status.ok()) << results[0].status.ToString();
    return results[0].losses;
  };
  const std::vector<double> whole = losses(1, 1);
  ASSERT_EQ(whole.size(), 30u);
  EXPECT_LT(whole.back(), whole.front());
  EXPECT_LT(Worst(losses(7, 1), whole), 1e-9);
  EXPECT_LT(Worst(losses(14, 1), whole), 1e-9);
  EXPECT_LT(Worst(losses(3, 2), whole), 1e-9);
}

}  // namespace
}  // namespace ropewalk::mlrunner
