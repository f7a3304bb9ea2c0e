// A communicator's calls for vectors that are in parts, of all, or of neighbours, over shared memory and TCP: what they leave where, in
// every type, in place and not, for vectors shorter than the gang and empty ones; and what they refuse.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <functional>
#include <string>
#include <vector>

#include "mlrunner/collective/run/call_steps.h"
#include "mlrunner/collective/simulate.h"
#include "tests/unit/collective_gang.h"
#include "tests/unit/collective_numbers.h"
#include "tests/unit/collective_plans.h"

namespace ropewalk::collective::testing {
namespace {

class Calls : public ::testing::TestWithParam<Wire> {};
INSTANTIATE_TEST_SUITE_P(Wires, Calls, ::testing::Values(Wire::kShared, Wire::kTcp),
                         [](const auto& info) { return std::string(info.param == Wire::kShared ? "shared" : "tcp"); });

constexpr Collective kKinds[] = {Collective::kReduceScatter, Collective::kAllgather,       Collective::kAllgatherV,
                                 Collective::kReduce,        Collective::kGather,          Collective::kScatter,
                                 Collective::kAllToAll,      Collective::kNeighborExchange};

// Small whole numbers, whose sums and products over five ranks every type holds exactly.
double ValueOf(std::int32_t rank, std::int64_t i) { return static_cast<double>((i * 7 + rank * 5 + i / 3) % 3 + 1); }

// Where the parts of `count` elements begin, and how long they are; written down without a look at the product's.
struct Part {
  std::int64_t begin = 0, count = 0;
};
Part PartFor(std::int64_t count, std::int32_t ranks, std::int32_t rank) {
  Part part;
  for (std::int32_t r = 0; r <= rank; ++r) {
    part.begin += part.count;
    part.count = count / ranks + (r < count % ranks ? 1 : 0);
  }
  return part;
}

double Folded(ReduceOp op, const std::vector<double>& values) {
  double result = values[0];
  for (std::size_t i = 1; i < values.size(); ++i) {
    const double x = values[i];
    result = op == ReduceOp::kMin    ? std::min(result, x)
             : op == ReduceOp::kMax  ? std::max(result, x)
             : op == ReduceOp::kProd ? result * x
                                     : result + x;
  }
  return op == ReduceOp::kAvg ? result / static_cast<double>(values.size()) : result;
}

// How much a rank gives to an allgather-v.
std::int64_t GivenBy(std::int32_t rank, std::int64_t count) { return rank == 1 ? 0 : count + rank; }

// What a rank gives and is to get, and where one of the two may lie in the other.
struct Sides {
  std::vector<double> in, out;
  enum { kApart, kOutInIn, kInInOut } place = kApart;
  std::int64_t offset = 0;
};

Sides SidesOf(const CollectiveCall& call, std::int32_t ranks, std::int32_t rank) {
  const Part mine = PartFor(call.count, ranks, rank);
  const bool is_root = rank == call.root;
  Sides sides;
  auto give = [&](std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) sides.in.push_back(ValueOf(rank, i));
  };
  auto get = [&](std::int32_t from, std::int64_t begin, std::int64_t count) {
    for (std::int64_t i = begin; i < begin + count; ++i) sides.out.push_back(ValueOf(from, i));
  };
  auto get_folded = [&](std::int64_t begin, std::int64_t count) {
    for (std::int64_t i = begin; i < begin + count; ++i) {
      std::vector<double> values;
      for (std::int32_t from = 0; from < ranks; ++from) values.push_back(ValueOf(from, i));
      sides.out.push_back(Folded(call.op, values));
    }
  };
  switch (call.collective) {
    case Collective::kReduceScatter:
      give(call.count);
      get_folded(mine.begin, mine.count);
      sides.place = Sides::kOutInIn;
      sides.offset = mine.begin;
      break;
    case Collective::kAllgather:
    case Collective::kGather:
      give(mine.count);
      if (call.collective == Collective::kGather && !is_root) break;
      for (std::int32_t from = 0; from < ranks; ++from) get(from, 0, PartFor(call.count, ranks, from).count);
      sides.place = Sides::kInInOut;
      sides.offset = mine.begin;
      break;
    case Collective::kAllgatherV:
      give(GivenBy(rank, call.count));
      for (std::int32_t from = 0; from < ranks; ++from) get(from, 0, GivenBy(from, call.count));
      break;
    case Collective::kReduce:
      give(call.count);
      if (is_root) get_folded(0, call.count);
      sides.place = Sides::kOutInIn;
      break;
    case Collective::kScatter:
      if (is_root) give(call.count);
      get(call.root, mine.begin, mine.count);
      if (is_root) sides.place = Sides::kOutInIn;
      sides.offset = mine.begin;
      break;
    case Collective::kAllToAll:
      give(call.count * ranks);
      for (std::int32_t from = 0; from < ranks; ++from) get(from, rank * call.count, call.count);
      break;
    case Collective::kNeighborExchange:
      give(call.count);
      for (std::int32_t from : (*call.neighbors)[rank]) get(from, 0, call.count);
      break;
    default:
      ADD_FAILURE() << Name(call.collective);
  }
  return sides;
}

// Memory of numbers, of the pool or of the program's own, with some around them that must stay as they are.
class Numbers {
 public:
  Numbers(Communicator* all, Dtype dtype, std::int64_t count, bool is_pooled)
      : all_(*all),
        dtype_(dtype),
        own_(static_cast<std::size_t>(count + 2 * kAround) * SizeOf(dtype)),
        expected_(count + 2 * kAround, kUntouched) {
    if (is_pooled) {
      auto pooled = all_.Allocate(own_.size());
      EXPECT_TRUE(pooled.ok()) << pooled.status().ToString();
      if (pooled.ok()) pooled_ = *pooled;
    }
    for (std::size_t i = 0; i < expected_.size(); ++i) collective::testing::Set(dtype_, data(), static_cast<std::int64_t>(i), kUntouched);
  }
  ~Numbers() {
    if (pooled_ != nullptr) all_.Free(pooled_);
  }
  Numbers(const Numbers&) = delete;
  Numbers& operator=(const Numbers&) = delete;

  char* at(std::int64_t i) { return data() + (kAround + i) * static_cast<std::int64_t>(SizeOf(dtype_)); }
  void Set(std::int64_t from, const std::vector<double>& values) {
    Expect(from, values);
    for (std::size_t i = 0; i < values.size(); ++i) collective::testing::Set(dtype_, at(from), static_cast<std::int64_t>(i), values[i]);
  }
  void Expect(std::int64_t from, const std::vector<double>& values) {
    std::copy(values.begin(), values.end(), expected_.begin() + kAround + from);
  }
  // Empty: all of it is as it is expected.
  std::string Wrong() {
    for (std::size_t i = 0; i < expected_.size(); ++i) {
      const double got = collective::testing::Get(dtype_, data(), static_cast<std::int64_t>(i));
      if (got != expected_[i])
        return "element " + std::to_string(static_cast<std::int64_t>(i) - kAround) + " is " + std::to_string(got) + ", not " +
               std::to_string(expected_[i]);
    }
    return "";
  }

 private:
  static constexpr std::int64_t kAround = 3;
  static constexpr double kUntouched = 99;
  char* data() { return pooled_ != nullptr ? pooled_ : own_.data(); }
  Communicator& all_;
  const Dtype dtype_;
  std::vector<char> own_;
  char* pooled_ = nullptr;
  std::vector<double> expected_;
};

// How a call is made beside what it is.
struct Manner {
  bool in_place = false, is_pooled = false, is_submitted = false;
  std::int64_t segment_bytes = 0;  // of the communicator
};

// Makes the call with memory of its own, and looks at all of that afterwards.
void Make(Communicator& all, CollectiveCall call, const Manner& manner) {
  const Sides sides = SidesOf(call, all.ranks(), all.rank());
  const std::string what = std::string(Name(call.collective)) + " " + std::string(call.algorithm) + " of " + std::to_string(call.count) +
                           " " + std::string(Name(call.dtype)) + " " + std::string(Name(call.op)) + ", rank " + std::to_string(all.rank()) +
                           " of " + std::to_string(all.ranks()) + ", root " + std::to_string(call.root) +
                           (manner.in_place ? ", in place" : "");
  const auto in_count = static_cast<std::int64_t>(sides.in.size()), out_count = static_cast<std::int64_t>(sides.out.size());
  const bool out_in_in = manner.in_place && sides.place == Sides::kOutInIn, in_in_out = manner.in_place && sides.place == Sides::kInInOut;
  Numbers in(&all, call.dtype, in_count, manner.is_pooled), out(&all, call.dtype, out_count, manner.is_pooled);
  Numbers& given = in_in_out ? out : in;
  Numbers& got = out_in_in ? in : out;
  const std::int64_t in_at = in_in_out ? sides.offset : 0, out_at = out_in_in ? sides.offset : 0;
  given.Set(in_at, sides.in);
  got.Expect(out_at, sides.out);
  // What is unused may be null, and need not be.
  call.in = in_count == 0 && manner.is_pooled ? nullptr : given.at(in_at);
  call.out = out_count == 0 && manner.is_pooled ? nullptr : got.at(out_at);
  const std::int64_t mine = GivenBy(all.rank(), call.count);
  std::vector<std::int64_t> received(all.ranks(), -1), sent;
  for (std::int32_t from = 0; from < all.ranks(); ++from) sent.push_back(GivenBy(from, call.count));
  if (call.collective == Collective::kAllgatherV) {
    call.counts = &mine;
    call.received = received.data();
    call.count = out_count;
  }
  auto steps = StepsOf(all, call, manner.segment_bytes);
  ASSERT_TRUE(steps.ok()) << what << ": " << steps.status().ToString();
  const std::uint64_t before = all.steps();
  Status status;
  if (manner.is_submitted) {
    auto handle = all.Submit(call, {});
    status = handle.ok() ? all.Wait(*handle) : handle.status();
  } else {
    status = all.Run(call);
    EXPECT_EQ(all.steps() - before, *steps) << what;
  }
  ASSERT_TRUE(status.ok()) << what << ": " << status.ToString();
  ASSERT_EQ(in.Wrong(), "") << what << ", in";
  ASSERT_EQ(out.Wrong(), "") << what << ", out";
  if (call.collective == Collective::kAllgatherV) {
    ASSERT_EQ(received, sent) << what;
  }
}

// The algorithms of a collective, and the one that is chosen. Those of a library run in collective_native_test.cc.
std::vector<std::string_view> NamesFor(Collective collective) {
  std::vector<std::string_view> names = {""};
  for (const Algorithm& algorithm : Algorithms())
    if (algorithm.collective == collective && !algorithm.name.starts_with("native")) names.push_back(algorithm.name);
  return names;
}
bool HasRoot(Collective collective) {
  return collective == Collective::kReduce || collective == Collective::kGather || collective == Collective::kScatter;
}

TEST_P(Calls, LeaveWhatTheyPromiseAndNothingElse) {
  CommunicatorOptions options = Over(GetParam());
  options.segment_bytes = 64;
  for (std::int32_t ranks : {1, 2, 3, 5})
    WithRanks(ranks, options, [&](Communicator& all, Meeting&) {
      const Neighbors neighbors = SomeNeighbors(ranks);
      for (Collective kind : kKinds)
        for (std::string_view algorithm : NamesFor(kind))
          for (std::int64_t count : {0, 1, 3, 7, 203})
            for (Manner manner :
                 {Manner{}, Manner{.is_pooled = true}, Manner{.in_place = true}, Manner{.in_place = true, .is_pooled = true}}) {
              CollectiveCall call{.collective = kind, .count = count, .name = "x", .algorithm = algorithm};
              if (kind == Collective::kNeighborExchange) call.neighbors = &neighbors;
              if (HasRoot(kind)) call.root = static_cast<std::int32_t>(count % ranks);
              manner.segment_bytes = options.segment_bytes;
              ASSERT_NO_FATAL_FAILURE(Make(all, call, manner));
            }
    });
}

TEST_P(Calls, InEveryTypeAndOperation) {
  CommunicatorOptions options = Over(GetParam());
  options.segment_bytes = 64;
  for (std::int32_t ranks : {2, 4})  // means are exact
    WithRanks(ranks, options, [&](Communicator& all, Meeting&) {
      const Neighbors neighbors = SomeNeighbors(ranks);
      for (Dtype dtype : {Dtype::kF32, Dtype::kF64, Dtype::kF16, Dtype::kBF16, Dtype::kI32, Dtype::kI64, Dtype::kU8})
        for (Collective kind : kKinds)
          for (std::string_view algorithm : NamesFor(kind))
            for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProd, ReduceOp::kAvg}) {
              if (op != ReduceOp::kSum && !Folds(kind)) continue;
              if (op == ReduceOp::kAvg && !IsFloat(dtype)) continue;
              CollectiveCall call{
                  .collective = kind, .count = 61, .dtype = dtype, .op = op, .root = 1, .name = "x", .algorithm = algorithm};
              if (kind == Collective::kNeighborExchange) call.neighbors = &neighbors;
              ASSERT_NO_FATAL_FAILURE(Make(all, call, {.in_place = op == ReduceOp::kMax, .segment_bytes = options.segment_bytes}));
            }
    });
}

TEST_P(Calls, LongOnesAndSubmittedOnes) {
  for (std::int32_t ranks : {2, 3})
    WithRanks(ranks, Over(GetParam()), [&](Communicator& all, Meeting&) {
      const Neighbors neighbors = SomeNeighbors(ranks);
      for (Collective kind : kKinds)
        for (bool is_submitted : {false, true}) {
          CollectiveCall call{.collective = kind, .count = 200'003, .dtype = Dtype::kI64, .root = ranks - 1, .name = "x"};
          if (kind == Collective::kNeighborExchange) call.neighbors = &neighbors;
          ASSERT_NO_FATAL_FAILURE(Make(all, call, {.in_place = true, .is_pooled = true, .is_submitted = is_submitted}));
        }
    });
}

// In the order of the ranks, whoever is the root and however it is cut: the same bits as those of an allreduce.
TEST_P(Calls, InDeterministicModeHaveTheBitsOfAnAllreduce) {
  CommunicatorOptions options = Over(GetParam());
  options.segment_bytes = 1 << 10;
  WithRanks(4, options, [&](Communicator& all, Meeting&) {
    constexpr std::int64_t kCount = 5003;
    std::vector<float> in(kCount), sum(kCount), part(kCount), reduced(kCount, -1);
    for (std::int64_t i = 0; i < kCount; ++i) in[i] = 1.0F / static_cast<float>(i * 4 + all.rank() + 1);
    CollectiveCall call{.in = in.data(), .out = sum.data(), .count = kCount, .root = 2, .name = "x", .deterministic = true};
    ASSERT_TRUE(all.AllReduce(call).ok());
    call.out = part.data();
    ASSERT_TRUE(all.ReduceScatter(call).ok());
    const Part mine = PartFor(kCount, 4, all.rank());
    for (std::int64_t i = 0; i < mine.count; ++i) ASSERT_EQ(part[i], sum[mine.begin + i]) << i;
    call.out = reduced.data();
    ASSERT_TRUE(all.Reduce(call).ok());
    EXPECT_EQ(reduced, all.rank() == 2 ? sum : std::vector<float>(kCount, -1));
    // Gathered again they are the whole.
    call.in = part.data();
    call.out = reduced.data();
    ASSERT_TRUE(all.AllGather(call).ok());
    EXPECT_EQ(reduced, sum);
    call.algorithm = "reduce_scatter_ring";
    EXPECT_EQ(all.ReduceScatter(call).tag(), "COLL10");
  });
}

// A call that is refused says what, why and what to do, moves nothing, and is not the end of the communicator.
TEST_P(Calls, RefuseWhatMakesNoSense) {
  struct Wrong {
    const char* said;
    const char* tag;
    std::function<void(CollectiveCall*)> make;
  };
  const Neighbors few = {{1}, {2}}, stranger = {{1}, {2}, {3}}, before = {{1}, {-1}, {0}}, twice = {{1, 2, 1}, {}, {}},
                  good = SomeNeighbors(3);
  const std::int64_t negative = -1, ten = 10;
  auto kind = [](Collective collective) { return [collective](CollectiveCall* call) { call->collective = collective; }; };
  auto with_root = [](Collective collective, std::int32_t root) {
    return [collective, root](CollectiveCall* call) { call->collective = collective, call->root = root; };
  };
  auto with_neighbors = [](Collective collective, const Neighbors* neighbors) {
    return [collective, neighbors](CollectiveCall* call) { call->collective = collective, call->neighbors = neighbors; };
  };
  std::vector<Wrong> wrongs = {
      {"neighbours are needed for each of 3 ranks", "COLL10", kind(Collective::kNeighborExchange)},
      {"neighbours are needed for each of 3 ranks", "COLL10", with_neighbors(Collective::kNeighborExchange, &few)},
      {"rank 2 cannot hear from rank 3", "COLL10", with_neighbors(Collective::kNeighborExchange, &stranger)},
      {"rank 1 cannot hear from rank -1", "COLL10", with_neighbors(Collective::kNeighborExchange, &before)},
      {"rank 0 cannot hear from rank 1 twice", "COLL10", with_neighbors(Collective::kNeighborExchange, &twice)},
      {"allgather_direct knows no neighbours", "COLL10", with_neighbors(Collective::kAllgather, &good)},
      {"allgather_v: counts", "COLL10", kind(Collective::kAllgatherV)},
      {"counts needed: 1", "COLL01", [&](CollectiveCall* call) { call->collective = Collective::kAllgatherV, call->counts = &negative; }},
      {"allgather: counts", "COLL10", [&](CollectiveCall* call) { call->collective = Collective::kAllgather, call->counts = &ten; }},
      {"a count of -3", "COLL01", [](CollectiveCall* call) { call->collective = Collective::kScatter, call->count = -3; }},
      {"reduce_tree is not possible in deterministic mode", "COLL10",
       [](CollectiveCall* call) { call->collective = Collective::kReduce, call->deterministic = true, call->algorithm = "reduce_tree"; }},
      {"reduce_tree: no mean of whole numbers", "COLL10",
       [](CollectiveCall* call) { call->collective = Collective::kReduce, call->dtype = Dtype::kI32, call->op = ReduceOp::kAvg; }},
      {"reduce_scatter_direct: no mean of whole numbers", "COLL10",
       [](CollectiveCall* call) { call->collective = Collective::kReduceScatter, call->dtype = Dtype::kU8, call->op = ReduceOp::kAvg; }},
      {"gather_direct does no scatter", "COLL10",
       [](CollectiveCall* call) { call->collective = Collective::kScatter, call->algorithm = "gather_direct"; }},
  };
  for (Collective collective : {Collective::kReduce, Collective::kGather, Collective::kScatter})
    for (std::int32_t root : {-1, 3}) wrongs.push_back({"root", "COLL10", with_root(collective, root)});
  WithRanks(3, Over(GetParam()), [&](Communicator& all, Meeting&) {
    std::vector<float> in(100, 1), out(100, -1);
    for (const Wrong& wrong : wrongs) {
      CollectiveCall call{.in = in.data(), .out = out.data(), .count = 30, .name = "x"};
      wrong.make(&call);
      for (bool is_submitted : {false, true}) {
        const Status status = is_submitted ? all.Submit(call, {}).status() : all.Run(call);
        EXPECT_EQ(status.tag(), wrong.tag) << wrong.said << ": " << status.ToString();
        EXPECT_NE(status.what().find(wrong.said), std::string::npos) << status.ToString();
        EXPECT_FALSE(status.why().empty() || status.fix().empty()) << status.ToString();
      }
    }
    EXPECT_EQ(out, std::vector<float>(100, -1));
    ASSERT_TRUE(all.Barrier().ok());
  });
}

// Memory that is shared in another way than the plan knows would be overwritten before it is read.
TEST_P(Calls, RefuseMemoryThatOverlapsInAnotherWayThanInPlace) {
  WithRanks(3, Over(GetParam()), [&](Communicator& all, Meeting&) {
    constexpr std::int64_t kCount = 31;
    const Neighbors neighbors = {{1}, {2}, {0}};
    std::vector<float> memory(400, 1);
    const std::int64_t ten = 10, begin = PartFor(kCount, 3, all.rank()).begin;
    auto refuses = [&](Collective collective, std::int64_t in_at, std::int64_t out_at) {
      CollectiveCall call{
          .collective = collective, .in = memory.data() + 100 + in_at, .out = memory.data() + 100 + out_at, .count = kCount, .name = "x"};
      if (collective == Collective::kAllgatherV) call.counts = &ten;
      if (collective == Collective::kNeighborExchange) call.neighbors = &neighbors;
      call.root = all.rank();  // of these each is refused before anything moves
      const Status status = all.Run(call);
      EXPECT_EQ(status.tag(), "COLL10") << Name(collective) << " at " << in_at << ", " << out_at << ": " << status.ToString();
      EXPECT_NE(status.what().find("overlap"), std::string::npos) << status.ToString();
      EXPECT_FALSE(status.why().empty() || status.fix().empty()) << status.ToString();
    };
    for (std::int64_t by : {1, -1, 5}) {
      refuses(Collective::kReduceScatter, 0, begin + by + (begin + by < 0 ? 2 : 0));
      refuses(Collective::kScatter, 0, begin + by + (begin + by < 0 ? 2 : 0));
      refuses(Collective::kAllgather, begin + by + (begin + by < 0 ? 2 : 0), 0);
      refuses(Collective::kGather, begin + by + (begin + by < 0 ? 2 : 0), 0);
      for (Collective collective : {Collective::kReduce, Collective::kAllreduce, Collective::kBroadcast}) refuses(collective, 0, by);
    }
    for (Collective collective : {Collective::kAllToAll, Collective::kNeighborExchange, Collective::kAllgatherV})
      for (std::int64_t by : {0, 7, -7}) refuses(collective, 0, by);
    EXPECT_EQ(memory, std::vector<float>(400, 1));
    ASSERT_TRUE(all.Barrier().ok());
  });
}

TEST_P(Calls, AnAllgatherOfMoreThanThereIsRoomForIsRefusedBeforeItIsWritten) {
  WithRanks(2, Over(GetParam()), [&](Communicator& all, Meeting& meeting) {
    const std::int64_t mine = 100;
    std::vector<float> in(100, 1), out(200, -1);
    const std::int64_t room = all.rank() == 0 ? 150 : 200;
    const Status status = all.AllGatherV({.in = in.data(), .out = out.data(), .count = room, .name = "v", .counts = &mine});
    EXPECT_EQ(status.tag(), "COLL26") << status.ToString();
    if (all.rank() == 0) {
      EXPECT_NE(status.what().find("rank 1 has 100 elements for rank 0, where there is room for 50"), std::string::npos)
          << status.ToString();
      EXPECT_EQ(out, std::vector<float>(200, -1));
    }
    meeting.Barrier(all.rank());
  });
}

// Each of these beside another one: both are named, on both ranks.
TEST_P(Calls, ThatDifferAreNamedOnBothRanks) {
  const Neighbors ring = {{1}, {0}}, both = {{0, 1}, {0}}, turned = {{1, 0}, {0}};
  const std::int64_t ten = 10;
  struct Named {
    std::string said;
    std::function<Status(Communicator&, CollectiveCall)> call;
  };
  const std::vector<Named> calls = {
      {"reduce_scatter \"mine\" (call 0: max of 100 f32)", [](Communicator& all, CollectiveCall call) { return all.ReduceScatter(call); }},
      {"allgather \"mine\" (call 0: 100 f32)", [](Communicator& all, CollectiveCall call) { return all.AllGather(call); }},
      {"allgather_v \"mine\" (call 0: 0 f32)",
       [&](Communicator& all, CollectiveCall call) {
         call.counts = &ten;
         return all.AllGatherV(call);
       }},
      {"reduce \"mine\" (call 0: max of 100 f32, root 1)",
       [](Communicator& all, CollectiveCall call) {
         call.root = 1;
         return all.Reduce(call);
       }},
      {"gather \"mine\" (call 0: 100 f32, root 1)",
       [](Communicator& all, CollectiveCall call) {
         call.root = 1;
         return all.Gather(call);
       }},
      {"scatter \"mine\" (call 0: 100 f32)", [](Communicator& all, CollectiveCall call) { return all.Scatter(call); }},
      {"all_to_all \"mine\" (call 0: 100 f32)", [](Communicator& all, CollectiveCall call) { return all.AllToAll(call); }},
      {"neighbor_exchange \"mine\" (call 0: 100 f32)",
       [&](Communicator& all, CollectiveCall call) {
         call.neighbors = &ring;
         return all.NeighborExchange(call);
       }},
  };
  auto expect_mismatch = [&](const Named& one, const Named& other, const std::string& said) {
    std::atomic<bool> is_through = false;
    WithRanks(2, Over(GetParam()), [&](Communicator& all, Meeting& meeting) {
      std::vector<float> in(200), out(200);
      const CollectiveCall call{.in = in.data(), .out = out.data(), .count = 100, .op = ReduceOp::kMax, .name = "mine"};
      Status status = (all.rank() == 0 ? one : other).call(all, call);
      // What only sends may be through before the other has come to its call; then it is the next one that does not fit.
      if (status.ok()) {
        is_through = true;
        status = all.Barrier();
      }
      EXPECT_EQ(status.tag(), "COLL21") << one.said << ", " << other.said << ": " << status.ToString();
      const auto names = [&](const std::string& call) { return status.what().find(call) != std::string::npos; };
      if (is_through && names("barrier \"barrier\"")) {
        EXPECT_TRUE(names(one.said) || names(other.said)) << status.ToString();
        meeting.Barrier(all.rank());
        return;
      }
      EXPECT_TRUE(names(one.said) && names(other.said)) << one.said << ", " << other.said << ": " << status.ToString();
      EXPECT_NE(status.why().find(said), std::string::npos) << status.ToString();
      meeting.Barrier(all.rank());
    });
  };
  const std::string different = "the ranks call different collectives";
  for (std::size_t i = 0; i < calls.size(); ++i) expect_mismatch(calls[i], calls[(i + 1) % calls.size()], different);
  // The same but for the digraph.
  auto exchange = [](const Neighbors& neighbors) {
    return Named{"neighbor_exchange \"mine\" (call 0: 100 f32)", [&neighbors](Communicator& all, CollectiveCall call) {
                   call.neighbors = &neighbors;
                   return all.NeighborExchange(call);
                 }};
  };
  expect_mismatch(exchange(both), exchange(turned), "neighbours");
  expect_mismatch(exchange(ring), exchange(both), "neighbours");
}

std::int64_t Log2Ceiling(std::int64_t p) {
  std::int64_t log = 0;
  while ((std::int64_t{1} << log) < p) ++log;
  return log;
}

// What the closed forms say, over any root: elements sent by all ranks, and the longest chain of messages.
TEST(CallPlans, SendAsManyElementsInAsManyRoundsAsTheirClosedForms) {
  struct Form {
    const char* algorithm;
    Collective collective;
    std::int64_t (*elements)(std::int64_t p, std::int64_t n);
    std::int64_t (*rounds)(std::int64_t p);
  };
  const Form forms[] = {
      {"reduce_scatter_direct", Collective::kReduceScatter, [](std::int64_t p, std::int64_t n) { return n * (p - 1); },
       [](std::int64_t) { return std::int64_t{1}; }},
      {"reduce_scatter_ring", Collective::kReduceScatter, [](std::int64_t p, std::int64_t n) { return n * (p - 1); },
       [](std::int64_t p) { return p - 1; }},
      {"allgather_direct", Collective::kAllgather, [](std::int64_t p, std::int64_t n) { return n * (p - 1); },
       [](std::int64_t) { return std::int64_t{1}; }},
      {"allgather_ring", Collective::kAllgather, [](std::int64_t p, std::int64_t n) { return n * (p - 1); },
       [](std::int64_t p) { return p - 1; }},
      {"reduce_direct", Collective::kReduce, [](std::int64_t p, std::int64_t n) { return n * (p - 1); },
       [](std::int64_t) { return std::int64_t{1}; }},
      // Each hop towards the root takes away the lowest one of the binary number of the place.
      {"reduce_tree", Collective::kReduce, [](std::int64_t p, std::int64_t n) { return n * (p - 1); },
       [](std::int64_t p) {
         std::int64_t ones = 0;
         for (std::int64_t place = 0; place < p; ++place)
           ones = std::max<std::int64_t>(ones, std::popcount(static_cast<std::uint64_t>(place)));
         return ones;
       }},
      {"gather_direct", Collective::kGather, [](std::int64_t p, std::int64_t n) { return n / p * (p - 1); },
       [](std::int64_t) { return std::int64_t{1}; }},
      {"scatter_direct", Collective::kScatter, [](std::int64_t p, std::int64_t n) { return n / p * (p - 1); },
       [](std::int64_t) { return std::int64_t{1}; }},
      // A part goes down once for each halving that its rank is on the far side of: half of the parts at each, where P is a power of two.
      {"gather_tree", Collective::kGather, [](std::int64_t p, std::int64_t n) { return n * Log2Ceiling(p) / 2; },
       [](std::int64_t p) { return Log2Ceiling(p); }},
      {"scatter_tree", Collective::kScatter, [](std::int64_t p, std::int64_t n) { return n * Log2Ceiling(p) / 2; },
       [](std::int64_t p) { return Log2Ceiling(p); }},
      {"all_to_all", Collective::kAllToAll, [](std::int64_t p, std::int64_t n) { return n * p * (p - 1); },
       [](std::int64_t p) { return p - 1; }},
  };
  for (const Form& form : forms)
    for (std::int32_t ranks : {1, 2, 3, 4, 6, 8, 13, 16})
      for (std::int32_t root : {0, ranks / 2, ranks - 1}) {
        const bool is_halved = std::string_view(form.algorithm).ends_with("_tree") && form.collective != Collective::kReduce;
        if (is_halved && (ranks & (ranks - 1)) != 0) continue;
        const std::string what = std::string(form.algorithm) + " P=" + std::to_string(ranks) + " root=" + std::to_string(root);
        auto plan = BuildPlan(form.algorithm, {.collective = form.collective, .ranks = ranks, .root = root});
        ASSERT_TRUE(plan.ok()) << plan.status().ToString();
        const std::int64_t count = ranks * 30;
        auto cost = EstimateCost(*plan, {.sizes = {.count = count}});
        ASSERT_TRUE(cost.ok()) << what << ": " << cost.status().ToString();
        EXPECT_EQ(cost->sent_bytes_total, 4 * form.elements(ranks, count)) << what;
        EXPECT_EQ(cost->rounds, ranks == 1 ? 0 : form.rounds(ranks)) << what;
      }
}

}  // namespace
}  // namespace ropewalk::collective::testing
