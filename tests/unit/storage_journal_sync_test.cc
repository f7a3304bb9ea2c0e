// The journal and power loss: kill -9 leaves what the kernel holds in memory, a power cut leaves what was synced. Here the machine loses
// its power right after an append has returned: each file goes back to what it held when it was last synced, and the journal that is opened
// there has to hold all that was acknowledged.
#include <dlfcn.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "storage/journal.h"

namespace ropewalk::storage {
namespace {

namespace fs = std::filesystem;

// What this process has synced, by inode: the bytes of the file then.
struct Synced {
  std::mutex mutex;
  std::map<std::pair<dev_t, ino_t>, std::string> files;
  std::atomic<bool> forgets_logs{false};  // as a disk that only says that it has synced RocksDB's log of writes

  void Take(int fd) {
    struct stat about{};
    char link[64], path[4096];
    std::snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    const ssize_t length = readlink(link, path, sizeof(path));
    if (length <= 0 || fstat(fd, &about) != 0 || !S_ISREG(about.st_mode)) return;
    if (forgets_logs && std::string_view(path, static_cast<std::size_t>(length)).ends_with(".log")) return;
    std::ifstream file(link, std::ios::binary);
    std::string bytes{std::istreambuf_iterator<char>(file), {}};
    std::lock_guard lock(mutex);
    files[{about.st_dev, about.st_ino}] = std::move(bytes);
  }
};
Synced* synced = nullptr;

template <class... Args>
int Real(const char* name, Args... args) {
  return reinterpret_cast<int (*)(Args...)>(dlsym(RTLD_NEXT, name))(args...);
}

// `to` becomes what a disk holds of `from` after a power cut. Names are durable here: only bytes are lost.
void CutPower(const std::string& from, const std::string& to) {
  fs::create_directory(to);
  for (const fs::directory_entry& entry : fs::directory_iterator(from)) {
    struct stat about{};
    ASSERT_EQ(stat(entry.path().c_str(), &about), 0);
    if (!S_ISREG(about.st_mode)) continue;
    std::lock_guard lock(synced->mutex);
    std::ofstream(to + "/" + entry.path().filename().string(), std::ios::binary) << synced->files[{about.st_dev, about.st_ino}];
  }
}

class JournalSync : public testing::Test {
 protected:
  JournalSync() {
    std::string name = std::string(access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp") + "/ropewalk-journal-XXXXXX";
    root_ = mkdtemp(name.data());
    synced = &synced_;
  }
  ~JournalSync() override {
    synced = nullptr;
    fs::remove_all(root_);
  }
  // The number of the last record of the journal that the power cut leaves, or why it cannot be read.
  Result<std::uint64_t> LastAfterPowerCut() {
    const std::string copy = root_ + "/cut" + std::to_string(cuts_++);
    CutPower(root_ + "/j", copy);
    ASSIGN_OR_RETURN(std::unique_ptr<Journal> journal, Journal::Open({copy}));
    RETURN_IF_ERROR(journal->Replay(0, [](std::uint64_t sequence, std::string_view record) {
      EXPECT_EQ(record, "record " + std::to_string(sequence));
      return Status();
    }));
    return journal->last_sequence();
  }

  std::string root_;
  Synced synced_;
  int cuts_ = 0;
};

TEST_F(JournalSync, AnAcknowledgedRecordIsThereAfterAPowerCut) {
  auto journal = Journal::Open({root_ + "/j"});
  ASSERT_TRUE(journal.ok()) << journal.status().ToString();
  for (std::uint64_t i = 1; i <= 40; ++i) {
    auto appended = (*journal)->Append("record " + std::to_string(i));
    ASSERT_TRUE(appended.ok()) << appended.status().ToString();
    auto last = LastAfterPowerCut();
    ASSERT_TRUE(last.ok()) << last.status().ToString();
    EXPECT_EQ(*last, i);
  }
}

TEST_F(JournalSync, SoAreASnapshotAndNamedValues) {
  auto journal = Journal::Open({root_ + "/j"});
  ASSERT_TRUE(journal.ok()) << journal.status().ToString();
  for (std::uint64_t i = 1; i <= 5; ++i) ASSERT_TRUE((*journal)->Append("record " + std::to_string(i)).ok());
  ASSERT_TRUE((*journal)->Snapshot("the state", 4).ok());
  ASSERT_TRUE((*journal)->Put("epoch", "17").ok());
  CutPower(root_ + "/j", root_ + "/cut");
  auto left = Journal::Open({root_ + "/cut"});
  ASSERT_TRUE(left.ok()) << left.status().ToString();
  auto snapshot = (*left)->LoadSnapshot();
  ASSERT_TRUE(snapshot.ok() && snapshot->has_value());
  EXPECT_EQ((*snapshot)->state, "the state");
  EXPECT_EQ((*snapshot)->upto, 4u);
  EXPECT_EQ(*(*left)->Get("epoch"), "17");
  EXPECT_EQ((*left)->last_sequence(), 5u);
}

// Threads that share a sync are told after it, none before.
TEST_F(JournalSync, ThreadsThatShareASyncAreToldAfterIt) {
  auto journal = Journal::Open({root_ + "/j"});
  ASSERT_TRUE(journal.ok()) << journal.status().ToString();
  std::atomic<std::uint64_t> told{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 25; ++i) {
        auto appended = (*journal)->Append("some record");
        ASSERT_TRUE(appended.ok()) << appended.status().ToString();
        std::uint64_t before = told.load();
        while (before < *appended && !told.compare_exchange_weak(before, *appended)) continue;
      }
    });
  for (int i = 0; i < 10; ++i) {
    const std::uint64_t acknowledged = told.load();
    const std::string copy = root_ + "/cut" + std::to_string(i);
    CutPower(root_ + "/j", copy);
    auto left = Journal::Open({copy});
    ASSERT_TRUE(left.ok()) << left.status().ToString();
    EXPECT_GE((*left)->last_sequence(), acknowledged);
  }
  for (std::thread& thread : threads) thread.join();
}

// The control: where the log of writes is not really synced, the cut loses records, and the journal that is left says so.
TEST_F(JournalSync, WithoutSyncsRecordsAreMissedAndThatIsSaid) {
  auto journal = Journal::Open({root_ + "/j"});
  ASSERT_TRUE(journal.ok()) << journal.status().ToString();
  ASSERT_TRUE((*journal)->Append("record 1").ok());
  synced_.forgets_logs = true;
  ASSERT_TRUE((*journal)->Append("record 2").ok());
  auto last = LastAfterPowerCut();
  ASSERT_FALSE(last.ok()) << *last;
  EXPECT_EQ(last.status().tag(), "STATE02") << last.status().ToString();
}

}  // namespace
}  // namespace ropewalk::storage

// In the places of the C library's, for RocksDB's calls, too.
extern "C" int fsync(int fd) {
  const int done = ropewalk::storage::Real("fsync", fd);
  if (done == 0 && ropewalk::storage::synced != nullptr) ropewalk::storage::synced->Take(fd);
  return done;
}
extern "C" int fdatasync(int fd) {
  const int done = ropewalk::storage::Real("fdatasync", fd);
  if (done == 0 && ropewalk::storage::synced != nullptr) ropewalk::storage::synced->Take(fd);
  return done;
}
