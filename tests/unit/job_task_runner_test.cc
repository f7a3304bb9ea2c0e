// The task runner alone: every way in which an attempt can end gives exactly one report, and the report says whose fault it was.
#include "worker/task/task_runner.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <stdexcept>
#include <variant>

#include "dag/plan_failure.h"
#include "worker/task/crash.h"
#include "worker/task/current_task.h"

namespace ropewalk::task {
namespace {

struct Finished {
  TaskAttempt id;
  dag::TaskResult result;
  TaskCounters counters;
};
struct Failed {
  TaskAttempt id;
  Status status;
  TaskPlace place;
};
struct Fetch {
  TaskAttempt id;
  dag::SegmentRef lost;
  Status status;
};
using Report = std::variant<Finished, Failed, Fetch>;

class Recorder final : public TaskListener {
 public:
  void OnFinished(const TaskAttempt& id, dag::TaskResult result, const TaskCounters& counters) override {
    Add(Finished{id, std::move(result), counters});
  }
  void OnFailed(const TaskAttempt& id, Status status, TaskPlace place) override { Add(Failed{id, std::move(status), std::move(place)}); }
  void OnFetchFailed(const TaskAttempt& id, dag::SegmentRef lost, Status status) override { Add(Fetch{id, lost, std::move(status)}); }

  std::vector<Report> Wait(std::size_t n) {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, std::chrono::seconds(20), [&] { return reports_.size() >= n; }));
    return reports_;
  }

 private:
  void Add(Report report) {
    std::lock_guard lock(mutex_);
    reports_.push_back(std::move(report));
    changed_.notify_all();
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Report> reports_;
};

// A reader whose streams give one extent and then fail with `status`.
class BrokenReader final : public dag::BlockReader {
 public:
  explicit BrokenReader(Status status) : status_(std::move(status)) {}
  Result<std::unique_ptr<dag::ExtentStream>> Open(const dag::SegmentRef&, std::uint32_t, std::uint32_t) override {
    struct Stream final : dag::ExtentStream {
      Status status;
      bool first = true;
      Result<std::optional<dag::Extent>> Next() override {
        if (std::exchange(first, false)) return std::optional<dag::Extent>(dag::Extent{});
        return status;
      }
    };
    auto stream = std::make_unique<Stream>();
    stream->status = status_;
    return std::unique_ptr<dag::ExtentStream>(std::move(stream));
  }

 private:
  Status status_;
};

TaskOrder Order(std::uint32_t task, dag::StageProgram program) {
  TaskOrder order;
  order.id = {StageId{7}, task, 1};
  order.stage_name = "Map (x.cc:3)";
  order.program = std::make_shared<const dag::StageProgram>(std::move(program));
  return order;
}

class RunnerTest : public testing::Test {
 protected:
  RunnerOptions Options(std::uint32_t slots = 2) {
    RunnerOptions options;
    options.slots = slots;
    options.settings = &settings_;
    options.listener = &recorder_;
    return options;
  }
  dag::Settings settings_;
  Recorder recorder_;
};

TEST_F(RunnerTest, ReportsValueAndCounters) {
  TaskRunner runner(Options());
  runner.Run(Order(3, [](dag::TaskContext& context, dag::TaskResult* result) {
    context.progress->records_in.store(11);
    result->value = "v" + std::to_string(context.id.task);
    return Status();
  }));
  auto reports = recorder_.Wait(1);
  const Finished& finished = std::get<Finished>(reports[0]);
  EXPECT_EQ(finished.result.value, "v3");
  EXPECT_EQ(finished.counters.records_in, 11u);
}

TEST_F(RunnerTest, AnExceptionBecomesAUserErrorThatNamesTaskAndRecord) {
  TaskRunner runner(Options());
  TaskOrder order = Order(2, [](dag::TaskContext& context, dag::TaskResult*) -> Status {
    context.cursor->offset.store(4711);
    context.cursor->SetSource("/data/in.txt");
    throw std::runtime_error("bad number");
  });
  order.precise_cursor = true;
  runner.Run(std::move(order));
  auto reports = recorder_.Wait(1);
  const Failed& failed = std::get<Failed>(reports[0]);
  EXPECT_EQ(failed.status.code(), Code::kUserError);
  EXPECT_EQ(failed.place.split, 2u);
  EXPECT_EQ(failed.place.offset, 4711u);
  EXPECT_EQ(failed.place.source, "/data/in.txt");
  for (const char* part : {"std::runtime_error", "bad number", "/data/in.txt at offset 4711"})
    EXPECT_NE(failed.status.ToString().find(part), std::string::npos) << failed.status.ToString();
  EXPECT_EQ(failed.status.what().find("task 2"), std::string::npos) << "the scheduler says which task: " << failed.status.ToString();
}

// The first bytes of the record stand in the message where they can be had: of a plain file, once the place is exact.
TEST_F(RunnerTest, TheRecordThatFailedIsShown) {
  const std::string path = testing::TempDir() + "/task_runner_" + std::to_string(getpid()) + ".txt";
  std::ofstream(path) << "first\nno\x1bumber\n" << std::string(200, 'l') << "\n";
  std::filesystem::copy_file(path, path + ".gz", std::filesystem::copy_options::overwrite_existing);
  TaskRunner runner(Options());
  std::size_t runs = 0;
  auto fail_at = [&](std::string source, std::uint64_t offset, bool precise) {
    TaskOrder order = Order(0, [source, offset](dag::TaskContext& context, dag::TaskResult*) -> Status {
      context.cursor->offset.store(offset);
      context.cursor->SetSource(source);
      throw 17;
    });
    order.precise_cursor = precise;
    runner.Run(std::move(order));
    return std::get<Failed>(recorder_.Wait(++runs).back()).status.why();
  };
  EXPECT_TRUE(fail_at(path, 6, true).ends_with(" at offset 6: \"no\\x1bumber\"")) << fail_at(path, 6, true);
  EXPECT_TRUE(fail_at(path, 16, true).ends_with("\"" + std::string(80, 'l') + "\"...")) << fail_at(path, 16, true);
  EXPECT_TRUE(fail_at(path, 6, false).ends_with("at offset 6")) << "only the batch is known";
  for (const char* suffix : {".gz", ".zst"})
    for (bool precise : {true, false})
      EXPECT_TRUE(fail_at(path + suffix, 6, precise).ends_with("at offset 6 (decompressed)")) << fail_at(path + suffix, 6, precise);
  EXPECT_TRUE(fail_at(path + ".none", 6, true).ends_with("at offset 6"));
  EXPECT_TRUE(fail_at(path, 1 << 20, true).ends_with("at offset 1048576"));
  EXPECT_TRUE(fail_at("the shuffled records", 6, true).ends_with(", record 6 of the shuffled records"));
  EXPECT_TRUE(fail_at("the groups", 6, false).ends_with(", in the batch that starts at record 6 of the groups"));
  std::filesystem::remove(path);
  std::filesystem::remove(path + ".gz");
}

TEST_F(RunnerTest, AnyThrownTypeIsCaught) {
  TaskRunner runner(Options());
  runner.Run(Order(0, [](dag::TaskContext&, dag::TaskResult*) -> Status { throw 17; }));
  runner.Run(Order(1, [](dag::TaskContext&, dag::TaskResult*) -> Status { throw std::bad_alloc(); }));
  auto reports = recorder_.Wait(2);
  for (const Report& report : reports) {
    const Failed& failed = std::get<Failed>(report);
    EXPECT_EQ(failed.status.code(), failed.id.task == 0 ? Code::kUserError : Code::kResourceExhausted);
    if (failed.id.task == 0) {
      EXPECT_NE(failed.status.what().find("threw int"), std::string::npos);
    }
  }
}

TEST_F(RunnerTest, ACallOfThePlanIsTheTasksFailure) {
  TaskRunner runner(Options());
  EXPECT_FALSE(OnTaskThread());
  runner.Run(Order(0, [](dag::TaskContext&, dag::TaskResult*) -> Status {
    try {
      if (OnTaskThread()) throw dag::PlanFailure{Status(Code::kUserError, "DAG01", "not here", "it is a task", "do it in main")};
    } catch (const std::exception&) {  // user code that catches what it knows of
    }
    return Status();
  }));
  const Failed failed = std::get<Failed>(recorder_.Wait(1)[0]);
  EXPECT_EQ(failed.status.tag(), "DAG01");
  EXPECT_EQ(failed.status.fix(), "do it in main");
}

struct CountedMemory final : blocks::TaskMemory {
  std::atomic<std::int64_t> lent{0};
  Status Take(std::uint64_t bytes, const std::atomic<bool>&) override {
    lent += static_cast<std::int64_t>(bytes);
    return {};
  }
  void Give(std::uint64_t bytes) override { lent -= static_cast<std::int64_t>(bytes); }
  void Wake() override {}
};

// The thread is gone, and with it the frames that served the slot: what ran there is reported all the same, and the next one runs.
TEST_F(RunnerTest, AThreadThatIsEndedByTheProgramIsReportedAndReplaced) {
  CountedMemory memory;
  std::atomic<bool> started{false};
  RunnerOptions options = Options(1);
  options.memory = &memory;
  TaskRunner runner(options);
  for (std::size_t round = 0; round < 3; ++round) {
    TaskOrder order = Order(1, [](dag::TaskContext& context, dag::TaskResult*) -> Status {
      context.cursor->offset.store(4711);
      context.progress->records_in.store(5);
      pthread_exit(nullptr);
    });
    order.memory_bytes = 100;
    runner.Run(std::move(order));
    const Failed failed = std::get<Failed>(recorder_.Wait(2 * round + 1).back());
    EXPECT_EQ(failed.status.tag(), "TASK06");
    EXPECT_EQ(failed.status.code(), Code::kUserError);
    EXPECT_EQ(failed.place.offset, 4711u);
    order = Order(2, [](dag::TaskContext&, dag::TaskResult*) { return Status(); });
    order.memory_bytes = 100;
    runner.Run(std::move(order));
    EXPECT_EQ(std::get<Finished>(recorder_.Wait(2 * round + 2).back()).id.task, 2u);
  }
  EXPECT_TRUE(runner.CancelAllAndWait(20'000));
  EXPECT_TRUE(runner.RunningTasks().empty());
  EXPECT_EQ(runner.Totals().records_in, 15u);
  EXPECT_EQ(memory.lent, 0);
  // One that ends while the runner does: nobody takes over.
  runner.Run(Order(1, [&](dag::TaskContext& context, dag::TaskResult*) -> Status {
    started = true;
    while (!context.Cancelled()) std::this_thread::yield();
    pthread_exit(nullptr);
  }));
  while (!started) std::this_thread::yield();
}

TEST_F(RunnerTest, ALostInputIsTheProducersFault) {
  for (Code code : {Code::kDataLoss, Code::kUnavailable}) {
    Recorder recorder;
    BrokenReader reader(Status(code, "BLK01", "segment 9 is gone"));
    RunnerOptions options = Options();
    options.blocks = &reader;
    options.listener = &recorder;
    TaskRunner runner(options);
    runner.Run(Order(0, [](dag::TaskContext& context, dag::TaskResult*) -> Status {
      dag::SegmentRef ref{{StageId{1}, 5, 6}, SegmentId{9}, "host:1", 10};
      auto stream = context.blocks->Open(ref, 0, 1);
      if (!stream.ok()) return stream.status();
      for (;;) {
        auto extent = (*stream)->Next();
        if (!extent.ok()) return extent.status().WithContext("merging");
        if (!extent->has_value()) return Status();
      }
    }));
    auto reports = recorder.Wait(1);
    const Fetch& fetch = std::get<Fetch>(reports[0]);
    EXPECT_EQ(fetch.lost.segment, SegmentId{9});
    EXPECT_EQ(fetch.status.code(), code);
  }
}

TEST_F(RunnerTest, AnUnavailableThatIsNoInputStaysAFailure) {
  TaskRunner runner(Options());
  runner.Run(Order(0, [](dag::TaskContext&, dag::TaskResult*) { return Status(Code::kUnavailable, "S301", "storage is away"); }));
  auto reports = recorder_.Wait(1);
  EXPECT_EQ(std::get<Failed>(reports[0]).status.tag(), "S301");
}

TEST_F(RunnerTest, EachAttemptHasItsOwnCopyOfTheProgram) {
  TaskRunner runner(Options(1));
  auto program = std::make_shared<const dag::StageProgram>([n = 0](dag::TaskContext&, dag::TaskResult* result) mutable {
    result->value = std::to_string(++n);
    return Status();
  });
  for (std::uint32_t task = 0; task < 3; ++task) {
    TaskOrder order = Order(task, {});
    order.program = program;
    runner.Run(std::move(order));
  }
  for (const Report& report : recorder_.Wait(3)) EXPECT_EQ(std::get<Finished>(report).result.value, "1");
}

TEST_F(RunnerTest, CancelReachesRunningAndQueuedAttempts) {
  TaskRunner runner(Options(1));
  std::atomic<bool> started{false};
  runner.Run(Order(0, [&](dag::TaskContext& context, dag::TaskResult*) {
    started = true;
    started.notify_all();
    while (!context.Cancelled()) std::this_thread::yield();
    return Status(Code::kCancelled, "T", "stopped");
  }));
  started.wait(false);
  runner.Run(Order(1, [](dag::TaskContext&, dag::TaskResult*) { return Status(); }));
  runner.Cancel({StageId{7}, 1, 1});
  runner.Cancel({StageId{7}, 0, 1});
  for (const Report& report : recorder_.Wait(2)) EXPECT_EQ(std::get<Failed>(report).status.code(), Code::kCancelled);
}

// In a child process: the signal is noted in the slot of the thread that crashed, and the process still dies of it.
TEST(CrashMarks, NameTheSlotThatCrashed) {
  void* memory = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  auto* cursors = new (memory) dag::RecordCursor[2];
  pid_t child = fork();
  if (child == 0) {
    InstallCrashMarks();
    Recorder recorder;
    RunnerOptions options;
    options.slots = 2;
    options.cursors = cursors;
    options.listener = &recorder;
    TaskRunner runner(options);
    std::atomic<int> arrived{0};
    for (std::uint32_t task = 0; task < 2; ++task)
      runner.Run(Order(task, [&](dag::TaskContext& context, dag::TaskResult*) -> Status {
        ++arrived;
        while (arrived < 2) std::this_thread::yield();
        context.cursor->offset.store(100 + context.id.task);
        if (context.id.task == 1) raise(SIGSEGV);
        for (;;) pause();
      }));
    for (;;) pause();
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status));
  int marked = 0;
  for (int slot = 0; slot < 2; ++slot) {
    if (cursors[slot].signal.load() == 0) continue;
    ++marked;
    EXPECT_EQ(cursors[slot].task.load(), 1u);
    EXPECT_EQ(cursors[slot].offset.load(), 101u);
  }
  EXPECT_EQ(marked, 1);
  munmap(memory, 4096);
}

// Its cursors are its parent's, and so is the report. In a process of its own, since the marks are for good.
TEST(CrashMarks, AForkedChildLeavesNoneAndMakesNoReport) {
  auto run = [](const std::function<Status()>& child_does, int child_ends) {
    const pid_t process = fork();
    if (process > 0) {
      int status = 0;
      EXPECT_EQ(waitpid(process, &status, 0), process);
      return status;
    }
    InstallCrashMarks();
    void* memory = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    auto* cursors = new (memory) dag::RecordCursor[1];
    auto* reports = new (static_cast<char*>(memory) + 2048) std::atomic<int>(0);
    struct Counter final : TaskListener {
      std::atomic<int>* reports;
      void OnFinished(const TaskAttempt&, dag::TaskResult, const TaskCounters&) override { Count(1); }
      void OnFailed(const TaskAttempt&, Status, TaskPlace) override { Count(100); }
      void OnFetchFailed(const TaskAttempt&, dag::SegmentRef, Status) override { Count(100); }
      void Count(int by) {
        *reports += by;
        reports->notify_all();
      }
    } listener;
    listener.reports = reports;
    RunnerOptions options;
    options.slots = 1;
    options.cursors = cursors;
    options.listener = &listener;
    TaskRunner runner(options);
    std::atomic<int> ended{-1};
    runner.Run(Order(0, [&](dag::TaskContext&, dag::TaskResult*) -> Status {
      const pid_t child = fork();
      if (child == 0) return child_does();
      int status = 0;
      waitpid(child, &status, 0);
      ended = status;
      return Status();
    }));
    reports->wait(0);
    _exit(*reports == 1 && cursors[0].signal == 0 && (ended & 0xff7f) == child_ends ? 0 : 1);  // without the flag of a core
  };
  EXPECT_EQ(run([]() -> Status { std::abort(); }, SIGABRT), 0);
  EXPECT_EQ(run([]() -> Status { return {}; }, 1 << 8), 0);
  EXPECT_EQ(run([]() -> Status { throw std::runtime_error("no such program"); }, 1 << 8), 0);
  EXPECT_EQ(run([]() -> Status { pthread_exit(nullptr); }, 1 << 8), 0);
}

// What was marked for an attempt that is over does not speak for the next one.
TEST_F(RunnerTest, AnAttemptBeginsWithoutAMark) {
  dag::RecordCursor cursor;
  cursor.signal = SIGSEGV;
  RunnerOptions options = Options(1);
  options.cursors = &cursor;
  TaskRunner runner(options);
  runner.Run(Order(0, [](dag::TaskContext& context, dag::TaskResult* result) {
    result->value = std::to_string(context.cursor->signal.load());
    return Status();
  }));
  EXPECT_EQ(std::get<Finished>(recorder_.Wait(1)[0]).result.value, "0");
}

}  // namespace
}  // namespace ropewalk::task
