// Native steps by NcclBackend over a twin of NCCL that does its collectives: what a plan's ranks hold afterwards, with parts of any length.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "mlrunner/collective/run/native_desk.h"
#include "mlrunner/gpu/nccl_backend.h"
#include "tests/unit/collective_plans.h"
#include "tests/unit/collective_ranks.h"
#include "tests/unit/twin_gang.h"

namespace ropewalk::collective::testing {
namespace {

constexpr float kUntouched = -7;
float NumberOf(std::int32_t rank, std::int64_t i) { return static_cast<float>((rank + 2) * (i % 11) - 5 * rank); }

// What rank `rank` holds of `count` numbers afterwards, by a plain loop.
std::vector<float> Expected(const Request& request, std::int64_t count, std::int32_t rank) {
  std::vector<float> out(static_cast<std::size_t>(count), kUntouched);
  const Extent mine = request.collective == Collective::kReduceScatter ? PartOf(count, request.ranks, rank) : Extent{0, count};
  if (request.collective == Collective::kReduce && rank != request.root) return out;
  for (std::int64_t i = 0; i < mine.count; ++i) {
    float& result = out[static_cast<std::size_t>(i)];
    if (request.collective == Collective::kBroadcast) {
      result = NumberOf(request.root, i);
      continue;
    }
    for (std::int32_t of = 0; of < request.ranks; ++of) {
      const Extent part = PartOf(count, request.ranks, of);
      if (request.collective == Collective::kAllgather) {
        if (i >= part.offset && i < part.end()) result = NumberOf(of, i - part.offset);
        continue;
      }
      const float x = NumberOf(of, mine.offset + i);
      result = of == 0 ? x : request.op == ReduceOp::kMax ? std::max(result, x) : result + x;
    }
  }
  return out;
}

TEST(Leaves, LeaveWhatTheirPlansPromise) {
  for (std::int32_t ranks : {1, 2, 3, 5, 8}) {
    struct Leaf {
      std::string what;
      Plan plan;
      std::int64_t count;
    };
    std::vector<Leaf> leaves;
    for (const Case& one : AllCases(ranks, 0))
      for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax})
        for (std::int64_t count : {0, 1, 7, 8, 120, 1003}) {
          if (!one.algorithm.starts_with("native")) continue;
          Request request = one.request;
          request.op = op;
          auto plan = BuildPlan(one.algorithm, request);
          ASSERT_TRUE(plan.ok()) << plan.status().ToString();
          leaves.push_back({Name(one) + " N=" + std::to_string(count), *std::move(plan), count});
        }
    ASSERT_EQ(leaves.size(), 60u);
    Fabric fabric(Kind::kThreads, ranks, 1);
    TwinGang gang(ranks);
    gang.OnAllRanks([&](std::int32_t rank, mlrunner::NcclBackend& backend) {
      NativeDesk desk(&backend, &fabric.endpoint(rank));
      for (const Leaf& leaf : leaves) {
        const auto count = static_cast<std::size_t>(leaf.count);
        std::vector<float> in(count), out(count, kUntouched);
        for (std::size_t i = 0; i < count; ++i) in[i] = NumberOf(rank, static_cast<std::int64_t>(i));
        // NCCL is asked where the vectors lie, and a vector without elements lies nowhere.
        auto instance =
            Instance::Make(&leaf.plan.header, &leaf.plan.programs[rank], {.count = leaf.count}, &fabric.endpoint(rank), {.native = &desk});
        ASSERT_TRUE(instance.ok()) << leaf.what << ": " << instance.status().ToString();
        ASSERT_TRUE((*instance)->Bind(std::vector<void*>{in.data(), out.data()}).ok());
        Status status = (*instance)->Run();
        ASSERT_TRUE(status.ok()) << leaf.what << ": " << status.ToString();
        ASSERT_EQ(out, Expected(leaf.plan.header.request, leaf.count, rank)) << leaf.what << ", rank " << rank;
      }
    });
    EXPECT_EQ(gang.twin.why(), "");
  }
}

}  // namespace
}  // namespace ropewalk::collective::testing
