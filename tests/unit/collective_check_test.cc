// Plans are proved for every group size and length of the acceptance table, their bytes are those of the closed forms, and what is not
// possible is refused with a reason.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "base/random.h"
#include "mlrunner/collective/check/check.h"
#include "mlrunner/collective/interpreter.h"
#include "mlrunner/collective/simulate.h"
#include "tests/unit/collective_plans.h"

namespace ropewalk::collective::testing {
namespace {

constexpr int kRanks[] = {2, 3, 4, 5, 6, 7, 8, 9, 12, 16};
constexpr std::int64_t kCounts[] = {1, 7, 1'000'003};

Plan Built(std::string_view algorithm, const Request& request) {
  auto plan = BuildPlan(algorithm, request);
  EXPECT_TRUE(plan.ok()) << plan.status().ToString();
  return plan.ok() ? *std::move(plan) : Plan{};
}

CheckReport Proved(const Plan& plan, std::int64_t count, bool in_place = false) {
  CheckOptions options{.sizes = {.count = count}, .in_place = in_place};
  for (int i = 0; i < plan.header.request.ranks * plan.header.request.ranks; ++i) options.sizes.table.push_back(i % 4);
  auto report = Check(plan, options);
  EXPECT_TRUE(report.ok()) << count << " elements: " << report.status().ToString();
  return report.ok() ? *report : CheckReport{};
}

std::string Refusal(const Plan& plan, const CheckOptions& options) {
  auto report = Check(plan, options);
  return report.ok() ? "accepted" : report.status().tag();
}

TEST(Check, ProvesEveryAlgorithmAtEverySize) {
  for (int ranks : kRanks)
    for (Dtype dtype : {Dtype::kF32, Dtype::kBF16})
      for (const Case& one : AllCases(ranks, 65536, dtype)) {
        Status status = CheckAll(Built(one.algorithm, one.request));
        EXPECT_TRUE(status.ok()) << Name(one) << "\n" << status.ToString();
      }
}

TEST(Check, ProvesEveryAlgorithmForOneRank) {
  for (const Case& one : AllCases(1, 0)) {
    if (one.algorithm == "window" || one.algorithm.starts_with("native")) continue;
    Status status = CheckAll(Built(one.algorithm, one.request));
    EXPECT_TRUE(status.ok()) << Name(one) << "\n" << status.ToString();
  }
}

TEST(Check, ProvesAverages) {
  for (Dtype dtype : {Dtype::kF32, Dtype::kF16, Dtype::kBF16})
    for (const std::string& algorithm : PlainAllreduces())
      for (int ranks : {1, 2, 5, 8}) {
        Status status = CheckAll(Built(
            algorithm, {.dtype = dtype, .op = ReduceOp::kAvg, .ranks = ranks, .channels = 1, .nodes = NodesOf(ranks, NodeSize(ranks))}));
        EXPECT_TRUE(status.ok()) << algorithm << " " << Name(dtype) << " P=" << ranks << "\n" << status.ToString();
      }
}

// The closed forms of bytes, written down without a look at the builders.
struct Form {
  const char* algorithm;
  Collective collective;
  std::int64_t (*elements)(std::int64_t ranks, std::int64_t count);
};

std::int64_t Log2Floor(std::int64_t n) {
  std::int64_t log = 0;
  while (n > 1) n /= 2, ++log;
  return log;
}

TEST(Check, BytesSentAreThoseOfTheClosedForms) {
  const Form forms[] = {
      {"direct", Collective::kAllreduce, [](std::int64_t p, std::int64_t n) { return 2 * n * (p - 1); }},
      {"ring", Collective::kAllreduce, [](std::int64_t p, std::int64_t n) { return 2 * n * (p - 1); }},
      // 2^k ranks exchange k times; the others hand in and get back.
      {"recursive_doubling", Collective::kAllreduce,
       [](std::int64_t p, std::int64_t n) {
         std::int64_t k = Log2Floor(p), inner = std::int64_t{1} << k;
         return n * (inner * k + 2 * (p - inner));
       }},
      {"chain", Collective::kAllreduce, [](std::int64_t p, std::int64_t n) { return 2 * n * (p - 1); }},
      {"broadcast_tree", Collective::kBroadcast, [](std::int64_t p, std::int64_t n) { return n * (p - 1); }},
      {"broadcast_chain", Collective::kBroadcast, [](std::int64_t p, std::int64_t n) { return n * (p - 1); }},
      {"barrier", Collective::kBarrier, [](std::int64_t, std::int64_t) { return std::int64_t{0}; }},
      {"send_recv", Collective::kSendRecv, [](std::int64_t, std::int64_t n) { return n; }},
  };
  for (const Form& form : forms)
    for (int ranks : kRanks)
      for (std::int64_t count : kCounts) {
        Plan plan = Built(form.algorithm,
                          {.collective = form.collective, .ranks = ranks, .root = 0, .peer = 1, .channels = 2, .segment_bytes = 1 << 16});
        EXPECT_EQ(static_cast<std::int64_t>(Proved(plan, count).bytes), form.elements(ranks, count) * 4)
            << form.algorithm << " P=" << ranks << " N=" << count;
      }
}

// Each rank's bytes, exactly: what the ring and direct send follows from the lengths of the parts.
TEST(Check, BytesOfEachRankFollowFromTheLengthsOfItsParts) {
  class Counter : public Machine {
   public:
    Outcome Try(const Interpreter& at, const Step& step) override {
      // No waiting: who sends how much does not depend on it.
      if (step.to == kNone) return Outcome::kDone;
      std::int32_t chunk = step.dst != kNone ? step.dst : at.program().operands[step.first_operand].chunk;
      elements += at.At(chunk).count;
      return Outcome::kDone;
    }
    std::int64_t elements = 0;
  };
  for (int ranks : kRanks)
    for (std::int64_t count : kCounts) {
      auto part = [&](std::int64_t i) { return count / ranks + (((i % ranks) + ranks) % ranks < count % ranks ? 1 : 0); };
      for (bool ring : {false, true}) {
        Plan plan = Built(ring ? "ring" : "direct", {.ranks = ranks, .channels = 1, .segment_bytes = 1 << 18});
        for (int rank = 0; rank < ranks; ++rank) {
          auto layout = Layout::Make(plan.header, plan.programs[rank], {.count = count});
          ASSERT_TRUE(layout.ok());
          Interpreter interpreter(&plan.programs[rank], &*layout);
          Counter counter;
          ASSERT_EQ(interpreter.Advance(counter), Outcome::kDone);
          // Ring: in the first half all parts but the next rank's, in the second all but the one after that. Direct: the other parts once,
          // its own to each.
          std::int64_t expected =
              ring ? (count - part(rank + 1)) + (count - part(rank + 2)) : (count - part(rank)) + (ranks - 1) * part(rank);
          EXPECT_EQ(counter.elements, expected) << (ring ? "ring" : "direct") << " P=" << ranks << " N=" << count << " rank " << rank;
        }
      }
    }
}

TEST(Check, AlgorithmsThatAddInAnotherOrderAreRefusedInDeterministicMode) {
  for (std::string algorithm : {"ring", "recursive_doubling", "halving_doubling", "tree", "double_tree", "sra", "native"}) {
    Request request{.ranks = 4};
    if (algorithm == "sra") request.codecs = {MinMax(8)};
    Request strict = request;
    strict.deterministic = true;
    auto plan = BuildPlan(algorithm, strict);
    ASSERT_FALSE(plan.ok());
    EXPECT_EQ(plan.status().tag(), "COLL10") << algorithm;
    // A builder that claims to be deterministic does not get past the prover, either.
    Plan lies = Built(algorithm, request);
    lies.header.request.deterministic = true;
    EXPECT_EQ(Refusal(lies, {.sizes = {.count = 9}}), "COLL08") << algorithm;
  }
}

// What is asked for and not done is refused: no plan is built that leaves a codec out, and one that has a codec sends what it makes.
TEST(Build, EveryAlgorithmRefusesTheCodecsThatItDoesNotApply) {
  const Codec additive{.name = "bf16", .bits = 16, .additive = true};
  Codec keeping = MinMax(4);
  keeping.error_feedback = true;
  const std::vector<std::vector<Codec>> choices = {{}, {MinMax(4)}, {keeping}, {additive}, {MinMax(4), MinMax(8)}};
  for (Case one : AllCases(4, 4096)) {
    if (one.request.deterministic) continue;
    for (const std::vector<Codec>& codecs : choices) {
      one.request.codecs = codecs;
      const std::string what = Name(one) + " with " + std::to_string(codecs.size()) + " codecs";
      const bool is_taken = one.algorithm == "sra" ? codecs.size() == 1 : codecs.empty();
      auto plan = BuildPlan(one.algorithm, one.request);
      auto program = BuildProgram(one.algorithm, one.request, 1);
      ASSERT_EQ(plan.ok(), is_taken) << what << ": " << plan.status().ToString();
      ASSERT_EQ(program.ok(), is_taken) << what;
      if (!is_taken) {
        EXPECT_EQ(plan.status().tag(), "COLL10") << what;
        EXPECT_FALSE(plan.status().why().empty() || plan.status().fix().empty()) << plan.status().ToString();
        continue;
      }
      if (codecs.empty()) continue;
      auto simulated = Simulate(*plan, {.sizes = {.count = 10'000}});
      ASSERT_TRUE(simulated.ok()) << simulated.status().ToString();
      const std::int64_t uncoded = 2 * 10'000 * 3 * 4;
      std::int64_t sent = 0;
      for (std::int64_t bytes : simulated->sent_bytes) sent += bytes;
      EXPECT_LT(sent, uncoded * 3 / 4) << what;
    }
  }
}

// The caller's own are held to what they say, too.
TEST(Build, AnAlgorithmOfTheCallersSaysWhichCodecsItTakes) {
  Algorithm mine = **FindAlgorithm(Algorithms(), "ring");
  mine.name = "mine";
  const Codec additive{.name = "bf16", .bits = 16, .additive = true};
  EXPECT_TRUE(BuildPlan(mine, {.ranks = 4}).ok());
  for (const Codec& codec : {additive, MinMax(4)}) {
    auto plan = BuildPlan(mine, {.ranks = 4, .codecs = {codec}});
    EXPECT_EQ(plan.ok() ? "built" : plan.status().tag(), "COLL10") << codec.name;
  }
  mine.codecs = Codecs::kAdditive;
  EXPECT_TRUE(BuildPlan(mine, {.ranks = 4, .codecs = {additive}}).ok());
  EXPECT_EQ(BuildPlan(mine, {.ranks = 4, .codecs = {MinMax(4)}}).status().tag(), "COLL10");
  EXPECT_EQ(BuildPlan(mine, {.ranks = 4}).status().tag(), "COLL10");
  // Nor is a matrix left out.
  EXPECT_EQ(BuildPlan("ring", {.ranks = 4, .mixing = RingOfNeighbours(4)}).status().tag(), "COLL10");
}

TEST(Check, RoundingBetweenTwoAdditionsIsNotTheLeftFold) {
  Plan plan = Built("chain", {.dtype = Dtype::kBF16, .ranks = 3, .deterministic = true});
  Proved(plan, 9);
  // The partial sums in bf16 instead of f32.
  for (Buffer& buffer : plan.header.buffers)
    if (buffer.element == Element::kAccumulator) buffer.element = Element::kPayload;
  EXPECT_EQ(Refusal(plan, {.sizes = {.count = 9}}), "COLL08");
}

TEST(Check, ReadAfterTheOverwriteIsFoundInPlace) {
  // The result is stored before the second use of the input.
  Plan plan = Built("broadcast_tree", {.collective = Collective::kBroadcast, .ranks = 2});
  plan.header.buffers[1].may_alias = 0;
  Header& header = plan.header;
  header.algorithm = "read_after_overwrite";
  header.request.collective = Collective::kAllreduce;
  plan.programs.clear();
  for (int rank = 0; rank < 2; ++rank) {
    Program program;
    program.rank = rank;
    Writer w(header, &program);
    ChunkId in = w.At(0, w.Whole()), out = w.At(1, w.Whole());
    w.Send(in, 1 - rank);
    w.Recv(1 - rank, out);
    w.Fold(Op::kReduce, {Local(out), Local(in)}, {.dst = out});
    w.Finish();
    plan.programs.push_back(program);
  }
  plan.post = {};
  PostWriter post(header, &plan.post);
  post.Fold(kEveryRank, post.At(1, post.Whole()), {{.rank = kEveryRank, .chunk = post.At(0, post.Whole())}});
  EXPECT_EQ(Refusal(plan, {.sizes = {.count = 9}}), "accepted");
  EXPECT_EQ(Refusal(plan, {.sizes = {.count = 9}, .in_place = true}), "COLL04");  // the peer may still read the input, too
}

TEST(Check, ACodecInARingIsEncodedTooOften) {
  Plan plan = Built("sra", {.ranks = 4, .codecs = {MinMax(4)}});
  Proved(plan, 100);
  plan.post.encodings_max = 1;
  EXPECT_EQ(Refusal(plan, {.sizes = {.count = 100}}), "COLL09");
  plan = Built("sra", {.ranks = 4, .codecs = {{.name = "bf16", .bits = 16, .additive = true}}});
  plan.post.encodings_max = 0;
  EXPECT_EQ(Refusal(plan, {.sizes = {.count = 100}}), "accepted");
}

TEST(Check, EagerCountsWhoeverContributed) {
  for (int ranks : {2, 3, 5}) {
    Plan plan = Built("eager", {.ranks = ranks, .quorum = (ranks + 1) / 2});
    for (int ready = 0; ready < 1 << ranks; ++ready) {
      CheckOptions options{.sizes = {.count = 6}};
      for (int rank = 0; rank < ranks; ++rank)
        if ((ready >> rank & 1) == 0) options.absent.push_back(rank);
      bool enough = ranks - static_cast<int>(options.absent.size()) >= plan.header.request.quorum;
      EXPECT_EQ(Refusal(plan, options), enough ? "accepted" : "COLL06") << "ready " << ready;
    }
  }
}

TEST(Check, EagerWithoutItsCounterIsRefused) {
  Plan plan = Built("eager", {.ranks = 3, .quorum = 2});
  for (Step& step : plan.programs[1].steps)
    if (step.op == Op::kContribute) step.aux = kNone;
  EXPECT_EQ(Refusal(plan, {.sizes = {.count = 6}}), "COLL05");
}

TEST(Check, RelaxedWindowsHoldOnlyWhatTheyMay) {
  Plan plan = Built("window_relaxed", {.collective = Collective::kMix, .ranks = 4, .mixing = RingOfNeighbours(4)});
  Proved(plan, 10);
  Proved(plan, 10, true);
  // A put into the window that is the other neighbour's.
  Program& program = plan.programs[0];
  for (Step& step : program.steps) {
    if (step.op != Op::kPut) continue;
    for (std::int32_t chunk = 0; chunk < static_cast<std::int32_t>(program.chunks.size()); ++chunk)
      if (program.chunks[chunk].buffer == 2 && chunk != step.remote) {
        step.remote = chunk;
        break;
      }
    break;
  }
  EXPECT_EQ(Refusal(plan, {.sizes = {.count = 10}}), "COLL06");
}

TEST(Check, ARaceBetweenTwoPutsIsRefusedAndBetweenTwoAccumulatesIsNot) {
  Plan plan = Built("send_recv", {.collective = Collective::kSendRecv, .ranks = 3, .root = 0, .peer = 2});
  plan.header.buffers.push_back({.name = "window", .role = Role::kWindow});
  plan.header.counter_count = 1;
  auto write = [&](bool accumulate) {
    plan.programs.clear();
    for (int rank = 0; rank < 3; ++rank) {
      Program program;
      program.rank = rank;
      Writer w(plan.header, &program);
      ChunkId in = w.At(0, w.Whole()), window = w.At(2, w.Whole());
      if (rank < 2) {
        accumulate ? w.Accumulate(in, 2, window) : w.Put(in, 2, window);
        w.Notify(2, 0);
      } else {
        w.Wait(0, 2);
        w.Copy(window, w.At(1, w.Whole()));
      }
      w.Finish();
      plan.programs.push_back(program);
    }
    plan.post = {};
    PostWriter post(plan.header, &plan.post);
    ChunkId in = post.At(0, post.Whole());
    post.Fold(2, post.At(1, post.Whole()),
              {{.rank = 0, .chunk = in}, {.rank = 1, .chunk = in}, {.rank = 2, .chunk = post.At(2, post.Whole())}});
  };
  write(false);
  EXPECT_EQ(Refusal(plan, {.sizes = {.count = 5}}), "COLL04");
  write(true);
  EXPECT_EQ(Refusal(plan, {.sizes = {.count = 5}}), "accepted");
  // What nothing orders has no fixed bits.
  plan.post.identical = true;
  EXPECT_EQ(Refusal(plan, {.sizes = {.count = 5}}), "COLL07");
}

TEST(Check, AllToAllVHoldsForAnyTable) {
  Random random(7);
  for (int ranks : {2, 3, 5, 8}) {
    Plan plan = Built("all_to_all_v", {.collective = Collective::kAllToAllV, .ranks = ranks});
    for (int round = 0; round < 10; ++round) {
      CheckOptions options;
      for (int i = 0; i < ranks * ranks; ++i)
        options.sizes.table.push_back(random.OneIn(3) ? 0 : static_cast<std::int64_t>(random.Below(1000)));
      EXPECT_EQ(Refusal(plan, options), "accepted");
    }
    EXPECT_EQ(Refusal(plan, {.sizes = {.count = 5}}), "COLL01");  // without its table
  }
}

TEST(Check, LengthsOfTheCountTableAreNotUsedBeforeTheyAreKnown) {
  Plan plan = Built("all_to_all_v", {.collective = Collective::kAllToAllV, .ranks = 2});
  CheckOptions options{.sizes = {.table = {1, 2, 3, 4}}};
  EXPECT_EQ(Refusal(plan, options), "accepted");
  auto& steps = plan.programs[0].steps;
  for (std::size_t i = 0; i + 1 < steps.size(); ++i)
    if (steps[i].op == Op::kCounts) {
      std::rotate(steps.begin() + static_cast<std::ptrdiff_t>(i), steps.begin() + static_cast<std::ptrdiff_t>(i) + 1, steps.end());
      break;
    }
  EXPECT_EQ(Refusal(plan, options), "COLL05");
}

TEST(Check, NativeLeavesMeetAllRanks) {
  Plan plan = Built("native", {.ranks = 4});
  Proved(plan, 10, true);
  plan.programs[2].steps.clear();
  plan.programs[2].channels[0].step_count = 0;
  EXPECT_EQ(Refusal(plan, {.sizes = {.count = 10}}), "COLL03");
}

TEST(Build, SaysWhatThereIs) {
  auto plan = BuildPlan("rign", {.ranks = 4});
  ASSERT_FALSE(plan.ok());
  EXPECT_EQ(plan.status().code(), Code::kNotFound);
  EXPECT_NE(plan.status().why().find("ring"), std::string::npos);
  EXPECT_EQ(BuildPlan("ring", {.collective = Collective::kBroadcast, .ranks = 4}).status().tag(), "COLL10");
  EXPECT_EQ(BuildPlan("ring", {.ranks = 0}).status().tag(), "COLL10");
  EXPECT_EQ(BuildProgram("ring", {.ranks = 4}, 4).status().tag(), "COLL10");
}

// One rank's program does not depend on whether the others' are built.
TEST(Build, OneRankGetsTheProgramOfTheWholePlan) {
  for (const Case& one : AllCases(5, 64)) {
    Plan plan = Built(one.algorithm, one.request);
    auto alone = BuildProgram(one.algorithm, one.request, 3);
    ASSERT_TRUE(alone.ok());
    EXPECT_EQ(alone->program.steps.size(), plan.programs[3].steps.size());
    EXPECT_EQ(alone->program.chunks.size(), plan.programs[3].chunks.size());
  }
}

}  // namespace
}  // namespace ropewalk::collective::testing
