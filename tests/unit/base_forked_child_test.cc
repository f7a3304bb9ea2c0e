// A child that comes back out of the code that forked it waits for no lock of its parent's.
#include "base/forked_child.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <functional>
#include <new>
#include <span>
#include <string>
#include <thread>

#include "base/huge_pages.h"
#include "worker/blocks/block_store.h"
#include "worker/blocks/buffer_pool.h"

namespace ropewalk {
namespace {

// What `act` makes a child exit with; -1: it did not end by itself.
int InChild(const std::function<int()>& act) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);  // one that waits for a lock ends too
    _exit(act());
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

template <class Ask>
bool IsRefused(Ask ask) {
  try {
    ask();
    return false;
  } catch (const std::bad_alloc&) {
    return true;
  }
}

TEST(ForkedChild, IsRefusedWhatItAsksForAndGivesNothingBack) {
  HugePages pages;
  blocks::BufferPool pool(1 << 20, pages);
  auto* huge = new HugeBuffer(pages.Take(1));
  auto* small = new blocks::Buffer(pool.Get(100));
  auto* large = new blocks::Buffer(pool.Get(4 << 20));
  const auto ask = [&] {
    if (!IsForkedChild()) return 1;
    if (!IsRefused([&] { (void)pages.Take(1); })) return 2;
    if (!IsRefused([&] { (void)pool.Get(100); })) return 3;
    const std::size_t used = pages.used_bytes();
    delete huge;
    delete small;
    delete large;
    return pages.used_bytes() == used ? 0 : 4;
  };
  NoteForks();
  EXPECT_FALSE(IsForkedChild());
  EXPECT_EQ(InChild(ask), 0);
  EXPECT_FALSE(IsForkedChild());
  EXPECT_FALSE(IsRefused([&] { (void)pages.Take(1); })) << "its parent goes on";
  delete huge;
  delete small;
  delete large;
  EXPECT_EQ(pages.used_bytes(), 0u);
}

TEST(ForkedChild, LeavesTheBudgetAndTheBlocksOfItsParentAlone) {
  NoteForks();
  std::string folder = (std::filesystem::temp_directory_path() / "ropewalk_forked.XXXXXX").string();
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  {
    auto store = blocks::BlockStore::Open({.memory_bytes_max = 64 << 20, .spill_dir = folder});
    ASSERT_TRUE(store.ok()) << store.status().ToString();
    const TaskAttempt producer{StageId{1}, 0, 1};
    auto writer = (*store)->NewSegment(producer, 1);
    ASSERT_TRUE(writer.ok());
    ASSERT_TRUE((*writer)->Append(0, std::as_bytes(std::span("bytes", 5)), 1).ok());
    auto info = (*writer)->Seal();
    ASSERT_TRUE(info.ok());
    const dag::SegmentRef ref{.producer = producer, .segment = info->segment, .location = "", .bytes = info->bytes};
    auto stream = (*store)->Open(ref, 0, 1);
    ASSERT_TRUE(stream.ok());
    auto unsealed = (*store)->NewSegment(producer, 1);
    ASSERT_TRUE((*unsealed)->Append(0, std::as_bytes(std::span("bytes", 5)), 1).ok());
    const blocks::StoreStats before = (*store)->stats();
    EXPECT_EQ(InChild([&] {
                auto opened = (*store)->Open(ref, 0, 1);
                if (opened.ok() || opened.status().tag() != "BLK44") return 1;
                stream->reset();
                unsealed->reset();
                const blocks::StoreStats now = (*store)->stats();
                return now.leases == before.leases && now.memory_bytes == before.memory_bytes ? 0 : 2;
              }),
              0);
    stream->reset();
    unsealed->reset();
    EXPECT_EQ((*store)->stats().leases, 0u);
    EXPECT_LT((*store)->stats().memory_bytes, before.memory_bytes);
  }
  std::filesystem::remove_all(folder);
}

// As it happens: another thread is always about to hold the lock.
TEST(ForkedChild, DoesNotHangBesideAThreadThatHoldsTheLocks) {
  NoteForks();
  HugePages pages;
  blocks::BufferPool pool(1 << 20, pages);
  std::atomic<bool> over{false};
  std::thread other([&] {
    while (!over) {
      const HugeBuffer huge = pages.Take(1);
      const blocks::Buffer small = pool.Get(100);
    }
  });
  for (int i = 0; i < 50; ++i) EXPECT_EQ(InChild([&] { return IsRefused([&] { (void)pool.Get(100); }) ? 0 : 1; }), 0);
  over = true;
  other.join();
}

}  // namespace
}  // namespace ropewalk
