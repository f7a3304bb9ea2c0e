// `ropewalk train` with real processes: here and on a cluster, with the same numbers; a rank that is killed in the middle.
#include "tests/cluster/train_calls.h"

namespace ropewalk::cluster {
namespace {

// A training of a second or two whose numbers do not depend on where it runs.
constexpr const char* kJob =
    "[model]\nhidden = [32]\n[data]\nsamples_max = 6000\n[train]\nbatch = 60\nepochs = 3\nthreads = 1\n"
    "[optimizer]\nlearning_rate = 0.03\n";

class Train : public TrainCalls {
 protected:
  Train() : TrainCalls({.workers = 2, .slots = 1}) { std::ofstream(cluster_.dir() / "job.toml") << kJob; }

  std::unique_ptr<Process> Start(const std::vector<std::string>& more, bool on_cluster) {
    return Call({"job.toml", "--ranks", "2", "--output", "json"}, more, on_cluster);
  }

  // Of a training in this folder, on the cluster.
  void KillARank(const std::string& name, const std::string& resume, Process& undisturbed);
};

TEST_F(Train, HereAndOnAClusterWithTheSameNumbers) {
  auto here = Start({}, false);
  ASSERT_EQ(here->Wait(), 0) << here->err();
  auto there = Start({}, true);
  ASSERT_EQ(there->Wait(), 0) << there->err();
  EXPECT_EQ(Number(here->out(), "steps"), 300);
  EXPECT_EQ(Number(here->out(), "held_out_labels"), 10'000);
  EXPECT_GT(Number(here->out(), "held_out_hits"), 7'500);
  for (const char* name : {"steps", "loss", "held_out_loss", "held_out_hits"})
    EXPECT_EQ(Number(there->out(), name), Number(here->out(), name)) << name;
}

// From those of its own where resume = false has disowned the ones of a longer training that lie there.
TEST_F(Train, AKilledRankGoesOnFromTheCheckpoint) {
  auto undisturbed = Start({}, false);
  ASSERT_EQ(undisturbed->Wait(), 0) << undisturbed->err();
  for (const char* resume : {"true", "false"}) {
    SCOPED_TRACE(resume);
    const std::string name = std::string("resume-") + resume;
    if (std::string(resume) == "false") {
      auto longer = Start({"--set", "checkpoint.folder=" + name, "--set", "train.epochs=4"}, false);
      ASSERT_EQ(longer->Wait(), 0) << longer->err();
    }
    KillARank(name, resume, *undisturbed);
  }
}

void Train::KillARank(const std::string& name, const std::string& resume, Process& undisturbed) {
  const fs::path folder = fs::canonical(cluster_.dir()) / name;
  auto disturbed = Start({"--set", "checkpoint.folder=" + name, "--set", "checkpoint.every_steps=20", "--set", "train.epochs=3", "--set",
                          "checkpoint.resume=" + resume},
                         true);
  // Behind the first checkpoint and long before the end.
  ASSERT_TRUE(Eventually([&] { return fs::exists(folder / "step-000000000020.safetensors") || !disturbed->running(); })) << cluster_.Logs();
  ASSERT_TRUE(Eventually([&] { return cluster_.KillExecutor(1, "--set=checkpoint.folder=" + folder.string()) || !disturbed->running(); }))
      << cluster_.Logs();
  ASSERT_EQ(disturbed->Wait(60'000), 0) << disturbed->err();
  EXPECT_GE(Number(disturbed->out(), "resumed_from"), 20) << disturbed->out();
  EXPECT_LE(Number(disturbed->out(), "resumed_from"), 300) << disturbed->out();
  for (const char* what : {"steps", "loss", "held_out_loss", "held_out_hits"})
    EXPECT_EQ(Number(disturbed->out(), what), Number(undisturbed.out(), what)) << what;
  EXPECT_TRUE(fs::exists(folder / "step-000000000300.safetensors"));
  EXPECT_FALSE(fs::exists(folder / "step-000000000400.safetensors"));
}

// What a model that has run off says of held-out samples is no number, and JSON has no word for that.
TEST_F(Train, WhatIsNoNumberIsNullInJson) {
  auto run = Start({"--set", "train.epochs=0", "--set", "train.steps=2", "--set", "optimizer.learning_rate=999999", "--set",
                    "optimizer.weight_decay=999999"},
                   false);
  ASSERT_EQ(run->Wait(), 0) << run->err();
  EXPECT_NE(run->out().find("\"held_out_loss\":null,"), std::string::npos) << run->out();
  EXPECT_EQ(Number(run->out(), "steps"), 2);
}

TEST_F(Train, MistakesEndWithTheirExitCode) {
  struct Case {
    std::vector<std::string> more;
    int code;
    const char* tag;
  };
  for (const Case& c :
       {Case{{"--set", "train.bath=1"}, 2, "SPEC01"}, Case{{"--set", "train.batch=0"}, 2, "SPEC02"}, Case{{"--rank", "3"}, 2, "TRAIN03"},
        Case{{"--set", "data.path=nowhere"}, 3, "DATA02"}, Case{{"--set", "optimizer.learning_rate=1e5"}, 1, "TRAIN01"}}) {
    auto run = Start(c.more, false);
    EXPECT_EQ(run->Wait(), c.code) << c.tag << run->err();
    EXPECT_NE(run->err().find(c.tag), std::string::npos) << run->err();
    EXPECT_EQ(run->out(), "") << c.tag;
  }
}

}  // namespace
}  // namespace ropewalk::cluster
