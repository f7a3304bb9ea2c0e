// Loops and branches in each other: whose values their bodies use, and derivatives of every order through them.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "mlrunner/graph/grad.h"
#include "mlrunner/graph/maths.h"
#include "mlrunner/graph/ops.h"
#include "mlrunner/kernels/reference.h"

namespace ropewalk::mlrunner {
namespace {

std::vector<RefTensor> Computed(Builder& b, const std::vector<RefTensor>& inputs) {
  auto graph = b.Finish();
  EXPECT_TRUE(graph.ok()) << graph.status().ToString();
  if (!graph.ok()) return {};
  std::map<std::string, RefTensor> states;
  auto result = Evaluate(*graph, {}, inputs, states);
  EXPECT_TRUE(result.ok()) << result.status().ToString();
  return result.ok() ? result->outputs : std::vector<RefTensor>{};
}

// Outputs 2k and 2k + 1 are the same but for the order of sums.
void ExpectPairs(const std::vector<RefTensor>& outputs) {
  ASSERT_FALSE(outputs.empty());
  for (std::size_t k = 0; k + 1 < outputs.size(); k += 2) {
    ASSERT_EQ(outputs[k].data.size(), outputs[k + 1].data.size());
    for (std::size_t i = 0; i < outputs[k].data.size(); ++i) {
      EXPECT_NEAR(outputs[k].data[i], outputs[k + 1].data[i], 1e-12 * (1 + std::fabs(outputs[k].data[i]))) << k / 2 << ", " << i;
    }
  }
}

Value Zero(Builder& b) { return b.Number(0, Dtype::kI64); }
std::function<Value(Builder&, const Vars&)> Below(int rounds) {
  return [rounds](Builder&, const Vars& v) { return Less(v[0], rounds); };
}

// t is the inner loop's, s the outer one's, v the graph's. Each is number 1 of its own graph, and none may be taken for another.
TEST(Control, LoopsInLoopsUseEachValueAroundThem) {
  using Product = std::function<Value(const Value& t, const Value& s, const Value& v)>;
  const std::vector<std::pair<const char*, Product>> products = {
      {"tsv", [](const Value& t, const Value& s, const Value& v) { return t * s * v; }},
      {"tvs", [](const Value& t, const Value& s, const Value& v) { return t * v * s; }},
      {"stv", [](const Value& t, const Value& s, const Value& v) { return s * t * v; }},
      {"svt", [](const Value& t, const Value& s, const Value& v) { return s * v * t; }},
      {"vts", [](const Value& t, const Value& s, const Value& v) { return v * t * s; }},
      {"vst", [](const Value& t, const Value& s, const Value& v) { return v * s * t; }},
  };
  for (const auto& [name, product] : products) {
    SCOPED_TRACE(name);
    Builder b;
    Value x = b.Input("x", Dtype::kF64, {2}), v = b.Input("v", Dtype::kF64, {2});
    auto step = [&, &product = product](const Value& t, const Value& s) { return Sin(t + product(t, s, v)); };
    Value looped = While({Zero(b), x}, 4, Below(3), [&](Builder& outer, const Vars& s) {
      Vars in = While({Zero(outer), s[1]}, 4, Below(2), [&](Builder&, const Vars& t) { return Vars{t[0] + 1, step(t[1], s[1])}; });
      return Vars{s[0] + 1, in[1]};
    })[1];
    Value unrolled = x;
    for (int i = 0; i < 3; ++i) {
      Value t = unrolled;
      for (int k = 0; k < 2; ++k) t = step(t, unrolled);
      unrolled = t;
    }
    auto grads = Grad(ReduceSum(looped), {x, v}), unrolled_grads = Grad(ReduceSum(unrolled), {x, v});
    b.Output("looped", looped);
    b.Output("unrolled", unrolled);
    for (int i = 0; i < 2; ++i) {
      b.Output("grad", grads[i]);
      b.Output("unrolled", unrolled_grads[i]);
    }
    std::vector<RefTensor> outputs = Computed(b, {{{2}, {.3, -.7}}, {{2}, {1.4, .6}}});
    ASSERT_EQ(outputs.size(), 6u);
    EXPECT_EQ(outputs[0].data, outputs[1].data);
    ExpectPairs(outputs);
  }
}

// What is written in a body belongs to it, whichever of its values comes first, and though what decides may come from around it.
TEST(Control, BodiesUseValuesAroundThemInAnyOrder) {
  Builder b;
  Value x = b.Input("x", Dtype::kF64, {2}), w = b.Input("w", Dtype::kF64, {2});
  Value yes = Greater(ReduceSum(w), 0), no = Less(ReduceSum(w), 0);
  auto joined = [&](const Value& s, bool first) {
    Value both = first ? Concat({w, s}, 0) : Concat({s, w}, 0);
    return Sin(SliceAxis(both, 0, 1, 3) * s);
  };
  auto chosen = [&](const Value& flag, const Value& s) {
    auto product = [&](Builder& branch) { return Vars{Identity(branch, s) * w}; };
    auto cosine = [&](Builder& branch) { return Vars{Cos(Identity(branch, s))}; };
    return Cond(flag, product, cosine)[0];
  };
  // A loop over what is around the body, with the body's variable in it.
  auto inner_loop = [&](const Value& s) {
    return While({Zero(b), w}, 4, Below(2), [&](Builder&, const Vars& t) { return Vars{t[0] + 1, Tanh(t[1] * s)}; })[1];
  };
  auto inner_unrolled = [&](const Value& s) { return Tanh(Tanh(w * s) * s); };
  auto looped = [&](const std::function<Value(const Value&)>& step) {
    return While({Zero(b), x}, 4, Below(3), [&](Builder&, const Vars& s) { return Vars{s[0] + 1, step(s[1])}; })[1];
  };
  auto unrolled = [&](const std::function<Value(const Value&)>& step) { return step(step(step(x))); };
  using Step = std::function<Value(const Value&)>;
  const std::vector<std::pair<Step, Step>> steps = {
      {[&](const Value& s) { return joined(s, true); }, [&](const Value& s) { return joined(s, true); }},
      {[&](const Value& s) { return joined(s, false); }, [&](const Value& s) { return joined(s, false); }},
      {[&](const Value& s) { return chosen(yes, s); }, [&](const Value& s) { return s * w; }},
      {[&](const Value& s) { return chosen(no, s); }, [&](const Value& s) { return Cos(s); }},
      {inner_loop, inner_unrolled},
  };
  for (const auto& [in_loop, plain] : steps) {
    Value loop = looped(in_loop), straight = unrolled(plain);
    b.Output("loop", loop);
    b.Output("unrolled", straight);
    auto grads = Grad(ReduceSum(loop), {x, w}), expected = Grad(ReduceSum(straight), {x, w});
    for (int i = 0; i < 2; ++i) {
      b.Output("grad", grads[i]);
      b.Output("unrolled", expected[i]);
    }
  }
  ExpectPairs(Computed(b, {{{2}, {.3, -.7}}, {{2}, {1.4, .6}}}));
}

// A gradient that is taken in a body, of values around it, lies around it, too: rules write loops of their own for that.
TEST(Control, GradientsInABodyOfLoopsAroundIt) {
  Builder b;
  Value x = b.Input("x", Dtype::kF64, {2});
  Value loop = While({Zero(b), x}, 4, Below(2), [](Builder&, const Vars& s) { return Vars{s[0] + 1, s[1] * s[1]}; })[1];
  Value y = While({Zero(b), x}, 4, Below(2),
                  [&](Builder&, const Vars& s) { return Vars{s[0] + 1, s[1] + Grad(ReduceSum(loop), {x})[0].Dense()}; })[1];
  b.Output("y", y);
  b.Output("expected", x + x * x * x * 8.0);
  ExpectPairs(Computed(b, {{{2}, {.5, -1.5}}}));
}

TEST(Control, DerivativesOfEveryOrder) {
  // Two rounds of v * v are x^4.
  auto by_while = [](Builder& b, const Value& x) {
    return While({Zero(b), x}, 3, Below(2), [](Builder&, const Vars& v) { return Vars{v[0] + 1, v[1] * v[1]}; })[1];
  };
  // The factor is captured.
  auto by_capture = [](Builder& b, const Value& x) {
    return While({Zero(b), b.Number(1, Dtype::kF64)}, 5, Below(4), [&](Builder&, const Vars& v) { return Vars{v[0] + 1, v[1] * x}; })[1];
  };
  auto by_cond = [](Builder&, const Value& x) {
    auto power = [&](Builder& branch) { return Vars{Square(Square(Identity(branch, x)))}; };
    return Cond(Greater(x, 0), power, [](Builder& branch) { return Vars{Fill(branch, 0, Dtype::kF64, {})}; })[0];
  };
  auto by_both = [&](Builder& b, const Value& x) {
    Value one = b.Number(1, Dtype::kF64);
    return While({Zero(b), one}, 3, Below(2), [&](Builder&, const Vars& v) {
      auto product = [&](Builder& branch) { return Vars{Identity(branch, v[1]) * x * x}; };
      return Vars{v[0] + 1, Cond(Greater(x, 0), product, [&](Builder&) { return Vars{v[1]}; })[0]};
    })[1];
  };
  struct Case {
    const char* name;
    std::function<Value(Builder&, const Value&)> function;
    int orders;
  };
  for (const Case& test :
       {Case{"while", by_while, 4}, Case{"capture", by_capture, 3}, Case{"cond", by_cond, 4}, Case{"both", by_both, 2}}) {
    SCOPED_TRACE(test.name);
    Builder b;
    Value x = b.Input("x", Dtype::kF64, {});
    Value y = test.function(b, x);
    for (int order = 0; order <= test.orders; ++order) {
      b.Output("y", y);
      y = Grad(y, {x})[0];
    }
    std::vector<RefTensor> outputs = Computed(b, {{{}, {2}}});
    const double expected[] = {16, 32, 48, 48, 24};
    ASSERT_EQ(outputs.size(), static_cast<std::size_t>(test.orders) + 1);
    for (int order = 0; order <= test.orders; ++order) EXPECT_DOUBLE_EQ(outputs[order].data[0], expected[order]) << "order " << order;
  }
}

}  // namespace
}  // namespace ropewalk::mlrunner
