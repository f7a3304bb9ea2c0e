// What jobs print on its way to a disk that stands still: no decision waits for it, and nobody prints without a bound.
#include <condition_variable>
#include <filesystem>
#include <mutex>

#include "base/job_name.h"
#include "tests/unit/master_fixture.h"

namespace ropewalk::master {
namespace {

// A disk on which syncs of logs wait.
class Gate {
 public:
  Status Pass() {
    std::unique_lock lock(mutex_);
    ++waiting_;
    opened_.wait(lock, [this] { return open_ || may_pass_ > 0; });
    if (!open_) --may_pass_;
    --waiting_;
    return {};
  }
  void LetOnePass() {
    std::lock_guard lock(mutex_);
    ++may_pass_;
    opened_.notify_one();
  }
  void Open() {
    std::lock_guard lock(mutex_);
    open_ = true;
    opened_.notify_all();
  }
  int waiting() {
    std::lock_guard lock(mutex_);
    return waiting_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable opened_;
  bool open_ = false;
  int waiting_ = 0, may_pass_ = 0;
};

class MasterLogs : public testing::Test {
 protected:
  MasterLogs() {
    master_ = std::make_unique<TestMaster>(
        MasterOptions{.state_dir = folder_.path(), .listen_address = "127.0.0.1:0", .sync_log = [this] { return gate_.Pass(); }});
  }
  ~MasterLogs() override {
    gate_.Open();  // or the master would wait for its sync
    worker_.reset();
    master_.reset();
  }
  // Starts a job whose main prints `text` before its action, and waits until the master has all of it. `goes_on`: its tasks never end.
  std::uint64_t Print(TestClient& client, const std::string& text, bool goes_on = false) {
    FakeMain main;
    main.before = text;
    worker_ = std::make_unique<FakeWorker>(master_->address(), Token(), "w", main, 8);
    EXPECT_TRUE(worker_->WaitRegistered());
    worker_->hold_tasks = goes_on;
    auto accepted = client.Submit(client.PutExecutable("program"), "prints");
    EXPECT_TRUE(accepted.has_job_accepted()) << accepted.failure().what();
    const std::uint64_t job = accepted.job_accepted().job();
    const std::string file = folder_.path() + "/jobs/" + JobName(JobId{job}) + "/driver.out";
    std::error_code error;
    EXPECT_TRUE(Eventually([&] { return std::filesystem::file_size(file, error) == text.size() && gate_.waiting() == 1; }));
    client.Query(job);  // what came with the last of it is done, too
    return job;
  }
  std::string Token() { return TokenOf(folder_.path()); }

  TempFolder folder_;
  Gate gate_;
  std::unique_ptr<TestMaster> master_;
  std::unique_ptr<FakeWorker> worker_;
};

TEST_F(MasterLogs, NoDecisionWaitsForThem) {
  TestClient client(master_->address(), Token());
  const std::uint64_t first = Print(client, "some words\n");
  EXPECT_TRUE(Eventually([&] { return worker_->acknowledged == 11; })) << "a little is not held up";
  auto accepted = client.Submit(client.PutExecutable("program"), "another");
  ASSERT_TRUE(accepted.has_job_accepted()) << accepted.failure().what();
  EXPECT_EQ(client.Wait(accepted.job_accepted().job()).phase(), "succeeded") << "its own output waits, its end does not";
  EXPECT_EQ(client.Wait(first).phase(), "succeeded");
  EXPECT_EQ(gate_.waiting(), 1) << "all that time the first sync stood still";
  gate_.Open();
  EXPECT_EQ(client.Log(first, "driver"), "some words\n");
}

TEST_F(MasterLogs, TheOutputOfASmallJobDoesNotWaitForThatOfLargeOnes) {
  TestClient client(master_->address(), Token());
  FakeMain main;
  main.before_by_argument = {{"large", std::string(1u << 20, 'x')}, {"small", "some words\n"}};
  worker_ = std::make_unique<FakeWorker>(master_->address(), Token(), "w", main, 8);
  ASSERT_TRUE(worker_->WaitRegistered());
  worker_->hold_tasks = true;
  const std::string program = client.PutExecutable("program");
  std::vector<std::uint64_t> jobs;
  for (const char* kind : {"large", "large", "large", "small"}) {
    auto accepted = client.Submit(program, "job " + std::to_string(jobs.size()), kind);
    ASSERT_TRUE(accepted.has_job_accepted()) << accepted.failure().what();
    jobs.push_back(accepted.job_accepted().job());
    const std::string file = folder_.path() + "/jobs/" + JobName(JobId{jobs.back()}) + "/driver.out";
    std::error_code error;
    ASSERT_TRUE(Eventually([&] {
      const auto size = std::filesystem::file_size(file, error);
      return !error && size == main.before_by_argument.at(kind).size() && gate_.waiting() == 1;
    }));
    client.Query(jobs.back());  // what came with the last of it is done, too
  }
  const auto shown = [&](std::uint64_t job) {
    wire::ClientRequest read;
    read.mutable_read_log()->set_job(job);
    read.mutable_read_log()->set_stream("driver");
    return client.Call(read).log_chunk().data();
  };
  gate_.LetOnePass();  // of the first job, under way when the others came
  gate_.LetOnePass();
  EXPECT_TRUE(Eventually([&] { return shown(jobs[3]) == "some words\n"; }));
  EXPECT_EQ(shown(jobs[1]), "");
  EXPECT_EQ(shown(jobs[2]), "");
  gate_.Open();
  EXPECT_TRUE(Eventually([&] { return shown(jobs[2]).size() > 0; }));
}

TEST_F(MasterLogs, WhoPrintsMuchWaitsForTheDisk) {
  TestClient client(master_->address(), Token());
  const std::string text(12u << 20, 'x');
  const std::uint64_t job = Print(client, text, true);
  EXPECT_LE(worker_->acknowledged, 4u << 20) << "what an executor may be ahead of the driver";
  gate_.Open();
  EXPECT_TRUE(Eventually([&] { return worker_->acknowledged == text.size(); }));
  wire::ClientRequest last;
  last.mutable_read_log()->set_job(job);
  last.mutable_read_log()->set_stream("driver");
  last.mutable_read_log()->set_offset(text.size() - 1);
  EXPECT_EQ(client.Call(last).log_chunk().data(), "x") << "what is acknowledged and on the disk is shown";
}

}  // namespace
}  // namespace ropewalk::master
