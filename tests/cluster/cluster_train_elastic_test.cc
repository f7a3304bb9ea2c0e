// A training that may have fewer ranks: it goes on without a worker that is gone, and takes a new one in at its next checkpoint.
#include "tests/cluster/train_calls.h"

namespace ropewalk::cluster {
namespace {

constexpr const char* kJob =
    "[model]\nhidden = [32]\n[data]\nsamples_max = 6000\n[train]\nranks = 3\nranks_min = 2\nshrink_after = 1\nbatch = 60\nepochs = 40\n"
    "threads = 1\n[optimizer]\nlearning_rate = 0.03\n";

class ElasticTrain : public TrainCalls {
 protected:
  ElasticTrain() : TrainCalls({.workers = 3, .slots = 1}) { std::ofstream(cluster_.dir() / "job.toml") << kJob; }

  std::unique_ptr<Process> Start(const std::vector<std::string>& more, bool on_cluster) {
    return Call({"job.toml", "--output", "json"}, more, on_cluster);
  }
  // The newest line of that kind, when there are `count` of them.
  Event Await(JobId job, const std::string& kind, std::size_t count) {
    EXPECT_TRUE(cluster_.WaitForEvents(job, kind, count)) << cluster_.Logs();
    Event last;
    for (const Event& event : cluster_.Events(job))
      if (event.kind == kind) last = event;
    return last;
  }
};

TEST_F(ElasticTrain, GoesOnWithoutALostWorkerAndTakesInANewOne) {
  const fs::path folder = fs::canonical(cluster_.dir()) / "kept";
  auto run = Start({"--set", "checkpoint.folder=" + folder.string(), "--set", "checkpoint.every_steps=50"}, true);
  ASSERT_TRUE(Eventually([&] { return fs::exists(folder / "step-000000000050.safetensors") || !run->running(); })) << run->err();
  const JobId job = cluster_.LastJob();
  EXPECT_EQ(Await(job, "gang_formed", 1).Get("ranks"), "3");

  cluster_.KillWorker(1);
  const Event smaller = Await(job, "gang_formed", 2), lost = Await(job, "gang_lost", 1);
  EXPECT_EQ(smaller.Get("ranks"), "2") << smaller.line;
  EXPECT_LE(Number(smaller.line, "t_ms") - Number(lost.line, "t_ms"), kPatience * 10'000) << smaller.line;

  cluster_.StartWorker(1);
  const Event larger = Await(job, "gang_formed", 3);
  EXPECT_EQ(larger.Get("ranks"), "3") << larger.line;
  EXPECT_EQ(cluster_.CountEvents(job, "gang_grows"), 1u);

  ASSERT_EQ(run->Wait(120'000), 0) << run->err();
  EXPECT_EQ(Number(run->out(), "steps"), 4'000) << "each sample was taken as often as without any of this";
  EXPECT_GT(Number(run->out(), "held_out_hits"), 8'000);
}

// What a training of two ranks makes of a checkpoint of three is what a fresh one of two ranks makes of it.
TEST_F(ElasticTrain, ASmallerOneIsATrainingOfThatSizeFromThatCheckpoint) {
  const fs::path folder = fs::canonical(cluster_.dir()) / "kept";
  auto first = Start({"--set", "checkpoint.folder=" + folder.string(), "--set", "train.steps=100"}, true);
  ASSERT_EQ(first->Wait(60'000), 0) << first->err();
  fs::copy(folder, folder.string() + "-2", fs::copy_options::recursive);
  cluster_.KillWorker(2);
  auto smaller = Start({"--set", "checkpoint.folder=" + folder.string(), "--set", "train.steps=200"}, true);
  auto fresh = Start({"--set", "checkpoint.folder=" + folder.string() + "-2", "--set", "train.steps=200", "--set", "train.ranks=2"}, false);
  ASSERT_EQ(smaller->Wait(60'000), 0) << smaller->err();
  ASSERT_EQ(fresh->Wait(60'000), 0) << fresh->err();
  EXPECT_EQ(Await(cluster_.LastJob(), "gang_formed", 1).Get("ranks"), "2");
  EXPECT_EQ(Number(smaller->out(), "resumed_from"), 100);
  for (const char* what : {"steps", "loss", "held_out_loss", "held_out_hits"})
    EXPECT_EQ(Number(smaller->out(), what), Number(fresh->out(), what)) << what;
}

}  // namespace
}  // namespace ropewalk::cluster
