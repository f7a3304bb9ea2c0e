// The one memory budget of a worker: reservations of segments before they are written, and what tasks borrow.
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "base/huge_pages.h"
#include "tests/unit/blocks_testing.h"
#include "worker/blocks/block_service.h"
#include "worker/blocks/local_memory.h"
#include "worker/blocks/memory_link.h"

namespace ropewalk::blocks {
namespace {

using testing::Seed;
using testing::TempDir;

constexpr JobId kJob{5};
constexpr std::uint64_t kMiB = 1u << 20;
const std::string kToken(32, 't');
const std::atomic<bool> kNever{false};

std::unique_ptr<BlockStore> OpenStore(const TempDir& dir, std::uint64_t memory_bytes_max) {
  auto store = BlockStore::Open({.memory_bytes_max = memory_bytes_max, .spill_dir = dir.path() + "/spill", .job = kJob});
  EXPECT_TRUE(store.ok()) << store.status().ToString();
  return *std::move(store);
}

template <class Condition>
bool Eventually(Condition condition) {
  for (int i = 0; i < 3000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return false;
}

dag::SegmentInfo WriteSegment(dag::BlockWriter& blocks, std::uint32_t task, std::uint64_t bytes) {
  auto writer = blocks.NewSegment({StageId{1}, task, 1}, 1);
  EXPECT_TRUE(writer.ok());
  std::string piece(256 << 10, static_cast<char>('a' + task % 26));
  for (std::uint64_t at = 0; at < bytes; at += piece.size()) {
    Status status = (*writer)->Append(0, AsBytes(piece), 1);
    EXPECT_TRUE(status.ok()) << status.ToString();
  }
  auto info = (*writer)->Seal();
  EXPECT_TRUE(info.ok()) << info.status().ToString();
  return info.ok() ? *info : dag::SegmentInfo{};
}

TEST(BlocksMemory, SegmentsMakeRoomForTasks) {
  TempDir dir;
  auto store = OpenStore(dir, 64 * kMiB);
  for (std::uint32_t task = 0; task < 5; ++task) WriteSegment(*store, task, 10 * kMiB);
  EXPECT_EQ(store->stats().spilled_bytes_total, 0u) << "they fit";
  LocalMemory memory(*store);
  ASSERT_TRUE(memory.Take(40 * kMiB, kNever).ok());
  StoreStats stats = store->stats();
  EXPECT_EQ(stats.lent_bytes, 40 * kMiB);
  EXPECT_LE(stats.memory_bytes, 64 * kMiB);
  EXPECT_GE(stats.spilled_bytes_total, 20 * kMiB);
  EXPECT_EQ(stats.lent_beyond_total, 0u);
  EXPECT_LE(stats.memory_bytes_peak, 64 * kMiB + 2 * kMiB);
  // A segment that is written meanwhile goes to disk instead of taking what is lent.
  WriteSegment(*store, 9, 60 * kMiB);
  EXPECT_LE(store->stats().memory_bytes, 64 * kMiB + 2 * kMiB);
  memory.Give(40 * kMiB);
  EXPECT_EQ(store->stats().lent_bytes, 0u);
}

TEST(BlocksMemory, WhatNeverFitsRunsAloneAndOthersWaitForIt) {
  TempDir dir;
  auto store = OpenStore(dir, 10 * kMiB);
  LocalMemory memory(*store);
  ASSERT_TRUE(memory.Take(100 * kMiB, kNever).ok());
  EXPECT_EQ(store->stats().lent_beyond_total, 1u);
  std::atomic<bool> second{false};
  std::thread waiting([&] {
    EXPECT_TRUE(memory.Take(1 * kMiB, kNever).ok());
    second = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_FALSE(second) << "the budget was exceeded by two tasks at a time";
  memory.Give(100 * kMiB);
  waiting.join();
  EXPECT_EQ(store->stats().lent_beyond_total, 1u);
  memory.Give(1 * kMiB);
  EXPECT_EQ(store->stats().memory_bytes, 0u);
}

TEST(BlocksMemory, AskedFirstIsGrantedFirst) {
  TempDir dir;
  auto store = OpenStore(dir, 10 * kMiB);
  std::mutex mutex;
  std::deque<std::uint64_t> order;
  auto borrower = store->NewBorrower({.granted =
                                          [&](std::uint64_t id, std::uint64_t) {
                                            std::lock_guard lock(mutex);
                                            order.push_back(id);
                                          },
                                      .ask_back = [] {}});
  auto granted = [&] {
    std::lock_guard lock(mutex);
    return order.size();
  };
  ASSERT_TRUE(borrower->Ask(1, 8 * kMiB).ok());
  ASSERT_TRUE(Eventually([&] { return granted() == 1; }));
  ASSERT_TRUE(borrower->Ask(2, 9 * kMiB).ok());  // must wait
  ASSERT_TRUE(borrower->Ask(3, 1 * kMiB).ok());  // would fit, but came later
  ASSERT_TRUE(borrower->Ask(4, 1 * kMiB).ok());
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(granted(), 1u) << "a small ask has overtaken a large one";
  borrower->Withdraw(3);
  borrower->Rest(8 * kMiB);
  ASSERT_TRUE(Eventually([&] { return granted() == 3; }));
  EXPECT_EQ(order, (std::deque<std::uint64_t>{1, 2, 4}));
  borrower.reset();
  EXPECT_EQ(store->stats().memory_bytes, 0u) << "what is lent ends with the borrower";
}

TEST(BlocksMemory, WhatRestsIsAskedBackAndWhoDoesNotAnswerStopsNobody) {
  TempDir dir;
  auto store = OpenStore(dir, 10 * kMiB);
  std::atomic<int> asked_back{0}, granted{0};
  auto silent = store->NewBorrower({.granted = [&](std::uint64_t, std::uint64_t) { ++granted; }, .ask_back = [&] { ++asked_back; }});
  ASSERT_TRUE(silent->Ask(1, 10 * kMiB).ok());
  ASSERT_TRUE(Eventually([&] { return granted == 1; }));
  silent->Rest(10 * kMiB);
  LocalMemory memory(*store);
  ASSERT_TRUE(memory.Take(8 * kMiB, kNever).ok());
  EXPECT_EQ(asked_back, 1);
  EXPECT_EQ(store->stats().lent_beyond_total, 1u) << "it did not let go, so the other one ran alone";
  silent->LetGo(10 * kMiB);
  memory.Give(8 * kMiB);
  ASSERT_TRUE(memory.Take(8 * kMiB, kNever).ok());
  EXPECT_EQ(store->stats().lent_beyond_total, 1u);
  memory.Give(8 * kMiB);
}

TEST(BlocksMemory, ACancelledTaskStopsWaiting) {
  TempDir dir;
  auto store = OpenStore(dir, 10 * kMiB);
  LocalMemory memory(*store);
  ASSERT_TRUE(memory.Take(10 * kMiB, kNever).ok());
  std::atomic<bool> cancelled{false};
  std::thread waiting([&] { EXPECT_EQ(memory.Take(5 * kMiB, cancelled).code(), Code::kCancelled); });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  cancelled = true;
  memory.Wake();
  waiting.join();
  memory.Give(10 * kMiB);
  ASSERT_TRUE(memory.Take(10 * kMiB, kNever).ok()) << "nothing was lost by it";
  memory.Give(10 * kMiB);
}

TEST(BlocksMemory, RandomTakersNeverExceedTheBudgetAndAllEnd) {
  TempDir dir;
  constexpr std::uint64_t kBudget = 64 * kMiB;
  auto store = OpenStore(dir, kBudget);
  LocalMemory a(*store), b(*store);
  std::atomic<std::uint64_t> in_use{0}, most{0};
  std::vector<std::thread> threads;
  const std::uint64_t seed = Seed();
  for (int t = 0; t < 6; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 random(seed + static_cast<unsigned>(t));
      LocalMemory& memory = t % 2 == 0 ? a : b;
      for (int i = 0; i < 60; ++i) {
        std::uint64_t bytes = (1 + random() % 32) * kMiB;
        ASSERT_TRUE(memory.Take(bytes, kNever).ok());
        std::uint64_t now = in_use += bytes;
        for (std::uint64_t seen = most; seen < now && !most.compare_exchange_weak(seen, now);) {
        }
        if (random() % 3 == 0) WriteSegment(*store, static_cast<std::uint32_t>(t * 100 + i), (random() % 4) * kMiB);
        in_use -= bytes;
        memory.Give(bytes);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(most, kBudget);
  EXPECT_EQ(store->stats().lent_beyond_total, 0u);
  EXPECT_EQ(store->stats().lent_bytes, 0u);
}

// ---- between processes: over the service's socket ---------------------------------------------------------------------------------------

struct Daemon {
  TempDir dir;
  std::unique_ptr<BlockStore> store;
  std::unique_ptr<BlockService> service;
  explicit Daemon(std::uint64_t memory_bytes_max) : store(OpenStore(dir, memory_bytes_max)) {
    auto started = BlockService::Start({.unix_path = dir.path() + "/blocks.sock"}, store.get());
    EXPECT_TRUE(started.ok()) << started.status().ToString();
    service = *std::move(started);
    service->AllowJob(kJob, kToken);
  }
  std::unique_ptr<RemoteBlocks> Connect(HugePages* pages) {
    auto blocks = RemoteBlocks::Connect(
        {.unix_path = dir.path() + "/blocks.sock", .data_address = service->data_address(), .job = kJob, .token = kToken, .pages = pages});
    EXPECT_TRUE(blocks.ok()) << blocks.status().ToString();
    return *std::move(blocks);
  }
};

TEST(BlocksMemory, ASegmentCountsBeforeItIsWritten) {
  Daemon daemon(64 * kMiB);
  HugePages pages;
  auto blocks = daemon.Connect(&pages);
  auto writer = blocks->NewSegment({StageId{1}, 1, 1}, 1);
  ASSERT_TRUE(writer.ok());
  std::string piece(kMiB, 'x');
  for (std::uint64_t written = piece.size(); written <= 24 * kMiB; written += piece.size()) {
    ASSERT_TRUE((*writer)->Append(0, AsBytes(piece), 1).ok());
    EXPECT_GE(daemon.store->stats().memory_bytes, written) << "not adopted yet, and counted all the same";
  }
  EXPECT_EQ(daemon.store->stats().segments, 0u);
  auto info = (*writer)->Seal();
  ASSERT_TRUE(info.ok()) << info.status().ToString();
  EXPECT_GE(daemon.store->stats().memory_bytes, info->bytes);
  EXPECT_LE(daemon.store->stats().memory_bytes, info->bytes + 4096) << "what was announced and not needed is given back";
}

TEST(BlocksMemory, AnUnfinishedSegmentIsForgottenWithItsWriterAndWithItsProcess) {
  Daemon daemon(64 * kMiB);
  HugePages pages;
  auto blocks = daemon.Connect(&pages);
  std::string piece(kMiB, 'x');
  {
    auto writer = blocks->NewSegment({StageId{1}, 1, 1}, 1);
    ASSERT_TRUE(writer.ok() && (*writer)->Append(0, AsBytes(piece), 1).ok());
    EXPECT_GT(daemon.store->stats().memory_bytes, 0u);
  }
  EXPECT_TRUE(Eventually([&] { return daemon.store->stats().memory_bytes == 0; }));

  auto writer = blocks->NewSegment({StageId{1}, 2, 1}, 1);
  ASSERT_TRUE(writer.ok() && (*writer)->Append(0, AsBytes(piece), 1).ok());
  ASSERT_TRUE(blocks->memory().Take(8 * kMiB, kNever).ok());
  EXPECT_GT(daemon.store->stats().memory_bytes, 8 * kMiB);
  daemon.service->ForgetJob(kJob);  // cuts its connections, as the end of its process would
  EXPECT_TRUE(Eventually([&] { return daemon.store->stats().memory_bytes == 0; })) << "leases die with the socket";
  EXPECT_EQ(blocks->memory().Take(1, kNever).code(), Code::kUnavailable);
}

TEST(BlocksMemory, WhereThereIsNoMemoryASegmentGoesToTheDaemonsFile) {
  Daemon daemon(20 * kMiB);
  HugePages pages;
  auto blocks = daemon.Connect(&pages);
  ASSERT_TRUE(blocks->memory().Take(8 * kMiB, kNever).ok());  // of a task that goes on: cannot be spilled
  std::mt19937_64 random(Seed());
  auto writer = blocks->NewSegment({StageId{1}, 1, 1}, 3);
  ASSERT_TRUE(writer.ok());
  testing::Model model = testing::Fill(**writer, random, 3, 60, 2 * kMiB);
  std::string last(16 * kMiB, 'z');
  ASSERT_TRUE((*writer)->Append(2, AsBytes(last), 1).ok());
  model[2].emplace_back(last, 1);
  auto info = (*writer)->Seal();
  ASSERT_TRUE(info.ok()) << info.status().ToString();
  StoreStats stats = daemon.store->stats();
  EXPECT_GE(stats.spilled_bytes, info->bytes);
  EXPECT_LE(stats.memory_bytes, 20 * kMiB);
  dag::SegmentRef ref{
      .producer = {StageId{1}, 1, 1}, .segment = info->segment, .location = daemon.service->data_address(), .bytes = info->bytes};
  testing::ExpectSame(*blocks, ref, 0, 3, model);
  auto elsewhere = daemon.Connect(&pages);
  testing::ExpectSame(*elsewhere, ref, 0, 3, model);
}

TEST(BlocksMemory, AnExecutorGivesBackWhatRests) {
  Daemon daemon(64 * kMiB);
  HugePages warm, other;
  auto first = daemon.Connect(&warm);
  ASSERT_TRUE(first->memory().Take(40 * kMiB, kNever).ok());
  {
    HugeBuffer used = warm.Take(32 * kMiB);
  }
  EXPECT_EQ(warm.kept_bytes(), 32 * kMiB);
  first->memory().Give(40 * kMiB);
  EXPECT_EQ(warm.kept_bytes(), 32 * kMiB) << "kept warm for the next task";
  ASSERT_TRUE(first->memory().Take(40 * kMiB, kNever).ok());
  EXPECT_EQ(daemon.store->stats().lent_bytes, 40 * kMiB) << "what rests is lent again";
  first->memory().Give(40 * kMiB);

  auto second = daemon.Connect(&other);
  ASSERT_TRUE(second->memory().Take(60 * kMiB, kNever).ok());
  EXPECT_LE(warm.kept_bytes(), 16 * kMiB);
  EXPECT_EQ(daemon.store->stats().lent_bytes, 60 * kMiB);
  EXPECT_EQ(daemon.store->stats().lent_beyond_total, 0u);
  second->memory().Give(60 * kMiB);
}

}  // namespace
}  // namespace ropewalk::blocks
