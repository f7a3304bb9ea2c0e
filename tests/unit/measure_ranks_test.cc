// The ranks of a bench as threads: every collective of the table is measured and right, and an algorithm that does not do what it promises
// is found out.
#include <gtest/gtest.h>

#include <stdlib.h>

#include <filesystem>
#include <memory>
#include <set>
#include <thread>

#include "mlrunner/measure/contenders.h"
#include "mlrunner/measure/measure.h"
#include "mlrunner/measure/report.h"
#include "tests/unit/collective_gang.h"

namespace ropewalk::measure {
namespace {

using collective::Algorithm;
using collective::Algorithms;
using collective::Collective;
using collective::Wire;
using collective::Writer;

// A rank of a gang whose ranks are threads.
class ThreadRank : public dag::GangContext {
 public:
  ThreadRank(std::int32_t rank, std::int32_t ranks, collective::testing::Meeting* meeting)
      : rank_(rank), ranks_(ranks), meeting_(meeting) {}
  std::int32_t rank() const override { return rank_; }
  std::int32_t ranks() const override { return ranks_; }
  std::uint32_t epoch() const override { return 0; }
  const std::string& address() const override { return address_; }
  const std::string& machine() const override { return machine_; }
  Result<std::vector<std::string>> Exchange(std::string mine) override { return meeting_->Exchange(rank_, std::move(mine)); }
  void OnLost(std::function<void(const Status&)> /*lost*/) override {}
  void Report(std::string line) override { last_line = std::move(line); }
  void Reached(std::uint64_t /*milestone*/) override {}

  std::string last_line;

 private:
  const std::int32_t rank_, ranks_;
  collective::testing::Meeting* const meeting_;
  const std::string address_ = "127.0.0.1", machine_ = "here";
};

// Rank 0's report.
BenchReport Measure(const BenchJob& job, std::span<const Algorithm> table = Algorithms()) {
  collective::testing::Meeting meeting(job.ranks);
  std::string bytes;
  std::vector<std::thread> threads;
  for (std::int32_t rank = 0; rank < job.ranks; ++rank)
    threads.emplace_back([&, rank] {
      ThreadRank gang(rank, job.ranks, &meeting);
      auto result = BenchRank(gang, job, table);
      ASSERT_TRUE(result.ok()) << result.status().ToString();
      EXPECT_EQ(gang.last_line.empty(), rank != 0);
      if (rank == 0) bytes = *result;
    });
  for (std::thread& thread : threads) thread.join();
  auto report = DecodeBenchReport(bytes);
  EXPECT_TRUE(report.ok()) << report.status().ToString();
  return report.ok() ? *report : BenchReport{};
}

BenchJob JobOf(Collective collective, std::int32_t ranks, std::span<const Algorithm> table = Algorithms()) {
  BenchJob job{.collective = collective, .ranks = ranks, .sizes = {4, 40'000}, .warmup = 1, .iterations = 3};
  Status status = ChooseContenders(table, "all", &job);
  EXPECT_TRUE(status.ok() || collective == Collective::kMix) << status.ToString();
  return job;
}

TEST(BenchRanks, EveryCollectiveOfTheTableIsMeasuredAndRight) {
  std::set<Collective> collectives;
  for (const Algorithm& algorithm : Algorithms()) collectives.insert(algorithm.collective);
  for (const Collective collective : collectives)
    for (const std::int32_t ranks : {1, 3}) {
      if (ranks == 1 && collective != Collective::kAllreduce && collective != Collective::kAllToAllV) continue;
      SCOPED_TRACE(std::string(Name(collective)) + " of " + std::to_string(ranks));
      const BenchJob job = JobOf(collective, ranks);
      if (job.algorithms.empty()) continue;  // mixing, which needs a window; JobOf() has looked
      const BenchReport report = Measure(job);
      EXPECT_EQ(report.machines, 1);
      ASSERT_EQ(report.wires.size(), 1u);
      EXPECT_EQ(report.wires[0].wire, "shared");
      const std::size_t sizes = collective == Collective::kBarrier ? 1 : 2;  // one barrier is as large as the other
      EXPECT_EQ(report.points.size(), sizes * job.algorithms.size());
      for (const Point& point : report.points) {
        EXPECT_EQ(point.wrong, 0) << point.algorithm << " of " << point.bytes << ": " << point.first_wrong;
        EXPECT_EQ(point.iterations, 3);
        EXPECT_GT(point.least_us, 0);
        EXPECT_LE(point.least_us, point.median_us);
        EXPECT_LE(point.median_us, point.p95_us);
        EXPECT_GT(point.predicted_us, 0) << point.algorithm;
        EXPECT_LE(point.bytes, std::max<std::int64_t>(40'000, 4 * ranks));
      }
      EXPECT_TRUE(CheckRight(report).ok());
    }
}

TEST(BenchRanks, WiresOneAfterTheOtherAndTheChosenOneIsMarked) {
  BenchJob job = JobOf(Collective::kAllreduce, 2);
  job.wires = {Wire::kShared, Wire::kTcp};
  job.algorithms = {"direct", "recursive_doubling"};
  job.iterations = 0;
  job.seconds = .002;
  const BenchReport report = Measure(job);
  ASSERT_EQ(report.points.size(), 8u);
  for (std::size_t i = 0; i < 8; ++i) {
    const Point& point = report.points[i];
    EXPECT_EQ(point.wire, i < 4 ? "shared" : "tcp");
    EXPECT_EQ(point.bytes, i % 4 < 2 ? 4 : 40'000);
    EXPECT_EQ(point.algorithm, job.algorithms[i % 2]);
    EXPECT_GE(point.iterations, 5);
    // Of a number of bytes over a wire one is chosen (which: run/choose.cc).
    EXPECT_NE(point.is_chosen, report.points[i ^ 1].is_chosen) << point.algorithm << " of " << point.bytes;
  }
  job.algorithms = {""};
  job.wires = {Wire::kTcp};
  const BenchReport chosen = Measure(job);
  ASSERT_EQ(chosen.points.size(), 2u);
  for (const Point& point : chosen.points) EXPECT_TRUE(point.is_chosen && !point.algorithm.empty());
}

// The costs that the communicator has chosen by are those that the report predicts with; they are not measured twice.
TEST(BenchRanks, ByCostsTheReportSaysWhatWasChosenAndWhy) {
  std::string home = ::testing::TempDir() + "ropewalk-bench-XXXXXX";
  ASSERT_NE(mkdtemp(home.data()), nullptr);
  setenv("ROPEWALK_HOME", home.c_str(), 1);
  BenchJob job = JobOf(Collective::kAllreduce, 2);
  job.choose_by = collective::ChooseBy::kKeptCosts;
  const BenchReport first = Measure(job), second = Measure(job);
  unsetenv("ROPEWALK_HOME");
  std::filesystem::remove_all(home);
  ASSERT_EQ(first.choices.size(), 2u);
  EXPECT_EQ(first.choices[0].bytes, 4);
  EXPECT_NE(first.choices[1].text.find(" us predicted by measured costs ("), std::string::npos) << first.choices[1].text;
  EXPECT_NE(second.choices[1].text.find(" us predicted by costs of an earlier run of 20"), std::string::npos) << second.choices[1].text;
  EXPECT_EQ(Encode(first.wires[0].model), Encode(second.wires[0].model));
  EXPECT_FALSE(first.wires[0].model.beyond.empty());
  for (const BenchReport* report : {&first, &second}) {
    std::set<std::int64_t> chosen;
    for (const Point& point : report->points)
      if (point.is_chosen) chosen.insert(point.bytes);
    EXPECT_EQ(chosen.size(), 2u);
  }
  job.choose_by = collective::ChooseBy::kFixedSizes;
  EXPECT_TRUE(Measure(job).choices.empty());
}

TEST(BenchRanks, WithoutACheckNothingIsSaidAboutResults) {
  BenchJob job = JobOf(Collective::kAllreduce, 2);
  job.check = false;
  for (const Point& point : Measure(job).points) EXPECT_EQ(point.wrong, -1);
}

// ---- what does not do what it promises --------------------------------------------------------------------------------------------------

const Algorithm& Known(std::string_view name) {
  for (const Algorithm& algorithm : Algorithms())
    if (algorithm.name == name) return algorithm;
  std::abort();
}

// Every rank keeps its own vector: the fastest sum of all.
void WriteLazily(Writer& w) { w.Copy(w.At(0, w.Whole()), w.At(1, w.Whole())); }
// Right on all ranks but the last one, and there only where it keeps its own.
void WriteForgetfully(Writer& w) {
  const std::int32_t last = w.ranks() - 1;
  auto all = w.At(1, w.Whole());
  std::vector<collective::Operand> operands = {collective::Local(w.At(0, w.Whole()))};
  if (w.rank() != 0) {
    w.Send(w.At(0, w.Whole()), 0);
    w.Recv(0, all);
  } else {
    for (std::int32_t rank = 1; rank < w.ranks(); ++rank) operands.push_back(collective::From(rank, w.At(0, w.Whole())));
    w.Fold(collective::Op::kRecvReduce, operands, {.dst = all});
    for (std::int32_t rank = 1; rank < w.ranks(); ++rank) w.Send(all, rank);
  }
  if (w.rank() == last) w.Copy(w.At(0, w.Part(w.Whole(), 4, 1)), w.At(1, w.Part(w.Whole(), 4, 1)));
}

TEST(BenchRanks, AnAlgorithmThatDoesNotDoWhatItPromisesIsFoundOut) {
  std::vector<Algorithm> table(Algorithms().begin(), Algorithms().end());
  for (auto [name, write] : {std::pair{"lazy", &WriteLazily}, {"forgetful", &WriteForgetfully}}) {
    table.push_back(Known("ring"));
    table.back().name = name;
    table.back().write = write;
  }
  BenchJob job{.ranks = 3, .sizes = {40'000}, .warmup = 1, .iterations = 2};
  ASSERT_TRUE(ChooseContenders(table, "direct,forgetful,lazy", &job).ok());
  const BenchReport report = Measure(job, table);
  ASSERT_EQ(report.points.size(), 3u);
  EXPECT_EQ(report.points[0].wrong, 0) << report.points[0].first_wrong;
  // A quarter of one rank's vector, but for the elements of which the others have nothing to add.
  EXPECT_GT(report.points[1].wrong, 2'000);
  EXPECT_LE(report.points[1].wrong, 2'500);
  EXPECT_EQ(report.points[1].first_wrong.find("rank 2: element 25"), 0u) << report.points[1].first_wrong;
  EXPECT_GT(report.points[2].wrong, 25'000) << "all of all ranks' vectors";

  const Status wrong = CheckRight(report);
  EXPECT_EQ(wrong.tag(), "BENCH22");
  EXPECT_EQ(ExitCode(wrong.code()), 70);
  EXPECT_NE(wrong.what().find("forgetful of 40000 bytes over shared"), std::string::npos) << wrong.ToString();
  EXPECT_NE(wrong.what().find("2 of 3 points"), std::string::npos) << wrong.ToString();
  EXPECT_NE(wrong.why().find("rank 2: element 25"), std::string::npos) << wrong.ToString();
}

TEST(BenchRanks, VectorsThatDoNotFitAreRefusedBeforeTheyAreTouched) {
  BenchJob job = JobOf(Collective::kAllreduce, 2);
  job.sizes = {4'096, std::int64_t{1} << 50};
  collective::testing::Meeting meeting(2);
  std::vector<std::thread> threads;
  for (std::int32_t rank = 0; rank < 2; ++rank)
    threads.emplace_back([&, rank] {
      ThreadRank gang(rank, 2, &meeting);
      const Status status = BenchRank(gang, job).status();
      EXPECT_EQ(status.tag(), "BENCH25") << status.ToString();
      EXPECT_EQ(status.code(), Code::kResourceExhausted);
    });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace ropewalk::measure
