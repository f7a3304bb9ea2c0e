// Sorting of strings: many shapes of keys, runs, blocks and partitions against std::stable_sort; damage and errors.
#include <gtest/gtest.h>

#include <random>

#include "tests/unit/sort_model.h"

namespace ropewalk::dag {
namespace {

using Lines = std::vector<std::vector<std::pair<std::string, std::uint32_t>>>;

Lines MakeLines(std::mt19937& random, const std::function<std::string()>& make) {
  Lines maps(random() % 5 + 1);
  std::uint32_t n = 0;
  for (auto& records : maps)
    for (std::size_t left = random() % 4 == 0 ? 0 : random() % 600; left > 0; --left) records.emplace_back(make(), n++);
  return maps;
}

TEST(Sort, StringsOfManyShapesInByteOrder) {
  std::uint32_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  auto bytes = [&](std::size_t n, int values) {
    std::string s;
    while (s.size() < n) s += static_cast<char>(random() % values);
    return s;
  };
  std::vector<std::pair<const char*, std::function<std::string()>>> kinds = {
      {"any bytes", [&] { return bytes(random() % 40, 256); }},
      {"few keys", [&] { return bytes(random() % 2, 3); }},
      {"zeros and prefixes of each other", [&] { return bytes(random() % 30, 2); }},
      {"one key", [&] { return std::string("same key that is longer than a prefix"); }},
      {"common prefix", [&] { return std::string(40, 'p') + std::to_string(random() % 500); }},
      {"long", [&] { return bytes(random() % 3 == 0 ? 5000 : 10, 2); }},
      {"long common prefix, cut marks", [&] { return std::string(4100, 'p') + std::to_string(random() % 50); }},
      {"a's", [&] { return std::string(random() % 300, 'a'); }},
  };
  for (auto& [name, make] : kinds) {
    SCOPED_TRACE(name);
    Lines maps = MakeLines(random, make);
    CheckAll<std::string, std::uint32_t>(maps, NaturalOrder<std::string>());
    if (::testing::Test::HasFatalFailure()) return;
    CheckAll<std::string, std::uint32_t>(maps, Descending<NaturalOrder<std::string>>());
    if (::testing::Test::HasFatalFailure()) return;
  }
}

TEST(Sort, ManyEqualPrefixesGoThroughTheByteTies) {
  std::uint32_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  Lines maps(1);
  for (std::uint32_t i = 0; i < 20000; ++i) {
    std::string key(random() % 64, random() % 8 ? 'a' : '\0');
    if (random() % 3 == 0) key += static_cast<char>(random());
    maps[0].emplace_back(key, i);
  }
  for (bool descending : {false, true}) {
    auto check = [&](auto order) {
      auto got = RunSort<std::string, std::uint32_t>(maps, 3, order, {});
      EXPECT_TRUE(got.records == (Model<std::string, std::uint32_t>(maps, order)));
    };
    descending ? check(Descending<NaturalOrder<std::string>>()) : check(NaturalOrder<std::string>());
  }
}

TEST(Sort, PartitionsAreEvenAndEqualKeysAreDivided) {
  Lines maps(4);
  for (std::uint32_t i = 0; i < 8000; ++i) maps[i % 4].emplace_back("hot", i);
  auto got = RunSort<std::string, std::uint32_t>(maps, 8, NaturalOrder<std::string>(), {.block_bytes = 1000});
  for (std::size_t n : got.partition_sizes) EXPECT_NEAR(n, 1000, 100);
}

TEST(Sort, FewRecordsOverManyPartitionsAndNone) {
  Lines maps = {{{"b", 0}}, {}, {{"a", 1}}};
  auto got = RunSort<std::string, std::uint32_t>(maps, 4, NaturalOrder<std::string>(), {});
  ASSERT_EQ(got.records.size(), 2u);
  EXPECT_EQ(got.records[0].first, "a");
  EXPECT_TRUE((RunSort<std::string, std::uint32_t>({{}, {}}, 4, NaturalOrder<std::string>(), {}).records.empty()));
  EXPECT_TRUE((RunSort<std::string, std::uint32_t>({}, 2, NaturalOrder<std::string>(), {}).records.empty()));
}

TEST(Sort, KeysWithoutPayloadAreHandedOutAloneAndLongerThanABlock) {
  FakeTask task;
  for (int m = 0; m < 3; ++m) {
    auto segment = task.blocks.NewSegment({}, kSortParts);
    SortWriter<std::string, Nothing, NaturalOrder<std::string>> writer({.memory_bytes_max = 8 << 20, .block_bytes = 1000}, segment->get());
    writer.Add(std::string(5'000'000, static_cast<char>('z' - m)));
    writer.Add("");
    writer.Add("short");
    ASSERT_TRUE(writer.Finish().ok());
    ASSERT_TRUE((*segment)->Seal().ok());
  }
  TaskInput input = task.blocks.Input();
  std::vector<std::string> got;
  for (std::uint32_t p = 0; p < 3; ++p) {
    ASSERT_TRUE((MergeSorted<std::string, Nothing>(task.context, input, p, 3, NaturalOrder<std::string>(),
                                                   [&](std::span<const std::string_view> batch) -> Status {
                                                     got.insert(got.end(), batch.begin(), batch.end());
                                                     return {};
                                                   })
                     .ok()));
  }
  std::vector<std::size_t> sizes;
  for (auto& s : got) sizes.push_back(s.size());
  EXPECT_EQ(sizes, (std::vector<std::size_t>{0, 0, 0, 5, 5, 5, 5'000'000, 5'000'000, 5'000'000}));
  EXPECT_EQ(got[6][0], 'x');
  EXPECT_EQ(got[8][0], 'z');
}

TEST(SortArena, FindsEveryRecordByItsOffsetAndGivesItsMemoryBack) {
  std::uint32_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  constexpr std::size_t kChunk = 2 << 20;
  HugePages pages;
  SortArena arena(&pages);
  for (int round = 0; round < 3; ++round) {
    std::vector<std::size_t> sizes = {0, kChunk, 0, kChunk - 1, 1, 0, kChunk + 1, 3 * kChunk, 2 * kChunk - 1, 1, 1};
    for (int i = 0; i < 3000; ++i) sizes.push_back(random() % (i % 500 == 0 ? 3 * kChunk : 2000));
    std::vector<std::uint64_t> offsets;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      char* at = arena.Allocate(sizes[i], &offsets.emplace_back());
      std::memset(at, static_cast<int>(i), sizes[i]);
      ASSERT_EQ(arena.used(), offsets.back() + sizes[i]);
      ASSERT_TRUE(i == 0 || offsets[i] >= offsets[i - 1] + sizes[i - 1]);  // the order of places is the order of arrival
    }
    for (std::size_t i = 0; i < sizes.size(); ++i)
      ASSERT_TRUE(std::string_view(arena.At(offsets[i]), sizes[i]) == std::string(sizes[i], static_cast<char>(i))) << i;
    arena.Clear();
    EXPECT_EQ(arena.used(), 0u);
    EXPECT_EQ(pages.used_bytes(), 0u);
  }
}

TEST(Sort, MoreRunsThanAreOpenedWhole) {
  std::mt19937 random(1);
  Lines maps(50);
  for (std::uint32_t i = 0; i < 20000; ++i) maps[i % 50].emplace_back(std::to_string(random()), i);
  auto got = RunSort<std::string, std::uint32_t>(maps, 2, NaturalOrder<std::string>(), {.memory_bytes_max = 4000, .block_bytes = 300});
  EXPECT_TRUE(got.records == (Model<std::string, std::uint32_t>(maps, NaturalOrder<std::string>())));
}

TEST(Sort, DamageIsDataLossAndErrorsOfSegmentAndSinkComeThrough) {
  std::uint32_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  FakeTask task;
  for (int m = 0; m < 2; ++m) {
    auto segment = task.blocks.NewSegment({}, kSortParts);
    SortWriter<std::string, std::uint32_t, NaturalOrder<std::string>> writer({.block_bytes = 100}, segment->get());
    for (std::uint32_t i = 0; i < 100; ++i) writer.Add(std::to_string(random()), i);
    ASSERT_TRUE(writer.Finish().ok());
    ASSERT_TRUE((*segment)->Seal().ok());
  }
  TaskInput input = task.blocks.Input();
  using LineSink = Sink<NaturalOrder<std::string>, std::uint32_t>;
  LineSink sink = [](auto) -> Status { return {}; };
  auto merge = [&](LineSink s) {
    return MergeSorted<std::string, std::uint32_t>(task.context, input, 1, 3, NaturalOrder<std::string>(), s);
  };
  ASSERT_TRUE(merge(sink).ok());
  const auto good = task.blocks.segments;
  int noticed = 0;
  for (int round = 0; round < 6000; ++round) {
    task.blocks.segments = good;
    auto& extent = task.blocks.segments[1 + random() % 2][random() % 15];
    extent.bytes[random() % extent.bytes.size()] = static_cast<char>(random());
    Status status = merge(sink);  // must return; ASan watches
    noticed += status.code() == Code::kDataLoss;
  }
  // The fake blocks have no checksums: only damage to the structure is noticed here (45 of 2,000 flips with one seed).
  EXPECT_GT(noticed, 50);
  task.blocks.segments = good;
  EXPECT_EQ(merge([](auto) { return Status(Code::kUserError, "X", "sink"); }).tag(), "X");
  std::atomic<bool> cancelled = true;
  task.context.cancelled = &cancelled;
  EXPECT_EQ(merge(sink).code(), Code::kCancelled);
  task.context.cancelled = nullptr;
  task.blocks.segments.erase(2);
  EXPECT_EQ(merge(sink).code(), Code::kDataLoss);
}

}  // namespace
}  // namespace ropewalk::dag
