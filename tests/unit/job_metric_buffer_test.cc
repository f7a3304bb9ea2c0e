// What a rank has measured and not told yet.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "job/metric_buffer.h"

namespace ropewalk::job {
namespace {

void Step(MetricBuffer* buffer, std::uint64_t step, double loss, double seconds) {
  const dag::GangFigure figures[] = {{"loss", loss}, {"seconds", seconds}};
  buffer->Measure("step", step, figures);
}

TEST(JobMetricBuffer, StepsBecomeOnePoint) {
  MetricBuffer buffer;
  for (std::uint64_t step = 1; step <= 4; ++step) Step(&buffer, step, static_cast<double>(step), .5);
  const storage::Metrics taken = buffer.Take(9, 3);
  ASSERT_EQ(taken.series.size(), 1u);
  const storage::MetricSeries& series = taken.series[0];
  EXPECT_EQ(series.gang, 9u);
  EXPECT_EQ(series.rank, 3u);
  EXPECT_EQ(series.names, (std::vector<std::string>{"loss", "seconds"}));
  ASSERT_EQ(series.points.size(), 1u);
  EXPECT_EQ(series.points[0].first_step, 1u);
  EXPECT_EQ(series.points[0].last_step, 4u);
  EXPECT_EQ(series.points[0].means[0].value(), 2.5);
  EXPECT_GT(series.points[0].time_us, 1'600'000'000'000'000);
  EXPECT_TRUE(buffer.Take(9, 3).empty());
  Step(&buffer, 5, 8, .5);
  const storage::MetricPoint next = buffer.Take(9, 3).series[0].points[0];
  EXPECT_EQ(next.first_step, 5u);
  EXPECT_EQ(next.means[0].value(), 8);
}

TEST(JobMetricBuffer, WhatIsNoNumberIsLeftOut) {
  MetricBuffer buffer;
  Step(&buffer, 1, 2, 1);
  Step(&buffer, 2, std::numeric_limits<double>::quiet_NaN(), 1);
  Step(&buffer, 3, std::numeric_limits<double>::infinity(), 1);
  const storage::MetricPoint point = buffer.Take(1, 0).series[0].points[0];
  EXPECT_EQ(point.means[0].count, 1u);
  EXPECT_EQ(point.means[0].value(), 2);
  EXPECT_EQ(point.means[1].count, 3u);
}

TEST(JobMetricBuffer, StepsThatAreMadeAgainBeginAnew) {
  MetricBuffer buffer;
  for (std::uint64_t step = 10; step <= 12; ++step) Step(&buffer, step, 1, 1);
  Step(&buffer, 6, 3, 1);
  Step(&buffer, 7, 5, 1);
  const storage::MetricPoint point = buffer.Take(1, 0).series[0].points[0];
  EXPECT_EQ(point.first_step, 6u);
  EXPECT_EQ(point.last_step, 7u);
  EXPECT_EQ(point.means[0].value(), 4);
}

// Whatever a program says: what it tells at once may be told.
TEST(JobMetricBuffer, IsBounded) {
  MetricBuffer buffer;
  std::vector<std::string> names;
  for (int i = 0; i < 200; ++i) names.push_back(std::string(100, 'n') + std::to_string(i));
  for (int i = 0; i < 200; ++i) names.push_back(std::to_string(i) + std::string(100, 'n'));
  for (int series = 0; series < 50; ++series) {
    std::vector<dag::GangFigure> figures;
    for (const std::string& name : names) figures.push_back({name, 1});
    for (std::uint64_t step = 1; step < 10; ++step) buffer.Measure(std::to_string(series) + std::string(100, 's'), step, figures);
  }
  for (int i = 0; i < 50; ++i) buffer.Notice({std::string(1000, 'k'), 1, std::string(10'000, 'm'), 5, 1.5, std::string(10'000, 't')});
  const storage::Metrics taken = buffer.Take(1, 0);
  EXPECT_EQ(taken.series.size(), 8u);
  EXPECT_EQ(taken.notices.size(), 16u);
  const std::string bytes = Encode(taken);
  EXPECT_LE(bytes.size(), storage::kMetricsSaidMax);
  auto read = storage::DecodeSaidMetrics(bytes);
  ASSERT_TRUE(read.ok()) << read.status().ToString();
  EXPECT_EQ(*read, taken);
}

}  // namespace
}  // namespace ropewalk::job
