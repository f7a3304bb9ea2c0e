// `ropewalk train` without a cluster, as people start and interrupt it: what is said of checkpoints, and of how long it still takes.
#include <memory>
#include <string>
#include <vector>

#include "tests/cluster/process.h"

namespace ropewalk::cluster {
namespace {

class EmbeddedTrain : public testing::Test {
 protected:
  void SetUp() override {
    dir_ = fs::path(testing::TempDir()) / ("embedded_train_" + std::to_string(getpid()));
    fs::remove_all(dir_);
    fs::create_directories(dir_);
    std::ofstream text(dir_ / "text");
    for (int i = 0; i < 400; ++i) text << (i % 3 == 0 ? "red fish. " : "blue bird! ");
    // It ends only where it is interrupted.
    std::ofstream(dir_ / "job.toml") << "[model]\nkind = \"gpt\"\nlayers = 1\nwidth = 8\nheads = 2\nlength = 6\n"
                                        "[data]\nkind = \"text\"\npath = \"text\"\n[train]\nbatch = 10\nsteps = 1000000000\nthreads = 1\n";
  }
  void TearDown() override { RemoveTree(dir_); }
  std::unique_ptr<Process> Train(std::vector<std::string> more, std::vector<std::string> environment = {}) {
    std::vector<std::string> argv = {Binary("ropewalk"), "train", "job.toml"};
    argv.insert(argv.end(), more.begin(), more.end());
    environment.push_back("HOME=" + dir_.string());
    return std::make_unique<Process>(Process::Options{argv, environment, dir_, dir_ / ("log" + std::to_string(calls_++))});
  }
  static bool Says(Process& process, const std::string& text) {
    return Eventually([&] { return process.err().find(text) != std::string::npos || !process.running(); }) &&
           process.err().find(text) != std::string::npos;
  }
  // Its name, which grows with its step; empty: there is none.
  std::string NewestCheckpoint() {
    std::string newest;
    std::error_code none;
    for (const auto& entry : fs::directory_iterator(dir_ / "kept", none)) {
      const std::string name = entry.path().filename();
      if (name.starts_with("step-") && name.ends_with(".safetensors")) newest = std::max(newest, name);
    }
    return newest;
  }
  fs::path dir_;
  int calls_ = 0;
};

TEST_F(EmbeddedTrain, AnInterruptionSaysWhatIsKeptAndTheNextOneSaysWhereItBegins) {
  const std::vector<std::string> kept = {"--set", "checkpoint.folder=kept", "--set", "checkpoint.every_steps=100"};
  auto first = Train(kept);
  ASSERT_TRUE(Eventually([&] { return !NewestCheckpoint().empty() || !first->running(); })) << first->err();
  first->Signal(SIGINT);
  EXPECT_EQ(first->Wait(), 130) << first->err();
  const std::string said = first->err();
  const std::string before = "the newest checkpoint is of step ";
  const std::size_t at = said.find(before);
  ASSERT_NE(at, std::string::npos) << said;
  const std::string step = said.substr(at + before.size(), said.find(',', at) - at - before.size());
  EXPECT_NE(said.find(".safetensors\": the same command goes on from it"), std::string::npos) << said;
  EXPECT_NE(said.find("interrupted: the job was cancelled"), std::string::npos) << said;
  EXPECT_EQ(said.find("resumed"), std::string::npos) << said;

  auto second = Train(kept);
  EXPECT_TRUE(Says(*second, "resumed from the checkpoint of step " + step + ", ")) << second->err();
  EXPECT_TRUE(second->running()) << "not only at its end";
  EXPECT_TRUE(Says(*second, ", resumed at " + step + ", ")) << "and of its steps: " << second->err();
  EXPECT_NE(second->err().find(" left, epoch "), std::string::npos) << second->err();
  second->Signal(SIGINT);
  EXPECT_EQ(second->Wait(), 130) << second->err();

  const std::string newest = NewestCheckpoint();
  auto quiet = Train(kept, {"ROPEWALK_QUIET=1"});
  ASSERT_TRUE(Eventually([&] { return NewestCheckpoint() > newest || !quiet->running(); })) << quiet->err();
  quiet->Signal(SIGINT);
  EXPECT_EQ(quiet->Wait(), 130) << quiet->err();
  for (const char* part : {"resumed", "the newest checkpoint"}) EXPECT_EQ(quiet->err().find(part), std::string::npos) << quiet->err();
}

TEST_F(EmbeddedTrain, AnInterruptionSaysThatNothingIsKept) {
  auto none = Train({});
  ASSERT_TRUE(Says(*none, "step ")) << none->err();
  none->Signal(SIGINT);
  EXPECT_EQ(none->Wait(), 130) << none->err();
  EXPECT_NE(none->err().find("nothing of the training is kept: no checkpoint.folder is named\n"), std::string::npos) << none->err();
  auto early = Train({"--set", "checkpoint.folder=kept"});
  ASSERT_TRUE(Says(*early, "step ")) << early->err();
  early->Signal(SIGINT);
  EXPECT_EQ(early->Wait(), 130) << early->err();
  EXPECT_NE(early->err().find("nothing of the training is kept: there is no checkpoint in "), std::string::npos) << early->err();
}

}  // namespace
}  // namespace ropewalk::cluster
