// mlrunner::Train on a dataset, in one process: the ranks are threads of the embedded backend and speak through the real communicator.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <functional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "dag/gang_on_data.h"
#include "dag/session.h"
#include "job/embedded/embedded_backend.h"
#include "mlrunner/train/train.h"

namespace ropewalk::mlrunner {
namespace {

namespace fs = std::filesystem;

struct Sample {
  std::vector<float> features;
  std::int32_t label = 0;
};
// The same by other types: what counts are the members.
struct Pixels {
  std::array<std::uint8_t, 3> features{};
  std::uint16_t label = 0;
};

class TrainOnData : public testing::Test {
 protected:
  void TearDown() override { fs::remove_all(dir_); }
  dag::Session Start(std::uint64_t collect_bytes_max = dag::Settings{}.collect_bytes_max) {
    job::EmbeddedOptions options;
    options.settings.collect_bytes_max = collect_bytes_max;
    options.settings.name = "test";
    options.settings.slots = 2;
    options.settings.work_dir = dir_;
    options.spill_dir = dir_ / "spill";
    fs::create_directories(dir_);
    auto backend = job::EmbeddedBackend::Start(options);
    EXPECT_TRUE(backend.ok()) << backend.status().ToString();
    std::shared_ptr<job::EmbeddedBackend> kept = *std::move(backend);
    return dag::Session({kept.get(), kept, [](const Status& status) { throw std::runtime_error(status.ToString()); }, {"test"}});
  }
  // Three classes around three corners, one sample in ten beyond its border.
  static std::vector<Sample> Corners(int count) {
    Random random(11);
    std::vector<Sample> samples;
    for (int i = 0; i < count; ++i) {
      const auto label = static_cast<std::int32_t>(random.Below(3));
      Sample sample{{0, 0, 0, 1}, label};
      for (int f = 0; f < 3; ++f)
        sample.features[static_cast<std::size_t>(f)] = static_cast<float>((f == label ? 1.5 : 0) + random.Unit() - .5);
      samples.push_back(std::move(sample));
    }
    return samples;
  }
  static TrainJob Config(std::int32_t ranks) {
    TrainJob job{.model = {.hidden = {7}}, .ranks = ranks, .batch = 24, .epochs = 3};
    job.dtype = Dtype::kF64;
    job.bucket_bytes = 128;
    job.threads = 1;
    return job;
  }
  // What the action says; empty: it went well.
  static std::string FailureOf(const std::function<void()>& action) {
    try {
      action();
    } catch (const std::runtime_error& error) {
      return error.what();
    }
    return "";
  }

  fs::path dir_ = fs::path(testing::TempDir()) / ("train_on_data_" + std::to_string(getpid()));
};

void ExpectNear(const Trained& a, const Trained& b, double most) {
  ASSERT_EQ(a.losses.size(), b.losses.size());
  for (std::size_t i = 0; i < a.losses.size(); ++i) EXPECT_NEAR(a.losses[i], b.losses[i], most) << "step " << i;
  ASSERT_EQ(a.parameters.size(), b.parameters.size());
  for (const auto& [name, parameter] : a.parameters) {
    const TrainedParameter& other = b.parameters.at(name);
    ASSERT_EQ(parameter.dims, other.dims) << name;
    ASSERT_EQ(parameter.values.size(), other.values.size()) << name;
    for (std::size_t i = 0; i < parameter.values.size(); ++i) EXPECT_NEAR(parameter.values[i], other.values[i], most) << name;
  }
}

TEST_F(TrainOnData, AnyNumberOfRanksTrainsTheSame) {
  dag::Session job = Start();
  auto samples = job.FromVector(Corners(250), {.partitions = 5});
  const Trained one = Train(samples, samples, Config(1));
  // 250 samples in batches of 24: ten of them and one of 10, three times.
  ASSERT_EQ(one.losses.size(), 33u);
  EXPECT_EQ(one.summary.steps, 33);
  EXPECT_EQ(one.summary.loss, one.losses.back());
  EXPECT_LT(one.losses.back(), .6 * one.losses.front());
  EXPECT_EQ(one.parameters.at("layer0/linear/w").dims, (std::vector<std::int64_t>{4, 7}));
  EXPECT_EQ(one.parameters.at("out/w").dims, (std::vector<std::int64_t>{7, 3}));
  EXPECT_EQ(one.parameters.at("out/b").values.size(), 3u);
  EXPECT_EQ(one.summary.held_out_labels, 250);
  EXPECT_GT(one.summary.held_out_hits, 200);
  for (std::int32_t ranks : {3, 4}) {
    const Trained many = Train(samples, samples, Config(ranks));
    ExpectNear(many, one, 1e-9);
    EXPECT_EQ(many.summary.held_out_hits, one.summary.held_out_hits);
  }
  // The job goes on, and the blocks of the samples are gone with the action.
  EXPECT_EQ(samples.Count(), 250u);
}

// What a rank holds of the data, and how that is cut into partitions, changes no bit.
TEST_F(TrainOnData, HeldWholeOrAShareAnEpochWithTheSameBits) {
  dag::Session job = Start();
  const Trained whole = Train(job.FromVector(Corners(200), {.partitions = 4}), Config(3));
  const Trained shares = Train(job.FromVector(Corners(200), {.partitions = 7}), Config(3), {.whole_bytes_max = 0});
  EXPECT_EQ(whole.losses, shares.losses);
  EXPECT_EQ(whole.parameters, shares.parameters);
  // The control: another order of the samples is another training.
  std::vector<Sample> reversed = Corners(200);
  std::reverse(reversed.begin(), reversed.end());
  EXPECT_NE(Train(job.FromVector(reversed, {.partitions = 4}), Config(3)).losses, whole.losses);
}

// What the batch job computes behind a shuffle is learned from, and the result of a training is a value of main like any other.
TEST_F(TrainOnData, BetweenOtherActionsOfTheJob) {
  dag::Session job = Start();
  std::vector<std::pair<std::uint16_t, std::uint8_t>> ones;
  for (std::uint16_t i = 0; i < 90; ++i) ones.emplace_back(i, static_cast<std::uint8_t>(i % 3));
  auto pixels = job.FromVector(ones, {.partitions = 3})
                    .GroupByKey({.partitions = 4})
                    .Map([](const std::pair<std::uint16_t, std::vector<std::uint8_t>>& group) {
                      Pixels p;
                      p.label = group.second[0];
                      p.features[group.second[0]] = 1;
                      return p;
                    });
  TrainJob config{.model = {.hidden = {}}, .optimizer = {.learning_rate = .5}, .ranks = 2, .batch = 30, .epochs = 40};
  const Trained trained = Train(pixels, pixels, config);
  EXPECT_EQ(trained.summary.held_out_hits, 90);
  const std::vector<double>& w = trained.parameters.at("out/w").values;
  // Each feature speaks for its class.
  for (std::size_t feature = 0; feature < 3; ++feature) {
    for (std::size_t other = 0; other < 3; ++other) {
      if (other == feature) continue;
      EXPECT_GT(w[4 * feature], w[3 * feature + other] + 1);
    }
  }
  auto scores = job.FromVector<std::int32_t>({0, 1, 2}).Map([w](const std::int32_t& i) { return w[static_cast<std::size_t>(4 * i)]; });
  EXPECT_GT(scores.Sum(), 3);
}

TEST_F(TrainOnData, WrongSamplesAreNamed) {
  struct Case {
    Sample sample;
    TrainOptions options;
    const char *tag, *says;
  };
  const float nan = std::nanf("");
  for (const Case& c :
       {Case{{{1, 2, 3}, 0}, {}, "[DATA05]", "row 2 in partition 1 of the training samples: it has 3 features, and others have 4"},
        Case{{{}, 0}, {}, "[DATA05]", "it has no features"}, Case{{{1, 2, 3, 4}, -1}, {}, "[DATA06]", "its label is -1"},
        Case{{{1, 2, 3, 4}, 3}, {.classes = 3}, "[DATA06]", "labels lie in [0, 3)"},
        Case{{{1, nan, 3, 4}, 2}, {}, "[DATA07]", "its feature 1 is nan"}}) {
    std::vector<Sample> samples = Corners(20);
    samples[12] = c.sample;
    dag::Session job = Start();  // one for each: a failed action ends its job
    auto data = job.FromVector(samples, {.partitions = 2});
    std::string failure = FailureOf([&] { Train(data, Config(2), c.options); });
    EXPECT_NE(failure.find(c.tag), std::string::npos) << failure;
    EXPECT_NE(failure.find(c.says), std::string::npos) << failure;
    EXPECT_EQ(failure.find("was formed"), std::string::npos) << failure;  // once is enough
  }
}

TEST_F(TrainOnData, NoSamplesAndHeldOutSamplesThatDoNotFit) {
  dag::Session job = Start();
  auto none = job.FromVector(Corners(20)).Filter([](const Sample& sample) { return sample.label > 5; });
  std::string failure = FailureOf([&] { Train(none, Config(2)); });
  EXPECT_NE(failure.find("[DATA08]"), std::string::npos) << failure;
  dag::Session other = Start();
  auto samples = other.FromVector(Corners(20));
  auto narrow = samples.Map([](const Sample& sample) { return Sample{{sample.features[0]}, sample.label}; });
  failure = FailureOf([&] { Train(samples, narrow, Config(2)); });
  EXPECT_NE(failure.find("partition 0 of the held-out samples: it has 1 features, and others have 4"), std::string::npos) << failure;
}

// Paths of a job start from the folder where it was submitted, not from that of the process that happens to run a rank.
TEST_F(TrainOnData, ARelativeCheckpointFolderIsThatOfTheSubmitFolder) {
  TrainJob config = Config(2);
  config.checkpoint.folder = "kept/by/this job";
  dag::Session job = Start();
  auto samples = job.FromVector(Corners(100), {.partitions = 2});
  const Trained trained = Train(samples, config);
  EXPECT_EQ(trained.summary.steps, 15);
  EXPECT_TRUE(fs::exists(dir_ / "kept/by/this job/step-000000000015.safetensors"));
  EXPECT_EQ(Train(samples, config).summary.resumed_from, 15);
  // Another training of the same job begins anew where it is told to.
  config.checkpoint.resume = false;
  EXPECT_EQ(Train(samples, config).losses, trained.losses);
  // Where the submit folder is missing, nothing is made in its place.
  fs::rename(dir_, dir_.string() + "_moved");
  const std::string failure = FailureOf([&] { Train(samples, config); });
  EXPECT_NE(failure.find("[CKPT01]"), std::string::npos) << failure;
  EXPECT_NE(failure.find("the submit folder \"" + dir_.string() + "\" cannot be reached"), std::string::npos) << failure;
  EXPECT_FALSE(fs::exists(dir_ / "kept"));
  fs::remove_all(dir_.string() + "_moved");
}

// Who looks at a training that was interrupted sees all of it.
TEST_F(TrainOnData, TheLossesOfAResumedTrainingAreThoseOfOneThatNeverStopped) {
  dag::Session job = Start();
  auto samples = job.FromVector(Corners(250), {.partitions = 2});
  TrainJob config = Config(2);
  const Trained undisturbed = Train(samples, config);
  ASSERT_EQ(undisturbed.losses.size(), 33u);
  EXPECT_EQ(undisturbed.losses_from, 0);
  config.checkpoint.folder = "kept";
  config.epochs = 1;
  EXPECT_EQ(Train(samples, config).losses.size(), 11u);
  config.epochs = 3;
  const Trained resumed = Train(samples, config);
  EXPECT_EQ(resumed.summary.resumed_from, 11);
  EXPECT_EQ(resumed.losses_from, 0);
  EXPECT_EQ(resumed.losses, undisturbed.losses);
  const Trained again = Train(samples, config);  // no step is left to make
  EXPECT_EQ(again.summary.resumed_from, 33);
  EXPECT_EQ(again.losses, undisturbed.losses);
}

// Main would get what was learnt from other samples.
TEST_F(TrainOnData, TheCheckpointOfOtherSamplesIsRefused) {
  TrainJob config = Config(2);
  config.checkpoint.folder = dir_ / "kept";
  dag::Session job = Start();
  Train(job.FromVector(Corners(100), {.partitions = 2}), config);
  std::vector<Sample> other = Corners(100);
  other[3].features[0] += 1;
  EXPECT_EQ(Train(job.FromVector(Corners(100), {.partitions = 3}), config).summary.resumed_from, 15);
  const std::string failure = FailureOf([&] { Train(job.FromVector(other, {.partitions = 2}), config); });
  EXPECT_NE(failure.find("[CKPT03]"), std::string::npos) << failure;
  EXPECT_NE(failure.find("from other samples"), std::string::npos) << failure;
}

// Found by counting, before the first step.
TEST_F(TrainOnData, AModelWhoseResultWouldNotReachMainIsRefusedBeforeItsFirstStep) {
  // 184 numbers. 4 -> 7 -> 3 with biases has 4 * 7 + 7 + 7 * 3 + 3 = 59, beside losses and names.
  auto failure_of = [this](const TrainJob& config) {
    dag::Session job = Start(184 * 8);
    return FailureOf([&] { Train(job.FromVector(Corners(48), {.partitions = 2}), config); });
  };
  TrainJob config = Config(2);
  EXPECT_EQ(failure_of(config), "");
  config.model.hidden = {1000};
  std::string failure = failure_of(config);
  EXPECT_NE(failure.find("TRAIN06"), std::string::npos) << failure;
  EXPECT_NE(failure.find("8003 parameters and 6 losses"), std::string::npos) << failure;
  EXPECT_NE(failure.find("fits 184 numbers"), std::string::npos) << failure;
  config.model.hidden = {7};
  config.epochs = 100;
  failure = failure_of(config);
  EXPECT_NE(failure.find("59 parameters and 200 losses"), std::string::npos) << failure;
  // Just what is accepted can be returned: of more and more losses, the first that do not fit are refused, and by the same error.
  int accepted = 0;
  for (config.epochs = 1; (failure = failure_of(config)).empty() && config.epochs < 100; ++config.epochs) ++accepted;
  EXPECT_GT(accepted, 3);
  EXPECT_NE(failure.find("TRAIN06"), std::string::npos) << failure;
}

TEST_F(TrainOnData, AModelOrANumberThatMakesNoSenseIsRefusedByMain) {
  dag::Session job = Start();
  auto samples = job.FromVector(Corners(20));
  TrainJob config = Config(2);
  config.batch = 0;
  std::string failure = FailureOf([&] { Train(samples, config); });
  EXPECT_NE(failure.find("[SPEC02] Train (train_on_data_test.cc:"), std::string::npos) << failure;
  EXPECT_NE(failure.find("TrainJob: \"0\" is no value for train.batch"), std::string::npos) << failure;
  config = Config(2);
  config.model.kind = "gpt";
  failure = FailureOf([&] { Train(samples, config); });
  EXPECT_NE(failure.find("[TRAIN05]"), std::string::npos) << failure;
}

// The members of a job that is made in C++ begin as the keys of a job file do.
TEST(TrainJobValues, BeginAsTheKeysDo) {
  Config config(TrainKeys());
  auto job = ReadTrainJob(config);
  ASSERT_TRUE(job.ok());
  TrainJob made;
  made.epochs = 1;  // what a file means that names none
  EXPECT_EQ(AsSettings(made), AsSettings(*job));
  for (auto kinds : {std::pair("gpt", OptimizerSpec::Kind::kAdamW), {"mlp", OptimizerSpec::Kind::kSgd}}) {
    made.model.kind = job->model.kind = kinds.first;
    made.optimizer.kind = job->optimizer.kind = kinds.second;
    for (OptimizerSpec::Schedule schedule : {OptimizerSpec::Schedule::kStep, OptimizerSpec::Schedule::kCosine}) {
      made.optimizer.schedule = job->optimizer.schedule = schedule;
      EXPECT_EQ(AsSettings(made), AsSettings(*job));
    }
  }
  EXPECT_EQ(made.data.held_out, job->data.held_out);
  // And they go through the keys without a loss.
  made.optimizer.learning_rate = 1. / 3;
  made.model.hidden = {};
  Config again(TrainKeys());
  for (const std::string& setting : AsSettings(made)) ASSERT_TRUE(ApplySetting(&again, setting).ok()) << setting;
  auto read = ReadTrainJob(again);
  ASSERT_TRUE(read.ok()) << read.status().ToString();
  EXPECT_EQ(read->optimizer.learning_rate, 1. / 3);
  EXPECT_EQ(AsSettings(*read), AsSettings(made));
}

// The piece below: any gang may read datasets.
TEST_F(TrainOnData, RanksOfAGangReadTwoDatasetsInTheOrderOfTheirPartitions) {
  dag::Session job = Start();
  std::vector<std::int64_t> numbers(3000);
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<std::int64_t>(i);
  dag::GangData data(job.shared_context(), "Digest", 3, dag::Site::Here(), 0);
  const StageId first = data.Add(job.FromVector(numbers, {.partitions = 4}).Map([](const std::int64_t& x) { return x + 1; }));
  const StageId second = data.Add(job.FromVector<std::string>({"a", "b", "c"}, {.partitions = 2}));
  std::string answer = data.Run([first, second](dag::GangContext& gang, dag::TaskContext& task) -> Result<std::string> {
    std::int64_t next = 1;
    std::size_t last = 0;
    std::string words;
    RETURN_IF_ERROR(dag::ForEachRecord<std::int64_t>(task, first, [&](std::int64_t x, std::size_t partition) -> Status {
      if (x != next++ || partition < last) return Status(Code::kUserError, "TEST01", "out of order");
      last = partition;
      return {};
    }));
    RETURN_IF_ERROR(dag::ForEachRecord<std::string>(task, second, [&](std::string_view word) { return words += word, Status(); }));
    ASSIGN_OR_RETURN(std::vector<std::string> all, gang.Exchange(words + std::to_string(next) + " in " + std::to_string(last + 1)));
    return all[0] + ", " + all[1] + ", " + all[2];
  });
  EXPECT_EQ(answer, "abc3001 in 4, abc3001 in 4, abc3001 in 4");
}

}  // namespace
}  // namespace ropewalk::mlrunner
