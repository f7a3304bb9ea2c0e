// Gangs in one process: ranks are threads of the task runner, also where there are more of them than processors.
#include <gtest/gtest.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <filesystem>
#include <future>
#include <mutex>
#include <stdexcept>
#include <thread>

#include "dag/run_gang.h"
#include "dag/session.h"
#include "job/embedded/embedded_backend.h"
#include "job/gang_ranks.h"

namespace ropewalk::job {
namespace {

namespace fs = std::filesystem;
using dag::GangContext;

class GangEmbedded : public testing::Test {
 protected:
  void SetUp() override {
    dir_ = fs::path(testing::TempDir()) / ("gang_embedded_" + std::to_string(getpid()));
    fs::create_directories(dir_);
  }
  void TearDown() override { fs::remove_all(dir_); }
  dag::Session Start(std::uint32_t slots = 2) {
    EmbeddedOptions options;
    options.settings.name = "test";
    options.settings.slots = slots;
    options.settings.work_dir = dir_;
    options.settings.operator_bytes = 1 << 20;
    options.memory_bytes_max = 16 << 20;  // less than four tasks declare: ranks must not wait for it
    options.spill_dir = dir_ / "spill";
    auto backend = EmbeddedBackend::Start(options);
    EXPECT_TRUE(backend.ok()) << backend.status().ToString();
    std::shared_ptr<EmbeddedBackend> kept = *std::move(backend);
    backend_ = kept.get();
    return dag::Session({kept.get(), kept, [](const Status& status) { throw std::runtime_error(status.ToString()); }, {"test"}});
  }

  fs::path dir_;
  EmbeddedBackend* backend_ = nullptr;
};

TEST_F(GangEmbedded, FourRanksOnTwoSlotsMeetAndRankZeroAnswers) {
  dag::Session job = Start(2);
  std::atomic<int> ran{0};
  Result<std::string> result = dag::RunGang(job, "sum", 4, [&ran](GangContext& gang) -> Result<std::string> {
    ++ran;
    EXPECT_EQ(gang.ranks(), 4);
    EXPECT_EQ(gang.epoch(), 0u);
    EXPECT_EQ(gang.address(), "127.0.0.1");
    EXPECT_FALSE(gang.machine().empty());
    std::string sum;
    for (int round = 0; round < 20; ++round) {
      ASSIGN_OR_RETURN(std::vector<std::string> all, gang.Exchange(std::to_string(gang.rank()) + "." + std::to_string(round)));
      EXPECT_EQ(all.size(), 4u);
      for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(all[rank], std::to_string(rank) + "." + std::to_string(round));
      sum += all[3] + " ";
    }
    gang.Report("done");
    return "rank " + std::to_string(gang.rank()) + ": " + sum.substr(0, 8);
  });
  ASSERT_TRUE(result.ok()) << result.status().ToString();
  EXPECT_EQ(*result, "rank 0: 3.0 3.1 ");
  EXPECT_EQ(ran.load(), 4);
  // Ordinary actions go on after it, and so do gangs.
  EXPECT_EQ(job.FromVector<std::int64_t>({1, 2, 3}).Count(), 3u);
  EXPECT_EQ(*dag::RunGang(job, "one", 1, [](GangContext& gang) -> Result<std::string> { return std::to_string(gang.epoch()); }), "1");
}

TEST_F(GangEmbedded, MoreRanksThanTheBoundAreRefusedAtOnce) {
  dag::Session job = Start(2);
  auto never = [](GangContext&) -> Result<std::string> { return Status(Code::kInternal, "T", "it ran"); };
  Result<std::string> none = dag::RunGang(job, "none", 0, never);
  EXPECT_EQ(none.status().tag(), "GANG08");
  EXPECT_EQ(dag::RunGang(job, "huge", 257, never).status().tag(), "GANG08");
  Result<std::string> many = dag::RunGang(job, "many", 65, never);
  EXPECT_EQ(many.status().tag(), "GANG01");
  EXPECT_EQ(many.status().code(), Code::kUnplaceable);
  EXPECT_NE(many.status().why().find("there are 64"), std::string::npos) << many.status().why();
}

TEST_F(GangEmbedded, AnExchangeIsBounded) {
  dag::Session job = Start(2);
  Result<std::string> result =
      dag::RunGang(job, "big", 2,
                   [](GangContext& gang) -> Result<std::string> {
                     ASSIGN_OR_RETURN(std::vector<std::string> all, gang.Exchange(std::string(kExchangeBytesMax, 'x')));
                     EXPECT_EQ(all[1].size(), kExchangeBytesMax);
                     return gang.Exchange(std::string(kExchangeBytesMax + 1, 'x')).status();
                   },
                   {.attempts_max = 1});
  EXPECT_EQ(result.status().code(), Code::kInvalid);
  EXPECT_EQ(result.status().tag(), "GANG09");
  EXPECT_NE(result.status().what().find("65537 bytes"), std::string::npos) << result.status().what();
}

// Rank 1 fails twice; the others wait for it in an Exchange or for something of their own, and are freed.
TEST_F(GangEmbedded, AFailedRankFreesTheOthersAndTheThirdFormingSucceeds) {
  dag::Session job = Start(2);
  std::mutex mutex;
  std::vector<std::string> told;
  std::atomic<int> formed{0}, freed_in_exchange{0};
  Result<std::string> result = dag::RunGang(job, "flaky", 3, [&](GangContext& gang) -> Result<std::string> {
    if (gang.rank() == 0) ++formed;
    ASSIGN_OR_RETURN(std::vector<std::string> all, gang.Exchange(""));
    if (gang.epoch() == 2) return "epoch " + std::to_string(gang.epoch());
    if (gang.rank() == 1) throw std::runtime_error("loss is not a number");
    if (gang.rank() == 0) {
      Result<std::vector<std::string>> never = gang.Exchange("");
      freed_in_exchange += never.ok() ? 0 : 1;
      return never.status();
    }
    std::promise<Status> lost;
    std::thread::id from;
    gang.OnLost([&](const Status& status) {
      from = std::this_thread::get_id();
      lost.set_value(status);
    });
    Status status = lost.get_future().get();
    EXPECT_NE(from, std::this_thread::get_id());
    std::lock_guard lock(mutex);
    told.push_back(status.what());
    return status;
  });
  ASSERT_TRUE(result.ok()) << result.status().ToString();
  EXPECT_EQ(*result, "epoch 2");
  EXPECT_EQ(formed.load(), 3);
  EXPECT_EQ(freed_in_exchange.load(), 2);
  EXPECT_EQ(told, (std::vector<std::string>(2, "rank 1 on machine embedded failed")));
}

TEST_F(GangEmbedded, AProgramThatAlwaysFailsEndsTheJobWithItsMessage) {
  dag::Session job = Start(2);
  std::atomic<int> tried{0};
  Result<std::string> result = dag::RunGang(job, "bad", 2, [&](GangContext& gang) -> Result<std::string> {
    if (gang.rank() == 1) {
      ++tried;
      return Status(Code::kUserError, "MY01", "the shape does not fit", "3 is not 4", "mend it");
    }
    return gang.Exchange("").status();
  });
  EXPECT_EQ(tried.load(), 3);
  EXPECT_EQ(result.status().code(), Code::kUserError);
  EXPECT_EQ(result.status().tag(), "MY01");
  EXPECT_NE(result.status().what().find("rank 1 of stage"), std::string::npos) << result.status().what();
  EXPECT_NE(result.status().what().find("the shape does not fit"), std::string::npos);
  EXPECT_EQ(result.status().why(), "3 is not 4; the gang was formed 3 times and a rank failed each time");
  EXPECT_EQ(result.status().fix(), "mend it");
}

// Two errors in a row would be one too many.
TEST_F(GangEmbedded, AGangThatGetsFartherIsGivenItsTriesAnew) {
  dag::Session job = Start(2);
  Result<std::string> result = dag::RunGang(job, "farther", 2,
                                            [&](GangContext& gang) -> Result<std::string> {
                                              if (gang.epoch() == 2) return std::to_string(gang.epoch());
                                              gang.Reached(gang.epoch() + 1);
                                              gang.Reached(0);  // is no news
                                              return Status(Code::kUserError, "MY01", "not yet");
                                            },
                                            {.attempts_max = 2});
  ASSERT_TRUE(result.ok()) << result.status().ToString();
  EXPECT_EQ(*result, "2");
}

// Also where the rank that has said so ends well, and another one fails.
TEST_F(GangEmbedded, WhatARankThatEndedWellHasReachedCounts) {
  dag::Session job = Start(2);
  std::atomic<std::uint64_t> reached{0};
  Result<std::string> result = dag::RunGang(job, "farther", 2,
                                            [&](GangContext& gang) -> Result<std::string> {
                                              if (gang.epoch() == 2) return std::to_string(gang.epoch());
                                              if (gang.rank() == 0) {
                                                gang.Reached(gang.epoch() + 1);
                                                reached.store(gang.epoch() + 1);
                                                return std::string();
                                              }
                                              while (reached.load() <= gang.epoch()) std::this_thread::yield();
                                              return Status(Code::kUserError, "MY01", "not yet");
                                            },
                                            {.attempts_max = 2});
  ASSERT_TRUE(result.ok()) << result.status().ToString();
  EXPECT_EQ(*result, "2");
}

TEST_F(GangEmbedded, AnInterruptFreesRanksThatWait) {
  dag::Session job = Start(2);
  std::atomic<int> waiting{0};
  std::thread interrupt([&] {
    while (waiting.load() < 3) std::this_thread::yield();
    std::size_t running = 0;
    EXPECT_TRUE(backend_->Interrupt(&running));
    EXPECT_EQ(running, 3u);
  });
  std::atomic<int> cancelled{0};
  Result<std::string> result = dag::RunGang(job, "long", 3, [&](GangContext& gang) -> Result<std::string> {
    if (gang.rank() == 2) {
      std::promise<Status> lost;
      gang.OnLost([&](const Status& status) { lost.set_value(status); });
      ++waiting;
      Status status = lost.get_future().get();
      cancelled += status.code() == Code::kCancelled ? 1 : 0;
      return status;
    }
    ++waiting;
    Status status = gang.Exchange("").status();
    cancelled += status.code() == Code::kCancelled ? 1 : 0;
    return status;
  });
  interrupt.join();
  EXPECT_EQ(result.status().code(), Code::kCancelled);
  EXPECT_EQ(cancelled.load(), 3);
}

TEST_F(GangEmbedded, ReturningWhileOthersExchangeIsSaid) {
  dag::Session job = Start(2);
  Result<std::string> result = dag::RunGang(job, "uneven", 2,
                                            [](GangContext& gang) -> Result<std::string> {
                                              if (gang.rank() == 1) return std::string("early");
                                              ASSIGN_OR_RETURN(auto all, gang.Exchange(""));
                                              return std::string("late");
                                            },
                                            {.attempts_max = 2});
  EXPECT_EQ(result.status().tag(), "GANG05") << result.status().ToString();
}

// ---- what GangContext promises about OnLost ----------------------------------------------------------------------------------------

TaskAttempt Attempt(std::uint32_t n) { return {StageId{9}, n, n + 1}; }

TEST(GangRanksOnLost, IsCalledOnceAndAtOnceWhenItIsKnownAlready) {
  GangRanks ranks([](const TaskAttempt&, std::uint32_t, std::uint64_t, std::string) {});
  auto rank = ranks.Add(Attempt(0), {0, 1, 0, "m", "127.0.0.1"});
  std::atomic<int> calls{0};
  std::promise<void> first, second;
  rank->OnLost([&](const Status&) {
    ++calls;
    first.set_value();
  });
  ranks.Lose(Attempt(0), Status(Code::kUnavailable, "T", "gone"));
  ranks.Lose(Attempt(0), Status(Code::kUnavailable, "T", "gone again"));
  first.get_future().wait();
  rank->OnLost([&](const Status& status) {
    EXPECT_EQ(status.what(), "gone");
    second.set_value();
  });
  second.get_future().wait();
  rank->OnLost({});
  EXPECT_EQ(calls.load(), 1);
  EXPECT_EQ(rank->Exchange("x").status().what(), "gone");
}

TEST(GangRanksOnLost, NoneRunsAfterItWasTakenBack) {
  for (int i = 0; i < 200; ++i) {
    GangRanks ranks([](const TaskAttempt&, std::uint32_t, std::uint64_t, std::string) {});
    auto rank = ranks.Add(Attempt(0), {0, 1, 0, "m", "127.0.0.1"});
    std::atomic<bool> alive{true};
    std::atomic<int> late{0};
    rank->OnLost([&](const Status&) { late += alive.load() ? 0 : 1; });
    std::thread lose([&] { ranks.Lose(Attempt(0), Status(Code::kUnavailable, "T", "gone")); });
    rank->OnLost({});
    alive = false;
    lose.join();
    EXPECT_EQ(late.load(), 0);
  }
}

TEST(GangRanksOnLost, AFunctionMayTakeItselfBackAndMayThrow) {
  GangRanks ranks([](const TaskAttempt&, std::uint32_t, std::uint64_t, std::string) {});
  auto rank = ranks.Add(Attempt(0), {0, 1, 0, "m", "127.0.0.1"});
  std::promise<void> called;
  rank->OnLost([&](const Status&) {
    rank->OnLost({});
    called.set_value();
    throw std::runtime_error("in the callback");
  });
  ranks.Lose(Attempt(0), Status(Code::kUnavailable, "T", "gone"));
  called.get_future().wait();
  rank->OnLost({});
}

// The thread in which a function ended itself would have told the other ranks.
TEST(GangRanksOnLost, AFunctionMayEndItsThread) {
  GangRanks ranks([](const TaskAttempt&, std::uint32_t, std::uint64_t, std::string) {});
  auto first = ranks.Add(Attempt(0), {0, 2, 0, "m", "127.0.0.1"}), second = ranks.Add(Attempt(1), {1, 2, 0, "m", "127.0.0.1"});
  std::promise<void> first_called, second_called;
  first->OnLost([&](const Status&) {
    first_called.set_value();
    pthread_exit(nullptr);
  });
  second->OnLost([&](const Status&) { second_called.set_value(); });
  const Status gone(Code::kUnavailable, "T", "gone");
  ranks.Lose(Attempt(0), gone);
  first_called.get_future().wait();
  ranks.Lose(Attempt(1), gone);
  second_called.get_future().wait();
  first->OnLost({});
}

// What is told goes through the master; a rank may say where it is at each step.
TEST(GangRanksFarther, IsToldTenTimesASecondAtMostAndKnownInFull) {
  std::atomic<int> told{0};
  GangRanks ranks([](const TaskAttempt&, std::uint32_t, std::uint64_t, std::string) {}, [&](const TaskAttempt&) { ++told; });
  auto rank = ranks.Add(Attempt(0), {0, 1, 0, "m", "127.0.0.1"});
  const auto begin = std::chrono::steady_clock::now();
  for (std::uint64_t step = 1; step <= 1000; ++step) rank->Reached(step);
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - begin).count();
  EXPECT_GE(told.load(), 1);
  EXPECT_LE(told.load(), 1 + ms / 100);
  EXPECT_EQ(ranks.SaidBy(Attempt(0)).reached, 1000u);
}

TEST(GangRanksRounds, AnswersOfOtherRoundsAndFormingsAreDropped) {
  std::vector<std::uint64_t> said;
  GangRanks* all = nullptr;
  auto values = [](const char* text) { return std::make_shared<const std::vector<std::string>>(1, text); };
  GangRanks ranks([&](const TaskAttempt&, std::uint32_t epoch, std::uint64_t round, std::string) {
    said.push_back(round);
    all->Gathered(StageId{9}, epoch + 1, round, values("of another forming"));
    all->Gathered(StageId{8}, epoch, round, values("of another stage"));
    all->Gathered(StageId{9}, epoch, round + 1, values("of a later round"));
    all->Gathered(StageId{9}, epoch, round, values("right"));
  });
  all = &ranks;
  auto rank = ranks.Add(Attempt(0), {0, 1, 5, "m", "127.0.0.1"});
  for (int i = 0; i < 3; ++i) EXPECT_EQ((*rank->Exchange("x")).at(0), "right");
  EXPECT_EQ(said, (std::vector<std::uint64_t>{1, 2, 3}));
}

}  // namespace
}  // namespace ropewalk::job
