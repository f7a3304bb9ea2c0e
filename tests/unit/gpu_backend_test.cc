// Native steps by NCCL: each stream its own order, calls that are ready together one group, and nothing that hangs when a rank is lost.
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <thread>

#include "base/random.h"
#include "mlrunner/gpu/nccl_backend.h"
#include "tests/unit/fake_nccl.h"

namespace ropewalk::mlrunner {
namespace {

using collective::Collective;
using collective::NativeCall;
using gpu::FakeNccl;
using gpu::FakeNcclRank;
using gpu::FakeStreams;

const std::vector<std::int32_t> kBoth = {0, 1};

NativeCall Call(std::int32_t channel, std::uint64_t sequence, std::int64_t count = 100) {
  static float memory[2];
  return {.group = kBoth, .channel = channel, .sequence = sequence, .in = memory, .out = memory + 1, .in_count = count, .out_count = count};
}

class NcclNative : public ::testing::Test {
 protected:
  // A rank of two, on channels 0 and 2. Rank 0 first: its ids are the others'.
  std::unique_ptr<NcclBackend> Connect(std::int32_t rank) {
    auto connected = NcclBackend::Connect({&FakeStreams::api(), streams_[rank].context(), &FakeNccl::table()},
                                          {.rank = rank, .ranks = 2, .channels = {0, 2}, .exchange = [this, rank](std::string mine) {
                                             if (rank == 0) ids_ = mine;
                                             return Result<std::vector<std::string>>(std::vector<std::string>{ids_, ""});
                                           }});
    EXPECT_TRUE(connected.ok()) << connected.status().ToString();
    return connected.ok() ? *std::move(connected) : nullptr;
  }
  void TearDown() override {
    EXPECT_FALSE(nccl_.is_misused);
    EXPECT_EQ(nccl_.depth, 0);
    for (const FakeStreams& streams : streams_) {
      EXPECT_FALSE(streams.has_hung);
      EXPECT_TRUE(streams.streams.empty()) << "streams are left";
    }
  }
  Status Start(NcclBackend* backend, std::vector<NativeCall> calls) {
    return backend->Start(calls, [this] { ++woken_; });
  }
  FakeNccl nccl_;
  FakeStreams streams_[2];
  std::string ids_;
  int woken_ = 0;
};

// The ranks come to the two streams in different orders, and find different calls ready together.
TEST_F(NcclNative, EachStreamHasOneOrderOnAllRanks) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    nccl_.comms.clear();
    Random random(seed);
    constexpr std::uint64_t kCalls = 12;
    for (std::int32_t rank = 0; rank < 2; ++rank) {
      auto backend = Connect(rank);
      ASSERT_NE(backend, nullptr);
      std::map<std::int32_t, std::uint64_t> next = {{0, 0}, {2, 0}};
      while (next[0] < kCalls || next[2] < kCalls) {
        std::vector<NativeCall> ready;
        for (auto& [channel, number] : next) {
          if (number < kCalls && random.Below(2) == 0) {
            ready.push_back(Call(channel, number, 100 * channel + static_cast<std::int64_t>(number)));
            ++number;
          }
        }
        ASSERT_TRUE(Start(backend.get(), ready).ok());
        for (const NativeCall& call : ready) {
          // One stream's end is no other's.
          Result<bool> is_done = backend->IsDone(call);
          ASSERT_TRUE(is_done.ok() && !*is_done);
          const int before = woken_;
          ASSERT_TRUE(streams_[rank].End(streams_[rank].made - (call.channel == 0 ? 1 : 0)));
          EXPECT_EQ(woken_, before + 1);
          is_done = backend->IsDone(call);
          ASSERT_TRUE(is_done.ok() && *is_done);
        }
      }
    }
    ASSERT_EQ(nccl_.comms.size(), 4u);
    std::map<std::int32_t, std::vector<FakeNcclRank>> by_id;
    for (const FakeNcclRank& comm : nccl_.comms) by_id[comm.id].push_back(comm);
    ASSERT_EQ(by_id.size(), 2u) << "each stream has a communicator of its own";
    for (const auto& [id, ranks] : by_id) {
      EXPECT_EQ(ranks[0].groups.size(), kCalls);
      EXPECT_EQ(FakeNccl::Mismatch(ranks), "");
    }
  }
  EXPECT_EQ(nccl_.widest_group, 2) << "what is ready together is one group";
  EXPECT_EQ(nccl_.disconnects, 80);
  EXPECT_EQ(nccl_.aborts, 0);
}

TEST_F(NcclNative, SaysWhatItCannotRun) {
  auto backend = Connect(0);
  ASSERT_NE(backend, nullptr);
  EXPECT_TRUE(backend->Check(Call(0, 0)).ok());
  const std::vector<std::int32_t> turned = {1, 0}, one = {0}, twice = {0, 0}, other = {0, 7};
  NativeCall call = Call(0, 0);
  call.collective = Collective::kBroadcast;
  call.group = turned;
  EXPECT_TRUE(backend->Check(call).ok());
  ASSERT_TRUE(Start(backend.get(), {call}).ok());
  EXPECT_EQ(nccl_.comms[0].groups[0][0], "broadcast of 100, type 0, root 1");
  ASSERT_TRUE(streams_[0].End(1));
  EXPECT_TRUE(*backend->IsDone(call));
  EXPECT_FALSE(backend->IsDone(call).ok()) << "it is asked once too often";
  for (Collective collective : {Collective::kGather, Collective::kAllToAll, Collective::kBarrier}) {
    call = Call(0, 1);
    call.collective = collective;
    EXPECT_EQ(backend->Check(call).tag(), "COLL12");
  }
  for (const auto* group : {&one, &twice, &other}) {
    call = Call(0, 1);
    call.group = *group;
    EXPECT_EQ(backend->Check(call).tag(), "COLL12");
  }
  call = Call(0, 1);
  call.dtype = Dtype::kBool;
  EXPECT_EQ(backend->Check(call).tag(), "COLL12");
  // What is found only when it is begun; nothing of the group is.
  call = Call(0, 1);
  streams_[0].host_memory = call.in;
  EXPECT_EQ(Start(backend.get(), {Call(2, 0), call}).tag(), "COLL12");
  streams_[0].host_memory = nullptr;
  EXPECT_EQ(Start(backend.get(), {Call(1, 0)}).tag(), "GPU06") << "no such channel";
  EXPECT_EQ(Start(backend.get(), {Call(0, 2)}).tag(), "GPU06") << "number 1 is missing";
  EXPECT_EQ(nccl_.comms[1].groups.size(), 0u);
  EXPECT_TRUE(streams_[0].work.empty());
}

// Parts of one length are NCCL's own form; others, and an order that is not that of the ranks, a collective for each part in one group.
TEST_F(NcclNative, PartsOfAnyLengthAreOneGroup) {
  struct Said {
    Collective collective;
    std::int64_t whole, part;
    std::vector<std::int32_t> group;
    std::vector<std::string> calls;
  };
  const std::vector<std::int32_t> turned = {1, 0};
  const std::vector<Said> all = {
      {Collective::kReduceScatter, 10, 5, kBoth, {"reduce_scatter of 5, type 0, sum 2"}},
      {Collective::kReduceScatter, 11, 6, kBoth, {"reduce of 6, type 0, sum 2, root 0", "reduce of 5, type 0, sum 2, root 1"}},
      {Collective::kReduceScatter, 1, 1, kBoth, {"reduce of 1, type 0, sum 2, root 0"}},
      {Collective::kReduceScatter, 10, 5, turned, {"reduce of 5, type 0, sum 2, root 1", "reduce of 5, type 0, sum 2, root 0"}},
      {Collective::kAllgather, 10, 5, kBoth, {"all_gather of 5, type 0"}},
      {Collective::kAllgather, 11, 6, kBoth, {"broadcast of 6, type 0, root 0", "broadcast of 5, type 0, root 1"}},
      {Collective::kAllgather, 11, 5, turned, {"broadcast of 6, type 0, root 1", "broadcast of 5, type 0, root 0"}},
      {Collective::kReduce, 10, 10, turned, {"reduce of 10, type 0, sum 2, root 1"}},
      {Collective::kBroadcast, 10, 10, turned, {"broadcast of 10, type 0, root 1"}},
      {Collective::kAllreduce, 10, 10, kBoth, {"allreduce of 10, type 0, sum 2"}}};
  auto backend = Connect(0);
  ASSERT_NE(backend, nullptr);
  std::uint64_t sequence = 0;
  for (const Said& said : all) {
    const bool gathers = said.collective == Collective::kAllgather;
    NativeCall call = Call(0, sequence++);
    call.collective = said.collective;
    call.op = collective::ReduceOp::kMax;
    call.group = said.group;
    (gathers ? call.out_count : call.in_count) = said.whole;
    (gathers ? call.in_count : call.out_count) = said.part;
    ASSERT_TRUE(Start(backend.get(), {call}).ok());
    EXPECT_EQ(nccl_.comms[0].groups.back(), said.calls);
    ASSERT_TRUE(streams_[0].End(1));
    EXPECT_TRUE(*backend->IsDone(call));
  }
  // A part that another rank would cut otherwise.
  NativeCall call = Call(0, sequence);
  call.collective = Collective::kReduceScatter;
  call.in_count = 11;
  call.out_count = 5;
  EXPECT_EQ(Start(backend.get(), {call}).tag(), "COLL12");
  EXPECT_EQ(nccl_.comms[0].groups.size(), all.size()) << "a refused call has been begun";
}

TEST_F(NcclNative, AnAbortEndsWhatWaitsAndAllThatComes) {
  auto backend = Connect(0);
  ASSERT_NE(backend, nullptr);
  ASSERT_TRUE(Start(backend.get(), {Call(0, 0), Call(2, 0)}).ok());
  streams_[0].work_ends = true;
  backend->Abort(Status(Code::kUnavailable, "COLL20", "rank 1 is lost"));
  backend->Abort(Status(Code::kUnavailable, "COLL20", "the abort is said again"));
  EXPECT_EQ(nccl_.aborts, 2);
  EXPECT_TRUE(streams_[0].work.empty()) << "the device still has the vectors";
  EXPECT_EQ(backend->IsDone(Call(0, 0)).status().what(), "rank 1 is lost");
  EXPECT_EQ(Start(backend.get(), {Call(0, 1)}).what(), "rank 1 is lost");
  backend.reset();
  EXPECT_EQ(nccl_.disconnects, 0) << "an aborted communicator is gone";
}

// NCCL connects ranks when they first meet, and waits there for one that is lost: only the abort ends that.
TEST_F(NcclNative, AnAbortEndsAStartThatHangs) {
  auto backend = Connect(0);
  ASSERT_NE(backend, nullptr);
  nccl_.hangs = true;
  Status started;
  std::thread driver([&] { started = Start(backend.get(), {Call(0, 0)}); });
  while (!nccl_.is_hanging) std::this_thread::yield();
  backend->Abort(Status(Code::kUnavailable, "COLL20", "rank 1 is lost"));
  driver.join();
  EXPECT_EQ(started.tag(), "GPU06") << started.ToString();
  EXPECT_EQ(Start(backend.get(), {Call(0, 0)}).what(), "rank 1 is lost");
}

TEST_F(NcclNative, WhatIsNotDoneAtTheEndIsAborted) {
  auto backend = Connect(0);
  ASSERT_NE(backend, nullptr);
  ASSERT_TRUE(Start(backend.get(), {Call(2, 0)}).ok());
  streams_[0].work_ends = true;
  backend.reset();
  EXPECT_EQ(nccl_.aborts, 2);
  EXPECT_EQ(nccl_.disconnects, 0);
}

TEST_F(NcclNative, FailuresAreTold) {
  auto backend = Connect(0);
  ASSERT_NE(backend, nullptr);
  streams_[0].work_ends = true;
  ASSERT_TRUE(Start(backend.get(), {Call(0, 0), Call(2, 0)}).ok());
  nccl_.comms[0].error = FakeNccl::kFailure;
  Status status = backend->IsDone(Call(0, 0)).status();
  EXPECT_EQ(status.tag(), "GPU06");
  EXPECT_NE(status.why().find("a fake failure"), std::string::npos) << status.ToString();
  streams_[0].is_broken = true;
  EXPECT_EQ(backend->IsDone(Call(2, 0)).status().tag(), "GPU04");
  nccl_.fail_after = 0;
  EXPECT_EQ(Start(backend.get(), {Call(2, 1)}).tag(), "GPU06");
  backend.reset();
  // Half connected: what there is, is given back.
  nccl_.connect_fails = true;
  auto none = NcclBackend::Connect({&FakeStreams::api(), streams_[0].context(), &FakeNccl::table()}, {.exchange = [](std::string mine) {
                                     return Result<std::vector<std::string>>(std::vector<std::string>{std::move(mine)});
                                   }});
  EXPECT_EQ(none.status().tag(), "GPU06");
  auto alone = NcclBackend::Connect({&FakeStreams::api(), streams_[0].context(), &FakeNccl::table()},
                                    {.rank = 1, .ranks = 2, .exchange = [](std::string) {
                                       return Result<std::vector<std::string>>(std::vector<std::string>{"other", ""});
                                     }});
  EXPECT_EQ(alone.status().tag(), "GPU06");
}

}  // namespace
}  // namespace ropewalk::mlrunner
