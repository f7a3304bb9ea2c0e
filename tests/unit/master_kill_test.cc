// kill -9 of a real master process, again and again: an acknowledged job is never lost, one submit key is one job, output is shown once.
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>

#include <cstdlib>
#include <cstring>
#include <random>

#include "base/random.h"
#include "master/daemon/master.h"
#include "tests/unit/master_fixture.h"

extern char** environ;

namespace ropewalk::master {
namespace {

// This binary started again as a master.
class MasterProcess {
 public:
  void Start(const std::string& state_dir, const std::string& address) {
    int pipe_fds[2];
    ASSERT_EQ(pipe2(pipe_fds, O_CLOEXEC), 0);
    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_adddup2(&files, pipe_fds[1], STDOUT_FILENO);
    std::string self = "/proc/self/exe", mode = "--as-master", dir = state_dir, listen = address;
    char* argv[] = {self.data(), mode.data(), dir.data(), listen.data(), nullptr};
    ASSERT_EQ(posix_spawn(&pid_, self.c_str(), &files, nullptr, argv, environ), 0);
    posix_spawn_file_actions_destroy(&files);
    close(pipe_fds[1]);
    std::string text;
    char c;
    while (read(pipe_fds[0], &c, 1) == 1 && c != '\n') text += c;
    close(pipe_fds[0]);
    ASSERT_TRUE(text.starts_with("listening on ")) << text;
    address_ = text.substr(std::strlen("listening on "));
  }
  int End(int signal) {
    kill(pid_, signal);
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = 0;
    return status;
  }
  ~MasterProcess() {
    if (pid_ > 0) End(SIGKILL);
  }
  const std::string& address() const { return address_; }

 private:
  pid_t pid_ = 0;
  std::string address_;
};

TEST(MasterKill, AcknowledgedJobsSurvive) {
  const std::uint64_t seed = std::random_device()();
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  Random random(seed);
  TempFolder folder;
  MasterProcess master;
  master.Start(folder.path(), "127.0.0.1:0");
  const std::string address = master.address(), token = TokenOf(folder.path());

  std::atomic<bool> stop{false};
  std::thread keeper([&] {  // a worker daemon that registers again and again
    while (!stop) {
      FakeWorker worker(address, token, "w",
                        {.tasks = 20, .value = std::string(5000, 'v'), .once = "o", .before = "one\n", .after = "two\n"});
      while (!stop && !worker.ended && !worker.refused) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });

  constexpr int kKills = 20;
  int killed_while_running = 0;
  std::vector<std::uint64_t> jobs;
  for (int round = 0; round < kKills; ++round) {
    const std::string key = "key" + std::to_string(round);
    std::string sha256;
    {
      TestClient client(address, token);
      sha256 = client.PutExecutable("executable");
    }
    // The killer strikes from before the submit to after the end of the job (a job takes about 20 ms).
    std::atomic<bool> acknowledged{false};
    std::thread killer([&, delay_us = random.Below(40'000)] {
      std::this_thread::sleep_for(std::chrono::microseconds(delay_us));
      master.End(SIGKILL);
    });
    std::uint64_t job = 0;
    {
      auto channel = rpc::Channel::Connect(address, token, "client", 10'000);
      wire::ClientRequest request;
      request.set_id(1);
      wire::JobSpec* spec = request.mutable_submit_job()->mutable_spec();
      spec->set_submit_key(key);
      spec->add_argv("job");
      spec->add_artifacts(sha256);
      spec->add_artifact_names("job");
      if (channel.ok() && (*channel)->Send(rpc::FrameKind::kRequest, request.SerializeAsString()).ok()) {
        auto frame = (*channel)->Receive(10'000);
        wire::ClientResponse response;
        if (frame.ok() && response.ParseFromString(frame->payload)) job = response.job_accepted().job();
      }
    }
    killer.join();
    master.Start(folder.path(), address);
    TestClient client(address, token);
    const std::uint64_t again = client.Submit(sha256, key).job_accepted().job();
    if (job != 0) {
      EXPECT_EQ(again, job) << "round " << round;  // acknowledged, so it is still known
    }
    ASSERT_NE(again, 0u);
    killed_while_running += client.Query(again).phase() == "succeeded" ? 0 : 1;
    wire::JobState state = client.Wait(again);
    ASSERT_EQ(state.phase(), "succeeded") << state.failure().what() << ": " << state.failure().why();
    EXPECT_EQ(client.Log(again, "driver"), "one\ntwo\n") << "round " << round;
    jobs.push_back(again);
  }
  std::printf("killed before the job was over: %d of %d\n", killed_while_running, kKills);
  EXPECT_GT(killed_while_running, 0);
  std::set<std::uint64_t> distinct(jobs.begin(), jobs.end());
  EXPECT_EQ(distinct.size(), jobs.size());
  TestClient client(address, token);
  wire::ClientRequest list;
  list.mutable_list_jobs()->set_limit(1000);
  EXPECT_EQ(client.Call(list).job_list().jobs_size(), kKills);  // and no key made two
  stop = true;
  keeper.join();
  int status = master.End(SIGTERM);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

TEST(MasterKill, AFolderThatCannotBeUsedIsRefused) {
  TempFolder folder;
  EXPECT_EQ(RunMaster({.state_dir = folder.path() + "/file/below", .listen_address = "0.0.0.0:0"}).code(), Code::kInvalid);
  MasterOptions options{.state_dir = "/proc/ropewalk", .listen_address = "127.0.0.1:0"};
  EXPECT_EQ(RunMaster(options).tag(), "MASTER02");
}

}  // namespace
}  // namespace ropewalk::master

int main(int argc, char** argv) {
  if (argc == 4 && std::strcmp(argv[1], "--as-master") == 0) {
    ropewalk::Status status = ropewalk::master::RunMaster({.state_dir = argv[2], .listen_address = argv[3]});
    if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
    return ropewalk::ExitCode(status.code());
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
