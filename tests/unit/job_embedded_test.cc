// The embedded backend: the real scheduler core, task runner and block store in this process.
#include "job/embedded/embedded_backend.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <stdexcept>
#include <thread>

#include "dag/dataset.h"
#include "dag/session.h"
#include "dag/text.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
extern "C" std::size_t __sanitizer_get_current_allocated_bytes();  // g++ ships no header for it
#endif

namespace ropewalk::job {
namespace {

namespace fs = std::filesystem;

struct ActionFailed {
  Status status;
};

class EmbeddedTest : public testing::Test {
 protected:
  void SetUp() override {
    dir_ = fs::path(testing::TempDir()) / ("job_embedded_" + std::to_string(getpid()));
    fs::remove_all(dir_);
    fs::create_directories(dir_ / "in");
  }
  void TearDown() override { fs::remove_all(dir_); }

  // A job on a fresh backend; a failed action throws ActionFailed.
  dag::Session Start(std::uint32_t slots = 2, std::uint64_t memory_bytes = 1 << 30, std::uint64_t operator_bytes = 64 << 20) {
    EmbeddedOptions options;
    options.settings.name = "test";
    options.settings.slots = slots;
    options.settings.work_dir = dir_;
    options.settings.split_bytes_max = 1 << 16;
    options.settings.operator_bytes = operator_bytes;
    options.memory_bytes_max = memory_bytes;
    options.spill_dir = dir_ / "spill";
    options.event_log_path = dir_ / "events";
    auto backend = EmbeddedBackend::Start(options);
    EXPECT_TRUE(backend.ok()) << backend.status().ToString();
    std::shared_ptr<EmbeddedBackend> kept = *std::move(backend);
    backend_ = kept.get();
    return dag::Session({kept.get(), kept, [](const Status& status) { throw ActionFailed{status}; }, {"test"}});
  }

  // Words by a Zipf-like law; returns the model's counts.
  std::map<std::string, std::uint64_t> PutWords(int files, int words) {
    std::uint64_t seed = std::random_device()();
    RecordProperty("seed", std::to_string(seed));
    std::cout << "seed " << seed << "\n";
    std::mt19937_64 random(seed);
    std::map<std::string, std::uint64_t> model;
    for (int file = 0; file < files; ++file) {
      std::ofstream out(dir_ / "in" / ("f" + std::to_string(file)));
      for (int i = 0; i < words; ++i) {
        std::string word = "w" + std::to_string((random() % 1000) * (random() % 1000) / 997);
        ++model[word];
        out << word << (i % 9 == 8 ? '\n' : ' ');
      }
    }
    return model;
  }
  std::map<std::string, std::uint64_t> ReadCounts(const fs::path& folder) {
    std::map<std::string, std::uint64_t> counts;
    for (const auto& part : fs::directory_iterator(folder)) {
      if (part.path().filename().string().starts_with("_")) continue;
      std::ifstream in(part.path());
      for (std::string line; std::getline(in, line);) {
        std::size_t tab = line.find('\t');
        EXPECT_TRUE(counts.emplace(line.substr(0, tab), std::stoull(line.substr(tab + 1))).second) << "twice: " << line;
      }
    }
    return counts;
  }
  std::string Events() {
    std::ifstream in(dir_ / "events");
    return {std::istreambuf_iterator<char>(in), {}};
  }

  fs::path dir_;
  EmbeddedBackend* backend_ = nullptr;
};

TEST_F(EmbeddedTest, WordCountEqualsItsModel) {
  auto model = PutWords(5, 20000);
  for (std::uint32_t slots : {1u, 2u, 5u}) {
    std::string out = "out" + std::to_string(slots);
    dag::Session job = Start(slots);
    job.ReadLines("in").FlatMap(Words).CountByKey().WriteText(out);
    EXPECT_EQ(ReadCounts(dir_ / out), model);
    EXPECT_TRUE(fs::exists(dir_ / out / "_SUCCESS"));
  }
}

TEST_F(EmbeddedTest, SpillsAndStaysRight) {
  auto model = PutWords(4, 60000);
  dag::Session job = Start(2, 64 << 10, 256 << 10);
  job.ReadLines("in").FlatMap(Words).CountByKey().WriteText("out");
  EXPECT_EQ(ReadCounts(dir_ / "out"), model);
  EXPECT_GT(backend_->spilled_bytes(), 0u);
}

TEST_F(EmbeddedTest, SortEqualsItsModel) {
  PutWords(3, 20000);
  std::vector<std::string> model;
  for (const auto& entry : fs::directory_iterator(dir_ / "in")) {
    std::ifstream in(entry.path());
    for (std::string line; std::getline(in, line);) model.push_back(line);
  }
  std::sort(model.begin(), model.end());
  for (std::uint64_t operator_bytes : {64u << 20, 64u << 10}) {
    dag::Session job = Start(2, 1 << 20, operator_bytes);
    EXPECT_EQ(job.ReadLines("in").Sort().Collect(), model);
  }
}

// What the process holds. The sanitizers' allocators keep freed memory to catch its use: there it is what is allocated.
std::uint64_t HeldKb() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return __sanitizer_get_current_allocated_bytes() >> 10;
#else
  std::ifstream statm("/proc/self/statm");
  std::uint64_t size = 0, resident = 0;
  statm >> size >> resident;
  return resident * 4;
#endif
}

TEST_F(EmbeddedTest, TenThousandActionsInFlatMemory) {
  dag::Session job = Start(1);
  auto numbers = job.FromVector(std::vector<int>{1, 2, 3});
  std::int64_t last = 0;
  std::uint64_t early_kb = 0;
  for (int i = 0; i < 10'000; ++i) {
    last = numbers.Map([i](int n) { return n + i; }).Sum();
    if (i == 2'000) early_kb = HeldKb();
  }
  EXPECT_EQ(last, 6 + 3 * 9'999);
  EXPECT_LT(HeldKb(), early_kb + 4'096) << "8,000 actions grew the process";
}

// Each round's dataset is made of the last one's.
TEST_F(EmbeddedTest, TenThousandDependentRoundsInFlatMemory) {
  dag::Session job = Start(1);
  Dataset<std::pair<int, std::int64_t>> data = job.FromVector(std::vector<std::pair<int, std::int64_t>>{{0, 1}, {1, 2}, {2, 3}});
  std::int64_t last = 0;
  std::uint64_t early_kb = 0;
  for (int i = 0; i < 10'000; ++i) {
    data = data.Map([](const std::pair<int, std::int64_t>& record) {
                 return std::pair<int, std::int64_t>((record.first + 1) % 3, record.second + 1);
               })
               .ReduceByKey(std::plus<>(), {.partitions = 1});
    last = data.Map([](const std::pair<int, std::int64_t>& record) { return record.second; }).Sum();
    if (i == 2'000) early_kb = HeldKb();
    ASSERT_LT(job.context().live_nodes(), 20);
  }
  EXPECT_EQ(last, 6 + 3 * 10'000);
  EXPECT_LT(HeldKb(), early_kb + 4'096) << "8,000 rounds grew the process";
}

TEST_F(EmbeddedTest, EmptyInputsGiveEmptyResults) {
  std::ofstream(dir_ / "in" / "empty");
  dag::Session job = Start();
  auto counts = job.ReadLines("in").FlatMap(Words).CountByKey();
  EXPECT_EQ(counts.Count(), 0u);
  counts.WriteText("out");
  EXPECT_TRUE(fs::exists(dir_ / "out" / "_SUCCESS"));
}

TEST_F(EmbeddedTest, AThrowingLambdaNamesTaskFileAndRecord) {
  std::ofstream(dir_ / "in" / "good") << "a\nb\n";
  std::ofstream(dir_ / "in" / "numbers") << "1\n2\nx7\n4\n";
  dag::Session job = Start();
  try {
    job.ReadLines("in")
        .Map([](std::string_view line) {
          if (line == "x7") throw std::runtime_error("not a number: x7");
          return 1;
        })
        .Count();
    FAIL() << "the action succeeded";
  } catch (const ActionFailed& failed) {
    std::string text = failed.status.ToString();
    EXPECT_EQ(failed.status.code(), Code::kUserError) << text;
    for (const char* part : {"std::runtime_error", "not a number: x7", "in/numbers", "offset 4"})
      EXPECT_NE(text.find(part), std::string::npos) << text;
  }
  std::string events = Events();
  EXPECT_EQ(std::count(events.begin(), events.end(), '\n') > 3, true) << events;
}

TEST_F(EmbeddedTest, OutputThatExistsIsRefusedAndLeftAlone) {
  std::ofstream(dir_ / "in" / "f") << "a b\n";
  fs::create_directories(dir_ / "out");
  std::ofstream(dir_ / "out" / "mine") << "keep";
  dag::Session job = Start();
  try {
    job.ReadLines("in").WriteText("out");
    FAIL() << "an existing folder was accepted";
  } catch (const ActionFailed& failed) {
    EXPECT_NE(failed.status.what().find("out"), std::string::npos) << failed.status.ToString();
  }
  EXPECT_TRUE(fs::exists(dir_ / "out" / "mine"));
}

TEST_F(EmbeddedTest, NothingIsLeftOfAFailedOutput) {
  std::ofstream(dir_ / "in" / "f") << "a\nboom\n";
  dag::Session job = Start();
  EXPECT_THROW(job.ReadLines("in")
                   .Map([](std::string_view line) {
                     if (line == "boom") throw std::runtime_error("boom");
                     return std::string(line);
                   })
                   .WriteText("out"),
               ActionFailed);
  for (const auto& entry : fs::directory_iterator(dir_))
    EXPECT_EQ(entry.path().filename().string().find("out"), std::string::npos) << entry.path();
}

TEST_F(EmbeddedTest, OnceAndBroadcast) {
  std::ofstream(dir_ / "in" / "f") << "a\nb\nc\n";
  dag::Session job = Start();
  int calls = 0;
  EXPECT_EQ(job.Once("x", [&] { return ++calls; }), 1);
  EXPECT_EQ(job.Once("x", [&] { return ++calls; }), 1) << "one name, one value";
  EXPECT_EQ(calls, 1);
  auto extra = job.Broadcast(std::string("!"));
  auto all = job.ReadLines("in").Map([extra](std::string_view line) { return std::string(line) + *extra; }).Collect();
  std::sort(all.begin(), all.end());
  EXPECT_EQ(all, (std::vector<std::string>{"a!", "b!", "c!"}));
  EXPECT_THROW(job.Once("bad", []() -> int { throw std::runtime_error("no clock"); }), ActionFailed);
}

TEST_F(EmbeddedTest, InterruptEndsAWaitingMainAndStopsTasks) {
  auto model = PutWords(2, 2000);
  dag::Session job = Start();
  std::thread killer([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    std::size_t running = 0;
    EXPECT_TRUE(backend_->Interrupt(&running));
  });
  try {
    job.ReadLines("in")
        .Map([](std::string_view line) {
          std::this_thread::sleep_for(std::chrono::milliseconds(2));
          return std::string(line);
        })
        .WriteText("out");
    ADD_FAILURE() << "the job was not cancelled";
  } catch (const ActionFailed& failed) {
    EXPECT_EQ(failed.status.code(), Code::kCancelled) << failed.status.ToString();
  }
  killer.join();
  for (const auto& entry : fs::directory_iterator(dir_))
    EXPECT_EQ(entry.path().filename().string().find("out"), std::string::npos) << entry.path();
}

// The floor of a loop around actions: an action that does next to nothing. The promise is 200 µs; the bound leaves room for a busy machine.
TEST_F(EmbeddedTest, AnEmptyActionIsCheap) {
  dag::Session job = Start(1);
  auto one = job.FromVector(std::vector<int>{1});
  one.Count();
  auto started = std::chrono::steady_clock::now();
  constexpr int kRounds = 300;
  for (int i = 0; i < kRounds; ++i) ASSERT_EQ(one.Count(), 1u);
  double us = std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - started).count() / kRounds;
  std::cout << "an action takes " << us << " us\n";
  EXPECT_LT(us, 2000);
}

}  // namespace
}  // namespace ropewalk::job
