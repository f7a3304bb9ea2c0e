// What the builder refuses, and that it names the user's line: axes, numbers, flags, values of other graphs, states in bodies.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "mlrunner/graph/grad.h"
#include "mlrunner/graph/maths.h"
#include "mlrunner/graph/ops.h"
#include "mlrunner/graph/passes/pass.h"
#include "mlrunner/kernels/reference.h"

namespace ropewalk::mlrunner {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

// The error of what `write` does, or OK.
Status Written(const std::function<void(Builder&)>& write) {
  Builder b;
  write(b);
  return b.Finish().status();
}

// A body's values are nobody's once it has been written: not those of the next body, which may lie where this one lay and have values of
// the same numbers, nor of the graph around it.
TEST(Refusals, ValuesOfBodiesThatHaveBeenWritten) {
  Value kept;
  auto doubles = [&](Builder&, const Vars& v) {
    kept = v[0] * 2;
    return Vars{kept};
  };
  const std::vector<std::pair<const char*, std::function<void(Builder&, const Value&)>>> uses = {
      {"in the condition, where a value has its number",
       [&](Builder&, const Value& x) {
         (void)While(
             {x}, 3,
             [&](Builder&, const Vars& v) {
               Value other = v[0] + 1;
               return ReduceMax(Less(kept, other));
             },
             doubles);
       }},
      {"in the condition, alone",
       [&](Builder&, const Value& x) { (void)While({x}, 3, [&](Builder&, const Vars&) { return ReduceMax(Less(kept, 10)); }, doubles); }},
      {"in the other branch",
       [&](Builder& b, const Value& x) {
         (void)Cond(
             Greater(b.Number(1, Dtype::kF32), 0),
             [&](Builder& inner) {
               kept = x + inner.Number(2, Dtype::kF32);
               return Vars{kept};
             },
             [&](Builder&) { return Vars{kept}; });
       }},
      {"around it",
       [&](Builder&, const Value& x) {
         auto once = [](Builder& inner, const Vars&) { return inner.Number(0, Dtype::kBool); };
         (void)While({x}, 3, once, doubles);
         (void)(kept + x);
       }},
      {"around it, alone",
       [&](Builder& b, const Value& x) {
         auto once = [](Builder& inner, const Vars&) { return inner.Number(0, Dtype::kBool); };
         (void)While({x}, 3, once, doubles);
         b.Output("y", Mean(kept));
       }},
  };
  for (const auto& [where, use] : uses) {
    const Status status = Written([&](Builder& b) { use(b, b.Input("x", Dtype::kF32, {2})); });
    EXPECT_EQ(status.tag(), "GRAPH04") << where << ": " << status.ToString();
  }
}

TEST(Refusals, NameTheLineOfEachFunction) {
  struct Case {
    const char* name;
    std::function<int(Builder&)> write;  // gives the line that it fails in
  };
  const Shape two{2};
  auto one = [](Builder& b) { return b.Input("x", Dtype::kF32, {2}); };
  auto same = [](Builder&, const Vars& v) { return v; };
  const std::vector<Case> cases = {
      {"Concat", [&](Builder& b) { return (void)Concat({one(b)}, 3), __LINE__; }},
      {"Concat of another graph",
       [&](Builder& b) {
         Builder other;
         return (void)Concat({one(b), one(other)}, 0), __LINE__;
       }},
      {"While, its condition",
       [&](Builder& b) {
         auto no_flag = [](Builder&, const Vars& v) { return v[0]; };
         return (void)While({one(b)}, 3, no_flag, same), __LINE__;
       }},
      {"While, its body",
       [&](Builder& b) {
         auto flag = [](Builder& inner, const Vars&) { return inner.Number(0, Dtype::kBool); };
         auto nothing = [](Builder&, const Vars&) { return Vars{Value{}}; };
         return (void)While({one(b)}, 3, flag, nothing), __LINE__;
       }},
      {"While, a variable",
       [&](Builder& b) {
         auto flag = [](Builder& inner, const Vars&) { return inner.Number(0, Dtype::kBool); };
         return (void)While({one(b), Value{}}, 3, flag, same), __LINE__;
       }},
      {"Cond",
       [&](Builder& b) {
         auto branch = [](Builder& inner) { return Vars{inner.Number(0, Dtype::kF32)}; };
         return (void)Cond(one(b), branch, branch), __LINE__;
       }},
      {"Fill", [&](Builder& b) { return (void)Fill(b, .5, Dtype::kI32, two), __LINE__; }},
      {"Number", [&](Builder& b) { return (void)b.Number(.5, Dtype::kI32), __LINE__; }},
      {"Constant",
       [&](Builder& b) {
         auto literal = Literal::Of(Dtype::kF32, {3}, std::vector<float>{1, 2});
         return (void)Constant(b, literal), __LINE__;
       }},
      {"Iota", [&](Builder& b) { return (void)Iota(b, Dtype::kBool, 3), __LINE__; }},
      {"DimSize", [&](Builder& b) { return (void)DimSize(b, b.NewSymbol("N"), Dtype::kBool), __LINE__; }},
      {"DimSize of a number", [&](Builder& b) { return (void)DimSize(b, 300, Dtype::kU8), __LINE__; }},
      {"RandomUniform", [&](Builder& b) { return (void)RandomUniform(b, Dtype::kI32, two), __LINE__; }},
      {"RandomUniform, its key", [&](Builder& b) { return (void)RandomUniform(b, Dtype::kF32, two, 0, one(b)), __LINE__; }},
      {"Identity", [&](Builder& b) { return (void)Identity(b, Value{}), __LINE__; }},
      {"Dropout", [&](Builder& b) { return (void)Dropout(one(b), 1), __LINE__; }},
      {"Mean", [&](Builder& b) { return (void)Mean(b.Input("i", Dtype::kI32, two)), __LINE__; }},
      {"CustomGradient", [&](Builder& b) { return (void)b.CustomGradient({one(b)}, {Value{}}, {}), __LINE__; }},
      {"NewState",
       [&](Builder& b) {
         b.NewChannel("s");
         return (void)b.NewState("s", StateKind::kScalar, {Dtype::kF32, {}}, {}), __LINE__;
       }},
      {"NewChannel",
       [&](Builder& b) {
         b.NewChannel("s");
         return (void)b.NewChannel("s"), __LINE__;
       }},
      {"NewParameter", [&](Builder& b) { return (void)b.NewParameter("w", two, {}, Dtype::kF32, ShardingSpec{{0}, {}}), __LINE__; }},
      {"Read in a body",
       [&](Builder& b) {
         int line = 0;
         StateId state = b.NewState("s", StateKind::kScalar, {Dtype::kF32, {}}, {});
         b.BuildBody({}, [&](Builder& inner, const Vars&) { return line = __LINE__, Vars{inner.Read(state)}; });
         return line;
       }},
      {"Assign in a body",
       [&](Builder& b) {
         int line = 0;
         StateId state = b.NewState("s", StateKind::kScalar, {Dtype::kF32, {}}, {});
         b.BuildBody({}, [&](Builder& inner, const Vars&) {
           Value next = inner.Number(1, Dtype::kF32);
           return line = __LINE__, inner.Assign(state, next), Vars{next};
         });
         return line;
       }},
      {"Recv in a body",
       [&](Builder& b) {
         int line = 0;
         StateId channel = b.NewChannel("c");
         auto recv = [&](Builder& inner, const Vars&) { return line = __LINE__, Vars{Recv(inner, {}, channel, 0, "k")}; };
         b.BuildBody({}, recv);
         return line;
       }},
      {"Output",
       [&](Builder& b) {
         Builder other;
         return b.Output("y", one(other)), __LINE__;
       }},
      {"Tap",
       [&](Builder& b) {
         Builder other;
         return b.Tap("y", one(other)), __LINE__;
       }},
      {"Grad", [&](Builder& b) { return (void)Grad(one(b), {}), __LINE__; }},
  };
  for (const Case& test : cases) {
    SCOPED_TRACE(test.name);
    Builder b;
    int line = test.write(b);
    ASSERT_FALSE(b.status().ok());
    EXPECT_NE(b.status().what().find("model_refusals_test.cc:" + std::to_string(line) + ": "), std::string::npos)
        << b.status().ToString() << "\nis not in line " << line;
  }
}

TEST(Refusals, AxesThatAreNotThere) {
  struct Case {
    const char* name;
    std::function<Value(Builder&, const Value&, int)> function;
  };
  const std::vector<Case> cases = {
      {"SliceAxis", [](Builder&, const Value& x, int axis) { return SliceAxis(x, axis, 0, 1); }},
      {"PadAxis", [](Builder&, const Value& x, int axis) { return PadAxis(x, axis, 0, 1); }},
      {"Concat", [](Builder&, const Value& x, int axis) { return Concat({x, x}, axis); }},
      {"ArgMax", [](Builder&, const Value& x, int axis) { return ArgMax(x, axis); }},
      {"ReduceSum", [](Builder&, const Value& x, int axis) { return ReduceSum(x, {axis}); }},
      {"ReduceMax", [](Builder&, const Value& x, int axis) { return ReduceMax(x, {axis}); }},
      {"Mean", [](Builder&, const Value& x, int axis) { return Mean(x, {axis}); }},
      {"AllGather", [](Builder& b, const Value& x, int axis) { return AllGather(x, b.NewChannel("c"), "data", axis); }},
      {"ReduceScatter", [](Builder& b, const Value& x, int axis) { return ReduceScatter(x, b.NewChannel("c"), "data", axis); }},
  };
  for (const Case& test : cases) {
    for (int rank : {1, 2, 3}) {
      for (int axis = -3 * rank; axis <= 2 * rank; ++axis) {
        SCOPED_TRACE(std::string(test.name) + " of " + std::to_string(rank) + " dimensions, axis " + std::to_string(axis));
        Status status = Written([&](Builder& b) { b.Output("y", test.function(b, b.Input("x", Dtype::kF32, Shape(rank, Dim(2))), axis)); });
        if (axis >= -rank && axis < rank) {
          EXPECT_TRUE(status.ok()) << status.ToString();
          continue;
        }
        EXPECT_EQ(status.tag(), "GRAPH01");
        EXPECT_NE(status.why().find(std::to_string(axis)), std::string::npos) << status.ToString();  // as the user wrote it
      }
    }
  }
  // Kernels read the attribute as it stands.
  for (const OpDef* def : {&kConcat, &kArgMax}) {
    Status status = Written([&](Builder& b) { b.EmitOne(*def, {b.Input("x", Dtype::kF32, {2, 2})}, {{Attr::kAxis, std::int64_t{-1}}}); });
    EXPECT_EQ(status.tag(), "GRAPH01");
    EXPECT_NE(status.why().find("counted from the end"), std::string::npos) << status.ToString();
  }
}

TEST(Refusals, NumbersThatTheTypeDoesNotHold) {
  struct Case {
    Dtype dtype;
    double number;
    bool held;
  };
  const std::vector<Case> cases = {
      {Dtype::kI32, .5, false},     {Dtype::kI32, -2.0, true},    {Dtype::kI32, 3e9, false},  {Dtype::kI32, 2147483647, true},
      {Dtype::kI32, NAN, false},    {Dtype::kI32, kInf, false},   {Dtype::kI64, 3e9, true},   {Dtype::kI64, 1e19, false},
      {Dtype::kI64, 0x1p63, false}, {Dtype::kI64, -0x1p63, true}, {Dtype::kI64, 1e-9, false}, {Dtype::kU8, 255, true},
      {Dtype::kU8, 256, false},     {Dtype::kU8, -1, false},      {Dtype::kF16, 65504, true}, {Dtype::kF16, 1e6, false},
      {Dtype::kF16, .1, true},      {Dtype::kF16, -kInf, true},   {Dtype::kBF16, 1e38, true}, {Dtype::kBF16, 1e39, false},
      {Dtype::kF32, 1e-300, true},  {Dtype::kF32, -1e300, false}, {Dtype::kF32, NAN, true},   {Dtype::kF64, 1e300, true},
      {Dtype::kBool, 1, true},      {Dtype::kBool, 2, false},     {Dtype::kToken, 0, false},  {Dtype::kHandle, 0, false},
  };
  for (const Case& test : cases) {
    SCOPED_TRACE(std::string(Name(test.dtype)) + " and " + std::to_string(test.number));
    std::vector<std::function<void(Builder&, const Value&)>> uses = {
        [&](Builder& b, const Value&) { b.Number(test.number, test.dtype); },
        [&](Builder& b, const Value&) { Fill(b, test.number, test.dtype, {3}); }};
    if (IsNumber(test.dtype)) {
      for (Value (*function)(Arg, Arg) : std::initializer_list<Value (*)(Arg, Arg)>{operator+, operator*, Less, Equal, Maximum}) {
        uses.emplace_back([&, function](Builder&, const Value& x) { function(x, test.number); });
        uses.emplace_back([&, function](Builder&, const Value& x) { function(test.number, x); });
      }
      uses.emplace_back([&](Builder&, const Value& x) { Select(Equal(x, x), x, test.number); });
      uses.emplace_back([&](Builder&, const Value& x) { Select(Equal(x, x), test.number, x); });
    }
    for (const auto& use : uses) {
      Status status = Written([&](Builder& b) { use(b, SizeOf(test.dtype) == 0 ? Value{} : b.Input("x", test.dtype, {3})); });
      EXPECT_EQ(status.tag(), test.held ? "" : "GRAPH01") << status.ToString();
    }
  }
  // A number beside an index and a stack is of the stack's type.
  EXPECT_TRUE(Written([](Builder& b) { b.Output("y", SetAt(b.Input("x", Dtype::kF32, {3}), b.Number(1, Dtype::kI64), .5)); }).ok());
}

TEST(Refusals, SumsOfFlagsAndMeansOfIntegers) {
  struct Case {
    const char* name;
    std::function<Value(const Value&)> function;
  };
  const std::vector<Case> refused = {
      {"Add", [](const Value& x) { return x + x; }},     {"Sub", [](const Value& x) { return x - x; }},
      {"Mul", [](const Value& x) { return x * x; }},     {"Div", [](const Value& x) { return x / x; }},
      {"Pow", [](const Value& x) { return Pow(x, x); }}, {"Neg", [](const Value& x) { return -x; }},
      {"Abs", [](const Value& x) { return Abs(x); }},    {"Sign", [](const Value& x) { return Sign(x); }},
      {"Relu", [](const Value& x) { return Relu(x); }},  {"ReduceSum", [](const Value& x) { return ReduceSum(x); }},
      {"Mean", [](const Value& x) { return Mean(x); }},
  };
  for (const Case& test : refused) {
    Status status = Written([&](Builder& b) { test.function(b.Input("x", Dtype::kBool, {4})); });
    EXPECT_EQ(status.tag(), "GRAPH01") << test.name;
    EXPECT_NE(status.what().find(test.name), std::string::npos) << status.ToString();
    EXPECT_NE(status.fix().find("Cast"), std::string::npos) << status.ToString();
  }
  for (Dtype dtype : {Dtype::kI32, Dtype::kI64, Dtype::kU8}) {
    Status status = Written([&](Builder& b) { Mean(b.Input("x", dtype, {1})); });
    EXPECT_EQ(status.tag(), "GRAPH01") << Name(dtype);
    EXPECT_NE(status.what().find("Mean of (1)"), std::string::npos) << status.ToString();
  }
  // What flags are good for, with fusion as without.
  Builder b;
  Value x = b.Input("x", Dtype::kF64, {4}), y = b.Input("y", Dtype::kF64, {4});
  Value less = Less(x, y), positive = Greater(x, 0);
  b.Output("or", Cast(Maximum(less, positive), Dtype::kI64));
  b.Output("and", Cast(Minimum(less, positive), Dtype::kI64));
  b.Output("same", Equal(less, positive));
  b.Output("count", ReduceSum(Cast(less, Dtype::kI64)));
  b.Output("any", ReduceMax(less));
  Graph graph = *b.Finish();
  for (const Graph& g : {graph, FuseElementwise(graph)}) {
    std::map<std::string, RefTensor> states;
    auto result = Evaluate(g, {}, {{{4}, {-1, 1, -1, 1}}, {{4}, {0, 2, -2, 0}}}, states);
    ASSERT_TRUE(result.ok()) << result.status().ToString();
    EXPECT_EQ(result->outputs[0].data, (std::vector<double>{1, 1, 0, 1}));
    EXPECT_EQ(result->outputs[1].data, (std::vector<double>{0, 1, 0, 0}));
    EXPECT_EQ(result->outputs[2].data, (std::vector<double>{0, 1, 1, 0}));
    EXPECT_EQ(result->outputs[3].data[0], 2);
    EXPECT_EQ(result->outputs[4].data[0], 1);
  }
}

TEST(Refusals, RatesOfDropout) {
  for (double rate : {-.1, 1.0, 1.5, kInf, static_cast<double>(NAN)}) {
    EXPECT_EQ(Written([&](Builder& b) { Dropout(b.Input("x", Dtype::kF32, {4}), rate); }).tag(), "GRAPH01") << rate;
  }
}

TEST(Refusals, StatesInBodies) {
  Builder b;
  StateId state = b.NewState("s", StateKind::kScalar, {Dtype::kF32, {}}, {});
  auto body = b.BuildBody({}, [&](Builder& inner, const Vars&) { return Vars{inner.Read(state)}; });
  EXPECT_EQ(body.graph, nullptr);
  EXPECT_EQ(b.status().tag(), "GRAPH03");
}

TEST(Refusals, GiveAsManyValuesAsAreUsed) {
  auto both = [](Builder& b) { return Vars{b.Number(1, Dtype::kF32), b.Number(2, Dtype::kF32)}; };
  Builder b;
  Value flag = b.Input("flag", Dtype::kBool, {});
  Value bad = b.Input("x", Dtype::kF32, {2}) + b.Input("y", Dtype::kF32, {3});
  EXPECT_FALSE(bad.valid());
  for (const Value& condition : {bad, flag, Value{}}) {
    Vars out = Cond(condition, both, both);
    ASSERT_EQ(out.size(), 2u);
    EXPECT_FALSE(out[1].valid());
  }
  EXPECT_NE(b.status().what().find("Add of (2) f32 and (3) f32"), std::string::npos) << b.status().ToString();  // the first
}

}  // namespace
}  // namespace ropewalk::mlrunner
