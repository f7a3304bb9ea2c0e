// What pipelines need of the cores: gradients, sums and updates lie in the stage of what they belong to; a rank holds the states that its
// program touches, and no others; a kernel that only starts its work is waited for, whether its op was split or not.
#include <gtest/gtest.h>

#include <cmath>

#include "base/huge_pages.h"
#include "mlrunner/executor/executor.h"
#include "mlrunner/graph/grad.h"
#include "mlrunner/graph/maths.h"
#include "mlrunner/graph/ops.h"
#include "mlrunner/graph/optimizers.h"
#include "mlrunner/graph/passes/pass.h"

namespace ropewalk::mlrunner {
namespace {

// w0 in stage 0, w1 in stage 1, `tied` read in stage 0 and used in both.
Graph TwoStages() {
  Builder b;
  auto at = [&](int stage) {
    Scope scope = b.scope();
    scope.stage = stage;
    return scope;
  };
  Value h = b.Input("x", Dtype::kF64, {4, 3});
  std::vector<Parameter> parameters;
  auto parameter = [&](const char* name) {
    return parameters.emplace_back(b.NewParameter(name, {3, 3}, Initializer::Normal(1), Dtype::kF64));
  };
  {
    auto guard = b.With(at(0));
    Parameter tied = parameter("tied");
    h = Tanh(MatMul(MatMul(h, tied), parameter("w0")));
  }
  Value loss;
  {
    auto guard = b.With(at(1));
    loss = Mean(Square(MatMul(MatMul(h, parameters[0]), parameter("w1"))));
  }
  b.Output("loss", loss);
  ApplySgd(b, parameters, AccumulateGradients(b, parameters, Grad(loss, {parameters.begin(), parameters.end()}), 2), .1, {.momentum = .9});
  auto graph = b.Finish();
  EXPECT_TRUE(graph.ok()) << graph.status().ToString();
  return graph.ok() ? *std::move(graph) : Graph();
}

TEST(Stages, BackwardAndUpdateLieWhereTheirParameterIs) {
  Graph graph = TwoStages();
  for (const StateInfo& state : graph.states) {
    if (!state.last.valid() || state.last == state.first) continue;
    EXPECT_EQ(graph.StageOf(state.last), state.name.starts_with("w1") ? 1 : 0) << state.name;
  }
  // Nothing flows from stage 0's backward to stage 1's: neither the gradient of the loss itself nor a sum of uses was put there.
  int from_1_to_0 = 0;
  for (const Op& op : graph.ops) {
    const RegionInfo& region = graph.region(op.region);
    for (ValueId in : op.inputs) {
      const Op& maker = graph.op(graph.value(in).producer);
      if (maker.def->traits.source || graph.region(maker.region).kind == RegionKind::kForward) continue;
      EXPECT_FALSE(region.stage == 1 && graph.region(maker.region).stage == 0) << op.def->name << " takes " << graph.Describe(in);
      from_1_to_0 += region.stage == 0 && graph.region(maker.region).stage == 1;
    }
  }
  EXPECT_EQ(from_1_to_0, 2);  // the gradient of h, and what stage 1 adds to that of `tied`
}

// What a user writes after Grad() comes after backward, without a scope: sums over ranks, clipping, a look at the new parameter.
TEST(Stages, WhatIsMadeOfGradientsLiesBehindForward) {
  Builder b;
  Parameter w = b.NewParameter("w", {3}, Initializer::Normal(1), Dtype::kF64);
  Value loss = ReduceSum(Square(Tanh(w)));
  Value g = Grad(loss, {w})[0];
  Value clipped = g / Maximum(Sqrt(ReduceSum(Square(g))), 1.0);
  ApplySgd(b, {w}, {clipped}, .1);
  Value moved = b.Read(w.state) - w;
  b.Output("moved", moved);
  auto graph = b.Finish();
  ASSERT_TRUE(graph.ok()) << graph.status().ToString();
  EXPECT_EQ(graph->region(graph->op(graph->value(clipped.id).producer).region).kind, RegionKind::kBackward);
  EXPECT_EQ(graph->op(graph->value(clipped.id).producer).provenance.phase, Phase::kBackward);
  EXPECT_EQ(graph->region(graph->op(graph->value(moved.id).producer).region).parameter, w.state);
  EXPECT_EQ(graph->region(graph->op(graph->value(loss.id).producer).region).kind, RegionKind::kForward);
  auto executable = Compile(*graph, {}, DefaultProgram(*graph), KernelTable(), {.device = Device::kReference});
  ASSERT_TRUE(executable.ok()) << executable.status().ToString();
  StateStore states;
  std::map<std::string, RefTensor> reference;
  auto ran = (*executable)->Run({}, states);
  auto expected = Evaluate(*graph, {}, {}, reference);
  ASSERT_TRUE(ran.ok() && expected.ok());
  EXPECT_EQ(ToRef(ran->outputs[0][0]).data, expected->outputs[0].data);
}

// A state that is cut over ranks begins as the same numbers as the whole one, and so do its moments; what does not divide is refused.
TEST(Stages, StatesOfARankAreSlicesOfLogicalOnes) {
  auto build = [](int ranks, Shape shape) {
    Builder b;
    b.mutable_graph().mesh = {{{"tensor", ranks}}};
    Parameter w = b.NewParameter("w", std::move(shape), Initializer::Normal(1), Dtype::kF64, {{ShardingSpec::kReplicated, 0}, {}});
    ApplyAdamW(b, {w}, Grad(ReduceSum(Square(w)), {w}), .1);
    return b.Finish();
  };
  auto whole = build(1, {2, 6}), cut = build(3, {2, 6});
  ASSERT_TRUE(whole.ok() && cut.ok());
  for (const char* name : {"w", "w/first_moment"}) {
    for (const StateInfo& state : cut->states) {
      if (state.name != name) continue;
      EXPECT_EQ(state.type.shape, (Shape{2, 2}));
      EXPECT_EQ(state.logical, (Shape{2, 6}));
      for (std::int32_t rank = 0; rank < 3; ++rank) {
        RefTensor part = Initial(*cut, state, {}, {.rank = rank}), all = Initial(*whole, whole->states[0], {}, {});
        for (int i = 0; i < 4; ++i) {
          double expected = state.name == "w" ? all.data[i / 2 * 6 + rank * 2 + i % 2] : 0;
          EXPECT_EQ(part.data[i], expected) << name << " " << rank << " " << i;
        }
      }
    }
  }
  auto refused = build(4, {2, 6});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().tag(), "GRAPH07");
}

TEST(Stages, ARankHoldsTheStatesThatItsProgramTouches) {
  Graph graph = TwoStages();
  Program program;
  for (const ProgramStep& step : DefaultProgram(graph)) {
    if (graph.region(step.region).stage == 0 && graph.region(step.region).kind == RegionKind::kForward) program.push_back(step);
  }
  std::erase_if(graph.outputs, [](const NamedValue&) { return true; });
  auto executable = Compile(graph, {}, program, KernelTable(), {.device = Device::kReference});
  ASSERT_TRUE(executable.ok()) << executable.status().ToString();
  Tensor x = ToTensor(Dtype::kF64, {{4, 3}, std::vector<double>(12, 1)});
  RunInputs inputs;
  inputs.micro_batches[0] = {&x};
  StateStore states;
  auto ran = (*executable)->Run(inputs, states);
  ASSERT_TRUE(ran.ok()) << ran.status().ToString();
  EXPECT_EQ(states.Bytes(), 2u * 9 * sizeof(double));
  EXPECT_FALSE(states.Get("tied").bytes.empty());
  EXPECT_FALSE(states.Get("w0").bytes.empty());
}

// y = 2 x, computed only when somebody waits.
Result<std::vector<TensorType>> InferLate(const InferContext& c) { return std::vector<TensorType>{c.in[0]}; }
const OpDef kLate{"Late", 1, 1, InferLate, nullptr, nullptr, {}};

TEST(Stages, KernelsThatStartAreWaitedFor) {
  Builder b;
  Value x = b.Input("x", Dtype::kF32, {3});
  Value late = b.EmitOne(kLate, {x});
  Value between = Tanh(x);
  b.Output("y", late + between);
  Graph whole = *b.Finish();
  Graph split = *SplitStartDone(whole, whole.value(late.id).producer, 1);
  for (const Graph* graph : {&whole, &split}) {
    std::vector<std::string> order;
    KernelTable table = CpuKernels();
    table.Add(kLate, Device::kCpu, Dtype::kF32, [&order](const KernelRequest&) -> Result<CompiledKernel> {
      auto call = std::make_shared<std::pair<const float*, float*>>();
      CompiledKernel kernel;
      kernel.run = [call, &order](const KernelCall& now) {
        *call = {static_cast<const float*>(now.in[0]), static_cast<float*>(now.out[0])};
        order.emplace_back("start");
        return Status();
      };
      kernel.wait = [call, &order] {
        for (int i = 0; i < 3; ++i) call->second[i] = 2 * call->first[i];
        order.emplace_back("done");
        return Status();
      };
      return kernel;
    });
    auto executable = Compile(*graph, {}, {}, table);
    ASSERT_TRUE(executable.ok()) << executable.status().ToString();
    Tensor input = ToTensor(Dtype::kF32, {{3}, {1, 2, 3}});
    RunInputs inputs;
    inputs.micro_batches[0] = {&input};
    StateStore states;
    auto ran = (*executable)->Run(inputs, states);
    ASSERT_TRUE(ran.ok()) << ran.status().ToString();
    RefTensor y = ToRef(ran->outputs[0][0]);
    for (int i = 0; i < 3; ++i) EXPECT_NEAR(y.data[i], 2 * (i + 1) + std::tanh(i + 1), 1e-6);
    EXPECT_EQ(order, (std::vector<std::string>{"start", "done"}));
  }
}

// A run fails while something is on its way: its kernel goes with the executable, and finds its memory still there.
TEST(Stages, MemoryOutlivesWhatAFailedRunHasStarted) {
  struct Work {
    char* out = nullptr;
    bool* memory_was_given_away = nullptr;
    ~Work() {
      // Memory that went back to the pool is what the pool gives next.
      HugeBuffer next = ProcessPages().Take(64);
      if (out != nullptr) *memory_was_given_away = next.data() <= out && out < next.data() + next.bytes();
    }
  };
  Builder b;
  Value x = b.Input("x", Dtype::kF32, {3});
  Value late = b.EmitOne(kLate, {x});
  b.Output("y", late + Tanh(x));
  Graph whole = *b.Finish();
  Graph split = *SplitStartDone(whole, whole.value(late.id).producer, 1);
  bool given_away = false;
  char* started = nullptr;
  KernelTable table = CpuKernels();
  table.Add(kLate, Device::kCpu, Dtype::kF32, [&](const KernelRequest&) -> Result<CompiledKernel> {
    auto work = std::make_shared<Work>();
    work->memory_was_given_away = &given_away;
    CompiledKernel kernel;
    kernel.run = [work, &started](const KernelCall& call) {
      started = work->out = static_cast<char*>(call.out[0]);
      return Status();
    };
    kernel.wait = [work] { return Status(); };
    return kernel;
  });
  table.Add(kTanh, Device::kCpu, Dtype::kF32, [](const KernelRequest&) -> Result<CompiledKernel> {
    return CompiledKernel{[](const KernelCall&) { return Status(Code::kUserError, "TEST01", "it fails"); }};
  });
  {
    auto executable = Compile(split, {}, {}, table);
    ASSERT_TRUE(executable.ok()) << executable.status().ToString();
    Tensor input = ToTensor(Dtype::kF32, {{3}, {1, 2, 3}});
    RunInputs inputs;
    inputs.micro_batches[0] = {&input};
    StateStore states;
    EXPECT_EQ((*executable)->Run(inputs, states).status().tag(), "TEST01");
    ASSERT_NE(started, nullptr);
  }
  EXPECT_FALSE(given_away);
}

}  // namespace
}  // namespace ropewalk::mlrunner
