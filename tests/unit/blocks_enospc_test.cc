// A full spill disk: clear errors, and the store goes on once space is back. Needs root for a small tmpfs; skipped by name elsewhere.
#include <sched.h>
#include <sys/mount.h>

#include "tests/unit/blocks_testing.h"

namespace ropewalk::blocks {
namespace {

using testing::ExpectSame;

TEST(BlocksEnospc, WritersGetResourceExhaustedAndOldSegmentsStay) {
  testing::TempDir dir;
  if (::unshare(CLONE_NEWNS) != 0 || ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
      ::mount("tmpfs", dir.path().c_str(), "tmpfs", 0, "size=4m") != 0)
    GTEST_SKIP() << "lane small-tmpfs: mount needs root";
  std::mt19937_64 random(testing::Seed());
  auto opened = BlockStore::Open({.memory_bytes_max = 4u << 20, .spill_dir = dir.path()});
  ASSERT_TRUE(opened.ok());
  BlockStore& store = **opened;
  std::vector<dag::SegmentRef> refs;
  std::vector<testing::Model> models;
  Status failure;
  for (std::uint32_t task = 0; task < 20 && failure.ok(); ++task) {
    TaskAttempt producer{StageId{1}, task, 1};
    auto writer = store.NewSegment(producer, 1);
    std::string data = testing::RandomBytes(random, 1u << 20);
    failure = (*writer)->Append(0, AsBytes(data), 1);
    if (!failure.ok()) break;
    auto info = (*writer)->Seal();
    if (!info.ok()) {
      failure = info.status();
      break;
    }
    refs.push_back({.producer = producer, .segment = info->segment});
    models.push_back({{0, {{data, 1}}}});
  }
  ASSERT_EQ(failure.code(), Code::kResourceExhausted) << failure.ToString();
  EXPECT_NE(failure.ToString().find(dir.path()), std::string::npos) << failure.ToString();
  EXPECT_GE(refs.size(), 4u);
  for (std::size_t i = 0; i < refs.size(); ++i) ExpectSame(store, refs[i], 0, 1, models[i]);
  // Space comes back: writing goes on.
  std::vector<SegmentId> ids{refs[0].segment, refs[1].segment, refs[2].segment};
  ASSERT_TRUE(store.Free(ids).ok());
  auto writer = store.NewSegment({StageId{1}, 99, 1}, 1);
  std::string data = testing::RandomBytes(random, 1u << 20);
  ASSERT_TRUE((*writer)->Append(0, AsBytes(data), 1).ok());
  ASSERT_TRUE((*writer)->Seal().ok());
  writer->reset();
  opened->reset();
  EXPECT_EQ(::umount(dir.path().c_str()), 0);
}

}  // namespace
}  // namespace ropewalk::blocks
