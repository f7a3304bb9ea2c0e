// What a training says of its steps to files: lines of JSON, events for TensorBoard that are read back record by record, a trace.
#include "mlrunner/train/metrics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/random.h"
#include "proto/event_file.pb.h"
#include "tests/unit/temp_folder.h"
#include "tests/unit/train_ranks.h"

namespace ropewalk::mlrunner {
namespace {

using testing::JobOf;
using testing::TrainOnThreads;

std::string ReadAll(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream bytes;
  bytes << file.rdbuf();
  return bytes.str();
}
std::vector<std::string> Lines(const std::string& path) {
  std::ifstream file(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}
// The number behind "key": in a line; not a number where it is null or missing.
double NumberIn(const std::string& line, const std::string& key) {
  const std::size_t at = line.find("\"" + key + "\":");
  if (at == std::string::npos) return std::nan("");
  const std::string text = line.substr(at + key.size() + 3);
  return text.starts_with("null") ? std::nan("") : std::stod(text);
}

// Bit by bit, as the polynomial is written.
std::uint32_t SlowCrc32c(std::string_view bytes) {
  std::uint32_t crc = ~0u;
  for (char c : bytes) {
    for (int bit = 0; bit < 8; ++bit) {
      const bool one = (crc ^ (static_cast<std::uint8_t>(c) >> bit)) & 1;
      crc = (crc >> 1) ^ (one ? 0x82f63b78u : 0);
    }
  }
  return ~crc;
}

TEST(EventFile, ChecksumsAreCastagnolis) {
  EXPECT_EQ(Crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(Crc32c(std::string(32, '\0')), 0x8a9136aau);  // RFC 3720, B.4
  EXPECT_EQ(Crc32c(std::string(32, '\xff')), 0x62a8ab43u);
  Random random(3);
  for (int length : {0, 1, 7, 100}) {
    std::string bytes;
    for (int i = 0; i < length; ++i) bytes += static_cast<char>(random.Below(256));
    EXPECT_EQ(Crc32c(bytes), SlowCrc32c(bytes));
    const std::uint32_t crc = SlowCrc32c(bytes), rotated = (crc >> 15) | (crc << 17);
    EXPECT_EQ(MaskedCrc32c(bytes), rotated + 0xa282ead8u);
  }
}

// Every record of a file; a checksum that is wrong fails the test.
std::vector<event_file::Event> ReadEvents(const std::string& bytes) {
  std::vector<event_file::Event> events;
  ByteReader reader(bytes);
  while (!reader.empty() && reader.ok()) {
    const std::string_view length_bytes = reader.Raw(8);
    std::uint64_t length = ByteReader(length_bytes).Fixed<std::uint64_t>();
    EXPECT_EQ(reader.Fixed<std::uint32_t>(), MaskedCrc32c(length_bytes));
    const std::string_view data = reader.Raw(length);
    EXPECT_EQ(reader.Fixed<std::uint32_t>(), MaskedCrc32c(data));
    EXPECT_TRUE(events.emplace_back().ParseFromArray(data.data(), static_cast<int>(data.size())));
  }
  EXPECT_TRUE(reader.ok());
  return events;
}

TEST(EventFile, IsReadBackRecordByRecord) {
  testing::TempFolder folder;
  std::string path;
  {
    auto file = EventFile::Open(folder.path() + "/new/events");
    ASSERT_TRUE(file.ok()) << file.status().ToString();
    path = (*file)->path();
    auto other = EventFile::Open(folder.path() + "/new/events");
    ASSERT_TRUE(other.ok());
    EXPECT_NE((*other)->path(), path) << "each training has a file of its own";
    ASSERT_TRUE((*file)->Add(7, {{"loss", .5}, {"rate", 0}}).ok());
    ASSERT_TRUE((*file)->Add(1'000'000'000'000, {{"loss", -2.25}}).ok());
    ASSERT_TRUE((*file)->Flush().ok());
    EXPECT_EQ(ReadEvents(ReadAll(path)).size(), 3u) << "what is flushed is there while it goes on";
  }
  const auto events = ReadEvents(ReadAll(path));
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[0].file_version(), "brain.Event:2");
  EXPECT_GT(events[0].wall_time(), 1e9);
  EXPECT_EQ(events[1].step(), 7);
  ASSERT_EQ(events[1].summary().value_size(), 2);
  EXPECT_EQ(events[1].summary().value(0).tag(), "loss");
  EXPECT_EQ(events[1].summary().value(0).simple_value(), .5f);
  EXPECT_TRUE(events[1].summary().value(1).has_simple_value()) << "a zero is a number";
  EXPECT_EQ(events[2].step(), 1'000'000'000'000);
  EXPECT_EQ(events[2].summary().value(0).simple_value(), -2.25f);
}

TEST(Metrics, ThatCannotBeWrittenAreRefusedAtOnce) {
  testing::TempFolder folder;
  std::ofstream(folder.path() + "/file") << "x";
  for (const auto& status :
       {Metrics::Open(folder.path() + "/none/metrics.jsonl", "").status(), EventFile::Open(folder.path() + "/file").status()}) {
    EXPECT_EQ(status.tag(), "TRAIN07") << status.ToString();
    EXPECT_FALSE(status.what().empty() || status.why().empty() || status.fix().empty()) << status.ToString();
  }
}

class TrainMetrics : public ::testing::Test {
 protected:
  std::vector<std::string> Settings(const std::vector<std::string>& more) {
    std::vector<std::string> settings = {"model.hidden=16", "train.batch=32", "data.samples_max=320", "train.threads=1"};
    settings.insert(settings.end(), more.begin(), more.end());
    return settings;
  }
  testing::TempFolder folder_;
};

// One rank and two say the same of the steps; what is said is what the hooks see; the norm is that of a plain sum.
TEST_F(TrainMetrics, ALineForEachStepAndEvaluation) {
  std::vector<double> norms[2];
  for (std::int32_t ranks : {1, 2}) {
    SCOPED_TRACE(ranks);
    const std::string file = folder_.path() + "/metrics" + std::to_string(ranks),
                      events = folder_.path() + "/events" + std::to_string(ranks);
    auto results = TrainOnThreads(JobOf(Settings({"train.steps=9", "train.metrics=" + file, "train.tensorboard=" + events,
                                                  "train.evaluate_every=4", "optimizer.schedule=linear"})),
                                  ranks);
    ASSERT_TRUE(results[0].status.ok()) << results[0].status.ToString();
    std::vector<std::string> steps, evaluations;
    for (const std::string& line : Lines(file)) (line.find("held_out") == std::string::npos ? steps : evaluations).push_back(line);
    ASSERT_EQ(steps.size(), 9u);
    for (std::size_t i = 0; i < steps.size(); ++i) {
      EXPECT_EQ(NumberIn(steps[i], "step"), i + 1);
      EXPECT_EQ(NumberIn(steps[i], "loss"), results[0].losses[i]);
      EXPECT_NEAR(NumberIn(steps[i], "learning_rate"), .05 * (1 - static_cast<double>(i) / 9), 1e-12);
      EXPECT_GT(NumberIn(steps[i], "samples_per_s"), 0);
      const double all = NumberIn(steps[i], "all"), compute = NumberIn(steps[i], "compute"), optimizer = NumberIn(steps[i], "optimizer"),
                   data = NumberIn(steps[i], "data"), communication = NumberIn(steps[i], "communication");
      EXPECT_GT(compute, 0);
      EXPECT_GT(optimizer, 0);
      EXPECT_GT(data, 0);
      EXPECT_EQ(communication > 0, ranks > 1) << steps[i];
      EXPECT_LE(compute + optimizer + data + communication, all * 1.0001) << steps[i];
      norms[ranks - 1].push_back(NumberIn(steps[i], "gradient_norm"));
      EXPECT_GT(norms[ranks - 1].back(), 0);
    }
    ASSERT_EQ(evaluations.size(), 3u) << "two on the way, and at the end";
    EXPECT_EQ(NumberIn(evaluations[0], "step"), 4);
    EXPECT_EQ(NumberIn(evaluations[1], "step"), 8);
    EXPECT_EQ(NumberIn(evaluations[2], "step"), 9);
    EXPECT_EQ(NumberIn(evaluations[2], "held_out_loss"), results[0].summary.held_out_loss);
    std::vector<event_file::Event> read;
    for (const auto& entry : std::filesystem::directory_iterator(events)) read = ReadEvents(ReadAll(entry.path()));
    ASSERT_EQ(read.size(), 1u + 9 + 3);
    EXPECT_EQ(read[1].summary().value(0).tag(), "train/loss");
    EXPECT_EQ(read[1].summary().value(0).simple_value(), static_cast<float>(results[0].losses[0]));
  }
  for (std::size_t i = 0; i < 9; ++i) EXPECT_NEAR(norms[0][i], norms[1][i], 1e-4 * norms[0][i]);
}

// A clip just above the norm of the first step changes nothing, one just below it does: the norm is the one that is clipped by.
TEST_F(TrainMetrics, TheNormIsThatOfAllGradients) {
  const std::string file = folder_.path() + "/metrics";
  auto whole = TrainOnThreads(JobOf(Settings({"train.steps=2", "train.metrics=" + file})), 1);
  const double norm = NumberIn(Lines(file)[0], "gradient_norm");
  auto with = [&](double clip) {
    return TrainOnThreads(JobOf(Settings({"train.steps=2", "optimizer.clip_norm=" + std::to_string(clip)})), 1)[0].losses;
  };
  EXPECT_EQ(with(norm * 1.01)[1], whole[0].losses[1]);
  EXPECT_NE(with(norm * .99)[1], whole[0].losses[1]);
}

TEST_F(TrainMetrics, AnatomyAndTrace) {
  const std::string trace = folder_.path() + "/trace.json";
  for (std::int32_t ranks : {1, 2}) {
    auto results = TrainOnThreads(JobOf(Settings({"train.steps=12", "train.anatomy=true", "train.trace=" + trace})), ranks);
    ASSERT_TRUE(results[0].status.ok()) << results[0].status.ToString();
    const std::vector<RankAnatomy>& anatomy = results[0].summary.anatomy;
    ASSERT_EQ(anatomy.size(), static_cast<std::size_t>(ranks));
    for (const RankAnatomy& of : anatomy) {
      EXPECT_EQ(of.steps, 12);
      EXPECT_GT(of.peak_flops, 1e6);
      // Rows of 784 x 16 and 16 x 10: forward, and backward for weights and for the hidden layer's input.
      EXPECT_EQ(of.step_flops, 2. * (32 / ranks) * (2 * 784 * 16 + 3 * 16 * 10));
      EXPECT_NE(ToString(of).find("MFU"), std::string::npos) << ToString(of);
    }
    const std::string text = ReadAll(trace);
    EXPECT_NE(text.find("\"traceEvents\":["), std::string::npos);
    EXPECT_NE(text.find("\"name\":\"MatMul\",\"cat\":\"backward\""), std::string::npos);
    EXPECT_NE(text.find("\"step\":11}"), std::string::npos) << text.substr(0, 200);
    EXPECT_EQ(text.find("between ranks") != std::string::npos, ranks > 1);
    EXPECT_EQ(std::filesystem::exists(trace + ".rank1"), ranks > 1);
  }
}

}  // namespace
}  // namespace ropewalk::mlrunner
