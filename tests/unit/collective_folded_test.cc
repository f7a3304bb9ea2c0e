// Programs that ranks share in virtual time: that they are shared where ranks do the same and only there, and that a folded program says
// what the rank's own does. What thousands of ranks take is in collective_scale_test.
#include <gtest/gtest.h>

#include <string>

#include "mlrunner/collective/folded.h"
#include "mlrunner/collective/simulate.h"
#include "tests/unit/collective_plans.h"

namespace ropewalk::collective::testing {
namespace {

// All that time can depend on, of every step in order; `folded` gives ranks for distances.
class Reader : public Machine {
 public:
  explicit Reader(const FoldedPrograms* folded) : folded_(folded) {}
  Outcome Try(const Interpreter& at, const Step& step) override {
    auto peer = [&](std::int32_t number) {
      return std::to_string(number == kNone || folded_ == nullptr ? number : folded_->PeerOf(at.rank(), number));
    };
    auto bytes = [&](std::int32_t chunk) {
      if (chunk == kNone) return std::string("-");
      return std::to_string(at.At(chunk).count * at.layout().BytesOfElement(at.program().chunks[chunk].buffer));
    };
    said += std::to_string(at.rank()) + "." + std::to_string(at.channel()) + " " + std::string(Name(step.op)) + " to " + peer(step.to) +
            " " + bytes(step.dst) + " " + bytes(step.remote) + " " + bytes(step.aux) + " counter " + std::to_string(step.counter) +
            " group " + std::to_string(step.group);
    for (std::int32_t i = 0; i < step.operand_count; ++i) {
      const Operand& operand = at.program().operands[step.first_operand + i];
      said += " [" + peer(operand.peer) + " " + bytes(operand.chunk) + (operand.decode ? " decoded]" : "]");
    }
    said += "\n";
    return Outcome::kDone;
  }
  std::string said;

 private:
  const FoldedPrograms* folded_;
};

Sizes SizesFor(std::int32_t ranks, std::int64_t count) {
  Sizes sizes{.count = count};
  for (std::int32_t i = 0; i < ranks * ranks; ++i) sizes.table.push_back(i % 17 * 3);
  return sizes;
}

TEST(Folded, ProgramsSayWhatEachRanksOwnDoes) {
  for (std::int32_t ranks : {1, 2, 3, 4, 7, 8, 9})
    for (const Case& one : AllCases(ranks, 64)) {
      auto plan = BuildPlan(one.algorithm, one.request);
      if (!plan.ok()) continue;  // some need two ranks
      for (std::int64_t count : {0, 1, 5, 1000}) {
        const Sizes sizes = SizesFor(ranks, count);
        FoldedPrograms folded(&plan->header, &sizes);
        for (const Program& program : plan->programs) {
          Status added = folded.Add(program);
          ASSERT_TRUE(added.ok()) << Name(one) << ": " << added.ToString();
        }
        EXPECT_LE(folded.kinds(), ranks);
        std::uint64_t steps = 0;
        for (const Program& program : plan->programs) {
          auto layout = Layout::Make(plan->header, program, sizes);
          ASSERT_TRUE(layout.ok());
          Interpreter own(&program, &*layout);
          Interpreter shared = folded.MakeInterpreter(program.rank);
          Reader of_own(nullptr), of_shared(&folded);
          ASSERT_EQ(own.Advance(of_own), Outcome::kDone);
          ASSERT_EQ(shared.Advance(of_shared), Outcome::kDone);
          ASSERT_EQ(of_own.said, of_shared.said) << Name(one) << " N=" << count;
          steps += own.steps_done();
        }
        EXPECT_GE(static_cast<std::uint64_t>(folded.steps_of_all_runs()), steps);
      }
    }
}

std::int64_t KindsOf(const Plan& plan) {
  const Sizes sizes = SizesFor(plan.header.request.ranks, 1000);
  FoldedPrograms folded(&plan.header, &sizes);
  for (const Program& program : plan.programs) EXPECT_TRUE(folded.Add(program).ok());
  return folded.kinds();
}

TEST(Folded, RanksThatDoTheSameShareAProgramAndOthersDoNot) {
  auto kinds = [](std::string_view algorithm, Request request) { return KindsOf(*BuildPlan(algorithm, request)); };
  EXPECT_EQ(kinds("ring", {.ranks = 12, .channels = 2, .segment_bytes = 100}), 1);
  EXPECT_EQ(kinds("barrier", {.collective = Collective::kBarrier, .ranks = 12}), 1);
  EXPECT_EQ(kinds("all_to_all_v", {.collective = Collective::kAllToAllV, .ranks = 12}), 1);
  EXPECT_EQ(kinds("reduce_scatter_ring", {.collective = Collective::kReduceScatter, .ranks = 12}), 1);
  EXPECT_EQ(kinds("allgather_direct", {.collective = Collective::kAllgather, .ranks = 12}), 1);
  EXPECT_EQ(kinds("all_to_all", {.collective = Collective::kAllToAll, .ranks = 12}), 1);
  EXPECT_EQ(kinds("chain", {.ranks = 12}), 4);  // the first, who sums its vector with the next one's, those between, the last
  EXPECT_EQ(kinds("broadcast_chain", {.collective = Collective::kBroadcast, .ranks = 12}), 3);
  EXPECT_EQ(kinds("recursive_doubling", {.ranks = 8}), 8);
  // One rank that differs in one thing is a kind of its own.
  using Change = void (*)(Program*);
  const Change changes[] = {
      [](Program* program) { program->steps[3].to = (program->steps[3].to + 1) % 12; },
      [](Program* program) { program->operands[2].peer = (program->operands[2].peer + 11) % 12; },
      [](Program* program) { program->edges[0].slots = 3; },
      [](Program* program) { program->steps[14].op = Op::kRecvReduceSend; },
      [](Program* program) { program->ranges[2].align = 2; },
      [](Program* program) {
        for (Range& range : program->ranges)
          if (range.kind == RangeKind::kPart && range.index == 5) range.index = 6;
      },
  };
  for (const Change& change : changes) {
    Plan plan = *BuildPlan("ring", {.ranks = 12, .channels = 1});
    change(&plan.programs[7]);
    Edge edge = plan.programs[7].edges[0];
    edge.peer = plan.programs[7].steps[3].to;
    if (edge.peer != 8) plan.programs[7].edges.push_back(edge);  // so that it is still sound
    EXPECT_EQ(KindsOf(plan), 2) << &change - changes;
  }
}

TEST(Folded, APlanAndItsAlgorithmTakeTheSameTime) {
  for (std::int32_t ranks : {2, 5, 8})
    for (const Case& one : AllCases(ranks, 256)) {
      auto plan = BuildPlan(one.algorithm, one.request);
      if (!plan.ok()) continue;
      SimulateOptions options{
          .sizes = SizesFor(ranks, 777), .network = {.latency_ns = 700, .ns_per_byte = 3}, .overhead_ns = 20, .trace = true};
      auto of_plan = Simulate(*plan, options), of_algorithm = Simulate(one.algorithm, one.request, options);
      ASSERT_TRUE(of_plan.ok() && of_algorithm.ok()) << Name(one) << of_plan.status().ToString() << of_algorithm.status().ToString();
      EXPECT_EQ(of_plan->ends_ns, of_algorithm->ends_ns) << Name(one);
      EXPECT_EQ(of_plan->trace, of_algorithm->trace) << Name(one);
      EXPECT_EQ(of_plan->steps, of_algorithm->steps);
    }
}

}  // namespace
}  // namespace ropewalk::collective::testing
