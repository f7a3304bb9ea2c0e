// What ranks measure, as it is kept: encoded and read back, merged in bounded memory, and in a file that outlives its process.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "base/random.h"
#include "storage/metric_file.h"
#include "tests/unit/faulty_files.h"
#include "tests/unit/temp_folder.h"

namespace ropewalk::storage {
namespace {

// A step whose loss is `loss`, of a rank.
Metrics StepOf(std::uint64_t step, double loss, std::uint32_t rank = 0, std::uint64_t gang = 1) {
  return {{{gang, "step", rank, "w1", {"loss"}, {{step, step, 1000, {{loss, 1}}}}}}, {}};
}

TEST(StorageMetrics, WhatIsEncodedIsReadBack) {
  Metrics metrics = StepOf(7, 1.5);
  metrics.series.push_back({9, "evaluation", 3, "", {"a", "b"}, {{1, 4, -5, {{2, 3}}}, {5, 5, 6, {{0, 0}, {8, 1}}}}});
  metrics.notices.push_back({9, "straggler", 2, "w2", 50, 12, 1.9, "rank 2 on w2"});
  const std::string bytes = Encode(metrics);
  auto read = DecodeMetrics(bytes);
  ASSERT_TRUE(read.ok()) << read.status().ToString();
  EXPECT_EQ(*read, metrics);
  for (std::size_t length = 0; length < bytes.size(); ++length) EXPECT_FALSE(DecodeMetrics(bytes.substr(0, length)).ok()) << length;
  EXPECT_FALSE(DecodeMetrics(bytes + "x").ok());
}

TEST(StorageMetrics, BytesThatNobodyEncodedNeverHarm) {
  const char* given = std::getenv("ROPEWALK_TEST_SEED");
  const std::uint64_t seed = given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device()();
  std::printf("seed %llu (ROPEWALK_TEST_SEED replays it)\n", static_cast<unsigned long long>(seed));
  Random random(seed);
  Metrics metrics = StepOf(7, 1.5);
  metrics.notices.push_back({9, "straggler", 2, "w2", 50, 12, 1.9, "rank 2 on w2"});
  const std::string good = Encode(metrics);
  for (int round = 0; round < 20'000; ++round) {
    std::string bytes = good;
    for (std::uint64_t flips = 1 + random.Below(4); flips > 0; --flips)
      bytes[random.Below(bytes.size())] = static_cast<char>(random.Below(256));
    auto read = DecodeMetrics(bytes);
    if (!read.ok()) continue;
    MetricHistory history;
    history.Add(*read);
    EXPECT_LE(history.points(), 64u);
  }
}

TEST(StorageMetrics, WhatIsTooLongIsRefused) {
  Metrics metrics = StepOf(1, 1);
  metrics.series[0].names[0] = std::string(kMetricNameBytesMax + 1, 'x');
  EXPECT_EQ(DecodeMetrics(Encode(metrics)).status().tag(), "METRIC01");
  metrics = StepOf(1, 1);
  metrics.series[0].names.assign(kMetricNamesMax + 1, "x");
  EXPECT_EQ(DecodeMetrics(Encode(metrics)).status().tag(), "METRIC01");
  metrics = StepOf(1, 1);
  metrics.series[0].points[0].first_step = 2;  // behind the last
  EXPECT_EQ(DecodeMetrics(Encode(metrics)).status().tag(), "METRIC01");
}

// A rank is believed no more than it may say at once, whatever it sends.
TEST(StorageMetrics, WhatARankSaysAtOnceIsBounded) {
  Metrics most;
  for (std::size_t i = 0; i < kMetricSeriesSaidMax; ++i) most.series.push_back(StepOf(1, 1).series[0]);
  most.notices.resize(kMetricNoticesSaidMax);
  EXPECT_TRUE(DecodeSaidMetrics(Encode(most)).ok());
  Metrics more = most;
  more.series.push_back(more.series[0]);
  EXPECT_EQ(DecodeSaidMetrics(Encode(more)).status().tag(), "METRIC01");
  more = most;
  more.notices.emplace_back();
  EXPECT_EQ(DecodeSaidMetrics(Encode(more)).status().tag(), "METRIC01");
  more = most;
  more.series[3].points.push_back(more.series[3].points[0]);
  EXPECT_EQ(DecodeSaidMetrics(Encode(more)).status().tag(), "METRIC01");
  EXPECT_TRUE(DecodeMetrics(Encode(more)).ok()) << "a history is not";
}

// However long: no more points than may be, all steps in them once, and the mean over all of them that of the plain sum.
TEST(StorageMetrics, ALongHistoryKeepsItsShape) {
  MetricHistory history({.points_of_series = 64, .points = 1000});
  double sum = 0;
  constexpr std::uint64_t kSteps = 10'000;
  for (std::uint64_t step = 1; step <= kSteps; ++step) {
    const double loss = static_cast<double>(step % 97);
    sum += loss;
    history.Add(StepOf(step, loss));
    ASSERT_LE(history.points(), 64u);
  }
  const MetricSeries series = history.All().series.at(0);
  EXPECT_GT(series.points.size(), 32u);
  double kept = 0;
  std::uint64_t count = 0, next = 1;
  for (const MetricPoint& point : series.points) {
    EXPECT_EQ(point.first_step, next);
    next = point.last_step + 1;
    EXPECT_EQ(point.means.at(0).count, point.last_step - point.first_step + 1);
    kept += point.means.at(0).sum;
    count += point.means.at(0).count;
  }
  EXPECT_EQ(next, kSteps + 1);
  EXPECT_EQ(count, kSteps);
  EXPECT_EQ(kept, sum);
  EXPECT_EQ(series.points.back().last_step - series.points.back().first_step, 0u) << "the newest are the finest";
  const Metrics few = history.AtMost(10);
  EXPECT_LE(few.series[0].points.size(), 10u);
  EXPECT_EQ(few.series[0].points.front().first_step, 1u);
  EXPECT_EQ(few.series[0].points.back().last_step, kSteps);
}

TEST(StorageMetrics, ManyRanksShareTheRoom) {
  MetricHistory history({.points_of_series = 100, .points = 500});
  for (std::uint64_t step = 1; step <= 100; ++step)
    for (std::uint32_t rank = 0; rank < 50; ++rank) history.Add(StepOf(step, 1, rank));
  EXPECT_LE(history.points(), 500u);
  EXPECT_EQ(history.All().series.size(), 50u);
  for (const MetricSeries& series : history.All().series) {
    EXPECT_EQ(series.points.front().first_step, 1u);
    EXPECT_EQ(series.points.back().last_step, 100u);
  }
}

TEST(StorageMetrics, GangsThatAreLongOverMakeRoom) {
  MetricHistory history({.series = 3});
  for (std::uint64_t gang = 1; gang <= 5; ++gang) history.Add(StepOf(1, 1, 0, gang));
  const Metrics all = history.All();
  ASSERT_EQ(all.series.size(), 3u);
  EXPECT_EQ(all.series[0].gang, 3u);
  for (std::uint32_t rank = 0; rank < 5; ++rank) history.Add(StepOf(1, 1, rank, 9));
  EXPECT_EQ(history.All().series.size(), 3u) << "of one gang alone there are no more either";
}

// A gang that goes on from a checkpoint makes steps again: the last word counts.
TEST(StorageMetrics, StepsThatAreSaidAgainReplaceWhatTheyWere) {
  MetricHistory history;
  for (std::uint64_t step = 1; step <= 10; ++step) history.Add(StepOf(step, 1));
  history.Add({{{1, "step", 0, "w1", {"loss"}, {{11, 20, 0, {{10, 10}}}}}}, {}});
  history.Add(StepOf(16, 2));
  const std::vector<MetricPoint> points = history.All().series[0].points;
  ASSERT_EQ(points.size(), 12u);
  EXPECT_EQ(points[10].first_step, 11u);
  EXPECT_EQ(points[10].last_step, 15u);
  EXPECT_EQ(points[11].means[0].value(), 2);
  history.Add(StepOf(3, 5));
  EXPECT_EQ(history.All().series[0].points.size(), 3u);
  EXPECT_EQ(history.points(), 3u);
}

TEST(StorageMetrics, FiguresFindTheirPlacesByName) {
  MetricHistory history;
  history.Add({{{1, "step", 0, "w1", {"a", "b"}, {{1, 1, 0, {{1, 1}, {2, 1}}}}}}, {}});
  history.Add({{{1, "step", 0, "w2", {"c", "a"}, {{2, 2, 0, {{3, 1}, {4, 1}}}}}}, {}});
  const MetricSeries series = history.All().series[0];
  EXPECT_EQ(series.names, (std::vector<std::string>{"a", "b", "c"}));
  EXPECT_EQ(series.machine, "w2");
  ASSERT_EQ(series.points[1].means.size(), 3u);
  EXPECT_EQ(series.points[1].means[0].value(), 4);
  EXPECT_EQ(series.points[1].means[1].count, 0u);
  EXPECT_EQ(series.points[1].means[2].value(), 3);
}

TEST(StorageMetrics, ANoticeIsALineOfTheEventLog) {
  EXPECT_EQ(EventOf({4, "straggler", 2, "w\"2", 50, 12, 1.9, "it\nis slow"}, 7),
            R"({"event":"gang_notice","t_ms":7,"kind":"straggler","stage":4,"rank":2,"machine":"w\"2","step":50,"text":"it\nis slow"})");
}

class StorageMetricFile : public ::testing::Test {
 protected:
  static std::string Bytes(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  mlrunner::testing::TempFolder folder_;
  const std::string path_ = folder_.path() + "/metrics";
  LocalFileSystem files_;
};

TEST_F(StorageMetricFile, OutlivesItsProcess) {
  EXPECT_EQ(ReadMetricFile(files_, path_).status().code(), Code::kNotFound);
  Metrics before;
  {
    auto file = MetricFile::Open(files_, path_);
    ASSERT_TRUE(file.ok()) << file.status().ToString();
    for (std::uint64_t step = 1; step <= 100; ++step) ASSERT_TRUE((*file)->Add(StepOf(step, 1)).ok());
    before = (*file)->history().All();
  }  // as a kill leaves it: nothing is written at the end
  auto read = ReadMetricFile(files_, path_);
  ASSERT_TRUE(read.ok()) << read.status().ToString();
  EXPECT_EQ(read->All(), before);
  auto again = MetricFile::Open(files_, path_);
  ASSERT_TRUE(again.ok());
  ASSERT_TRUE((*again)->Add(StepOf(101, 2)).ok());
  EXPECT_EQ(ReadMetricFile(files_, path_)->All().series[0].points.size(), 101u);
}

TEST_F(StorageMetricFile, WhatIsTornEndsIt) {
  {
    auto file = MetricFile::Open(files_, path_);
    for (std::uint64_t step = 1; step <= 3; ++step) ASSERT_TRUE((*file)->Add(StepOf(step, 1)).ok());
  }
  const std::string whole = Bytes(path_);
  for (const std::size_t cut : {std::size_t{1}, std::size_t{10}}) {
    std::ofstream(path_, std::ios::binary) << whole.substr(0, whole.size() - cut);
    EXPECT_EQ(ReadMetricFile(files_, path_)->All().series[0].points.size(), 2u);
  }
  std::string flipped = whole;
  flipped[flipped.size() - 3] ^= 1;
  std::ofstream(path_, std::ios::binary) << flipped;
  auto file = MetricFile::Open(files_, path_);
  ASSERT_TRUE(file.ok());
  EXPECT_EQ((*file)->history().All().series[0].points.size(), 2u);
  ASSERT_TRUE((*file)->Add(StepOf(4, 1)).ok());
  EXPECT_EQ(ReadMetricFile(files_, path_)->All().series[0].points.size(), 3u) << "what came behind the tear is read";
}

TEST_F(StorageMetricFile, OfSomethingElseIsRefused) {
  std::ofstream(path_) << "a poem";
  EXPECT_EQ(ReadMetricFile(files_, path_).status().tag(), "METRIC03");
  EXPECT_EQ(MetricFile::Open(files_, path_).status().tag(), "METRIC03");
  EXPECT_EQ(Bytes(path_), "a poem");
}

// Whatever fails, and however: the history is whole, and when the disk takes bytes again so is the file.
TEST_F(StorageMetricFile, ADiskThatFailsLosesNothingThatItGetsAgain) {
  for (const bool torn : {false, true}) {
    for (int fail_at = 4; fail_at < 12; ++fail_at) {  // behind the opening
      std::filesystem::remove(path_);
      FaultyFiles faulty;
      faulty.torn = torn;
      faulty.error = ENOSPC;
      auto file = MetricFile::Open(faulty, path_);
      ASSERT_TRUE(file.ok()) << file.status().ToString();
      faulty.fail_at = fail_at;
      int failures = 0;
      for (std::uint64_t step = 1; step <= 12; ++step) {
        const Status status = (*file)->Add(StepOf(step, 1));
        failures += status.ok() ? 0 : 1;
        if (!status.ok()) {
          EXPECT_EQ(status.code(), Code::kResourceExhausted) << status.ToString();
        }
      }
      EXPECT_EQ(failures, 1) << fail_at;
      auto read = ReadMetricFile(files_, path_);
      ASSERT_TRUE(read.ok()) << read.status().ToString();
      EXPECT_EQ(read->All(), (*file)->history().All()) << fail_at;
      EXPECT_EQ(read->points(), 12u);
    }
  }
}

// A bounded history makes a bounded file.
TEST_F(StorageMetricFile, IsWrittenAnewWhenMostOfItIsMerged) {
  auto file = MetricFile::Open(files_, path_, {.points_of_series = 16});
  ASSERT_TRUE(file.ok());
  std::uint64_t largest = 0;
  for (std::uint64_t step = 1; step <= 60'000; ++step) {
    ASSERT_TRUE((*file)->Add(StepOf(step, 1)).ok());
    if (step % 100 == 0) largest = std::max<std::uint64_t>(largest, std::filesystem::file_size(path_));
  }
  EXPECT_LT(largest, 1'100'000u);
  EXPECT_GT(largest, 900'000u) << "the test is to see it written anew";
  EXPECT_EQ(ReadMetricFile(files_, path_, {.points_of_series = 16})->All(), (*file)->history().All());
}

}  // namespace
}  // namespace ropewalk::storage
