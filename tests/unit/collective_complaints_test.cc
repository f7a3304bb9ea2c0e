// What users of other tools complain of, as they tell it: each is a scenario here, unless a test of its own has it (docs/collectives.md has
// the list).
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <limits>
#include <numeric>

#include "base/random.h"
#include "mlrunner/collective/run/instance.h"
#include "mlrunner/collective/run/shared_transport.h"
#include "mlrunner/types/half.h"
#include "tests/unit/collective_either_way.h"
#include "tests/unit/collective_gang.h"
#include "tests/unit/collective_lateness.h"

namespace ropewalk::collective::testing {
namespace {

class Complaints : public ::testing::TestWithParam<Wire> {};
INSTANTIATE_TEST_SUITE_P(Wires, Complaints, ::testing::Values(Wire::kShared, Wire::kTcp),
                         [](const auto& info) { return std::string(info.param == Wire::kShared ? "shared" : "tcp"); });

// 1. Nobody waits for a time-out to learn it: two seconds are promised from the call to the failure of both.
TEST_P(Complaints, SumsInSwappedOrderAreNamedAtOnce) {
  for (bool submitted : {false, true})
    WithRanks(2, Over(GetParam()), [&](Communicator& all, Meeting& meeting) {
      std::vector<float> x(100, 1);
      meeting.Barrier(all.rank());
      const Lateness late;
      const auto began = std::chrono::steady_clock::now();
      Status status;
      for (const char* name : all.rank() == 0 ? std::array{"a", "b"} : std::array{"b", "a"})
        if (status.ok()) status = SumEitherWay(all, {.in = x.data(), .out = x.data(), .count = 100, .name = name}, submitted);
      EXPECT_LE(std::chrono::steady_clock::now() - began, std::chrono::milliseconds(late.Allowed(2'000)));
      EXPECT_EQ(status.tag(), "COLL21") << status.ToString();
      for (const char* part : {"rank 0", "rank 1", "allreduce \"a\" (call 0: sum of 100 f32)", "allreduce \"b\" (call 0: sum of 100 f32)"})
        EXPECT_NE(status.what().find(part), std::string::npos) << part << " is not in: " << status.ToString();
      meeting.Barrier(all.rank());
    });
}

// 5. A rank that is slow and says that it gets on stops nobody, for however long. That one which says nothing is named is another test
// (collective_timeout_test), and that it is named when it has ceased to say so is here.
TEST(Complaint, ARankThatEvaluatesForFiveTimeoutsIsWaitedFor) {
  constexpr auto kTimeout = std::chrono::milliseconds(800);
  std::vector<std::thread> gangs;
  for (Wire wire : {Wire::kShared, Wire::kTcp})
    gangs.emplace_back([wire, kTimeout] {
      CommunicatorOptions options = Over(wire);
      options.timeout_ms = kTimeout.count();
      WithRanks(3, options, [&](Communicator& all, Meeting& meeting) {
        std::vector<float> x(1'000, 1);
        const CollectiveCall call{.in = x.data(), .out = x.data(), .count = 1'000, .op = ReduceOp::kMax, .name = "grad"};
        ASSERT_TRUE(all.AllReduce(call).ok());
        const auto began = std::chrono::steady_clock::now();
        while (all.rank() == 0 && std::chrono::steady_clock::now() - began < 5 * kTimeout) {
          std::this_thread::sleep_for(std::chrono::milliseconds(10));
          all.Working();
        }
        Status status = all.AllReduce(call);
        EXPECT_TRUE(status.ok()) << status.ToString();
        if (all.rank() != 0) {
          status = all.AllReduce(call);
          EXPECT_EQ(status.tag(), "COLL28") << status.ToString();
          EXPECT_TRUE(status.what().starts_with("rank 0 is waited for")) << status.ToString();
        }
        meeting.Barrier(all.rank());
      });
    });
  for (std::thread& gang : gangs) gang.join();
}

// 6. A line through points. Ranks have 10, 11 and 9 batches of unequal sizes; one that has no more gives nothing, and says that it was of
// no samples. What is learned is what one rank learns of the same batches.
TEST_P(Complaints, RanksWithUnequalNumbersOfBatchesEndTheEpochWithEqualWeights) {
  constexpr int kBatches[] = {10, 11, 9};
  struct Sums {
    double slope = 0, offset = 0, samples = 0;
  };
  static_assert(sizeof(Sums) == 3 * sizeof(double));
  auto gradient = [&](std::int32_t rank, int batch, double slope, double offset) {
    Sums sums;
    if (batch >= kBatches[rank]) return sums;
    Random random = Random::ForPurpose(static_cast<std::uint64_t>(rank), static_cast<std::uint64_t>(batch));
    const int samples = 1 + (rank * 5 + batch * 3) % 7;
    for (int i = 0; i < samples; ++i) {
      const double x = random.Unit(), error = slope * x + offset - (3 * x - 1);
      sums.slope += error * x;
      sums.offset += error;
      sums.samples += 1;
    }
    return sums;
  };
  auto step = [](const Sums& sums, double* slope, double* offset) {
    *slope -= .5 * sums.slope / sums.samples;
    *offset -= .5 * sums.offset / sums.samples;
  };
  double slope = 0, offset = 0;
  for (int batch = 0; batch < 11; ++batch) {
    Sums all;
    for (std::int32_t rank = 0; rank < 3; ++rank) {
      const Sums one = gradient(rank, batch, slope, offset);
      all = {all.slope + one.slope, all.offset + one.offset, all.samples + one.samples};
    }
    step(all, &slope, &offset);
  }
  std::array<std::array<double, 2>, 3> learned{};
  WithRanks(3, Over(GetParam()), [&](Communicator& all, Meeting&) {
    auto& [mine, my_offset] = learned[all.rank()];
    int steps = 0;
    for (;; ++steps) {
      Sums sums = gradient(all.rank(), steps, mine, my_offset);
      Status status = all.AllReduce({.in = &sums, .out = &sums, .count = 3, .dtype = Dtype::kF64, .name = "gradient"});
      ASSERT_TRUE(status.ok()) << status.ToString();
      if (sums.samples == 0) break;  // on all ranks at once
      step(sums, &mine, &my_offset);
    }
    EXPECT_EQ(steps, 11);
  });
  for (std::int32_t rank : {1, 2}) EXPECT_EQ(learned[rank], learned[0]);  // bit for bit
  EXPECT_NEAR(learned[0][0], slope, 1e-12);
  EXPECT_NEAR(learned[0][1], offset, 1e-12);
  EXPECT_NE(slope, 0);
}

// 7. Ports are whatever is free, so several gangs of one machine do not know of each other; and where a rank listens is the address that it
// was given. No name is ever looked up: what the machine's own resolves to (127.0.1.1 on many) does not matter.
TEST_P(Complaints, TwoJobsAtOnceOnOneHostNeedNoPorts) {
  std::vector<std::thread> jobs;
  for (std::int32_t job = 0; job < 2; ++job)
    jobs.emplace_back([job, wire = GetParam()] {
      WithRanks(2, Over(wire), [&](Communicator& all, Meeting&) {
        for (int round = 0; round < 50; ++round) {
          std::vector<float> x(1'000, static_cast<float>(job * 10 + all.rank()));
          Status status = all.AllReduce({.in = x.data(), .out = x.data(), .count = 1'000, .name = "same name"});
          ASSERT_TRUE(status.ok()) << status.ToString();
          ASSERT_EQ(x, std::vector<float>(1'000, static_cast<float>(job * 20 + 1)));
        }
      });
    });
  for (std::thread& job : jobs) job.join();
}
TEST(Complaint, AHostsNameIsNeverLookedUp) {
  char name[256] = {};
  ASSERT_EQ(gethostname(name, sizeof(name) - 1), 0);
  for (const std::string& address : {std::string(name), std::string("localhost")}) {
    Meeting alone(1);
    Rendezvous rendezvous = alone.Of(0);
    rendezvous.address = address;
    const Status status = Communicator::Connect(rendezvous, Over(Wire::kTcp)).status();
    EXPECT_EQ(status.tag(), "COLL30") << status.ToString();
    EXPECT_NE(status.why().find("names are not looked up"), std::string::npos) << status.ToString();
  }
}

// 8. Containers have a /dev/shm of 64 MB, in which other tools die of SIGBUS. Ours is not there.
TEST(Complaint, ASmallDevShmIsEnough) {
  constexpr int kCannotMount = 77;
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    if (unshare(CLONE_NEWNS) != 0 || mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        mount("tmpfs", "/dev/shm", "tmpfs", 0, "size=64m") != 0)
      _exit(kCannotMount);
    std::atomic<int> right{0};
    WithRanks(2, {.wire = Wire::kShared, .pool_bytes = std::size_t{128} << 20}, [&](Communicator& all, Meeting&) {
      constexpr std::int64_t kCount = 9 << 20;  // two vectors of 36 MiB each are touched
      auto memory = all.Allocate(kCount * sizeof(float));
      if (!memory.ok()) return;
      auto* x = reinterpret_cast<float*>(*memory);
      std::fill(x, x + kCount, static_cast<float>(all.rank() + 1));
      if (all.AllReduce({.in = x, .out = x, .count = kCount, .name = "large"}).ok() && x[0] == 3 && x[kCount - 1] == 3) ++right;
    });
    _exit(right == 2 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  if (WIFEXITED(status) && WEXITSTATUS(status) == kCannotMount) GTEST_SKIP() << "a small /dev/shm cannot be mounted here";
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "ended with " << status;
}

// 9. In deterministic mode what is fused decides nothing; the control is a ring, which adds up each part in an order of its own.
TEST_P(Complaints, FusedAndUnfusedSumsHaveTheSameBitsInDeterministicMode) {
  WithRanks(3, Over(GetParam()), [&](Communicator& all, Meeting&) {
    constexpr std::int64_t kCount = 2'000, kTensor = 97;
    Random random = Random::ForPurpose(9, static_cast<std::uint64_t>(all.rank()));
    std::vector<float> in(kCount), fused(kCount), unfused(kCount);
    for (float& x : in) x = static_cast<float>(random.Unit() * 2 - 1);
    for (bool deterministic : {true, false}) {
      const std::string_view algorithm = deterministic ? "" : "ring";
      auto sum = [&](std::int64_t from, std::int64_t count, float* out) {
        Status status = all.AllReduce({.in = in.data() + from,
                                       .out = out + from,
                                       .count = count,
                                       .name = "part",
                                       .deterministic = deterministic,
                                       .algorithm = algorithm});
        ASSERT_TRUE(status.ok()) << status.ToString();
      };
      sum(0, kCount, fused.data());
      for (std::int64_t from = 0; from < kCount; from += kTensor) sum(from, std::min(kTensor, kCount - from), unfused.data());
      EXPECT_EQ(std::memcmp(fused.data(), unfused.data(), kCount * sizeof(float)) == 0, deterministic);
    }
  });
}

// All ranks of a plan in turns, by one thread.
std::vector<std::uint16_t> OfHalves(const Plan& plan, std::int64_t count, float value) {
  const std::int32_t ranks = plan.header.request.ranks, channels = plan.header.channel_count;
  auto memory = SharedMemory::Create(Board::BytesFor(ranks, channels));
  EXPECT_TRUE(memory.ok()) << memory.status().ToString();
  if (!memory.ok()) return {};
  const Board board(memory->data(), ranks, channels);
  // Small ones: so many of a process's own would touch much memory.
  constexpr std::size_t kPoolBytes = 1 << 20;
  auto pool = SharedMemory::Create(kPoolBytes * static_cast<std::size_t>(ranks));
  EXPECT_TRUE(pool.ok()) << pool.status().ToString();
  if (!pool.ok()) return {};
  std::vector<char*> pools;
  for (std::int32_t rank = 0; rank < ranks; ++rank) pools.push_back(pool->data() + kPoolBytes * static_cast<std::size_t>(rank));
  std::vector<std::unique_ptr<SharedTransport>> endpoints;
  std::vector<std::unique_ptr<Instance>> instances;
  std::vector<std::vector<std::uint16_t>> vectors(ranks, std::vector<std::uint16_t>(count, mlrunner::FloatToF16(value)));
  for (std::int32_t rank = 0; rank < ranks; ++rank) {
    endpoints.push_back(std::make_unique<SharedTransport>(rank, board, pools, kPoolBytes));
    auto made = Instance::Make(&plan.header, &plan.programs[rank], {.count = count}, endpoints.back().get());
    EXPECT_TRUE(made.ok()) << made.status().ToString();
    if (!made.ok()) return {};
    EXPECT_TRUE((*made)->Bind(std::vector<void*>{vectors[rank].data(), vectors[rank].data()}).ok());
    instances.push_back(*std::move(made));
    instances.back()->Start(0, LabelOf(plan.header, count, "x", 0));
  }
  std::vector<bool> is_done(ranks);
  for (int rounds = 0; rounds < 100'000 && std::find(is_done.begin(), is_done.end(), false) != is_done.end(); ++rounds)
    for (std::int32_t rank = 0; rank < ranks; ++rank)
      if (!is_done[rank]) is_done[rank] = instances[rank]->Advance() == Outcome::kDone;
  for (std::int32_t rank = 0; rank < ranks; ++rank) {
    EXPECT_TRUE(is_done[rank]) << "rank " << rank;
    EXPECT_EQ(vectors[rank], vectors[0]);
  }
  return vectors[0];
}
TEST(Complaint, TheMeanOf256HalvesOfAThousandIsAThousand) {
  constexpr std::int64_t kCount = 8;
  struct Fold {
    const char* algorithm;
    ReduceOp op;
    float expected;
  };
  // By what is chosen for large and for small vectors. The control: the sum does not fit into this type.
  for (const Fold& fold : {Fold{"direct", ReduceOp::kAvg, 1000}, Fold{"recursive_doubling", ReduceOp::kAvg, 1000},
                           Fold{"recursive_doubling", ReduceOp::kSum, std::numeric_limits<float>::infinity()}}) {
    auto plan = BuildPlan(fold.algorithm, {.dtype = Dtype::kF16, .op = fold.op, .ranks = 256});
    ASSERT_TRUE(plan.ok()) << plan.status().ToString();
    EXPECT_EQ(OfHalves(*plan, kCount, 1000), std::vector<std::uint16_t>(kCount, mlrunner::FloatToF16(fold.expected))) << fold.algorithm;
  }
}

// 12. Over TCP what is sent may lie in the kernel when its sender's program ends; where memory is shared, and where the call is submitted,
// the sender stays until the receiver has come.
TEST_P(Complaints, WhatWasSentArrivesThoughItsSenderHasEnded) {
  for (std::int64_t count : {10, 4'000})
    for (bool submitted : {false, true}) {
      Meeting meeting(2);
      std::vector<std::thread> ranks;
      for (std::int32_t rank = 0; rank < 2; ++rank)
        ranks.emplace_back([&, rank, wire = GetParam()] {
          auto all = Communicator::Connect(meeting.Of(rank), Over(wire));
          ASSERT_TRUE(all.ok()) << all.status().ToString();
          std::vector<float> x(count);
          if (rank == 0) std::iota(x.begin(), x.end(), 1.f);
          const bool goes_first = wire == Wire::kTcp && !submitted;
          if (rank == 1 && goes_first) meeting.Barrier(rank);  // the sender is gone by then
          if (rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(50));
          CollectiveCall call{
              .collective = Collective::kSendRecv, .in = x.data(), .out = x.data(), .count = count, .peer = 1, .name = "last words"};
          Status status;
          if (submitted) {
            auto handle = (*all)->Submit(call, {});
            status = handle.ok() ? (*all)->Wait(*handle) : handle.status();
          } else {
            status = (*all)->Run(call);
          }
          EXPECT_TRUE(status.ok()) << status.ToString();
          all->reset();
          if (rank == 0 && goes_first) meeting.Barrier(rank);
          EXPECT_EQ(x[count - 1], static_cast<float>(count));
        });
      for (std::thread& rank : ranks) rank.join();
    }
}

}  // namespace
}  // namespace ropewalk::collective::testing
