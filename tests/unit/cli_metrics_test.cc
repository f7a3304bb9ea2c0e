// How metrics of a job are shown, and which lines of its logs are a rank's.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "cli/command.h"
#include "cli/metrics_view.h"
#include "cli/rank_log.h"
#include "storage/metric_file.h"
#include "tests/unit/temp_folder.h"

namespace ropewalk::cli {
namespace {

storage::Metrics OfTwoRanks() {
  storage::Metrics metrics;
  metrics.series.push_back({4, "step", 0, "w1", {"loss", "mfu"}, {{1, 8, 0, {{16, 8}}}, {9, 9, 0, {{.5, 1}, {.25, 1}}}}});
  for (std::uint32_t rank : {0u, 1u})
    metrics.series.push_back({4, "work", rank, rank == 0 ? "w1" : "evil\nw2", {"s/step"}, {{1, 3, 0, {{3, 3}}}, {4, 4, 0, {{5, 1}}}}});
  metrics.notices.push_back({4, "straggler", 1, "w2", 50, 0, 1.9, "rank 1 is slow"});
  return metrics;
}

TEST(CliMetrics, Tables) {
  const std::string text = ShowMetrics("j-001", OfTwoRanks(), {}, job::OutputForm::kTable);
  EXPECT_EQ(text,
            "step of gang 4, rank 0 on w1\n"
            "STEPS  UNTIL  loss  mfu\n"
            "1-8    -      2     -\n"
            "9      -      0.5   0.25\n"
            "\n"
            "work of gang 4, means over all steps\n"
            "RANK  MACHINE   STEPS  s/step\n"
            "0     w1        1-4    2\n"
            "1     evil\\nw2  1-4    2\n"
            "-  step 50  straggler: rank 1 is slow\n");
}

TEST(CliMetrics, OneRank) {
  const std::string text = ShowMetrics("j-001", OfTwoRanks(), 1, job::OutputForm::kTable);
  EXPECT_EQ(text,
            "work of gang 4, rank 1 on evil\\nw2\n"
            "STEPS  UNTIL  s/step\n"
            "1-3    -      1\n"
            "4      -      5\n"
            "-  step 50  straggler: rank 1 is slow\n");
  EXPECT_EQ(ShowMetrics("j-001", OfTwoRanks(), 7, job::OutputForm::kTable), "j-001 has measured nothing: only ranks of gangs do\n");
}

TEST(CliMetrics, Json) {
  EXPECT_EQ(
      ShowMetrics("j-001", OfTwoRanks(), 1, job::OutputForm::kJson),
      R"({"job":"j-001","series":[{"gang":4,"series":"work","rank":1,"machine":"evil\nw2","points":[)"
      R"({"first_step":1,"last_step":3,"time_us":0,"means":{"s/step":1}},)"
      R"({"first_step":4,"last_step":4,"time_us":0,"means":{"s/step":5}}]}],)"
      R"("notices":[{"gang":4,"notice":"straggler","rank":1,"machine":"w2","step":50,"time_us":0,"value":1.9,"text":"rank 1 is slow"}]})"
      "\n");
  const std::string lines = ShowMetrics("j-001", OfTwoRanks(), 0, job::OutputForm::kJsonLines);
  EXPECT_EQ(lines.substr(0, lines.find('\n')),
            R"({"gang":4,"series":"step","rank":0,"machine":"w1","first_step":1,"last_step":8,"time_us":0,"means":{"loss":2}})");
}

TEST(CliMetrics, OfAFile) {
  mlrunner::testing::TempFolder folder;
  storage::LocalFileSystem files;
  const std::string path = folder.path() + "/metrics";
  {
    auto file = storage::MetricFile::Open(files, path);
    ASSERT_TRUE(file.ok());
    ASSERT_TRUE((*file)->Add(OfTwoRanks()).ok());
  }
  testing::internal::CaptureStdout();
  EXPECT_EQ(RunCommand({"job", "metrics", path, "--rank", "1", "--points", "1"}), 0);
  EXPECT_EQ(testing::internal::GetCapturedStdout(),
            "work of gang 4, rank 1 on evil\\nw2\nSTEPS  UNTIL  s/step\n1-4    -      2\n-  step 50  straggler: rank 1 is slow\n");
  testing::internal::CaptureStderr();
  EXPECT_EQ(RunCommand({"job", "metrics", path + "no"}), 3);
  EXPECT_NE(testing::internal::GetCapturedStderr().find("METRIC02"), std::string::npos);
}

// Two executors, the first of which is the driver; the gang is formed anew with its ranks elsewhere.
constexpr const char* kEvents =
    "{\"event\":\"driver_named\",\"t_ms\":1,\"executor\":5,\"worker\":1}\n"
    "{\"event\":\"task_started\",\"t_ms\":1,\"stage\":3,\"task\":1,\"attempt\":1,\"executor\":9,\"worker\":3,\"retry\":false}\n"
    "{\"event\":\"gang_formed\",\"t_ms\":2,\"stage\":4,\"epoch\":0,\"ranks\":3,\"workers\":2}\n"
    "{\"event\":\"task_started\",\"t_ms\":2,\"stage\":4,\"task\":0,\"attempt\":2,\"executor\":5,\"worker\":1,\"retry\":false}\n"
    "{\"event\":\"task_started\",\"t_ms\":2,\"stage\":4,\"task\":1,\"attempt\":3,\"executor\":6,\"worker\":2,\"retry\":false}\n"
    "{\"event\":\"task_started\",\"t_ms\":2,\"stage\":4,\"task\":2,\"attempt\":4,\"executor\":6,\"worker\":2,\"retry\":false}\n";

TEST(CliRankLog, FindsTheExecutorsOfARank) {
  RankLog of(1);
  const std::string events = kEvents;
  for (std::size_t i = 0; i < events.size(); i += 7) of.AddEvents(std::string_view(events).substr(i, 7));
  EXPECT_TRUE(of.found());
  EXPECT_FALSE(of.was_driver());
  EXPECT_EQ(of.Places(), "rank 1 ran in executor 6 on w2 (forming 0), whose log it shares with rank 2\n");
  EXPECT_EQ(of.Filter("[5] no\n[6] yes\n[66] no\n[6] and"), "[6] yes\n");
  EXPECT_EQ(of.Filter(" more\nno\n[9] no\n"), "[6] and more\n");

  of.AddEvents(
      "{\"event\":\"gang_formed\",\"t_ms\":3,\"stage\":4,\"epoch\":1,\"ranks\":2,\"workers\":1}\n"
      "{\"event\":\"task_started\",\"t_ms\":3,\"stage\":4,\"task\":0,\"attempt\":5,\"executor\":5,\"worker\":1,\"retry\":false}\n"
      "{\"event\":\"task_started\",\"t_ms\":3,\"stage\":4,\"task\":1,\"attempt\":6,\"executor\":5,\"worker\":1,\"retry\":false}\n");
  EXPECT_TRUE(of.was_driver());
  EXPECT_EQ(of.Places(),
            "rank 1 ran in executor 5 on w1 (forming 1), whose log it shares with rank 0; that was the driver, whose log is the job's "
            "stderr\nrank 1 ran in executor 6 on w2 (forming 0), whose log it shares with rank 2\n");
  EXPECT_EQ(of.Filter("[5] now\n"), "[5] now\n");
}

TEST(CliRankLog, ARankThatNeverWas) {
  RankLog of(7);
  of.AddEvents(kEvents);
  EXPECT_FALSE(of.found());
  EXPECT_EQ(of.Filter("[5] x\n[6] y\n"), "");
}

}  // namespace
}  // namespace ropewalk::cli
