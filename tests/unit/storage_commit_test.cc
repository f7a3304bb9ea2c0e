// Several attempts of one commit, each stopped before any of its operations while others go on: one that was taken for dead may be alive.
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/random.h"
#include "storage/commit_output.h"
#include "storage/output_folder.h"
#include "tests/unit/faulty_files.h"

namespace ropewalk::storage {
namespace {

namespace fs = std::filesystem;
using Work = std::function<Status(const OutputSpec&)>;
using Files = std::map<std::string, std::string>;  // name -> content

// Work on an output that stops where it is told to. Its thread and the test's never run at the same time.
class Stepped {
 public:
  Stepped(OutputSpec spec, bool simple_renames, Work work) : spec_(std::move(spec)), work_(std::move(work)) {
    spec_.files = &files_;
    files_.simple_renames = simple_renames;
    files_.before = [this](int operation) {
      std::unique_lock lock(mutex_);
      next_ = operation;
      if (operation < stop_at_) return;
      running_ = false;
      turn_.notify_all();
      turn_.wait(lock, [&] { return running_; });
    };
    thread_ = std::thread([this] {
      std::unique_lock lock(mutex_);
      turn_.wait(lock, [&] { return running_; });
      lock.unlock();
      Status status = work_(spec_);
      lock.lock();
      status_ = std::move(status);
      over_ = true;
      running_ = false;
      turn_.notify_all();
    });
  }
  ~Stepped() {
    RunTo(kEnd);
    thread_.join();
  }

  static constexpr int kEnd = std::numeric_limits<int>::max();
  // Stops before that operation, which is the first that is not done. True: there is none, it has ended.
  bool RunTo(int operation) {
    std::unique_lock lock(mutex_);
    if (over_) return true;
    stop_at_ = operation;
    running_ = true;
    turn_.notify_all();
    turn_.wait(lock, [&] { return !running_; });
    return over_;
  }
  void Crash() {
    files_.fail_at = 0;
    files_.crash = true;
    RunTo(kEnd);
  }
  int next() const { return next_; }
  bool over() const { return over_; }
  const Status& status() const { return status_; }

 private:
  OutputSpec spec_;
  Work work_;
  FaultyFiles files_;
  std::mutex mutex_;
  std::condition_variable turn_;
  int next_ = 0, stop_at_ = 0;
  bool running_ = false, over_ = false;
  Status status_;
  std::thread thread_;
};

Files Read(const std::string& folder) {
  Files files;
  if (!fs::exists(folder)) return files;
  for (const auto& entry : fs::directory_iterator(folder)) {
    std::ifstream in(entry.path(), std::ios::binary);
    std::stringstream text;
    text << in.rdbuf();
    files[entry.path().filename().string()] = text.str();
  }
  return files;
}

class Commits : public testing::TestWithParam<std::tuple<bool, bool>> {
 protected:
  Commits() {
    // In memory where possible: thousands of syncs to a disk take minutes and prove nothing more here.
    std::string name = std::string(access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp") + "/ropewalk-commit-XXXXXX";
    root_ = mkdtemp(name.data());
    spec_ = {root_ + "/out", "job-1-action-2", overwrite_, ""};
  }
  ~Commits() override { fs::remove_all(root_); }

  std::string WritePart(std::uint32_t part, std::uint32_t attempt, const std::string& text) {
    auto writer = PartWriter::Open(spec_, part, attempt);
    EXPECT_TRUE(writer.ok() && (*writer)->Append(AsBytes(text)).ok());
    return *(*writer)->Finish(1);
  }
  // As after the tasks, before any commit.
  void Reset(bool parts = true) {
    for (const auto& entry : fs::directory_iterator(root_)) fs::remove_all(entry.path());
    // Parts of the same names and sizes: sizes must not be what tells old from new.
    old_ = overwrite_ ? Files{{"_SUCCESS", "{\"key\": \"another\"}\n"}, {"part-00000", "FIRST\n"}, {"part-00001", "SECOND\n"}} : Files{};
    if (overwrite_) fs::create_directory(root_ + "/out");
    for (const auto& [file, text] : old_) std::ofstream(root_ + "/out/" + file, std::ios::binary) << text;
    winners_.clear();
    if (parts) winners_ = {WritePart(0, 1, "first\n"), WritePart(1, 3, "second\n")};
    was_new_ = false;
  }
  // What an undisturbed commit publishes.
  void Expect(bool parts) {
    Reset(parts);
    ASSERT_TRUE(CommitOutput(spec_, winners_, 9).ok());
    new_ = Read(root_ + "/out");
    ASSERT_EQ(new_.size(), parts ? 3u : 1u);
  }
  std::unique_ptr<Stepped> Attempt(std::uint32_t number) {
    return std::make_unique<Stepped>(spec_, simple_renames_,
                                     [winners = winners_, number](const OutputSpec& spec) { return CommitOutput(spec, winners, number); });
  }
  // At every moment: all of the old or all of the new, and never the old again.
  testing::AssertionResult Whole() {
    const Files seen = Read(root_ + "/out");
    if (seen == new_) {
      was_new_ = true;
      return testing::AssertionSuccess();
    }
    if (was_new_) return testing::AssertionFailure() << "the new output has gone again";
    // In two steps the name may be absent for a moment.
    if (seen == old_ || (seen.empty() && simple_renames_ && !fs::exists(root_ + "/out"))) return testing::AssertionSuccess();
    return testing::AssertionFailure() << "a mixture of " << seen.size() << " files: " << (seen.empty() ? "" : seen.begin()->second);
  }
  // Runs it to its end.
  testing::AssertionResult Ends(Stepped& attempt) {
    attempt.RunTo(Stepped::kEnd);
    if (testing::AssertionResult whole = Whole(); !whole) return whole;
    if (attempt.status().ok() && !was_new_) return testing::AssertionFailure() << "it reported success without the output";
    return testing::AssertionSuccess();
  }
  std::vector<std::string> Leftovers() {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(root_))
      if (entry.path().filename() != "out") names.push_back(entry.path().filename().string());
    return names;
  }
  // The end of a job: what attempts that live too long have left is removed, and nothing else.
  testing::AssertionResult EndsTidily() {
    DiscardOutput(spec_);
    if (Read(root_ + "/out") != new_) return testing::AssertionFailure() << "the new output is not there";
    if (!Leftovers().empty()) return testing::AssertionFailure() << "left behind: " << Leftovers()[0];
    return testing::AssertionSuccess();
  }

  const bool overwrite_ = std::get<0>(GetParam()), simple_renames_ = std::get<1>(GetParam());
  std::string root_;
  OutputSpec spec_;
  std::vector<std::string> winners_;
  Files old_, new_;
  bool was_new_ = false;
};

// The first one is taken for dead before its n-th operation, the second one is stopped before its m-th, and both go on, in either order.
TEST_P(Commits, TwoAttemptsMeetAtAnyTwoSteps) {
  for (bool parts : {true, false}) {
    Expect(parts);
    bool last_n = false;
    for (int n = 0; !last_n; ++n) {
      bool last_m = false;
      for (int m = parts ? 0 : n % 3; !last_m; m += parts ? 1 : 3) {
        for (bool first_ends_first : {true, false}) {
          if (!overwrite_ && first_ends_first != ((n + m) % 2 == 0)) continue;  // nothing old in the way: every other pair is enough
          SCOPED_TRACE("parts " + std::to_string(parts) + " n " + std::to_string(n) + " m " + std::to_string(m) +
                       (first_ends_first ? " first" : " second") + " ends first");
          Reset(parts);
          auto first = Attempt(1), second = Attempt(2);
          last_n = first->RunTo(n);
          ASSERT_TRUE(Whole());
          last_m = second->RunTo(m);
          ASSERT_TRUE(Whole());
          ASSERT_TRUE(Ends(first_ends_first ? *first : *second));
          ASSERT_TRUE(Ends(first_ends_first ? *second : *first));
          ASSERT_TRUE(second->status().ok()) << second->status().ToString();
          ASSERT_TRUE(EndsTidily());
        }
      }
      ASSERT_LT(n, 200);
    }
  }
}

// The second one crashes there, and a third one goes on, while the first one still lives; every other time that one has crashed, too.
TEST_P(Commits, AThirdAttemptEndsWhatTwoHaveBegun) {
  Expect(true);
  bool last_n = false;
  for (int n = 0; !last_n; ++n) {
    bool last_m = false;
    for (int m = 0; !last_m; ++m) {
      SCOPED_TRACE("n " + std::to_string(n) + " m " + std::to_string(m));
      Reset();
      auto first = Attempt(1), second = Attempt(2), third = Attempt(3);
      last_n = first->RunTo(n);
      last_m = second->RunTo(m);
      second->Crash();
      ASSERT_TRUE(Whole());
      if ((n + m) % 2 == 0) first->Crash();
      ASSERT_TRUE(Ends(*third));
      ASSERT_TRUE(third->status().ok()) << third->status().ToString();
      ASSERT_TRUE(Ends(*first));
      ASSERT_TRUE(EndsTidily());
    }
    ASSERT_LT(n, 200);
  }
}

TEST_P(Commits, ManyAttemptsInAnyOrderOfSteps) {
  std::uint64_t seed = static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
  if (const char* given = getenv("ROPEWALK_TEST_SEED")) seed = strtoull(given, nullptr, 10);
  std::printf("ROPEWALK_TEST_SEED=%llu\n", static_cast<unsigned long long>(seed));
  Random random(seed);
  Expect(true);
  for (int round = 0; round < 100; ++round) {
    SCOPED_TRACE(round);
    Reset();
    std::vector<std::unique_ptr<Stepped>> attempts;
    for (std::uint32_t number = 1; number <= 4; ++number) attempts.push_back(Attempt(number));
    for (bool all_over = false; !all_over;) {
      Stepped& one = *attempts[random.Below(attempts.size())];
      const bool was_over = one.over();
      if (&one != attempts.back().get() && random.OneIn(30)) {
        one.Crash();
      } else {
        one.RunTo(one.next() + 1 + static_cast<int>(random.Below(8)));
      }
      ASSERT_TRUE(Whole());
      ASSERT_TRUE(was_over || !one.over() || !one.status().ok() || was_new_) << "success without the output";
      all_over = true;
      for (const auto& attempt : attempts) all_over = all_over && attempt->over();
    }
    ASSERT_TRUE(attempts.back()->status().ok()) << attempts.back()->status().ToString();
    ASSERT_TRUE(EndsTidily());
  }
}

// The job is over while an attempt that was taken for dead lives: what it then publishes is whole, or it publishes nothing.
TEST_P(Commits, AnOutputIsDiscardedAtAnyStep) {
  Expect(true);
  bool last_n = false;
  for (int n = 0; !last_n; ++n) {
    bool last_m = false;
    for (int m = 0; !last_m; ++m) {
      for (bool commit_ends_first : {true, false}) {
        if (!overwrite_ && commit_ends_first != ((n + m) % 2 == 0)) continue;
        SCOPED_TRACE("n " + std::to_string(n) + " m " + std::to_string(m) + (commit_ends_first ? " commit" : " discard") + " ends first");
        Reset();
        auto commit = Attempt(1);
        Stepped discard(spec_, simple_renames_, [](const OutputSpec& spec) { return DiscardOutput(spec), Status(); });
        last_n = commit->RunTo(n);
        last_m = discard.RunTo(m);
        ASSERT_TRUE(Whole());
        if (commit_ends_first) {
          ASSERT_TRUE(Ends(*commit));
        }
        discard.RunTo(Stepped::kEnd);
        ASSERT_TRUE(Whole());
        ASSERT_TRUE(Ends(*commit));
        if (!was_new_) {
          ASSERT_EQ(Read(root_ + "/out"), old_);
          ASSERT_EQ(fs::exists(root_ + "/out"), overwrite_);
        }
        DiscardOutput(spec_);
        ASSERT_EQ(Leftovers(), std::vector<std::string>{});
      }
    }
    ASSERT_LT(n, 200);
  }
}

// An earlier attempt that comes to a commit which a later one has begun leaves it alone, and says so.
TEST_P(Commits, AnEarlierAttemptTakesNothingOver) {
  Expect(true);
  Reset();
  auto second = Attempt(2);
  ASSERT_FALSE(second->RunTo(10));  // it has the folder of the commit
  auto first = Attempt(1);
  ASSERT_TRUE(Ends(*first));
  EXPECT_EQ(first->status().code(), Code::kStale) << first->status().ToString();
  EXPECT_EQ(first->status().tag(), "OUT08");
  ASSERT_TRUE(Ends(*second));
  EXPECT_TRUE(second->status().ok()) << second->status().ToString();
}

// Published, replaced by another job's output, and asked for once more, since the first success was not heard: it is no loss.
TEST_P(Commits, WhatWasPublishedAndReplacedSinceWasPublished) {
  Expect(true);
  bool last_n = false;
  for (int n = 0; !last_n; ++n) {
    SCOPED_TRACE(n);
    Reset();
    auto first = Attempt(1);
    last_n = first->RunTo(n);
    first->Crash();
    if (last_n || Read(root_ + "/out") != new_ || Leftovers().empty() || !fs::exists(root_ + "/" + Leftovers()[0] + "/commit/1")) continue;
    const Files other = {{"part-00000", "other\n"}, {"part-00001", "data...\n"}};
    fs::remove_all(root_ + "/out");
    fs::create_directory(root_ + "/out");
    for (const auto& [file, text] : other) std::ofstream(root_ + "/out/" + file, std::ios::binary) << text;
    Status again = CommitOutput(spec_, winners_, 2);
    ASSERT_TRUE(again.ok()) << again.ToString();
    ASSERT_EQ(Read(root_ + "/out"), other) << "and that one stays";
    ASSERT_EQ(Leftovers(), std::vector<std::string>{});
  }
}

// Without an old output two steps are one.
INSTANTIATE_TEST_SUITE_P(All, Commits, testing::Values(std::tuple(false, false), std::tuple(true, false), std::tuple(true, true)));

}  // namespace
}  // namespace ropewalk::storage
