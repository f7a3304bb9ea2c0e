// Each optimiser against a plain loop in float64 that follows its definition step by step: by the reference, by the fast kernels and by the
// primitive forms; with weight decay of all parameters and of matrices only; rows of a table, which repeat, as rows and dense.
#include "mlrunner/graph/optimizers.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/random.h"
#include "mlrunner/executor/executor.h"
#include "mlrunner/graph/maths.h"
#include "mlrunner/graph/ops.h"
#include "mlrunner/graph/passes/pass.h"

namespace ropewalk::mlrunner {
namespace {

using Numbers = std::vector<double>;
constexpr double kRate = .0625;  // f32 has it

// One parameter by the plain loop. `step` makes the t-th update (1, 2, ...) of p by g; `state` begins as two lists of zeros.
struct Plain {
  Numbers p, state[2];
};
using PlainStep = std::function<void(Plain& x, const Numbers& g, double t, double decay)>;

struct Optimizer {
  std::string name;
  std::function<void(Builder&, const std::vector<Parameter>&, const std::vector<Gradient>&, DecayOf)> apply;
  double decay;
  PlainStep step;
};

void Adam(Plain& x, const Numbers& g, double t, double l2, double decoupled) {  // torch.optim.Adam, AdamW
  for (std::size_t i = 0; i < g.size(); ++i) {
    x.p[i] *= 1 - kRate * decoupled;
    const double gi = g[i] + l2 * x.p[i];
    double &m = x.state[0][i], &v = x.state[1][i];
    m = .8 * m + .2 * gi;
    v = .95 * v + .05 * gi * gi;
    const double step_size = kRate / (1 - std::pow(.8, t)), denominator = std::sqrt(v) / std::sqrt(1 - std::pow(.95, t)) + 1e-3;
    x.p[i] -= step_size * m / denominator;
  }
}

std::vector<Optimizer> Optimizers() {
  using Ps = const std::vector<Parameter>&;
  using Gs = const std::vector<Gradient>&;
  auto sgd = [](double momentum, bool nesterov) {  // torch.optim.SGD
    return [=](Plain& x, const Numbers& g, double t, double decay) {
      for (std::size_t i = 0; i < g.size(); ++i) {
        double gi = g[i] + decay * x.p[i];
        if (momentum != 0) {
          double& buffer = x.state[0][i];
          buffer = t == 1 ? gi : momentum * buffer + gi;
          gi = nesterov ? gi + momentum * buffer : buffer;
        }
        x.p[i] -= kRate * gi;
      }
    };
  };
  return {
      {"sgd", [](Builder& b, Ps p, Gs g, DecayOf of) { ApplySgd(b, p, g, kRate, {.weight_decay = .1, .decay_of = of}); }, .1,
       sgd(0, false)},
      {"momentum",
       [](Builder& b, Ps p, Gs g, DecayOf of) { ApplySgd(b, p, g, kRate, {.momentum = .7, .weight_decay = .1, .decay_of = of}); }, .1,
       sgd(.7, false)},
      {"nesterov",
       [](Builder& b, Ps p, Gs g, DecayOf of) {
         ApplySgd(b, p, g, kRate, {.momentum = .7, .weight_decay = .1, .nesterov = true, .decay_of = of});
       },
       .1, sgd(.7, true)},
      {"adam", [](Builder& b, Ps p, Gs g, DecayOf of) { ApplyAdam(b, p, g, kRate, {.8, .95, 1e-3, .1, of}); }, .1,
       [](Plain& x, const Numbers& g, double t, double decay) { Adam(x, g, t, decay, 0); }},
      {"adamw", [](Builder& b, Ps p, Gs g, DecayOf of) { ApplyAdamW(b, p, g, kRate, {.8, .95, 1e-3, .1, of}); }, .1,
       [](Plain& x, const Numbers& g, double t, double decay) { Adam(x, g, t, 0, decay); }},
      {"lamb", [](Builder& b, Ps p, Gs g, DecayOf of) { ApplyLamb(b, p, g, kRate, {.8, .95, 1e-3, .1, of}); }, .1,
       [](Plain& x, const Numbers& g, double t, double decay) {  // You et al. 2020, algorithm 2
         Numbers u(g.size());
         double pp = 0, uu = 0;
         for (std::size_t i = 0; i < g.size(); ++i) {
           double &m = x.state[0][i], &v = x.state[1][i];
           m = .8 * m + .2 * g[i];
           v = .95 * v + .05 * g[i] * g[i];
           u[i] = m / (1 - std::pow(.8, t)) / (std::sqrt(v / (1 - std::pow(.95, t))) + 1e-3) + decay * x.p[i];
           pp += x.p[i] * x.p[i];
           uu += u[i] * u[i];
         }
         const double trust = pp > 0 && uu > 0 ? std::sqrt(pp) / std::sqrt(uu) : 1;
         for (std::size_t i = 0; i < g.size(); ++i) x.p[i] -= kRate * trust * u[i];
       }},
      {"adagrad", [](Builder& b, Ps p, Gs g, DecayOf of) { ApplyAdagrad(b, p, g, kRate, {1e-3, .1, of}); }, .1,
       [](Plain& x, const Numbers& g, double, double decay) {  // torch.optim.Adagrad
         for (std::size_t i = 0; i < g.size(); ++i) {
           const double gi = g[i] + decay * x.p[i];
           x.state[0][i] += gi * gi;
           x.p[i] -= kRate * gi / (std::sqrt(x.state[0][i]) + 1e-3);
         }
       }},
  };
}

// A matrix, a bias that begins as zeros, and a number; their gradients are inputs.
Graph UpdateGraph(const Optimizer& optimizer, DecayOf decay_of, double average) {
  Builder b;
  std::vector<Parameter> parameters = {b.NewParameter("w", {7, 5}, Initializer::Normal(.5)), b.NewParameter("b", {5}, Initializer::Zeros()),
                                       b.NewParameter("s", {}, Initializer::Constant(2))};
  std::vector<Gradient> gradients;
  for (const Parameter& p : parameters) gradients.emplace_back(b.Input("g" + std::to_string(gradients.size()), Dtype::kF32, p.shape()));
  optimizer.apply(b, parameters, gradients, decay_of);
  if (average > 0) AverageParameters(b, parameters, average);
  auto graph = b.Finish();
  EXPECT_TRUE(graph.ok()) << graph.status().ToString();
  return *graph;
}

const std::vector<Dims>& ShapesOf() {
  static const std::vector<Dims> shapes = {{7, 5}, {5}, {}};
  return shapes;
}
std::vector<RefTensor> Gradients(std::uint64_t step) {
  Random random(77 + step);
  std::vector<RefTensor> gradients;
  for (const Dims& dims : ShapesOf()) {
    RefTensor g{dims, {}};
    for (std::int64_t i = 0; i < NumElements(dims); ++i) g.data.push_back(RoundTo(Dtype::kF32, random.Unit() * 2 - 1));
    gradients.push_back(std::move(g));
  }
  return gradients;
}

TEST(Optimizers, FollowTheirDefinitionsStepByStep) {
  const char* const names[] = {"w", "b", "s"};
  for (const Optimizer& optimizer : Optimizers()) {
    for (DecayOf decay_of : {DecayOf::kAll, DecayOf::kMatrices}) {
      SCOPED_TRACE(optimizer.name + (decay_of == DecayOf::kAll ? "" : ", decay of matrices"));
      const Graph graph = UpdateGraph(optimizer, decay_of, .75), primitive = *Expand(graph), fused = FuseElementwise(Simplify(graph));
      std::map<std::string, RefTensor> wide, narrow, expanded;
      auto executable = Compile(fused, {}, DefaultProgram(fused), CpuKernels());
      ASSERT_TRUE(executable.ok()) << executable.status().ToString();
      StateStore store;
      Plain plain[3];
      Numbers averages[3];
      for (int k = 0; k < 3; ++k) {
        const StateInfo* state = nullptr;
        for (const StateInfo& s : graph.states) state = s.name == names[k] ? &s : state;
        plain[k].p = Initial(graph, *state, {}, {}).data;
        for (Numbers& list : plain[k].state) list.assign(plain[k].p.size(), 0);
      }
      for (std::uint64_t t = 1; t <= 12; ++t) {
        const std::vector<RefTensor> gradients = Gradients(t);
        ASSERT_TRUE(Evaluate(graph, {}, gradients, wide, {}, {.round = false}).ok());
        ASSERT_TRUE(Evaluate(primitive, {}, gradients, expanded, {}, {.round = false}).ok());
        std::vector<Tensor> tensors;
        for (const RefTensor& g : gradients) tensors.push_back(ToTensor(Dtype::kF32, g));
        RunInputs inputs;
        inputs.micro_batches[0] = {&tensors[0], &tensors[1], &tensors[2]};
        auto ran = (*executable)->Run(inputs, store);
        ASSERT_TRUE(ran.ok()) << ran.status().ToString();
        for (int k = 0; k < 3; ++k) {
          const double decay = decay_of == DecayOf::kMatrices && k > 0 ? 0 : optimizer.decay;
          optimizer.step(plain[k], gradients[static_cast<std::size_t>(k)].data, static_cast<double>(t), decay);
          if (t == 1) averages[k] = plain[k].p;
          const RefTensor fast = ToRef(store.Get(names[k])), fast_average = ToRef(store.Get(std::string(names[k]) + kAverage));
          for (std::size_t i = 0; i < plain[k].p.size(); ++i) {
            if (t > 1) averages[k][i] = .75 * averages[k][i] + .25 * plain[k].p[i];
            const double p = plain[k].p[i];
            // The rate and the constants of the graph are in f32 or more; the maths is in f64.
            ASSERT_NEAR(wide.at(names[k]).data[i], p, 1e-12 * (1 + std::abs(p))) << names[k] << " step " << t;
            ASSERT_NEAR(expanded.at(names[k]).data[i], p, 1e-12 * (1 + std::abs(p))) << names[k] << " step " << t;
            ASSERT_NEAR(fast.data[i], p, 4e-6 * (1 + std::abs(p))) << names[k] << " step " << t;
            ASSERT_NEAR(wide.at(std::string(names[k]) + kAverage).data[i], averages[k][i], 1e-12 * (1 + std::abs(p)));
            ASSERT_NEAR(fast_average.data[i], averages[k][i], 4e-6 * (1 + std::abs(p)));
          }
        }
      }
    }
  }
}

// A table of which a step reads some rows, some of them twice. A control: with weight decay every row changes.
struct Table {
  Graph graph;
  bool has_rows = false;
};
Table TableGraph(bool adagrad, bool dense, double decay) {
  Builder b;
  Parameter table = b.NewParameter("table", {50, 3}, Initializer::Normal(1));
  Value indices = b.Input("indices", Dtype::kI32, {4}), rows = b.Input("rows", Dtype::kF32, {4, 3});
  Gradient gradient = IndexedRows{indices, rows, 50};
  if (dense) gradient = gradient.Dense();
  if (adagrad) {
    ApplyAdagrad(b, {table}, {gradient}, kRate, {.epsilon = 1e-3, .weight_decay = decay});
  } else {
    ApplySgd(b, {table}, {gradient}, kRate, {.weight_decay = decay});
  }
  auto graph = b.Finish();
  EXPECT_TRUE(graph.ok()) << graph.status().ToString();
  bool has_rows = false;
  for (const Op& op : graph->ops) has_rows = has_rows || op.def == &kAddRows || op.def == &kAdagradRows;
  return {*graph, has_rows};
}

TEST(Optimizers, RowsStayRowsAndGiveTheDenseUpdate) {
  for (bool adagrad : {false, true}) {
    SCOPED_TRACE(adagrad ? "adagrad" : "sgd");
    const Table rows = TableGraph(adagrad, false, 0), dense = TableGraph(adagrad, true, 0);
    EXPECT_TRUE(rows.has_rows);
    EXPECT_FALSE(dense.has_rows);
    EXPECT_FALSE(TableGraph(adagrad, false, .1).has_rows) << "what decays changes everywhere";
    auto a = Compile(rows.graph, {}, DefaultProgram(rows.graph), CpuKernels());
    auto c = Compile(dense.graph, {}, DefaultProgram(dense.graph), CpuKernels());
    ASSERT_TRUE(a.ok() && c.ok()) << a.status().ToString() << c.status().ToString();
    EXPECT_EQ((*a)->fallback_ops(), 0u);
    StateStore x, y;
    std::map<std::string, RefTensor> reference;
    const RefTensor first = Initial(rows.graph, rows.graph.states[0], {}, {});
    Random random(9);
    std::vector<bool> touched(50);
    for (int step = 0; step < 5; ++step) {
      RefTensor indices{{4}, {}}, values{{4, 3}, {}};
      for (int i = 0; i < 4; ++i) indices.data.push_back(i == 3 ? indices.data[0] : static_cast<double>(random.Below(50)));
      for (int i = 0; i < 12; ++i) values.data.push_back(RoundTo(Dtype::kF32, random.Unit() - .5));
      for (double index : indices.data) touched[static_cast<std::size_t>(index)] = true;
      const Tensor index_tensor = ToTensor(Dtype::kI32, indices), value_tensor = ToTensor(Dtype::kF32, values);
      RunInputs inputs;
      inputs.micro_batches[0] = {&index_tensor, &value_tensor};
      ASSERT_TRUE((*a)->Run(inputs, x).ok());
      ASSERT_TRUE((*c)->Run(inputs, y).ok());
      const RefTensor by_rows = ToRef(x.Get("table")), densely = ToRef(y.Get("table"));
      for (std::size_t i = 0; i < densely.data.size(); ++i) ASSERT_NEAR(by_rows.data[i], densely.data[i], 3e-7) << "step " << step;
      ASSERT_TRUE(Evaluate(rows.graph, {}, {indices, values}, reference).ok());
    }
    const RefTensor last = ToRef(x.Get("table"));
    for (std::size_t i = 0; i < last.data.size(); ++i) {
      EXPECT_NEAR(last.data[i], reference.at("table").data[i], 1e-6);
      EXPECT_EQ(last.data[i] != first.data[i], touched[i / 3]) << i;
    }
    // An index that is none is named, and the table is as it was.
    const Tensor wrong = ToTensor(Dtype::kI32, {{4}, {1, 2, 50, 3}}), value_tensor = ToTensor(Dtype::kF32, {{4, 3}, Numbers(12, 1)});
    RunInputs inputs;
    inputs.micro_batches[0] = {&wrong, &value_tensor};
    EXPECT_EQ((*a)->Run(inputs, x).status().tag(), "RUN05");
    EXPECT_EQ(ToRef(x.Get("table")).data, last.data);
  }
}

// A table that somebody still reads when its rows are updated is not written over.
TEST(Optimizers, ARowUpdateWaitsForWhoReadsTheOldTable) {
  Builder b;
  Parameter table = b.NewParameter("table", {6, 2}, Initializer::Normal(1));
  Value indices = b.Input("indices", Dtype::kI32, {2}), rows = b.Input("rows", Dtype::kF32, {2, 2});
  Value old = b.Read(table.state);
  ApplySgd(b, {table}, {IndexedRows{indices, rows, 6}}, kRate);
  b.Output("moved", ReduceSum(b.Read(table.state) - old));
  auto graph = b.Finish();
  ASSERT_TRUE(graph.ok()) << graph.status().ToString();
  auto executable = Compile(*graph, {}, DefaultProgram(*graph), CpuKernels());
  ASSERT_TRUE(executable.ok()) << executable.status().ToString();
  StateStore store;
  const Tensor index_tensor = ToTensor(Dtype::kI32, {{2}, {1, 4}}), row_tensor = ToTensor(Dtype::kF32, {{2, 2}, {1, 2, 3, 4}});
  RunInputs inputs;
  inputs.micro_batches[0] = {&index_tensor, &row_tensor};
  auto outputs = (*executable)->Run(inputs, store);
  ASSERT_TRUE(outputs.ok()) << outputs.status().ToString();
  EXPECT_NEAR(ToRef(outputs->outputs[0][0]).data[0], -kRate * 10, 1e-6);
}

}  // namespace
}  // namespace ropewalk::mlrunner
