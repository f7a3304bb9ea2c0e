// The journal: order, atomicity, snapshots, locks, kill -9, flipped bits.
#include "storage/journal.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <thread>

#include "base/random.h"

namespace ropewalk::storage {
namespace {

namespace fs = std::filesystem;

std::uint64_t Seed() {
  const char* given = getenv("ROPEWALK_TEST_SEED");
  std::uint64_t seed = given != nullptr ? strtoull(given, nullptr, 10)
                                        : static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
  std::printf("ROPEWALK_TEST_SEED=%llu\n", static_cast<unsigned long long>(seed));
  return seed;
}

class JournalTest : public testing::Test {
 protected:
  JournalTest() {
    std::string name = std::string(access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp") + "/ropewalk-journal-XXXXXX";
    root_ = mkdtemp(name.data());
  }
  ~JournalTest() override { fs::remove_all(root_); }
  std::unique_ptr<Journal> Open() {
    auto journal = Journal::Open({root_ + "/j"});
    EXPECT_TRUE(journal.ok()) << journal.status().ToString();
    return journal.ok() ? *std::move(journal) : nullptr;
  }
  static std::map<std::uint64_t, std::string> All(const Journal& journal, std::uint64_t after = 0) {
    std::map<std::uint64_t, std::string> records;
    Status status = journal.Replay(after, [&](std::uint64_t sequence, std::string_view record) {
      records[sequence] = record;
      return Status();
    });
    EXPECT_TRUE(status.ok()) << status.ToString();
    return records;
  }
  std::string root_;
};

TEST_F(JournalTest, KeepsRecordsInOrderOverRestarts) {
  {
    auto journal = Open();
    EXPECT_EQ(journal->last_sequence(), 0u);
    EXPECT_EQ(*journal->Append(std::vector<std::string>{}), 0u);
    EXPECT_EQ(*journal->Append(std::vector<std::string>{"a", "", std::string("\0b", 2)}), 3u);
    EXPECT_EQ(*journal->Append("c"), 4u);
  }
  auto journal = Open();
  EXPECT_EQ(journal->last_sequence(), 4u);
  EXPECT_EQ(*journal->Append("d"), 5u);
  EXPECT_EQ(All(*journal), (std::map<std::uint64_t, std::string>{{1, "a"}, {2, ""}, {3, std::string("\0b", 2)}, {4, "c"}, {5, "d"}}));
  EXPECT_EQ(All(*journal, 4), (std::map<std::uint64_t, std::string>{{5, "d"}}));
  EXPECT_EQ(journal->Replay(0, [](std::uint64_t, std::string_view) { return Status(Code::kCancelled, "T", "enough"); }).code(),
            Code::kCancelled);
}

// Random operations and restarts against the obvious model.
TEST_F(JournalTest, EqualsItsModel) {
  Random random(Seed());
  std::map<std::uint64_t, std::string> model;
  std::uint64_t last = 0, upto = 0;
  std::string state;
  std::map<std::string, std::string> values;
  auto journal = Open();
  for (int step = 0; step < 600; ++step) {
    switch (random.Below(12)) {
      case 0: {
        journal.reset();
        journal = Open();
        break;
      }
      case 1: {
        std::uint64_t to = random.Between(upto, last);
        state = std::string(random.Below(5000), static_cast<char>('a' + step % 26));
        ASSERT_TRUE(journal->Snapshot(state, to).ok());
        upto = to;
        model.erase(model.begin(), model.upper_bound(to));
        break;
      }
      case 2: {
        std::string name = "v" + std::to_string(random.Below(4));
        values[name] = std::to_string(random());
        ASSERT_TRUE(journal->Put(name, values[name]).ok());
        break;
      }
      default: {
        std::vector<std::string> records(random.Below(5));
        for (std::string& record : records) {
          record = std::string(random.Below(random.OneIn(20) ? 200'000 : 300), static_cast<char>(random()));
          model[++last] = record;
        }
        auto appended = journal->Append(records);
        ASSERT_TRUE(appended.ok());
        ASSERT_EQ(*appended, last);
      }
    }
    if (step % 20 != 0) continue;
    auto snapshot = journal->LoadSnapshot();
    ASSERT_TRUE(snapshot.ok());
    if (snapshot->has_value()) {
      ASSERT_EQ((*snapshot)->upto, upto);
      ASSERT_EQ((*snapshot)->state, state);
    }
    ASSERT_TRUE(All(*journal, upto) == model) << "step " << step;
    for (const auto& [name, value] : values) ASSERT_EQ(**journal->Get(name), value);
    ASSERT_FALSE(journal->Get("never")->has_value());
  }
  EXPECT_EQ(journal->Snapshot("", last + 1).code(), Code::kInvalid);
}

TEST_F(JournalTest, ThreadsShareSyncsAndLoseNothing) {
  auto journal = Open();
  std::vector<std::thread> threads;
  std::atomic<int> failed{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::uint64_t before = 0;
      for (int i = 0; i < 200; ++i) {
        std::string name = std::to_string(t) + "." + std::to_string(i);
        auto last = journal->Append(std::vector<std::string>{name + "a", name + "b"});
        if (!last.ok() || *last <= before) ++failed;
        if (last.ok()) before = *last;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failed.load(), 0);
  auto all = All(*journal);
  ASSERT_EQ(all.size(), 1600u);
  std::map<std::string, int> next;
  for (auto it = all.begin(); it != all.end(); ++it) {  // pairs stay together, each thread's in its order
    std::string first = it->second, second = (++it)->second;
    std::string thread = first.substr(0, 1);
    ASSERT_EQ(first, thread + "." + std::to_string(next[thread]) + "a");
    ASSERT_EQ(second, thread + "." + std::to_string(next[thread]++) + "b");
  }
}

TEST_F(JournalTest, RefusesWhatItCannotUse) {
  {
    auto journal = Open();
    auto second = Journal::Open({root_ + "/j"});
    ASSERT_FALSE(second.ok());
    EXPECT_EQ(second.status().tag(), "STATE01") << second.status().ToString();
  }
  auto other = Journal::Open({root_ + "/j", "other-format"});
  ASSERT_FALSE(other.ok());
  EXPECT_EQ(other.status().tag(), "STATE03");
  EXPECT_EQ(other.status().code(), Code::kVersionSkew);
  std::ofstream(root_ + "/file") << "x";
  for (const char* bad : {"/file", "/none/j"}) {
    auto journal = Journal::Open({root_ + bad});
    ASSERT_FALSE(journal.ok());
    EXPECT_EQ(journal.status().tag(), "STATE04") << journal.status().ToString();
  }
}

// The child half of the next test: appends until it is killed, and says after each sync how far it is.
TEST(JournalChild, DISABLED_AppendsUntilKilled) {
  const char* folder = getenv("ROPEWALK_JOURNAL_CHILD");
  ASSERT_NE(folder, nullptr);
  auto journal = Journal::Open({folder});
  ASSERT_TRUE(journal.ok());
  while (true) {
    std::uint64_t next = (*journal)->last_sequence() + 1;
    auto last = (*journal)->Append(std::vector<std::string>{"r" + std::to_string(next), "r" + std::to_string(next + 1)});
    ASSERT_TRUE(last.ok());
    ASSERT_TRUE(*last % 64 != 0 || (*journal)->Snapshot("state" + std::to_string(*last), *last).ok());
    ASSERT_EQ(write(3, &*last, sizeof *last), static_cast<ssize_t>(sizeof *last));
  }
}

TEST_F(JournalTest, KilledProcessesLoseNoAcknowledgedRecord) {
  Random random(Seed());
  std::uint64_t acknowledged = 0;
  for (int round = 0; round < 20; ++round) {
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      dup2(ends[1], 3);
      setenv("ROPEWALK_JOURNAL_CHILD", (root_ + "/j").c_str(), 1);
      execl("/proc/self/exe", "journal_test", "--gtest_filter=JournalChild.*", "--gtest_also_run_disabled_tests", "--gtest_brief=1",
            nullptr);
      _exit(127);
    }
    close(ends[1]);
    std::uint64_t stop_after = random.Below(300), seen = 0, last = 0;
    while (seen < stop_after && read(ends[0], &last, sizeof last) == sizeof last) ++seen;
    kill(child, SIGKILL);
    int how = 0;
    ASSERT_EQ(waitpid(child, &how, 0), child);
    while (read(ends[0], &last, sizeof last) == sizeof last) continue;
    close(ends[0]);
    ASSERT_TRUE(WIFSIGNALED(how)) << "the child failed by itself";
    acknowledged = std::max(acknowledged, last);

    auto journal = Open();
    ASSERT_GE(journal->last_sequence(), acknowledged) << "round " << round;
    ASSERT_EQ(journal->last_sequence() % 2, 0u) << "half of an atomic append";
    auto snapshot = journal->LoadSnapshot();
    ASSERT_TRUE(snapshot.ok());
    std::uint64_t upto = snapshot->has_value() ? (*snapshot)->upto : 0;
    ASSERT_TRUE(upto == 0 || (*snapshot)->state == "state" + std::to_string(upto));
    auto all = All(*journal, upto);
    ASSERT_EQ(all.size(), journal->last_sequence() - upto);
    for (const auto& [sequence, record] : all) ASSERT_EQ(record, "r" + std::to_string(sequence));
  }
  EXPECT_GT(acknowledged, 0u);
}

// A flipped bit anywhere in the files is reported or harmless; what replays is always a prefix of what was written.
TEST_F(JournalTest, FlippedBitsAreNeverConsumed) {
  Random random(Seed());
  std::vector<std::string> written;
  {
    auto journal = Open();
    for (int i = 0; i < 200; ++i) {
      written.push_back("record " + std::to_string(i) + std::string(100, static_cast<char>('a' + i % 26)));
      ASSERT_TRUE(journal->Append(written.back()).ok());
    }
  }
  int reported = 0;
  for (int round = 0; round < 60; ++round) {
    fs::remove_all(root_ + "/copy");
    fs::copy(root_ + "/j", root_ + "/copy");
    std::vector<std::string> files;
    for (const auto& entry : fs::directory_iterator(root_ + "/copy")) {
      std::string extension = entry.path().extension();
      if ((extension == ".log" || extension == ".sst") && entry.file_size() > 0) files.push_back(entry.path());
    }
    ASSERT_FALSE(files.empty());
    std::sort(files.begin(), files.end());
    std::fstream file(files[random.Below(files.size())], std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(0, std::ios::end);
    std::uint64_t at = random.Below(static_cast<std::uint64_t>(file.tellg()));
    file.seekg(static_cast<std::streamoff>(at));
    char byte = static_cast<char>(file.get());
    file.seekp(static_cast<std::streamoff>(at));
    file.put(static_cast<char>(byte ^ (1 << random.Below(8))));
    file.close();

    auto journal = Journal::Open({root_ + "/copy"});
    if (!journal.ok()) {
      EXPECT_EQ(journal.status().tag(), "STATE02") << journal.status().ToString();
      ++reported;
      continue;
    }
    std::size_t next = 0;
    Status status = (*journal)->Replay(0, [&](std::uint64_t, std::string_view record) {
      EXPECT_LT(next, written.size());
      EXPECT_EQ(record, written.at(next++));
      return Status();
    });
    reported += !status.ok();
  }
  EXPECT_GT(reported, 0);
}

// RocksDB takes damage at the end of its log for a torn write and drops the record. Flip each byte of the last records: an acknowledged one
// is there, or opening fails; never less than was written.
TEST_F(JournalTest, NoAcknowledgedRecordVanishesWhicheverByteOfTheTailIsFlipped) {
  Random random(Seed());
  constexpr std::size_t kRecords = 12;
  std::uint64_t tail = 0;
  std::string log;
  {
    auto journal = Open();
    ASSERT_NE(journal, nullptr);
    auto log_size = [&] {
      for (const auto& entry : fs::directory_iterator(root_ + "/j"))
        if (entry.path().extension() == ".log" && entry.file_size() > 0) {
          log = entry.path().filename();
          return static_cast<std::uint64_t>(entry.file_size());
        }
      return std::uint64_t{0};
    };
    for (std::size_t i = 0; i < kRecords; ++i) {
      if (i + 3 == kRecords) tail = log_size();
      ASSERT_TRUE(journal->Append("job " + std::to_string(i) + " accepted").ok());
    }
    ASSERT_TRUE(journal->Put("epoch", "7").ok());
    ASSERT_GT(tail, 0u);
    ASSERT_GT(log_size(), tail + 100);
  }
  const std::uint64_t end = fs::file_size(root_ + "/j/" + log);
  std::size_t refused = 0, flips = 0;
  auto check = [&](const std::string& what) {
    auto journal = Journal::Open({root_ + "/copy"});
    ++flips;
    if (!journal.ok()) {
      EXPECT_EQ(journal.status().tag(), "STATE02") << what << ": " << journal.status().ToString();
      ++refused;
      journal = Journal::Open({root_ + "/copy"});  // and it stays refused, whatever the first try has tidied up
      EXPECT_FALSE(journal.ok()) << what;
      return;
    }
    std::size_t found = 0;
    Status status = (*journal)->Replay(0, [&](std::uint64_t, std::string_view record) {
      EXPECT_EQ(record, "job " + std::to_string(found++) + " accepted") << what;
      return Status();
    });
    auto epoch = (*journal)->Get("epoch");
    if (!status.ok() || !epoch.ok()) {
      ++refused;
      return;
    }
    EXPECT_EQ(found, kRecords) << what << ": acknowledged records vanished";
    EXPECT_EQ(epoch->value_or("nothing"), "7") << what;
  };
  auto flip = [&](const std::string& file, std::uint64_t at) {
    fs::remove_all(root_ + "/copy");
    fs::copy(root_ + "/j", root_ + "/copy");
    std::fstream bytes(root_ + "/copy/" + file, std::ios::in | std::ios::out | std::ios::binary);
    bytes.seekg(static_cast<std::streamoff>(at));
    char byte = static_cast<char>(bytes.get());
    bytes.seekp(static_cast<std::streamoff>(at));
    bytes.put(static_cast<char>(byte ^ (1 << random.Below(8))));
  };
  for (std::uint64_t at = tail; at < end; ++at) {
    flip(log, at);
    check("byte " + std::to_string(at) + " of " + log);
  }
  EXPECT_GT(refused, 50u);
  // The marks themselves: a damaged one never hides a record.
  for (std::uint64_t at : {0u, 8u, 16u, 4096u, 4104u, 4112u}) {
    flip("ACKNOWLEDGED", at);
    check("byte " + std::to_string(at) + " of the marks");
  }
  fs::remove_all(root_ + "/copy");
  fs::copy(root_ + "/j", root_ + "/copy");
  fs::remove(root_ + "/copy/ACKNOWLEDGED");
  auto journal = Journal::Open({root_ + "/copy"});
  ASSERT_FALSE(journal.ok());
  EXPECT_EQ(journal.status().tag(), "STATE02");
  std::printf("  %zu flips, %zu refused\n", flips, refused);
}

// A write that was torn before it was acknowledged is no damage: the log ends in the middle of it.
TEST_F(JournalTest, ATornWriteThatNobodyWasToldOfIsDropped) {
  std::string log;
  std::uint64_t whole = 0;
  {
    auto journal = Open();
    ASSERT_TRUE(journal->Append("one").ok());
    fs::copy(root_ + "/j/ACKNOWLEDGED", root_ + "/marks");  // as the crash found them
    for (const auto& entry : fs::directory_iterator(root_ + "/j"))
      if (entry.path().extension() == ".log" && entry.file_size() > 0) log = entry.path(), whole = entry.file_size();
    ASSERT_TRUE(journal->Append("two").ok());
  }
  const std::uint64_t end = fs::file_size(log);
  ASSERT_GT(end, whole);
  for (std::uint64_t size = whole; size <= end; ++size) {
    fs::remove_all(root_ + "/copy");
    fs::copy(root_ + "/j", root_ + "/copy");
    fs::copy_file(root_ + "/marks", root_ + "/copy/ACKNOWLEDGED", fs::copy_options::overwrite_existing);
    fs::resize_file(root_ + "/copy/" + fs::path(log).filename().string(), size);
    auto journal = Journal::Open({root_ + "/copy"});
    ASSERT_TRUE(journal.ok()) << size << ": " << journal.status().ToString();
    auto all = All(**journal);
    ASSERT_EQ(all.size(), size == end ? 2u : 1u) << size;
    EXPECT_EQ(all[1], "one");
  }
}

}  // namespace
}  // namespace ropewalk::storage
