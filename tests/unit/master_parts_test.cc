// Group commit, job logs and records, each by itself.
#include <sys/resource.h>

#include <algorithm>
#include <csignal>
#include <random>

#include "base/random.h"
#include "master/daemon/committer.h"
#include "master/daemon/convert.h"
#include "master/daemon/job_logs.h"
#include "master/daemon/record_store.h"
#include "tests/unit/master_fixture.h"

namespace ropewalk::master {
namespace {

TEST(Committer, NothingIsDoneBeforeWhatItFollowsIsDurable) {
  const std::uint64_t seed = std::random_device()();
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  Random random(seed);
  rpc::EventLoop loop;
  std::vector<std::string> disk;
  std::mutex mutex;
  std::atomic<std::size_t> durable{0};
  std::size_t commits = 0;
  {
    Committer committer(loop,
                        {.write =
                             [&](CommitBatch& batch) {
                               std::this_thread::sleep_for(std::chrono::microseconds(300));
                               std::lock_guard lock(mutex);
                               for (std::string& record : batch.records) disk.push_back(record);
                               durable = disk.size();
                               return Status();
                             },
                         .snapshot = {},
                         .failed = [](const Status& status) { ADD_FAILURE() << status.ToString(); }},
                        ~0ull);
    std::size_t added = 0, synced = 0, acts = 0, wanted_acts = 0, last = 0;
    std::function<void()> burst = [&] {
      for (std::uint64_t n = random.Between(1, 8); n-- > 0;) {
        if (random.OneIn(2)) {
          const bool sync = random.OneIn(3);
          committer.AddRecord(std::to_string(added++), sync);
          if (sync) synced = added;
        } else {
          ++wanted_acts;
          committer.Then([&, needs = synced, order = wanted_acts] {
            EXPECT_GE(durable, needs);
            EXPECT_EQ(order, ++last);
            ++acts;
          });
        }
      }
      committer.Pump();
    };
    for (int i = 0; i < 2'000; ++i) loop.Post(burst);
    std::function<void()> check = [&] { committer.idle() ? loop.Stop() : loop.Post(check); };
    loop.Post(check);
    loop.Run();
    commits = committer.commits();
    EXPECT_EQ(acts, wanted_acts);
    ASSERT_EQ(disk.size(), added);  // the lazy ones too
    for (std::size_t i = 0; i < added; ++i) ASSERT_EQ(disk[i], std::to_string(i));
  }
  EXPECT_LT(commits, 1'000u);  // shared
}

TEST(Committer, WhatIsAskedForBeforeARecordIsDoneBeforeItAndFailsItsWrite) {
  rpc::EventLoop loop;
  std::vector<std::string> done;  // on the committer's thread, read when it has told of the last
  Status failure;
  Committer committer(loop,
                      {.write =
                           [&](CommitBatch& batch) {
                             done.insert(done.end(), batch.records.begin(), batch.records.end());
                             return Status();
                           },
                       .snapshot = {},
                       .failed =
                           [&](const Status& status) {
                             failure = status;
                             loop.Stop();
                           }},
                      ~0ull);
  auto before = [&](std::string name, Status status) {
    committer.Before([&done, name = std::move(name), status = std::move(status)] {
      done.push_back(name);
      return status;
    });
  };
  before("sync 1", {});
  before("sync 2", {});
  committer.AddRecord("a", true);
  committer.Then([&] {
    before("sync 3", Status(Code::kResourceExhausted, "T2", "disk full"));
    before("sync 4", {});
    committer.AddRecord("b", true);
    committer.Then([] { ADD_FAILURE() << "the record was not written"; });
  });
  committer.Pump();
  loop.Run();
  EXPECT_EQ(failure.tag(), "T2");
  EXPECT_EQ(done, (std::vector<std::string>{"sync 1", "sync 2", "a", "sync 3"}));
}

TEST(Committer, AFailedWriteIsTheEnd) {
  rpc::EventLoop loop;
  int writes = 0, failures = 0, acts = 0;
  Committer committer(loop,
                      {.write =
                           [&](CommitBatch&) {
                             ++writes;
                             return Status(Code::kResourceExhausted, "T1", "disk full");
                           },
                       .snapshot = {},
                       .failed =
                           [&](const Status& status) {
                             ++failures;
                             EXPECT_EQ(status.tag(), "T1");
                             loop.Post([&] {
                               committer.AddRecord("b", true);
                               committer.Then([&] { ++acts; });
                               committer.Pump();
                               loop.After(50, [&] { loop.Stop(); });
                             });
                           }},
                      ~0ull);
  committer.AddRecord("a", true);
  committer.Then([&] { ++acts; });
  committer.Pump();
  loop.Run();
  EXPECT_EQ(writes, 1);
  EXPECT_EQ(failures, 1);
  EXPECT_EQ(acts, 0);
}

TEST(RecordStore, SmallAndLargeRecordsComeBackAndSnapshotsDropFiles) {
  TempFolder folder;
  const std::string large(200'000, 'l'), other(70'000, 'o');
  {
    auto store = RecordStore::Open(folder.path());
    ASSERT_TRUE(store.ok()) << store.status().ToString();
    EXPECT_EQ(*(*store)->NextEpoch(), 1u);
    std::vector<std::string> records{"a", large, "", large, other};
    ASSERT_TRUE((*store)->Append(records).ok());
    EXPECT_EQ((*store)->large_files(), 2u);  // equal bytes are one file
  }
  std::vector<std::string> read;
  const auto collect = [&](std::string record) {
    read.push_back(std::move(record));
    return Status();
  };
  auto store = RecordStore::Open(folder.path());
  ASSERT_TRUE(store.ok()) << store.status().ToString();
  EXPECT_EQ(*(*store)->NextEpoch(), 2u);
  ASSERT_TRUE((*store)->Replay(collect).ok());
  EXPECT_EQ(read, (std::vector<std::string>{"a", large, "", large, other}));
  std::vector<std::string> state{"state", other}, after{"later"};
  ASSERT_TRUE((*store)->Snapshot(state).ok());
  EXPECT_EQ((*store)->large_files(), 1u);
  ASSERT_TRUE((*store)->Append(after).ok());
  read.clear();
  ASSERT_TRUE((*store)->Replay(collect).ok());
  EXPECT_EQ(read, (std::vector<std::string>{"state", other, "later"}));
}

class LogsTest : public testing::Test {
 protected:
  void SetUp() override { Open({}); }
  void Open(JobLogLimits limits) {
    logs_.reset();
    auto logs = JobLogs::Open(folder_.path() + "/j", limits);
    ASSERT_TRUE(logs.ok()) << logs.status().ToString();
    logs_ = *std::move(logs);
  }
  std::string Read(LogStream stream) { return *logs_->Read(stream, 0, 1 << 30); }
  std::string Shown() {
    logs_->Synced(logs_->file(LogStream::kDriver)->size());
    return Read(LogStream::kDriver);
  }
  TempFolder folder_;
  std::unique_ptr<JobLogs> logs_;
};

TEST_F(LogsTest, NothingIsShownBeforeItIsSynced) {
  ASSERT_TRUE(logs_->NameDriver(ExecutorId{1}).ok());
  ASSERT_TRUE(logs_->Stdout(ExecutorId{1}, 0, "hello").ok());
  EXPECT_EQ(Read(LogStream::kDriver), "");
  EXPECT_EQ(Shown(), "hello");
}

TEST_F(LogsTest, AReplacementContinuesWhereTheDriverEnded) {
  ExecutorId a{1}, b{2};
  ASSERT_TRUE(logs_->NameDriver(a).ok());
  ASSERT_TRUE(logs_->Stdout(b, 0, "0123").ok());  // ahead of the driver: kept
  ASSERT_TRUE(logs_->Stdout(a, 0, "01").ok());
  EXPECT_EQ(Shown(), "01");
  logs_->Exited(a);
  ASSERT_TRUE(logs_->NameDriver(b).ok());
  EXPECT_EQ(Shown(), "0123");
  ASSERT_TRUE(logs_->Stdout(b, 2, "2345").ok());  // a repetition and more
  EXPECT_EQ(Shown(), "012345");
  EXPECT_EQ(logs_->Stdout(b, 99, "x").status().tag(), "MASTER05");
  Open({});  // the master starts again
  ASSERT_TRUE(logs_->NameDriver(ExecutorId{3}).ok());
  ASSERT_TRUE(logs_->Stdout(ExecutorId{3}, 0, "01234567").ok());
  EXPECT_EQ(Shown(), "01234567");
  ExecutorId who;
  std::uint64_t where = 0;
  EXPECT_FALSE(logs_->TakeDifference(&who, &where));
  ASSERT_TRUE(logs_->Stdout(ExecutorId{4}, 0, "0123X567").ok());
  ASSERT_TRUE(logs_->TakeDifference(&who, &where));
  EXPECT_EQ(who, ExecutorId{4});
  EXPECT_EQ(where, 4u);
  EXPECT_EQ(Shown(), "01234567");
}

TEST_F(LogsTest, AnExecutorThatRunsFarAheadIsHeldBackUntilTheDriverComes) {
  Open({.ahead_bytes = 100});
  ExecutorId driver{1}, fast{2};
  ASSERT_TRUE(logs_->NameDriver(driver).ok());
  std::string text;
  for (int i = 0; i < 300; ++i) text += static_cast<char>('a' + i % 26);
  auto acks = logs_->Stdout(fast, 0, text);
  ASSERT_EQ(acks->size(), 1u);
  EXPECT_EQ(acks->front().offset, 100u);
  acks = logs_->Stdout(driver, 0, text.substr(0, 250));
  ASSERT_EQ(acks->size(), 2u);
  EXPECT_EQ(acks->at(0).offset, 250u);
  EXPECT_EQ(acks->at(1).executor, fast);
  EXPECT_EQ(acks->at(1).offset, 300u);
  logs_->Exited(driver);
  ASSERT_TRUE(logs_->NameDriver(fast).ok());
  EXPECT_EQ(Shown(), text);
}

// Whatever the interleaving, replacements and restarts: what is shown is the stream, once.
TEST_F(LogsTest, RandomReplacementsShowTheStreamOnce) {
  const std::uint64_t seed = std::random_device()();
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  Random random(seed);
  std::string text;
  for (int i = 0; i < 3'000; ++i) text += random.OneIn(9) ? '\n' : static_cast<char>('a' + random.Below(26));
  JobLogLimits limits{.ahead_bytes = 200};
  Open(limits);
  std::map<ExecutorId, std::size_t> sent, acked;
  std::uint64_t next = 1;
  std::size_t shown_before = 0;
  const auto note = [&](const Result<std::vector<JobLogs::Ack>>& acks) {
    ASSERT_TRUE(acks.ok()) << acks.status().ToString();
    for (const auto& ack : *acks) {
      EXPECT_GT(ack.offset, acked[ack.executor]);
      acked[ack.executor] = ack.offset;
    }
  };
  for (int step = 0; step < 100'000 && Shown() != text; ++step) {
    ASSERT_TRUE(text.starts_with(Shown()));
    ASSERT_GE(Shown().size(), shown_before);
    shown_before = Shown().size();
    if (sent.empty() || random.OneIn(60)) sent[ExecutorId{next++}] = 0;
    auto at = std::next(sent.begin(), static_cast<std::ptrdiff_t>(random.Below(sent.size())));
    if (random.OneIn(400)) {
      Open(limits);
      sent.clear();
      acked.clear();
    } else if (random.OneIn(80)) {
      logs_->Exited(at->first);
      sent.erase(at);
    } else if (!sent.contains(logs_->driver())) {
      note(logs_->NameDriver(at->first));
    } else if (at->second - acked[at->first] < 500) {  // the worker's window
      const std::size_t n = std::min<std::size_t>(random.Between(1, 60), text.size() - at->second);
      note(logs_->Stdout(at->first, at->second, text.substr(at->second, n)));
      at->second += n;
    }
  }
  EXPECT_EQ(Shown(), text);
  std::string log = Read(LogStream::kExecutor);
  EXPECT_TRUE(log.empty() || log.starts_with("["));
}

TEST_F(LogsTest, StreamsAreBoundedAndLinesOfExecutorsWhole) {
  Open({.stdout_bytes = 50, .other_bytes = 1'000});
  ASSERT_TRUE(logs_->NameDriver(ExecutorId{1}).ok());
  ASSERT_TRUE(logs_->Stdout(ExecutorId{1}, 0, std::string(80, 'x')).ok());
  EXPECT_EQ(Shown(), std::string(50, 'x'));
  EXPECT_NE(Read(LogStream::kStderr).find("stdout has reached its limit of 50 bytes (master.job_stdout)"), std::string::npos);
  ASSERT_TRUE(logs_->Stderr(ExecutorId{2}, "half").ok());
  ASSERT_TRUE(logs_->Stderr(ExecutorId{3}, "other\n").ok());
  ASSERT_TRUE(logs_->Stderr(ExecutorId{2}, " line\nlast").ok());
  logs_->Exited(ExecutorId{2});
  EXPECT_EQ(Read(LogStream::kExecutor), "[3] other\n[2] half line\n[2] last\n");
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(logs_->Stderr(ExecutorId{3}, std::string(200, 'y') + "\n").ok());
  EXPECT_LT(Read(LogStream::kExecutor).size(), 1'200u);
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(logs_->Event("{\"event\":\"task_lost\"}").ok());
  EXPECT_LT(Read(LogStream::kEvents).size(), 1'200u);
}

// Each stream says to the byte what of it was not kept, when nothing more can come.
TEST_F(LogsTest, WhatIsNotKeptIsCounted) {
  const ExecutorId driver{1}, other{2};
  const JobLogLimits limits{.stdout_bytes = 50, .other_bytes = 1'000};
  Open(limits);
  ASSERT_TRUE(logs_->NameDriver(driver).ok());
  ASSERT_TRUE(logs_->Stdout(driver, 0, std::string(40, 'x')).ok());
  ASSERT_TRUE(logs_->Ended().ok());
  EXPECT_EQ(Read(LogStream::kStderr), "") << "all was kept";
  ASSERT_TRUE(logs_->Stdout(driver, 40, std::string(40, 'x')).ok());
  ASSERT_TRUE(logs_->Stdout(driver, 80, std::string(7, 'x')).ok());
  std::uint64_t said = 0;
  for (int i = 0; i < 9; ++i, said += 300) ASSERT_TRUE(logs_->Stderr(driver, std::string(300, 'e')).ok());
  std::uint64_t lines = 0;
  for (int i = 0; i < 20; ++i, ++lines) ASSERT_TRUE(logs_->Stderr(other, std::string(95, 'o') + "\n").ok());  // 100 with "[2] "
  ASSERT_TRUE(logs_->Ended().ok());
  const std::string err = Read(LogStream::kStderr), log = Read(LogStream::kExecutor);
  EXPECT_NE(err.find("[ropewalk] 37 bytes of stdout were not kept\n"), std::string::npos) << err;
  EXPECT_NE(err.find("reached its limit of 1000 bytes (master.job_logs)"), std::string::npos) << err;
  const std::size_t first = err.find(std::string(300, 'e')), note = err.find("\n[ropewalk] the log has");
  ASSERT_NE(note, std::string::npos);
  EXPECT_NE(err.find("[ropewalk] " + std::to_string(said - (note - first)) + " bytes of stderr were not kept\n"), std::string::npos) << err;
  EXPECT_NE(log.find("[ropewalk] 1000 bytes of the other executors' output were not kept\n"), std::string::npos) << log;
  EXPECT_EQ(std::count(log.begin(), log.end(), 'o') / 95, 10) << log;
}

// The master starts again: main says its stdout once more; how much an earlier life of the master has left out of the rest nobody knows.
TEST_F(LogsTest, WhatWasNotKeptBeforeARestartIsNotForgotten) {
  const ExecutorId driver{1}, other{2};
  const JobLogLimits limits{.stdout_bytes = 50, .other_bytes = 1'000};
  const auto fill = [&] {
    Open(limits);
    ASSERT_TRUE(logs_->NameDriver(driver).ok());
    ASSERT_TRUE(logs_->Stdout(driver, 0, std::string(87, 'x')).ok());
    ASSERT_TRUE(logs_->Stderr(driver, std::string(1'500, 'e')).ok());
    for (int i = 0; i < 8; ++i) ASSERT_TRUE(logs_->Stderr(other, std::string(95, 'o') + "\n").ok());  // 800
    ASSERT_TRUE(logs_->Stderr(other, std::string(2'000, 'o') + "\n").ok());  // the note that follows ends below the limit
    for (int i = 0; i < 30; ++i) ASSERT_TRUE(logs_->Event(std::string(50, '1')).ok());
  };
  const std::string before = " before the master was started again";
  fill();
  Open(limits);
  ASSERT_TRUE(logs_->NameDriver(driver).ok());
  ASSERT_TRUE(logs_->Stdout(driver, 0, std::string(87, 'x')).ok());
  ASSERT_TRUE(logs_->Stderr(driver, "more").ok());
  ASSERT_TRUE(logs_->Stderr(other, "one more\n").ok());
  ASSERT_TRUE(logs_->Event("{}").ok());
  ASSERT_TRUE(logs_->Ended().ok());
  std::string err = Read(LogStream::kStderr), log = Read(LogStream::kExecutor), events = Read(LogStream::kEvents);
  EXPECT_NE(err.find("[ropewalk] 37 bytes of stdout were not kept\n"), std::string::npos) << "all of them: " << err;
  EXPECT_NE(err.find("[ropewalk] 4 bytes of stderr were not kept, besides what was not kept" + before + "\n"), std::string::npos) << err;
  EXPECT_EQ(log.find("one more"), std::string::npos) << log;
  EXPECT_NE(log.find("[ropewalk] 13 bytes of the other executors' output were not kept, besides"), std::string::npos) << log;
  EXPECT_TRUE(events.ends_with("{\"event\":\"log_dropped\",\"bytes\":3,\"more_before_restart\":true}\n")) << events;

  // Nothing more comes: that something may be missing is said all the same.
  std::filesystem::remove_all(folder_.path());
  fill();
  Open(limits);
  ASSERT_TRUE(logs_->NameDriver(driver).ok());
  ASSERT_TRUE(logs_->Stdout(driver, 0, std::string(20, 'x')).ok());
  ASSERT_TRUE(logs_->Ended().ok());
  err = Read(LogStream::kStderr), log = Read(LogStream::kExecutor), events = Read(LogStream::kEvents);
  const std::string unknown = " had reached its limit" + before + "; how much of it was not kept then is not known\n";
  EXPECT_NE(err.find("[ropewalk] stdout" + unknown), std::string::npos) << err;
  EXPECT_TRUE(err.ends_with("[ropewalk] stderr" + unknown)) << err;
  EXPECT_TRUE(log.ends_with("[ropewalk] the other executors' output" + unknown)) << log;
  EXPECT_TRUE(events.ends_with("{\"event\":\"log_dropped\",\"bytes\":0,\"more_before_restart\":true}\n")) << events;

  // Where main has said all of a stdout that just fits, nothing is missing.
  std::filesystem::remove_all(folder_.path());
  Open(limits);
  ASSERT_TRUE(logs_->NameDriver(driver).ok());
  ASSERT_TRUE(logs_->Stdout(driver, 0, std::string(50, 'x')).ok());
  Open(limits);
  ASSERT_TRUE(logs_->NameDriver(driver).ok());
  ASSERT_TRUE(logs_->Stdout(driver, 0, std::string(50, 'x')).ok());
  ASSERT_TRUE(logs_->Ended().ok());
  EXPECT_EQ(Read(LogStream::kStderr), "");
}

TEST_F(LogsTest, WhatTheDiskDoesNotTakeCounts) {
  const ExecutorId driver{1}, other{2};
  Open({});
  ASSERT_TRUE(logs_->NameDriver(driver).ok());
  ASSERT_TRUE(logs_->Stderr(driver, "kept\n").ok());
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = ::signal(SIGXFSZ, SIG_IGN);
  rlimit full = before;
  full.rlim_cur = 10;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &full), 0);
  const Status err = logs_->Stderr(driver, std::string(20, 'e')), log = logs_->Stderr(other, std::string(15, 'o') + "\n"),
               event = logs_->Event(std::string(30, '1'));
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  ::signal(SIGXFSZ, handler);
  for (const Status& status : {err, log, event}) EXPECT_EQ(status.tag(), "MASTER03") << status.ToString();
  ASSERT_TRUE(logs_->Stderr(driver, "again\n").ok());
  ASSERT_TRUE(logs_->Ended().ok());
  EXPECT_EQ(Read(LogStream::kStderr), "kept\nagain\n[ropewalk] 20 bytes of stderr were not kept\n");
  EXPECT_EQ(Read(LogStream::kExecutor), "[ropewalk] 20 bytes of the other executors' output were not kept\n");
  EXPECT_EQ(Read(LogStream::kEvents), "{\"event\":\"log_dropped\",\"bytes\":31}\n");
}

TEST(Convert, VersionsOfWorkersAndJobs) {
  EXPECT_EQ(ParseGlibc("2.36"), 2036u);
  EXPECT_EQ(ParseGlibc("2.4"), 2004u);
  EXPECT_LT(ParseGlibc("2.4"), ParseGlibc("2.36"));
  EXPECT_EQ(ParseGlibc("musl"), 0u);
  EXPECT_EQ(ParseGlibc(""), 0u);
  EXPECT_EQ(ParseGlibc("2.99999"), 0u);
  EXPECT_EQ(ParseCpuLevel("x86-64-v3"), 3u);
  EXPECT_EQ(ParseCpuLevel("x86-64-v"), 0u);
  EXPECT_EQ(ParseCpuLevel("arm"), 0u);
}

}  // namespace
}  // namespace ropewalk::master
