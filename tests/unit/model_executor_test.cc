// The executor: memory, states, programs of regions and micro-batches, control flow.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "mlrunner/executor/executor.h"
#include "mlrunner/executor/memory_plan.h"
#include "mlrunner/graph/grad.h"
#include "mlrunner/graph/infer.h"
#include "mlrunner/graph/ops.h"
#include "mlrunner/graph/optimizers.h"
#include "mlrunner/graph/passes/pass.h"
#include "mlrunner/kernels/fold.h"
#include "tests/unit/model_random.h"

namespace ropewalk::mlrunner {
namespace {

TEST(MemoryPlan, NeverSharesWhatLivesAndWastesLittle) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    std::vector<Lifetime> buffers;
    for (int i = 0; i < 60; ++i) {
      int begin = static_cast<int>(random.Below(100));
      buffers.push_back({random.Below(5000), begin, begin + static_cast<int>(random.Below(20))});
    }
    MemoryPlan plan = PlanMemory(buffers);
    Status status = CheckPlan(buffers, plan);
    ASSERT_TRUE(status.ok()) << status.ToString();
    ASSERT_GE(plan.bytes, LowerBound(buffers));
    // The worst of the first 2000 seeds is 1.201.
    ASSERT_LE(static_cast<double>(plan.bytes), 1.25 * static_cast<double>(LowerBound(buffers)));
  }
}

TEST(MemoryPlan, AnOverlapIsNoticed) {
  std::vector<Lifetime> buffers = {{100, 0, 5}, {100, 5, 9}, {100, 6, 9}};
  EXPECT_TRUE(CheckPlan(buffers, {{0, 128, 0}, 256}).ok());
  EXPECT_FALSE(CheckPlan(buffers, {{0, 64, 192}, 320}).ok());
}

struct Pair {
  std::vector<RefTensor> refs;
  std::vector<Tensor> tensors;
};
Pair RandomInputs(const Graph& graph, const Bindings& bindings, std::uint64_t seed) {
  Random random(seed);
  Pair pair;
  for (ValueId id : graph.inputs) {
    const TensorType& type = graph.value(id).type;
    RefTensor tensor{Evaluate(type.shape, bindings), {}};
    for (std::int64_t i = 0; i < NumElements(tensor.dims); ++i) {
      tensor.data.push_back(IsIndexType(type.dtype) ? static_cast<double>(random.Below(4)) : RoundTo(type.dtype, random.Unit() * 2 - 1));
    }
    pair.tensors.push_back(ToTensor(type.dtype, tensor));
    pair.refs.push_back(std::move(tensor));
  }
  return pair;
}
RunInputs Inputs(const Pair& pair) {
  RunInputs inputs;
  for (const Tensor& tensor : pair.tensors) inputs.micro_batches[0].push_back(&tensor);
  return inputs;
}
double Worst(const RefTensor& a, const RefTensor& b) {
  double worst = a.data.size() == b.data.size() ? 0 : HUGE_VAL;
  for (std::size_t i = 0; i < std::min(a.data.size(), b.data.size()); ++i) {
    if (a.data[i] == b.data[i] || (std::isnan(a.data[i]) && std::isnan(b.data[i]))) continue;
    double difference = std::fabs(a.data[i] - b.data[i]) / std::max(1.0, std::fabs(b.data[i]));
    worst = std::isnan(difference) ? HUGE_VAL : std::max(worst, difference);
  }
  return worst;
}

Graph RandomWithUpdates(std::uint64_t seed, Dtype dtype) {
  Builder b;
  RandomGraph made = MakeRandomGraph(b, seed, 20, dtype);
  Parameter w = b.NewParameter("w", {3, 4}, Initializer::Normal(1), dtype);
  Value loss = made.loss + Mean(Square(Tanh(w * made.parameters[0])));
  b.Output("loss", loss);
  std::vector<Value> with = made.parameters;
  with.push_back(w);
  std::vector<Gradient> grads = Grad(loss, with);
  for (std::size_t i = 0; i + 1 < grads.size(); ++i) b.Output("grad", grads[i]);
  ApplySgd(b, {w}, {grads.back()}, .5, {.momentum = .9});
  auto graph = b.Finish();
  EXPECT_TRUE(graph.ok()) << graph.status().ToString();
  return graph.ok() ? *std::move(graph) : Graph();
}

// The planner and the executor against the interpreter, bit for bit, over two steps, with the same kernels.
TEST(Executor, EqualsTheInterpreterOnRandomGraphs) {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Graph graph = RandomWithUpdates(seed, Dtype::kF64);
    Graph passed = FuseElementwise(RemoveDeadCode(MergeEqual(Simplify(graph))));
    auto primitive = Expand(passed);
    ASSERT_TRUE(primitive.ok()) << primitive.status().ToString();
    Pair inputs = RandomInputs(graph, {}, seed);
    std::map<std::string, RefTensor> states;
    std::vector<RefResult> expected;
    for (int step = 0; step < 2; ++step) expected.push_back(*Evaluate(*primitive, {}, inputs.refs, states));
    for (bool reuse : {true, false}) {
      auto executable =
          Compile(*primitive, {}, DefaultProgram(*primitive), KernelTable(), {.device = Device::kReference, .reuse_memory = reuse});
      ASSERT_TRUE(executable.ok()) << executable.status().ToString();
      StateStore store;
      for (int step = 0; step < 2; ++step) {
        auto got = (*executable)->Run(Inputs(inputs), store);
        ASSERT_TRUE(got.ok()) << got.status().ToString();
        for (std::size_t i = 0; i < expected[step].outputs.size(); ++i) {
          ASSERT_EQ(Worst(ToRef(got->outputs[0][i]), expected[step].outputs[i]), 0) << "step " << step << " output " << i;
        }
      }
      for (const auto& [name, value] : states) ASSERT_EQ(Worst(ToRef(store.Get(name)), value), 0) << name;
      if (reuse) {
        EXPECT_LE(static_cast<double>((*executable)->arena_bytes()), 1.25 * static_cast<double>((*executable)->arena_bytes_bound()));
      }
    }
  }
}

TEST(Executor, FastKernelsOnRandomGraphs) {
  int close = 0;
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Graph graph = RandomWithUpdates(seed, Dtype::kF32);
    Graph passed = FuseElementwise(RemoveDeadCode(MergeEqual(Simplify(graph))));
    Pair inputs = RandomInputs(graph, {}, seed);
    std::map<std::string, RefTensor> states;
    auto expected = Evaluate(graph, {}, inputs.refs, states, {}, {.round = false});
    ASSERT_TRUE(expected.ok());
    auto executable = Compile(passed, {}, DefaultProgram(passed), CpuKernels(), {.num_threads = 2});
    ASSERT_TRUE(executable.ok()) << executable.status().ToString();
    StateStore store;
    auto got = (*executable)->Run(Inputs(inputs), store);
    ASSERT_TRUE(got.ok()) << got.status().ToString();
    // Some 20 ops of 8 roundings each make 160 * 2^-24, about 1e-5, of the loss; gradients go through twice as many.
    ASSERT_LT(Worst(ToRef(got->outputs[0][0]), expected->outputs[0]), 1e-5);
    double worst = 0;
    for (std::size_t i = 1; i < expected->outputs.size(); ++i)
      worst = std::max(worst, Worst(ToRef(got->outputs[0][i]), expected->outputs[i]));
    close += worst < 2e-5;
  }
  // A gradient may jump where rounding takes an argument across a kink (Relu, Maximum); that is rare, and depends on the processor.
  EXPECT_GE(close, 36);
}

// Accumulation over micro-batches, in an order as 1F1B has it, equals one big batch.
TEST(Executor, MicroBatchesEqualOneBatch) {
  auto build = [](int count) {
    Builder b;
    Dim n = b.NewSymbol("N", 1, 64);
    Value x = b.Input("x", Dtype::kF64, {n, 5}), y = b.Input("y", Dtype::kF64, {n, 1});
    Parameter w = b.NewParameter("w", {5, 8}, Initializer::Normal(.5), Dtype::kF64);
    Parameter v = b.NewParameter("v", {8, 1}, Initializer::Normal(.5), Dtype::kF64);
    Value loss = Mean(Square(MatMul(Dropout(Tanh(MatMul(x, w)), .25), v) - y));
    b.Output("loss", loss);
    std::vector<Gradient> grads = Grad(loss, {w, v});
    if (count > 1) grads = AccumulateGradients(b, {w, v}, grads, count);
    ApplyAdamW(b, {w, v}, grads, .01);
    return *b.Finish();
  };
  Graph whole = build(1), split = build(3);
  Pair all = RandomInputs(whole, {12}, 5);
  std::vector<std::vector<Tensor>> parts(3);
  for (int m = 0; m < 3; ++m) {
    for (const RefTensor& ref : all.refs) {
      std::int64_t width = ref.dims[1];
      RefTensor part{{4, width}, {ref.data.begin() + m * 4 * width, ref.data.begin() + (m + 1) * 4 * width}};
      parts[m].push_back(ToTensor(Dtype::kF64, part));
    }
  }
  // The updates in the order of the default program: that of the step counter comes first.
  RegionId forward, backward;
  Program updates;
  for (const ProgramStep& step : DefaultProgram(split)) {
    RegionKind kind = split.region(step.region).kind;
    if (kind == RegionKind::kForward) forward = step.region;
    if (kind == RegionKind::kBackward) backward = step.region;
    if (kind == RegionKind::kUpdate) updates.push_back(step);
  }
  Program program = {{forward, 0}, {forward, 1}, {backward, 0}, {forward, 2}, {backward, 1}, {backward, 2}};
  program.insert(program.end(), updates.begin(), updates.end());
  auto one = Compile(whole, {12}, DefaultProgram(whole), KernelTable(), {.device = Device::kReference});
  auto three = Compile(split, {4}, program, KernelTable(), {.device = Device::kReference});
  ASSERT_TRUE(one.ok()) << one.status().ToString();
  ASSERT_TRUE(three.ok()) << three.status().ToString();
  StateStore a, b;
  for (std::uint64_t step = 0; step < 3; ++step) {
    RunInputs big = Inputs(all), small;
    small.micro_batches.assign(3, {});
    for (int m = 0; m < 3; ++m) small.micro_batches[m] = {&parts[m][0], &parts[m][1]};
    small.sample_offsets = {0, 4, 8};
    big.run.step = small.run.step = step;
    auto x = (*one)->Run(big, a), y = (*three)->Run(small, b);
    ASSERT_TRUE(x.ok()) << x.status().ToString();
    ASSERT_TRUE(y.ok()) << y.status().ToString();
    double sum = 0;
    for (int m = 0; m < 3; ++m) sum += ToRef(y->outputs[m][0]).data[0] / 3;
    EXPECT_NEAR(sum, ToRef(x->outputs[0][0]).data[0], 1e-12);
  }
  for (const char* name : {"w", "v", "w/first_moment", "v/second_moment"})
    EXPECT_LT(Worst(ToRef(a.Get(name)), ToRef(b.Get(name))), 1e-12) << name;
  EXPECT_EQ(Worst(ToRef(b.Get("w/gradient_sum")), RefTensor{{5, 8}, std::vector<double>(40)}), 0);
}

// A new version may not be computed over the old one while the old one is still read: by a later op, by the op that makes it where that is
// no elementwise op, or through a second read.
TEST(Executor, OldVersionsOfStatesOutliveTheirReaders) {
  using Make = std::function<Value(Builder&, StateId, const Value&)>;  // emits the op of the new version, gives what is seen
  const std::pair<const char*, Make> cases[] = {
      {"read later",
       [](Builder& b, StateId w, const Value& old) {
         Value next = old * .5;
         Value seen = Tanh(old) + next;
         b.Assign(w, next);
         return seen;
       }},
      {"read by a product",
       [](Builder& b, StateId w, const Value& old) {
         Value next = MatMul(old, old);
         b.Assign(w, next);
         return next * 2.0;
       }},
      {"read again",
       [](Builder& b, StateId w, const Value& old) {
         Value next = old * .5;
         Value seen = Exp(b.Read(w)) + next;
         b.Assign(w, next);
         return seen;
       }},
  };
  for (const auto& [name, make] : cases) {
    SCOPED_TRACE(name);
    Builder b;
    Parameter w = b.NewParameter("w", {33, 33}, Initializer::Normal(.2));
    b.Output("seen", make(b, w.state, b.Read(w.state)));
    auto graph = b.Finish();
    ASSERT_TRUE(graph.ok()) << graph.status().ToString();
    auto executable = Compile(*graph, {}, {}, CpuKernels());
    ASSERT_TRUE(executable.ok()) << executable.status().ToString();
    EXPECT_EQ((*executable)->fallback_ops(), 0u);
    StateStore store;
    std::map<std::string, RefTensor> states;
    for (int step = 0; step < 2; ++step) {
      auto expected = Evaluate(*graph, {}, {}, states);
      auto got = (*executable)->Run({}, store);
      ASSERT_TRUE(expected.ok() && got.ok());
      // 33 products make a sum of about sqrt(33) roundings, in two steps.
      EXPECT_LT(Worst(ToRef(got->outputs[0][0]), expected->outputs[0]), 2e-6) << "step " << step;
      EXPECT_LT(Worst(ToRef(store.Get("w")), states["w"]), 2e-6) << "step " << step;
    }
  }
}

TEST(Executor, ProgramsThatCannotRunAreRefused) {
  Builder b;
  Parameter w = b.NewParameter("w", {3}, Initializer::Normal(1), Dtype::kF64);
  Value loss = ReduceSum(Square(Tanh(w)));
  ApplySgd(b, {w}, Grad(loss, {w}), .1);
  Graph graph = *b.Finish();
  Program program = DefaultProgram(graph);
  EXPECT_TRUE(Compile(graph, {}, program, KernelTable(), {.device = Device::kReference}).ok());
  std::swap(program[0], program[1]);  // backward before forward
  auto refused = Compile(graph, {}, program, KernelTable(), {.device = Device::kReference});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().tag(), "RUN06");
}

// Only a token says that the parameter's update reads the step counter after it was raised.
TEST(Executor, UpdatesBeforeTheStepCounterAreRefused) {
  Builder b;
  Parameter w = b.NewParameter("w", {3}, Initializer::Normal(1), Dtype::kF64);
  Value loss = ReduceSum(Square(Tanh(w)));
  ApplyAdamW(b, {w}, AccumulateGradients(b, {w}, Grad(loss, {w}), 1), .1);
  Graph graph = *b.Finish();
  Program program = DefaultProgram(graph);
  ASSERT_EQ(program.size(), 4u);
  EXPECT_TRUE(Compile(graph, {}, program, KernelTable(), {.device = Device::kReference}).ok());
  std::swap(program[2], program[3]);
  auto refused = Compile(graph, {}, program, KernelTable(), {.device = Device::kReference});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().tag(), "RUN06");
}

TEST(Executor, SymbolsAreBoundedAndSpecialised) {
  Builder b;
  Value x = b.Input("x", Dtype::kF32, {b.NewSymbol("B", 1, 8), 3});
  b.Output("y", Mean(x * 2.0));
  Graph graph = *b.Finish();
  EXPECT_EQ(Compile(graph, {9}, {}, CpuKernels()).status().tag(), "RUN08");
  for (std::int64_t rows : {1, 8}) {
    auto executable = Compile(graph, {rows}, {}, CpuKernels());
    ASSERT_TRUE(executable.ok());
    Tensor ones = ToTensor(Dtype::kF32, {{rows, 3}, std::vector<double>(rows * 3, 1)});
    RunInputs inputs;
    inputs.micro_batches[0] = {&ones};
    StateStore states;
    EXPECT_EQ(ToRef((*executable)->Run(inputs, states)->outputs[0][0]).data[0], 2);
  }
}

// A length that was an expression while the graph was built, and that the bound number makes one of no tensor.
TEST(Executor, LengthsThatNoTensorHasAreRefused) {
  struct Case {
    const char* op;
    std::int64_t bad, good;
    std::function<Value(Builder&, const Value&, const Dim&)> function;  // x (8, 4)
  };
  const Case cases[] = {
      {"Slice", 2, 5, [](Builder&, const Value& x, const Dim& n) { return Mean(SliceAxis(x, 0, 3, n)); }},  // a stretch
      {"Slice", 2, 4, [](Builder&, const Value& x, const Dim& n) { return SliceAxis(x, 1, 3, n); }},
      {"Slice", 2, 4, [](Builder&, const Value& x, const Dim& n) { return Mean(SliceAxis(Tanh(x), 1, 3, n), {1}); }},
      {"Pad", 2, 16, [](Builder&, const Value& x, const Dim& n) { return PadAxis(x, 0, 0, n - 16); }},
      {"Fill", 2, 3, [](Builder& b, const Value& x, const Dim& n) { return Fill(b, 1, x.dtype(), {n - 3, 4}); }},
      {"Iota", 2, 7, [](Builder& b, const Value& x, const Dim& n) { return Iota(b, x.dtype(), n - 3); }},
      {"Fill", 1 << 20, 9, [](Builder& b, const Value& x, const Dim& n) { return Fill(b, 1, x.dtype(), {n, n, n}); }},
      {"Fill", 1 << 20, 9, [](Builder& b, const Value& x, const Dim& n) { return Fill(b, 1, x.dtype(), {n * n * n * n}); }},
      {"Fill", 1 << 20, 9, [](Builder& b, const Value& x, const Dim& n) { return Fill(b, 1, x.dtype(), {n * n * n * n - n * n, 0}); }},
      {"Fill", 2, 4,
       [](Builder& b, const Value& x, const Dim& n) {
         return Cond(
                    Greater(ReduceSum(x), 0), [&](Builder& c) { return Vars{ReduceSum(Fill(c, 1, x.dtype(), {n - 3}))}; },
                    [&](Builder& c) { return Vars{c.Number(0, x.dtype())}; })[0] +
                b.Number(0, x.dtype());
       }},
  };
  for (const Case& test : cases) {
    for (Dtype dtype : {Dtype::kF32, Dtype::kF64}) {
      Builder b;
      Value x = b.Input("x", dtype, {8, 4});
      b.Output("y", test.function(b, x, b.NewSymbol("n")));
      SCOPED_TRACE("case " + std::to_string(&test - cases));
      auto graph = b.Finish();
      ASSERT_TRUE(graph.ok()) << graph.status().ToString();
      Pair inputs = RandomInputs(*graph, {test.good}, 3);
      std::map<std::string, RefTensor> none;
      auto expected = Evaluate(*graph, {test.good}, inputs.refs, none);
      auto executable = Compile(*graph, {test.good}, {}, CpuKernels());
      ASSERT_TRUE(expected.ok() && executable.ok()) << expected.status().ToString() << executable.status().ToString();
      StateStore states;
      auto got = (*executable)->Run(Inputs(inputs), states);
      ASSERT_TRUE(got.ok()) << got.status().ToString();
      EXPECT_LT(Worst(ToRef(got->outputs[0][0]), expected->outputs[0]), 1e-6);
      for (const Status& refused :
           {Compile(*graph, {test.bad}, {}, CpuKernels()).status(), Evaluate(*graph, {test.bad}, inputs.refs, none).status()}) {
        EXPECT_EQ(refused.tag(), "RUN04") << refused.ToString();
        EXPECT_NE(refused.what().find(test.op), std::string::npos) << refused.ToString();
        EXPECT_NE(refused.what().find("model_executor_test.cc:"), std::string::npos) << refused.ToString();
      }
    }
  }
}

// The result has a length that a tensor may have, and what it is made of does not lie in it.
TEST(Executor, SlicesAndPaddingThatDoNotFitAreRefused) {
  using Make = std::function<Value(const Value&, const Dim&)>;
  const Make cases[] = {
      [](const Value& x, const Dim& n) { return PadAxis(x, 0, n - 3, 0); },
      [](const Value& x, const Dim& n) { return PadAxis(x, 0, 0, n - 3); },
      [](const Value& x, const Dim& n) { return PadAxis(x, 1, n - 3, Dim(3) - n); },
      [](const Value& x, const Dim& n) { return SliceAxis(x, 0, n - 3, n + 2); },
      [](const Value& x, const Dim& n) { return SliceAxis(x, 1, n * n * n * 2, n * n * n * 2 + 2); },
  };
  for (const Make& make : cases) {
    for (Dtype dtype : {Dtype::kF32, Dtype::kF64}) {
      SCOPED_TRACE(&make - cases);
      Builder b;
      Value x = b.Input("x", dtype, {8, 4});
      b.Output("y", make(x, b.NewSymbol("n")));
      auto graph = b.Finish();
      ASSERT_TRUE(graph.ok()) << graph.status().ToString();
      Pair inputs = RandomInputs(*graph, {2}, 3);
      std::map<std::string, RefTensor> none;
      EXPECT_EQ(Evaluate(*graph, {2}, inputs.refs, none).status().tag(), "RUN04");
      auto executable = Compile(*graph, {2}, {}, CpuKernels());
      ASSERT_TRUE(executable.ok()) << executable.status().ToString();
      StateStore states;
      EXPECT_EQ((*executable)->Run(Inputs(inputs), states).status().tag(), "RUN04");
    }
  }
}

// What has no number before a run cannot be computed before it, not even where the result's length is a number.
TEST(Executor, ConstantsCutBySymbolsAreNotFolded) {
  Builder b;
  Dim n = b.NewSymbol("n");
  Value x = Constant(b, Literal::Of(Dtype::kF32, {6}, std::vector<float>{0, 1, 2, 3, 4, 5}));
  b.Output("slice", SliceAxis(x, 0, n, n + 2) * 2.0);
  b.Output("pad", PadAxis(x, 0, n - 1, Dim(3) - n));
  b.Output("below", Fill(b, 1, Dtype::kF32, {Dim(-2)}) * 2.0);
  Graph graph = *b.Finish();
  EXPECT_EQ(Compile(graph, {3}, {}, CpuKernels()).status().tag(), "RUN04");
  graph.outputs.pop_back();
  Graph folded = RemoveDeadCode(FoldConstants(graph, FoldWith(ReferenceKernels())));
  std::map<std::string, RefTensor> none;
  for (std::int64_t at : {1, 3}) {
    auto expected = Evaluate(RemoveDeadCode(graph), {at}, {}, none), got = Evaluate(folded, {at}, {}, none);
    ASSERT_TRUE(expected.ok() && got.ok()) << expected.status().ToString() << got.status().ToString();
    for (int i = 0; i < 2; ++i) EXPECT_EQ(got->outputs[i].data, expected->outputs[i].data) << at << " " << i;
    EXPECT_EQ(got->outputs[0].data, (std::vector<double>{2.0 * static_cast<double>(at), 2.0 * static_cast<double>(at) + 2}));
  }
}

// Of an arena that no process has addresses for, with what takes the most of it.
TEST(Executor, WhatThereIsNoMemoryForIsNamed) {
  Builder b;
  Value x = b.Input("x", Dtype::kF32, {b.NewSymbol("n")});
  b.Output("sum", ReduceSum(Exp(x)));
  const Graph graph = *b.Finish();
  const std::int64_t n = std::int64_t{1} << 45;
  const Status status = Compile(graph, {n}, DefaultProgram(graph), CpuKernels()).status();
  EXPECT_EQ(status.tag(), "RUN10") << status.ToString();
  EXPECT_EQ(status.code(), Code::kResourceExhausted);
  EXPECT_NE(status.why().find(std::to_string(4 * n) + " bytes"), std::string::npos) << status.ToString();
  EXPECT_NE(status.why().find("Exp"), std::string::npos) << status.ToString();
}

// A tensor says its shape and has its bytes; the two must agree.
TEST(Executor, TensorsOfFewerOrMoreBytesThanTheirShapesAreRefused) {
  Builder b;
  Value x = b.Input("x", Dtype::kF32, {4});
  Parameter w = b.NewParameter("w", {4}, Initializer::Ones());
  b.Output("y", x * w);
  Graph graph = *b.Finish();
  auto executable = Compile(graph, {}, {}, CpuKernels());
  ASSERT_TRUE(executable.ok()) << executable.status().ToString();
  for (std::size_t bytes : {0, 4, 15, 16, 17, 32}) {
    const Tensor whole{Dtype::kF32, {4}, std::vector<std::byte>(16)}, other{Dtype::kF32, {4}, std::vector<std::byte>(bytes)};
    RunInputs inputs;
    inputs.micro_batches[0] = {&other};
    StateStore states;
    EXPECT_EQ((*executable)->Run(inputs, states).status().tag(), bytes == 16 ? "" : "RUN01") << bytes;
    inputs.micro_batches[0] = {&whole};
    states.Set("w", other);
    EXPECT_EQ((*executable)->Run(inputs, states).status().tag(), bytes == 16 ? "" : "RUN07") << bytes;
  }
  for (std::size_t numbers : {0, 1, 4, 5}) {
    const RefTensor whole{{4}, std::vector<double>(4)}, other{{4}, std::vector<double>(numbers)};
    std::map<std::string, RefTensor> none, states = {{"w", other}};
    EXPECT_EQ(Evaluate(graph, {}, {other}, none).status().tag(), numbers == 4 ? "" : "RUN01") << numbers;
    EXPECT_EQ(Evaluate(graph, {}, {whole}, states).status().tag(), numbers == 4 ? "" : "RUN07") << numbers;
  }
}

TEST(Executor, LoopsAndBranches) {
  Builder b;
  Value x = b.Input("x", Dtype::kF64, {4}), w = b.Input("w", Dtype::kF64, {4});
  Vars out = While(
      {b.Number(0, Dtype::kI64), x}, 20, [](Builder&, const Vars& s) { return Less(s[0], 13); },
      [&](Builder&, const Vars& s) { return Vars{s[0] + 1, Tanh(s[1] * w + .1)}; });
  Value y = Cond(
      Greater(ReduceSum(out[1]), 0), [&](Builder& c) { return Vars{Identity(c, out[1]) * w}; },
      [&](Builder& c) { return Vars{Sin(Identity(c, out[1]))}; })[0];
  b.Output("y", y);
  for (const Gradient& g : Grad(ReduceSum(y), {x, w})) b.Output("grad", g);
  auto graph = b.Finish();
  ASSERT_TRUE(graph.ok()) << graph.status().ToString();
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    Pair inputs = RandomInputs(*graph, {}, seed);
    std::map<std::string, RefTensor> states;
    auto expected = Evaluate(*graph, {}, inputs.refs, states);
    auto executable = Compile(*graph, {}, {}, KernelTable(), {.device = Device::kReference});
    ASSERT_TRUE(executable.ok()) << executable.status().ToString();
    StateStore store;
    auto got = (*executable)->Run(Inputs(inputs), store);
    ASSERT_TRUE(got.ok()) << got.status().ToString();
    for (std::size_t i = 0; i < expected->outputs.size(); ++i) EXPECT_EQ(Worst(ToRef(got->outputs[0][i]), expected->outputs[i]), 0) << i;
  }
}

// A bucket's members are computed in their places; the bucket adds no memory of its own.
TEST(Executor, BucketsCostNoCopy) {
  auto build = [](bool bucket) {
    Builder b;
    Value x = b.Input("x", Dtype::kF32, {64, 64});
    Value p = MatMul(x, x), q = MatMul(x, p);
    Value flat = bucket ? b.EmitOne(kBucket, {p, q}) : Concat({Reshape(p, {4096}), Reshape(q, {4096})}, 0);
    b.Output("flat", flat);
    return *b.Finish();
  };
  Graph with = build(true), without = build(false);
  Pair inputs = RandomInputs(with, {}, 3);
  StateStore states;
  auto a = Compile(with, {}, {}, CpuKernels()), c = Compile(without, {}, {}, CpuKernels());
  ASSERT_TRUE(a.ok() && c.ok());
  EXPECT_EQ(Worst(ToRef((*a)->Run(Inputs(inputs), states)->outputs[0][0]), ToRef((*c)->Run(Inputs(inputs), states)->outputs[0][0])), 0);
  EXPECT_EQ((*a)->arena_bytes(), 2u * 64 * 64 * 4);
  EXPECT_EQ((*c)->arena_bytes(), 4u * 64 * 64 * 4);
}

TEST(Executor, TapsAndSplitOps) {
  Builder b;
  Value x = b.Input("x", Dtype::kF64, {3, 3});
  Value h = MatMul(x, x);
  b.Tap("h", h);
  b.Output("y", Tanh(h + 1.0));
  Graph graph = *b.Finish();
  OpId product = graph.value(graph.taps[0].value).producer;
  Graph split = *SplitStartDone(graph, product, 3);
  Pair inputs = RandomInputs(graph, {}, 3);
  StateStore states;
  auto a = Compile(graph, {}, {}, KernelTable(), {.device = Device::kReference}),
       c = Compile(split, {}, {}, KernelTable(), {.device = Device::kReference});
  ASSERT_TRUE(a.ok() && c.ok());
  auto p = (*a)->Run(Inputs(inputs), states), q = (*c)->Run(Inputs(inputs), states);
  ASSERT_TRUE(p.ok() && q.ok());
  EXPECT_EQ(Worst(ToRef(p->outputs[0][0]), ToRef(q->outputs[0][0])), 0);
  EXPECT_EQ(Worst(ToRef(p->taps[0]["h"]), ToRef(q->taps[0]["h"])), 0);
}

// A stretch of a tensor is no copy, wherever the tensor lies.
TEST(Executor, StretchesAreViews) {
  Builder b;
  Value x = b.Input("x", Dtype::kF32, {6, 16});
  Parameter w = b.NewParameter("w", {4, 16}, Initializer::Normal(1));
  Value h = Tanh(x), part = SliceAxis(h, 0, 2, 5), flat = SliceAxis(Reshape(h, {96}), 0, 40, 56), columns = SliceAxis(h, 1, 3, 7);
  b.Output("part", part * 2.0);
  b.Output("flat", flat);
  b.Output("columns", columns);
  b.Output("input", SliceAxis(x, 0, 1, 3));
  b.Output("state", SliceAxis(w, 0, 3, 4) + SliceAxis(w, 0, 0, 1));
  Graph graph = *b.Finish();
  Pair inputs = RandomInputs(graph, {}, 3);
  StateStore fast, slow;
  auto a = Compile(graph, {}, {}, CpuKernels()), c = Compile(graph, {}, {}, KernelTable(), {.device = Device::kReference});
  ASSERT_TRUE(a.ok() && c.ok());
  auto p = (*a)->Run(Inputs(inputs), fast), q = (*c)->Run(Inputs(inputs), slow);
  ASSERT_TRUE(p.ok() && q.ok());
  std::map<std::string, RefTensor> states;
  auto expected = Evaluate(graph, {}, inputs.refs, states);
  ASSERT_TRUE(expected.ok());
  for (std::size_t i = 0; i < graph.outputs.size(); ++i) {
    EXPECT_LT(Worst(ToRef(p->outputs[0][i]), expected->outputs[i]), 1e-6) << graph.outputs[i].name;
    EXPECT_LT(Worst(ToRef(q->outputs[0][i]), expected->outputs[i]), 1e-6) << graph.outputs[i].name;
  }
  std::vector<OpTime> times;
  RunInputs timed = Inputs(inputs);
  timed.times = &times;
  ASSERT_TRUE((*a)->Run(timed, fast).ok());
  // h, part * 2, columns, the sum: nothing for the stretches.
  EXPECT_LE((*a)->arena_bytes(), 6u * 64 + 3 * 64 + 6 * 64 + 64 + 2 * 64);
  EXPECT_GT(times.size(), 4u);
  for (std::size_t i = 1; i < times.size(); ++i) EXPECT_LE(times[i - 1].end_ns, times[i].begin_ns);
}

// Two states that get one value: it can be computed in one of them, and must be copied to the other.
TEST(Executor, OneValueForTwoStates) {
  Builder b;
  Value x = b.Input("x", Dtype::kF32, {4});
  Parameter p = b.NewParameter("p", {4}, Initializer::Zeros()), q = b.NewParameter("q", {2, 2}, Initializer::Zeros()),
            r = b.NewParameter("r", {2}, Initializer::Zeros());
  Value next = Tanh(x);
  b.Assign(p.state, next);
  b.Assign(q.state, Reshape(next, {2, 2}));
  b.Assign(r.state, SliceAxis(next, 0, 2, 4));
  Graph graph = *b.Finish();
  Pair inputs = RandomInputs(graph, {}, 3);
  StateStore states;
  auto a = Compile(graph, {}, {}, CpuKernels());
  ASSERT_TRUE(a.ok()) << a.status().ToString();
  ASSERT_TRUE((*a)->Run(Inputs(inputs), states).ok());
  std::vector<double> values = ToRef(states.Get("p")).data;
  for (int i = 0; i < 4; ++i) EXPECT_NEAR(values[i], std::tanh(inputs.refs[0].data[i]), 1e-6);
  EXPECT_EQ(ToRef(states.Get("q")).data, values);
  EXPECT_EQ(ToRef(states.Get("r")).data, std::vector<double>(values.begin() + 2, values.end()));
}

// Sums of two gradient buckets: each starts right behind the op that fills its bucket and is waited for in the first update that reads it,
// in memory that the caller gives; the numbers are those of whole ops.
TEST(Executor, SumsOfBucketsOverlapWithBackward) {
  Builder b;
  Value x = b.Input("x", Dtype::kF32, {4, 6});
  Parameter w[3] = {b.NewParameter("w0", {6, 6}, Initializer::Normal(1)), b.NewParameter("w1", {6, 6}, Initializer::Normal(1)),
                    b.NewParameter("w2", {6, 6}, Initializer::Normal(1))};
  Value loss = Mean(Square(MatMul(Tanh(MatMul(Tanh(MatMul(x, w[0])), w[1])), w[2])));
  std::vector<Gradient> grads = Grad(loss, {w[0], w[1], w[2]});
  std::vector<Gradient> sums(3);
  Scope scope;
  scope.region = RegionKind::kBackward;
  scope.phase = Phase::kBackward;
  Value first, second;
  {
    auto guard = b.With(scope);
    first = AllReduce(b.EmitOne(kBucket, {loss, grads[2]}), b.NewChannel("bucket0"), "data");
    second = AllReduce(b.EmitOne(kBucket, {grads[1], grads[0]}), b.NewChannel("bucket1"), "data");
  }
  // Each part of a sum is taken where it is used.
  scope.region = RegionKind::kUpdate;
  scope.phase = Phase::kUpdate;
  auto part = [&](int i, const Value& sum, int begin) {
    scope.parameter = w[i].state;
    auto guard = b.With(scope);
    if (i == 2) b.Output("loss", Reshape(SliceAxis(sum, 0, 0, 1), {}));
    sums[i] = Reshape(SliceAxis(sum, 0, begin, begin + 36), {6, 6});
  };
  part(2, first, 1);
  part(1, second, 0);
  part(0, second, 36);
  ApplySgd(b, {w[0], w[1], w[2]}, sums, .5, {.momentum = .9});
  auto built = b.Finish();
  ASSERT_TRUE(built.ok()) << built.status().ToString();
  Graph whole = FuseElementwise(RemoveDeadCode(MergeEqual(Simplify(*built)))), split = OverlapCollectives(whole);
  ASSERT_TRUE(Check(split).ok()) << Check(split).ToString();

  // The sum of two ranks that have the same.
  int started = 0, waited = 0;
  KernelTable table = CpuKernels();
  table.Add(kAllReduce, Device::kCpu, Dtype::kF32, [&](const KernelRequest& r) -> Result<CompiledKernel> {
    auto call = std::make_shared<std::pair<const float*, float*>>();
    std::int64_t n = NumElements(r.in[1].dims);
    CompiledKernel kernel;
    kernel.run = [&started, call](const KernelCall& c) {
      ++started;
      *call = {static_cast<const float*>(c.in[1]), static_cast<float*>(c.out[1])};
      return Status();
    };
    kernel.wait = [&waited, call, n] {  // as late as can be: nothing may have written over what is summed
      ++waited;
      for (std::int64_t i = 0; i < n; ++i) call->second[i] = 2 * call->first[i];
      return Status();
    };
    return kernel;
  });
  std::vector<char> registered;
  ExecutorOptions options;
  options.registered_memory = [&](std::size_t bytes) -> Result<char*> {
    EXPECT_TRUE(registered.empty());
    registered.resize(bytes);
    return registered.data();
  };
  auto a = Compile(whole, {}, DefaultProgram(whole), table), c = Compile(split, {}, DefaultProgram(split), table, options);
  ASSERT_TRUE(a.ok()) << a.status().ToString();
  ASSERT_TRUE(c.ok()) << c.status().ToString();
  EXPECT_GE((*c)->registered_bytes(), 2u * (37 + 72) * 4);
  EXPECT_EQ(registered.size(), (*c)->registered_bytes());
  EXPECT_LT((*c)->arena_bytes(), (*a)->arena_bytes());

  Pair inputs = RandomInputs(whole, {}, 3);
  StateStore one, two;
  std::vector<OpTime> times;
  for (int step = 0; step < 3; ++step) {
    times.clear();
    RunInputs timed = Inputs(inputs);
    timed.times = &times;
    auto p = (*a)->Run(Inputs(inputs), one), q = (*c)->Run(timed, two);
    ASSERT_TRUE(p.ok() && q.ok());
    EXPECT_EQ(Worst(ToRef(p->outputs[0][0]), ToRef(q->outputs[0][0])), 0);
    for (const char* name : {"w0", "w1", "w2", "w2/velocity"}) EXPECT_EQ(one.Get(name).bytes, two.Get(name).bytes) << name;
  }
  EXPECT_EQ(started, 12);
  EXPECT_EQ(waited, 12);
  // b: a product of backward; s, w: a sum starts, is waited for; u: an update.
  auto order_of = [](const std::vector<OpTime>& run) {
    std::string order;
    for (const OpTime& time : run) {
      const Op& op = *time.op;
      if (op.def == &kMatMul && op.provenance.phase == Phase::kBackward) order += 'b';
      if (op.def == &kAllReduce) order += op.half == Half::kStart ? 's' : 'w';
      if (op.def == &kAssign) order += 'u';
    }
    return order;
  };
  std::string order = order_of(times);
  EXPECT_LT(order.find('s'), order.rfind('b')) << order;
  EXPECT_GT(order.find('w'), order.rfind('b')) << order;
  EXPECT_LT(order.find('u'), order.rfind('w')) << order;  // the first update does not wait for the second bucket
  // Without the pass all sums come behind backward.
  times.clear();
  RunInputs timed = Inputs(inputs);
  timed.times = &times;
  ASSERT_TRUE((*a)->Run(timed, one).ok());
  order = order_of(times);
  EXPECT_EQ(order.find('s'), std::string::npos) << order;
  EXPECT_GT(order.find('w'), order.rfind('b')) << order;
}

// An op that this file alone knows: what docs/mlrunner.md shows.
Result<std::vector<TensorType>> InferSquaredError(const InferContext& c) {
  if (c.in[0] != c.in[1]) return Misfit(c, "prediction and target are of one type", "Cast one of them");
  return std::vector<TensorType>{{c.in[0].dtype, {}}};
}
std::vector<Gradient> SquaredErrorRule(const GradientContext& c) {
  Value g = c.grads[0].Dense() * 2.0 * (c.in[0] - c.in[1]);
  return {g, -g};
}
std::vector<Value> SquaredErrorPrimitive(Builder&, const Op&, const std::vector<Value>& in) { return {ReduceSum(Square(in[0] - in[1]))}; }
const OpDef kSquaredError{"SquaredError", 2, 1, InferSquaredError, SquaredErrorRule, SquaredErrorPrimitive, {}};

TEST(Executor, AStrategyAddsOpsOfItsOwn) {
  Builder b;
  Value x = b.Input("x", Dtype::kF64, {5}), y = b.Input("y", Dtype::kF64, {5});
  Value error = b.EmitOne(kSquaredError, {Tanh(x), y});
  b.Output("error", error);
  b.Output("grad", Grad(error, {x})[0]);
  auto graph = b.Finish();
  ASSERT_TRUE(graph.ok()) << graph.status().ToString();
  Pair inputs = RandomInputs(*graph, {}, 3);
  StateStore states;
  auto missing = Compile(*graph, {}, {}, KernelTable(), {.device = Device::kReference});
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.status().tag(), "RUN02");
  KernelTable table;
  table.reference()[&kSquaredError] = [](RefCall& c) {
    for (std::size_t i = 0; i < c.in[0]->data.size(); ++i) c.out[0].data[0] += std::pow(c.in[0]->data[i] - c.in[1]->data[i], 2);
    return Status();
  };
  Graph primitive = *Expand(*graph);
  auto own = Compile(*graph, {}, {}, table, {.device = Device::kReference});
  auto plain = Compile(primitive, {}, {}, KernelTable(), {.device = Device::kReference});
  ASSERT_TRUE(own.ok() && plain.ok());
  auto p = (*own)->Run(Inputs(inputs), states), q = (*plain)->Run(Inputs(inputs), states);
  ASSERT_TRUE(p.ok() && q.ok());
  for (int i = 0; i < 2; ++i) EXPECT_LT(Worst(ToRef(p->outputs[0][i]), ToRef(q->outputs[0][i])), 1e-14);
}

// Megatron's pair: what is copied forward is summed backward, and the reverse. One sum each way, in the order of the channel's versions.
TEST(Executor, ColumnAndRowLinearSumOnceEachWay) {
  Builder b;
  b.mutable_graph().mesh = {{{"tensor", 2}}};
  StateId channel = b.NewChannel("tensor");
  Value x = b.Input("x", Dtype::kF32, {4, 8});
  Parameter column = b.NewParameter("column", {8, 16}, Initializer::Normal(1)),
            row = b.NewParameter("row", {16, 8}, Initializer::Normal(1));
  auto copy = [&](const Value& v) {
    return b.CustomGradient({v}, {v}, [channel](const GradientContext& c) {
      return std::vector<Gradient>{AllReduce(c.grads[0].Dense(), channel, "tensor")};
    })[0];
  };
  auto sum = [&](const Value& v) {
    return b.CustomGradient({v}, {AllReduce(v, channel, "tensor")},
                            [](const GradientContext& c) { return std::vector<Gradient>{c.grads[0]}; })[0];
  };
  Value y = sum(MatMul(Gelu(MatMul(copy(Tanh(x)), column)), row));
  for (const Gradient& g : Grad(Mean(Square(y)), {column, row, x})) b.Output("grad", g);
  auto graph = b.Finish();
  ASSERT_TRUE(graph.ok()) << graph.status().ToString();
  Graph passed = RemoveDeadCode(MergeEqual(Simplify(*graph)));
  int sums[2] = {0, 0};
  for (const Op& op : passed.ops) {
    if (op.def == &kAllReduce) ++sums[op.provenance.phase == Phase::kBackward];
  }
  EXPECT_EQ(sums[0], 1);
  EXPECT_EQ(sums[1], 1);
  EXPECT_TRUE(Check(passed).ok());
}

}  // namespace
}  // namespace ropewalk::mlrunner
