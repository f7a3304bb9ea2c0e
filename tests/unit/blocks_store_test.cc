// The block store against a simple model: what was written comes back, whatever was spilled, freed or read meanwhile.
#include <sys/stat.h>
#include <sys/wait.h>

#include <atomic>
#include <fstream>
#include <thread>

#include "tests/unit/blocks_testing.h"

namespace ropewalk::blocks {
namespace {

using testing::ExpectSame;
using testing::Fill;
using testing::InAForkedChild;
using testing::Model;
using testing::Seed;
using testing::TempDir;

std::unique_ptr<BlockStore> OpenStore(const TempDir& dir, std::uint64_t memory_bytes_max, JobId job = {}) {
  auto store = BlockStore::Open({.memory_bytes_max = memory_bytes_max, .spill_dir = dir.path(), .job = job});
  EXPECT_TRUE(store.ok()) << store.status().ToString();
  return *std::move(store);
}

TaskAttempt Producer(std::uint32_t task) { return {StageId{7}, task, 1}; }

struct Written {
  dag::SegmentRef ref;
  dag::SegmentInfo info;
  std::uint32_t parts = 0;
  Model model;
};

Written Write(BlockStore& store, std::mt19937_64& random, std::uint32_t task, std::uint32_t parts, std::size_t extents,
              std::size_t largest) {
  Written written{.parts = parts};
  auto writer = store.NewSegment(Producer(task), parts);
  EXPECT_TRUE(writer.ok());
  written.model = Fill(**writer, random, parts, extents, largest);
  auto info = (*writer)->Seal();
  EXPECT_TRUE(info.ok()) << info.status().ToString();
  written.info = *info;
  written.ref = {.producer = Producer(task), .segment = info->segment, .bytes = info->bytes};
  return written;
}

std::vector<std::string> FilesBelow(const std::string& path) {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(path))
    if (entry.is_regular_file() && entry.path().extension() == ".run") files.push_back(entry.path());
  return files;
}

TEST(BlocksStore, RandomSegmentsComeBackInMemoryAndSpilled) {
  std::mt19937_64 random(Seed());
  for (std::uint64_t budget : {std::uint64_t(0), std::uint64_t(3) << 20, std::uint64_t(1) << 30}) {
    TempDir dir;
    auto store = OpenStore(dir, budget);
    std::vector<Written> all;
    std::uint64_t bytes = 0;
    for (std::uint32_t task = 0; task < 30; ++task) {
      std::uint32_t parts = task % 5 == 0 ? 0 : 1 + random() % 40;
      all.push_back(Write(*store, random, task, parts, random() % 40, task % 7 == 3 ? 5u << 20 : 200u << 10));
      bytes += all.back().info.bytes;
    }
    EXPECT_EQ(store->stats().segments, 30u);
    EXPECT_EQ(store->List().size(), 30u);
    if (budget == 0) {
      EXPECT_GE(store->stats().spilled_bytes, bytes);
    }
    if (budget == 3u << 20) {
      EXPECT_GT(store->stats().spilled_bytes, 0u);
      // One small buffer of a writer may come on top.
      EXPECT_LE(store->stats().memory_bytes_peak, budget + (2u << 20));
    }
    if (budget == 1u << 30) {
      EXPECT_EQ(store->stats().spilled_bytes_total, 0u);
    }
    for (const Written& w : all) {
      std::uint64_t expected = 0;
      for (const auto& [part, extents] : w.model)
        for (const auto& [data, records] : extents) expected += data.size();
      EXPECT_EQ(w.info.bytes, expected);
      ExpectSame(*store, w.ref, 0, w.parts, w.model);
      if (w.parts > 2) ExpectSame(*store, w.ref, 1, w.parts / 2, w.model);
      ExpectSame(*store, w.ref, w.parts, 5, {});
    }
    EXPECT_EQ(store->stats().leases, 0u);
    std::vector<SegmentId> ids;
    for (const Written& w : all) ids.push_back(w.ref.segment);
    ASSERT_TRUE(store->Free(ids).ok());
    ASSERT_TRUE(store->Free(ids).ok());
    EXPECT_EQ(store->stats().memory_bytes, 0u);
    EXPECT_EQ(store->stats().spilled_bytes, 0u);
    EXPECT_EQ(store->stats().segments, 0u);
    EXPECT_TRUE(FilesBelow(dir.path()).empty());
  }
}

TEST(BlocksStore, ContentHashIsOfTheRecordsAndNotOfPlaceOrOrderOfParts) {
  TempDir dir;
  auto roomy = OpenStore(dir, 1u << 30), tight = OpenStore(dir, 0);
  auto hash = [](BlockStore& store, std::vector<std::pair<std::uint32_t, std::string>> extents) {
    auto writer = store.NewSegment(Producer(1), 4);
    for (const auto& [part, data] : extents) EXPECT_TRUE((*writer)->Append(part, AsBytes(data), 1).ok());
    return (*writer)->Seal()->content_hash;
  };
  std::uint64_t expected = hash(*roomy, {{0, "a"}, {1, "b"}, {1, "c"}});
  EXPECT_EQ(expected, hash(*tight, {{0, "a"}, {1, "b"}, {1, "c"}}));
  EXPECT_EQ(expected, hash(*roomy, {{1, "b"}, {0, "a"}, {1, "c"}}));
  EXPECT_NE(expected, hash(*roomy, {{0, "a"}, {1, "c"}, {1, "b"}}));
  EXPECT_NE(expected, hash(*roomy, {{0, "a"}, {1, "bc"}}));
  EXPECT_NE(expected, hash(*roomy, {{0, "a"}, {2, "b"}, {1, "c"}}));
}

TEST(BlocksStore, ExtentsInMemoryAreViewsAndOutliveFreeAndStore) {
  std::mt19937_64 random(Seed());
  TempDir dir;
  auto store = OpenStore(dir, 64u << 20);
  Written w = Write(*store, random, 1, 1, 20, 2u << 20);
  auto stream = store->Open(w.ref, 0, 1);
  auto again = store->Open(w.ref, 0, 1);
  auto first = (*stream)->Next(), same = (*again)->Next();
  ASSERT_TRUE(first.ok() && first->has_value() && same.ok());
  EXPECT_EQ((*first)->bytes.data(), (*same)->bytes.data()) << "a copy was made";
  ASSERT_TRUE(store->Free(std::span(&w.ref.segment, 1)).ok());
  EXPECT_EQ(store->Open(w.ref, 0, 1).status().code(), Code::kDataLoss);
  EXPECT_GT(store->stats().memory_bytes, 0u) << "memory counts until the last lease ends";
  (*again).reset();
  *same = std::nullopt;
  std::vector<dag::Extent> extents{**first};
  while (true) {
    auto next = (*stream)->Next();
    ASSERT_TRUE(next.ok());
    if (!next->has_value()) break;
    extents.push_back(**next);
  }
  (*stream).reset();
  *first = std::nullopt;
  EXPECT_GT(store->stats().memory_bytes, 0u);
  store.reset();
  ASSERT_EQ(extents.size(), w.model[0].size());
  for (std::size_t i = 0; i < extents.size(); ++i) EXPECT_TRUE(AsView(extents[i].bytes) == w.model[0][i].first);
}

TEST(BlocksStore, OnlyUnleasedSegmentsSpillLeastRecentlyUsedFirst) {
  std::mt19937_64 random(Seed());
  TempDir dir;
  auto store = OpenStore(dir, 8u << 20);
  std::vector<Written> all;
  for (std::uint32_t task = 0; task < 3; ++task) {
    auto writer = store->NewSegment(Producer(task), 1);
    Written w{.parts = 1};
    w.model[0].emplace_back(testing::RandomBytes(random, 2u << 20), 1);
    ASSERT_TRUE((*writer)->Append(0, AsBytes(w.model[0][0].first), 1).ok());
    w.info = *(*writer)->Seal();
    w.ref = {.producer = Producer(task), .segment = w.info.segment};
    all.push_back(std::move(w));
  }
  auto held = store->Open(all[0].ref, 0, 1);           // leased: must stay in memory
  ExpectSame(*store, all[1].ref, 0, 1, all[1].model);  // used: 2 is now the oldest
  auto pointer = (*held)->Next();
  ASSERT_TRUE(pointer.ok() && pointer->has_value());
  Written big = Write(*store, random, 9, 1, 0, 0);
  auto writer = store->NewSegment(Producer(10), 1);
  std::string bytes = testing::RandomBytes(random, 4u << 20);
  ASSERT_TRUE((*writer)->Append(0, AsBytes(bytes), 1).ok());
  ASSERT_TRUE((*writer)->Seal().ok());
  EXPECT_EQ(FilesBelow(dir.path()).size(), 1u);
  auto of_1 = store->Open(all[1].ref, 0, 1);
  auto a = (*of_1)->Next();
  auto of_1_again = store->Open(all[1].ref, 0, 1);
  auto b = (*of_1_again)->Next();
  EXPECT_EQ((*a)->bytes.data(), (*b)->bytes.data()) << "1 was used later than 2 and must still be in memory";
  EXPECT_TRUE(AsView((*pointer)->bytes) == all[0].model[0][0].first);
  ExpectSame(*store, all[2].ref, 0, 1, all[2].model);
}

TEST(BlocksStore, ConcurrentWritersReadersSpillingAndFrees) {
  TempDir dir;
  auto store = OpenStore(dir, 12u << 20);
  std::atomic<std::uint64_t> read{0};
  std::vector<std::thread> threads;
  for (std::uint32_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 random(Seed() + t);
      std::vector<Written> mine;
      for (std::uint32_t round = 0; round < 25; ++round) {
        mine.push_back(Write(*store, random, t * 1000 + round, 8, 12, 600u << 10));
        const Written& w = mine[random() % mine.size()];
        ExpectSame(*store, w.ref, 0, w.parts, w.model);
        read += w.info.bytes;
        if (random() % 3 == 0) {
          std::size_t victim = random() % mine.size();
          auto stream = store->Open(mine[victim].ref, 0, 8);
          ASSERT_TRUE(stream.ok());
          ASSERT_TRUE(store->Free(std::span(&mine[victim].ref.segment, 1)).ok());
          std::uint64_t bytes = 0;
          while (true) {
            auto extent = (*stream)->Next();
            ASSERT_TRUE(extent.ok()) << extent.status().ToString();
            if (!extent->has_value()) break;
            bytes += (*extent)->bytes.size();
          }
          EXPECT_EQ(bytes, mine[victim].info.bytes);
          mine.erase(mine.begin() + static_cast<std::ptrdiff_t>(victim));
        }
      }
      std::vector<SegmentId> ids;
      for (const Written& w : mine) ids.push_back(w.ref.segment);
      ASSERT_TRUE(store->Free(ids).ok());
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(store->stats().spilled_bytes_total, 0u);
  EXPECT_EQ(store->stats().memory_bytes, 0u);
  EXPECT_EQ(store->stats().segments, 0u);
  EXPECT_TRUE(FilesBelow(dir.path()).empty());
}

TEST(BlocksStore, WriterWithoutSealLeavesNothing) {
  std::mt19937_64 random(Seed());
  TempDir dir;
  auto store = OpenStore(dir, 4u << 20);
  for (std::size_t largest : {1u << 10, 6u << 20}) {
    auto writer = store->NewSegment(Producer(1), 3);
    Fill(**writer, random, 3, 30, largest);
  }
  EXPECT_EQ(store->stats().memory_bytes, 0u);
  EXPECT_EQ(store->stats().segments, 0u);
  EXPECT_TRUE(FilesBelow(dir.path()).empty());
}

TEST(BlocksStore, DamagedOrMissingRunFilesAreDataLossThatNamesTheProducer) {
  std::mt19937_64 random(Seed());
  TempDir dir;
  std::vector<SegmentId> lost;
  auto opened =
      BlockStore::Open({.memory_bytes_max = 0, .spill_dir = dir.path(), .on_lost = [&](JobId, SegmentId id) { lost.push_back(id); }});
  ASSERT_TRUE(opened.ok());
  BlockStore& store = **opened;
  Written w = Write(store, random, 42, 1, 10, 50000);
  std::string path = FilesBelow(dir.path()).at(0);
  int fd = ::open(path.c_str(), O_RDWR);
  for (int i = 0; i < 50; ++i) {
    off_t at = static_cast<off_t>(random() % w.info.bytes);
    unsigned char byte, flipped;
    ASSERT_EQ(::pread(fd, &byte, 1, at), 1);
    flipped = static_cast<unsigned char>(byte ^ (1u << (random() % 8)));
    ASSERT_EQ(::pwrite(fd, &flipped, 1, at), 1);
    Status status = testing::Drain(store, w.ref, 1);
    EXPECT_EQ(status.code(), Code::kDataLoss);
    EXPECT_NE(status.what().find("stage 7 task 42 attempt 1"), std::string::npos) << status.ToString();
    ASSERT_EQ(::pwrite(fd, &byte, 1, at), 1);
  }
  EXPECT_TRUE(testing::Drain(store, w.ref, 1).ok());
  ASSERT_EQ(::ftruncate(fd, static_cast<off_t>(w.info.bytes / 2)), 0);
  EXPECT_EQ(testing::Drain(store, w.ref, 1).code(), Code::kDataLoss);
  ::close(fd);
  ::unlink(path.c_str());
  EXPECT_EQ(testing::Drain(store, w.ref, 1).code(), Code::kDataLoss);
  EXPECT_EQ(lost, std::vector<SegmentId>{w.ref.segment});
  EXPECT_EQ(store.stats().segments, 0u) << "a segment that is known to be lost is not reported as held";
}

TEST(BlocksStore, MemoryIsVerifiedToo) {
  TempDir dir;
  auto store = OpenStore(dir, 64u << 20);
  auto writer = store->NewSegment(Producer(3), 1);
  std::string bytes(100000, 'x');
  ASSERT_TRUE((*writer)->Append(0, AsBytes(bytes), 1).ok());
  auto info = (*writer)->Seal();
  dag::SegmentRef ref{.producer = Producer(3), .segment = info->segment};
  auto extent = (*store->Open(ref, 0, 1))->Next();
  const_cast<std::byte&>((*extent)->bytes[777]) ^= std::byte{4};  // a stray write of user code
  EXPECT_EQ(testing::Drain(*store, ref, 1).code(), Code::kDataLoss);
}

TEST(BlocksStore, AnIdOfAnotherLifeOrJobIsGone) {
  std::mt19937_64 random(Seed());
  TempDir dir;
  auto store = OpenStore(dir, 64u << 20, JobId{5});
  Written w = Write(*store, random, 1, 1, 3, 100);
  dag::SegmentRef other = w.ref;
  other.producer.attempt = 2;
  EXPECT_EQ(testing::Drain(*store, other, 1).code(), Code::kDataLoss);
  EXPECT_EQ(store->Lease(JobId{6}, w.ref.producer, w.ref.segment).status().code(), Code::kDataLoss);
  EXPECT_TRUE(store->Lease(JobId{5}, w.ref.producer, w.ref.segment).ok());
  store->FreeOf(JobId{6}, std::span(&w.ref.segment, 1));
  EXPECT_EQ(store->stats().segments, 1u);
  store->FreeJob(JobId{5});
  EXPECT_EQ(store->stats().segments, 0u);
}

TEST(BlocksStore, PartOutOfRangeIsRefused) {
  TempDir dir;
  auto store = OpenStore(dir, 64u << 20);
  auto writer = store->NewSegment(Producer(3), 2);
  EXPECT_EQ((*writer)->Append(2, {}, 1).code(), Code::kInternal);
}

TEST(BlocksStore, FullSpillDiskIsResourceExhausted) {
  // /dev/full cannot be a folder, so the folder is taken away instead: creating run files fails. The disk-full lane is in
  // blocks_enospc_test.
  std::mt19937_64 random(Seed());
  TempDir dir;
  auto store = OpenStore(dir, 0);
  std::filesystem::remove_all(dir.path());
  auto writer = store->NewSegment(Producer(3), 2);
  std::string bytes(1000, 'x');
  Status status = (*writer)->Append(0, AsBytes(bytes), 1);
  EXPECT_EQ(status.code(), Code::kResourceExhausted) << status.ToString();
  EXPECT_NE(status.what().find(dir.path()), std::string::npos);
}

TEST(BlocksStore, LeftoversOfDeadOwnersAreSweptAndLivingOnesAreNot) {
  std::mt19937_64 random(Seed());
  TempDir dir;
  pid_t child = ::fork();
  if (child == 0) {
    auto store = OpenStore(dir, 0);
    Write(*store, random, 1, 1, 10, 10000);
    ::_exit(FilesBelow(dir.path()).empty() ? 1 : 0);  // as kill -9 would: no destructor
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0);
  ASSERT_FALSE(FilesBelow(dir.path()).empty());
  auto living = OpenStore(dir, 0);
  EXPECT_TRUE(FilesBelow(dir.path()).empty());
  Written w = Write(*living, random, 1, 1, 10, 10000);
  auto second = OpenStore(dir, 0);
  ExpectSame(*living, w.ref, 0, 1, w.model);
}

// A worker that was killed: what lay on its disk whole belongs to its next process; torn files do not.
TEST(BlocksStore, RunFilesOfADeadOwnerAreTakenOverWhereAsked) {
  std::mt19937_64 random(Seed());
  TempDir dir;
  auto open = [&](std::uint64_t memory_bytes_max) {
    auto store = BlockStore::Open({.memory_bytes_max = memory_bytes_max, .spill_dir = dir.path(), .keep_run_files = true, .job = JobId{5}});
    EXPECT_TRUE(store.ok()) << store.status().ToString();
    return *std::move(store);
  };
  const std::string durable = testing::SegmentBytes(Producer(3), JobId{5}, 2, {{0, "kept"}, {1, std::string(300, 'k')}});
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  pid_t child = ::fork();
  if (child == 0) {
    auto spilling = open(0);  // all of it spills
    dag::SegmentInfo infos[2] = {Write(*spilling, random, 1, 3, 10, 10000).info, Write(*spilling, random, 2, 3, 10, 10000).info};
    auto roomy = open(64u << 20);  // nothing of it spills but what must
    Write(*roomy, random, 9, 3, 10, 10000);
    auto adopted = roomy->Adopt(Producer(3), JobId{5}, testing::SealedMemfd(durable), nullptr, true);
    bool good = adopted.ok() && roomy->stats().memory_bytes > 0 && roomy->stats().spilled_bytes > durable.size() - 100;
    good &= ::write(ends[1], infos, sizeof infos) == static_cast<ssize_t>(sizeof infos) &&
            ::write(ends[1], &*adopted, sizeof *adopted) == static_cast<ssize_t>(sizeof *adopted);
    ::_exit(good ? 0 : 1);  // as kill -9 would
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0);
  dag::SegmentInfo infos[3];
  ASSERT_EQ(::read(ends[0], infos, sizeof infos), static_cast<ssize_t>(sizeof infos));
  ::close(ends[0]);
  ::close(ends[1]);
  ASSERT_EQ(FilesBelow(dir.path()).size(), 3u);
  {
    const std::string folder = FilesBelow(dir.path()).front().substr(0, FilesBelow(dir.path()).front().rfind('/'));
    std::ofstream(folder + "/torn.j-005.run") << durable.substr(0, durable.size() / 2);
    // What an executor of job 6 wrote into its own run file, pretending to be of job 5; and one that nobody named.
    std::ofstream(folder + "/forged.j-006.run") << durable;
    std::ofstream(folder + "/nameless.run") << durable;
  }
  for (int generation = 0; generation < 2; ++generation) {  // also over an end in peace
    auto store = open(64u << 20);
    std::vector<HeldSegment> held = store->List();
    ASSERT_EQ(held.size(), 3u) << "generation " << generation;
    std::sort(held.begin(), held.end(), [](const auto& a, const auto& b) { return a.ref.producer.task < b.ref.producer.task; });
    for (std::uint32_t i = 0; i < 3; ++i) {
      EXPECT_EQ(held[i].job, JobId{5});
      EXPECT_EQ(held[i].ref.producer, Producer(i + 1));
      EXPECT_EQ(held[i].info.content_hash, infos[i].content_hash);
      EXPECT_EQ(held[i].info.records, infos[i].records);
    }
    EXPECT_EQ(testing::Drain(*store, held[2].ref, 2).code(), Code::kOk);
    EXPECT_EQ(store->stats().memory_bytes, 0u);
    EXPECT_EQ(FilesBelow(dir.path()).size(), 3u) << "torn, forged and nameless ones are gone";
  }
  auto store = open(64u << 20);
  store->FreeJob(JobId{5});
  EXPECT_TRUE(FilesBelow(dir.path()).empty());
}

// The same of a segment that its writer put into a file that it got for want of memory, as copies of deep lineage are.
TEST(BlocksStore, ADurableSegmentWrittenToDiskOutlivesItsOwner) {
  TempDir dir;
  const std::string bytes = testing::SegmentBytes(Producer(4), JobId{6}, 2, {{0, "copy"}, {1, std::string(300, 'c')}});
  StoreOptions options{.memory_bytes_max = 0, .spill_dir = dir.path(), .keep_run_files = true};
  {
    auto store = BlockStore::Open(options);
    ASSERT_TRUE(store.ok()) << store.status().ToString();
    auto reservation = (*store)->Reserve(JobId{6});
    auto fits = reservation->Extend(bytes.size());
    ASSERT_TRUE(fits.ok()) << fits.status().ToString();
    ASSERT_TRUE(!*fits && reservation->on_disk());
    ASSERT_EQ(::pwrite(reservation->fd(), bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
    auto adopted = (*store)->Adopt(Producer(4), JobId{6}, -1, reservation.get(), true);
    ASSERT_TRUE(adopted.ok()) << adopted.status().ToString();
    EXPECT_EQ((*store)->stats().memory_bytes, 0u);
  }
  auto store = BlockStore::Open(options);
  ASSERT_TRUE(store.ok()) << store.status().ToString();
  std::vector<HeldSegment> held = (*store)->List();
  ASSERT_EQ(held.size(), 1u);
  EXPECT_EQ(held[0].job, JobId{6});
  EXPECT_EQ(held[0].ref.producer, Producer(4));
  EXPECT_EQ(held[0].info.records, 2u);
}

// ---- adopted segments ----------------------------------------------------------------------------------------------------------------

TEST(BlocksAdopt, EveryFlippedBitIsDetected) {
  TempDir dir;
  auto store = OpenStore(dir, 64u << 20);
  std::string good = testing::SegmentBytes(Producer(1), JobId{5}, 3, {{0, "alpha"}, {2, std::string(300, 'b')}, {0, "gamma"}, {1, ""}});
  auto adopted = store->Adopt(Producer(1), JobId{5}, testing::SealedMemfd(good));
  ASSERT_TRUE(adopted.ok()) << adopted.status().ToString();
  EXPECT_EQ(adopted->bytes, 310u);
  for (std::size_t bit = 0; bit < good.size() * 8; ++bit) {
    std::string bad = good;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << (bit % 8)));
    auto info = store->Adopt(Producer(1), JobId{5}, testing::SealedMemfd(bad));
    if (!info.ok()) {
      EXPECT_EQ(info.status().code(), Code::kDataLoss);
      continue;
    }
    ASSERT_LT(bit / 8, 310u) << "a flipped bit of the index or footer was accepted";
    auto lease = store->Lease(JobId{5}, Producer(1), info->segment);
    ASSERT_TRUE(lease.ok());
    int wrong = 0;
    for (const ExtentEntry& entry : (*lease)->index().entries) {
      std::string bytes(entry.length, '\0');
      ASSERT_TRUE(ReadExactly((*lease)->fd(), entry.offset, std::as_writable_bytes(std::span(bytes)), Producer(1)).ok());
      wrong += VerifyExtent(entry, AsBytes(bytes), Producer(1)).ok() ? 0 : 1;
    }
    EXPECT_EQ(wrong, 1) << "bit " << bit;
  }
}

TEST(BlocksAdopt, WrongSizesOwnersAndSealsAreRefused) {
  TempDir dir;
  auto store = OpenStore(dir, 64u << 20);
  std::string good = testing::SegmentBytes(Producer(1), JobId{5}, 1, {{0, "alpha"}});
  for (std::size_t size = 0; size < good.size(); ++size)
    EXPECT_EQ(store->Adopt(Producer(1), JobId{5}, testing::SealedMemfd(good.substr(0, size))).status().code(), Code::kDataLoss);
  EXPECT_EQ(store->Adopt(Producer(1), JobId{5}, testing::SealedMemfd("x" + good)).status().code(), Code::kDataLoss);
  EXPECT_EQ(store->Adopt(Producer(1), JobId{5}, testing::SealedMemfd(good + "x")).status().code(), Code::kDataLoss);
  EXPECT_EQ(store->Adopt(Producer(2), JobId{5}, testing::SealedMemfd(good)).status().code(), Code::kDataLoss);
  EXPECT_EQ(store->Adopt(Producer(1), JobId{6}, testing::SealedMemfd(good)).status().code(), Code::kDataLoss);
  for (int seals : {0, F_SEAL_SHRINK, F_SEAL_SHRINK | F_SEAL_GROW, F_SEAL_GROW | F_SEAL_WRITE})
    EXPECT_EQ(store->Adopt(Producer(1), JobId{5}, testing::SealedMemfd(good, seals)).status().code(), Code::kInvalid);
  int file = ::open(dir.path().c_str(), O_TMPFILE | O_RDWR, 0600);
  if (file >= 0) {
    ASSERT_EQ(::pwrite(file, good.data(), good.size(), 0), static_cast<ssize_t>(good.size()));
    EXPECT_EQ(store->Adopt(Producer(1), JobId{5}, file).status().code(), Code::kInvalid);
  }
  EXPECT_EQ(store->stats().memory_bytes, 0u);
  EXPECT_EQ(store->stats().segments, 0u);
  EXPECT_TRUE(store->Adopt(Producer(1), JobId{5}, testing::SealedMemfd(good)).ok());
}

TEST(BlocksAdopt, AdoptedSegmentsSpillAndComeBack) {
  std::mt19937_64 random(Seed());
  TempDir dir;
  auto store = OpenStore(dir, 3u << 20, JobId{5});
  std::vector<std::pair<dag::SegmentRef, std::string>> all;
  for (std::uint32_t task = 0; task < 10; ++task) {
    std::string data = testing::RandomBytes(random, task == 6 ? 5u << 20 : 1u << 20);
    auto info =
        store->Adopt(Producer(task), JobId{5}, testing::SealedMemfd(testing::SegmentBytes(Producer(task), JobId{5}, 1, {{0, data}})));
    ASSERT_TRUE(info.ok()) << info.status().ToString();
    all.push_back({{.producer = Producer(task), .segment = info->segment}, data});
  }
  EXPECT_LE(store->stats().memory_bytes_peak, 3u << 20);
  EXPECT_GE(FilesBelow(dir.path()).size(), 7u);
  for (const auto& [ref, data] : all) ExpectSame(*store, ref, 0, 1, {{0, {{data, 1}}}});
}

// A child that a job's code forks, and that comes back from it, goes on writing what its parent writes.
TEST(BlocksStore, AForkedChildWritesNothingIntoItsParentsSegment) {
  for (const std::uint64_t budget : {std::uint64_t(0), std::uint64_t(1) << 30}) {
    TempDir dir;
    auto store = OpenStore(dir, budget);
    auto writer = store->NewSegment(Producer(1), 1);
    ASSERT_TRUE(writer.ok());
    std::string all(3u << 20, 'p');
    ASSERT_TRUE((*writer)->Append(0, AsBytes(all), 1).ok());
    InAForkedChild(
        [&] {
          const std::string other(5u << 20, 'c');
          const Status small = (*writer)->Append(0, AsBytes(std::string_view(other).substr(0, 9'000)), 1);
          const Status large = (*writer)->Append(0, AsBytes(other), 1);
          const Status sealed = (*writer)->Seal().status();
          writer->reset();
          return (small.ok() || small.tag() == "BLK44") && large.tag() == "BLK44" && sealed.tag() == "BLK44";
        },
        [&] {
          const std::string more(6u << 20, 'q');
          ASSERT_TRUE((*writer)->Append(0, AsBytes(more), 1).ok());
        });
    EXPECT_EQ(FilesBelow(dir.path()).size(), budget == 0 ? 1u : 0u);
    auto info = (*writer)->Seal();
    ASSERT_TRUE(info.ok()) << info.status().ToString();
    ExpectSame(*store, {.producer = Producer(1), .segment = info->segment, .bytes = info->bytes}, 0, 1,
               {{0, {{all, 1}, {std::string(6u << 20, 'q'), 1}}}});
  }
}

// ---- spill space -----------------------------------------------------------------------------------------------------------------------

TEST(BlocksSpill, RandomAppendsAndReads) {
  std::mt19937_64 random(Seed());
  TempDir dir;
  auto space = NewSpillSpace(dir.path());
  for (int round = 0; round < 10; ++round) {
    auto file = space->Create();
    ASSERT_TRUE(file.ok()) << file.status().ToString();
    std::string all;
    for (std::uint64_t i = random() % 30; i > 0; --i) {
      std::string piece = testing::RandomBytes(random, testing::RandomSize(random, 700u << 10));
      ASSERT_TRUE((*file)->Append(AsBytes(piece)).ok());
      all += piece;
    }
    EXPECT_EQ((*file)->bytes(), all.size());
    ASSERT_TRUE((*file)->FinishWriting().ok());
    EXPECT_EQ((*file)->bytes(), all.size());
    for (int i = 0; i < 50; ++i) {
      std::uint64_t offset = random() % (all.size() + 10);
      std::string out(random() % (600u << 10), '\0');
      auto n = (*file)->ReadAt(offset, std::as_writable_bytes(std::span(out)));
      ASSERT_TRUE(n.ok()) << n.status().ToString();
      ASSERT_EQ(*n, offset >= all.size() ? 0 : std::min(out.size(), all.size() - offset));
      EXPECT_TRUE(out.compare(0, *n, all, std::min<std::size_t>(offset, all.size()), *n) == 0);
    }
  }
  EXPECT_TRUE(std::filesystem::is_empty(dir.path())) << "spill files have no names";
}

TEST(BlocksSpill, AForkedChildWritesNothingIntoItsParentsFile) {
  TempDir dir;
  auto file = NewSpillSpace(dir.path())->Create();
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  std::string all(300u << 10, 'p');
  const std::string more(900u << 10, 'q');
  ASSERT_TRUE((*file)->Append(AsBytes(all)).ok());
  InAForkedChild([&] { return (*file)->Append(AsBytes(std::string(1u << 20, 'c'))).tag() == "BLK44" && !(*file)->FinishWriting().ok(); },
                 [&] { ASSERT_TRUE((*file)->Append(AsBytes(more)).ok()); });
  all += more;
  ASSERT_TRUE((*file)->FinishWriting().ok());
  std::string out(all.size(), '\0');
  auto n = (*file)->ReadAt(0, std::as_writable_bytes(std::span(out)));
  ASSERT_TRUE(n.ok()) << n.status().ToString();
  EXPECT_TRUE(out == all);
}

}  // namespace
}  // namespace ropewalk::blocks
