// K-FAC, distributed as in DP-KFAC: a layer's owner taps the layer's inputs a and the gradients g of its outputs, keeps A = E[a aᵀ] and
// G = E[g gᵀ] of its local batch, and preconditions the averaged gradient for all: A⁻¹ ∇W G⁻¹. No factor travels. Every few steps a program
// with taps runs, in between one without.
#include "mlrunner/graph/grad.h"
#include "mlrunner/graph/optimizers.h"
#include "tests/prototypes/ranks.h"

namespace ropewalk::mlrunner::prototypes {
namespace {

constexpr int kRanks = 2, kRows = 32, kLayers = 2, kEvery = 5;
constexpr double kDecay = .95, kDamping = 1e-3;

std::int32_t OwnerOf(int layer) { return layer % kRanks; }
std::string NameOf(int layer) { return "layer" + std::to_string(layer); }

// The features differ in scale by a factor of 30: what a plain gradient is slow at.
Batch MakeSkewedBatch(std::uint64_t step) {
  Batch batch = MakeBatch(step, kRows * kRanks);
  RefTensor x = ToRef(batch.x);
  const double scales[] = {3, 1, .3, .1};
  for (std::size_t i = 0; i < x.data.size(); ++i) x.data[i] *= scales[i % 8 / 2];
  return {ToTensor(Dtype::kF32, x), batch.labels};
}

Graph Model(std::int32_t rank, bool kfac, double rate) {
  Builder b;
  b.mutable_graph().mesh = {{{"data", kRanks}}};
  StateId sums = b.NewChannel("data"), updates = b.NewChannel("updates");
  Value h = b.Input("x", Dtype::kF32, {b.NewSymbol("B", 1, 256), 8}), labels = b.Input("labels", Dtype::kI32, {h.dim(0)});
  std::vector<Parameter> parameters;
  std::vector<Value> in, out, with;
  const int widths[] = {8, 16, 4};
  for (int layer = 0; layer < kLayers; ++layer) {
    parameters.push_back(b.NewParameter(NameOf(layer), {widths[layer], widths[layer + 1]}, Initializer::Normal(.5)));
    in.push_back(h);
    out.push_back(MatMul(h, parameters.back()));
    h = layer + 1 < kLayers ? Tanh(out.back()) : out.back();
  }
  Value loss = Mean(CrossEntropy(h, labels));
  b.Output("loss", loss);
  with.assign(parameters.begin(), parameters.end());
  with.insert(with.end(), out.begin(), out.end());
  std::vector<Gradient> grads = Grad(loss, with);  // of the parameters, then of the layers' outputs
  for (int layer = 0; layer < kLayers; ++layer) {
    const TensorType type = parameters[layer].type();
    const bool owns = OwnerOf(layer) == rank;
    if (kfac && owns) {
      b.Tap(NameOf(layer) + "/a", in[layer]);
      b.Tap(NameOf(layer) + "/g", grads[kLayers + layer]);
      b.Tap(NameOf(layer) + "/gradient", grads[layer]);
    }
    StateId left, right;
    if (kfac && owns) {
      auto square = [&](const char* name, Dim n) {
        return b.NewState(NameOf(layer) + name, StateKind::kStatistic, {Dtype::kF32, {n, n}}, Initializer::Zeros(),
                          parameters[layer].state);
      };
      left = square("/a_inverse", type.shape[0]);
      right = square("/g_inverse", type.shape[1]);
    }
    auto guard = b.With(UpdateScope(b, parameters[layer]));
    Value update = AllReduce(grads[layer], sums, "data") * (1.0 / kRanks);
    if (kfac && owns) {
      update = MatMul(MatMul(b.Read(left), update), b.Read(right));
      Send(update, updates, 1 - rank, NameOf(layer));
    } else if (kfac) {
      update = Recv(b, type, updates, 1 - rank, NameOf(layer));
    }
    b.Assign(parameters[layer].state, b.Read(parameters[layer].state) - update * rate);
  }
  auto graph = b.Finish();
  EXPECT_TRUE(graph.ok()) << graph.status().ToString();
  return FuseElementwise(RemoveDeadCode(MergeEqual(Simplify(*graph))));
}
Graph WithoutTaps(Graph graph) {
  graph.taps.clear();
  return RemoveDeadCode(graph);
}

// --- the factors of one layer ---

using Square = std::vector<double>;  // n · n
// (m + shift · I)⁻¹ by Gauss and Jordan; m is positive.
Square ShiftedInverse(Square m, double shift) {
  auto n = static_cast<std::size_t>(std::lround(std::sqrt(m.size())));
  Square inverse(m.size());
  for (std::size_t i = 0; i < n; ++i) {
    m[i * n + i] += shift;
    inverse[i * n + i] = 1;
  }
  for (std::size_t p = 0; p < n; ++p) {
    double pivot = m[p * n + p];
    for (std::size_t k = 0; k < n; ++k) {
      m[p * n + k] /= pivot;
      inverse[p * n + k] /= pivot;
    }
    for (std::size_t r = 0; r < n; ++r) {
      double factor = r == p ? 0 : m[r * n + p];
      for (std::size_t k = 0; k < n; ++k) {
        m[r * n + k] -= factor * m[p * n + k];
        inverse[r * n + k] -= factor * inverse[p * n + k];
      }
    }
  }
  return inverse;
}
// xᵀ y · scale of (rows, n) and (rows, m).
std::vector<double> Outer(const RefTensor& x, const RefTensor& y, double scale) {
  auto n = static_cast<std::size_t>(x.dims[1]), m = static_cast<std::size_t>(y.dims[1]);
  std::vector<double> product(n * m);
  for (std::int64_t row = 0; row < x.dims[0]; ++row) {
    for (std::size_t i = 0; i < n; ++i)
      for (std::size_t j = 0; j < m; ++j) product[i * m + j] += scale * x.data[row * n + i] * y.data[row * m + j];
  }
  return product;
}

class Factors {
 public:
  // The taps' g are of the mean loss: a sample's own is kRows times that.
  void See(const RefTensor& a, const RefTensor& g) {
    Average(&a_, Outer(a, a, 1.0 / kRows), static_cast<std::size_t>(a.dims[1]));
    Average(&g_, Outer(g, g, kRows), static_cast<std::size_t>(g.dims[1]));
  }
  void Store(StateStore& states, const std::string& layer) const {
    auto mean_of_diagonal = [](const Square& m) {
      auto n = static_cast<std::size_t>(std::lround(std::sqrt(m.size())));
      double sum = 0;
      for (std::size_t i = 0; i < n; ++i) sum += m[i * n + i];
      return sum / static_cast<double>(n);
    };
    double pi = std::sqrt(mean_of_diagonal(a_) / mean_of_diagonal(g_));
    auto set = [&](const char* name, const Square& m, double shift) {
      auto n = std::lround(std::sqrt(m.size()));
      states.Set(layer + name, ToTensor(Dtype::kF32, {{n, n}, ShiftedInverse(m, shift)}));
    };
    set("/a_inverse", a_, std::sqrt(kDamping) * pi);
    set("/g_inverse", g_, std::sqrt(kDamping) / pi);
  }

 private:
  static void Average(Square* mean, const Square& now, std::size_t n) {
    if (mean->empty()) {
      *mean = now;
      return;
    }
    for (std::size_t i = 0; i < n * n; ++i) (*mean)[i] = kDecay * (*mean)[i] + (1 - kDecay) * now[i];
  }
  Square a_, g_;
};

// --- training ---

struct Trained {
  Graph graph;
  StateStore states;
  std::vector<double> losses;
  std::size_t arena_bytes[2] = {};  // with taps, without
};

Status Train(World& world, std::int32_t rank, bool kfac, double rate, int steps, Trained* trained) {
  trained->graph = Model(rank, kfac, rate);
  Graph plain = WithoutTaps(trained->graph);
  ASSIGN_OR_RETURN(auto tapped, Compile(trained->graph, {kRows}, DefaultProgram(trained->graph), world.Kernels(rank)));
  ASSIGN_OR_RETURN(auto untapped, Compile(plain, {kRows}, DefaultProgram(plain), world.Kernels(rank)));
  trained->arena_bytes[0] = tapped->arena_bytes();
  trained->arena_bytes[1] = untapped->arena_bytes();
  Factors factors[kLayers];
  for (int step = 0; step < steps; ++step) {
    Batch batch = Part(MakeSkewedBatch(step), rank, kRanks);
    RunInputs inputs;
    inputs.micro_batches[0] = {&batch.x, &batch.labels};
    ASSIGN_OR_RETURN(RunOutputs outputs, (step % kEvery == 0 ? tapped : untapped)->Run(inputs, trained->states));
    trained->losses.push_back(Scalar(outputs.outputs[0][0]));
    EXPECT_EQ(outputs.taps[0].empty(), !kfac || step % kEvery != 0);
    for (int layer = 0; layer < kLayers && !outputs.taps[0].empty(); ++layer) {
      if (OwnerOf(layer) != rank) continue;
      RefTensor a = ToRef(outputs.taps[0].at(NameOf(layer) + "/a")), g = ToRef(outputs.taps[0].at(NameOf(layer) + "/g"));
      // What the taps are: the layer's gradient is their product.
      std::vector<double> product = Outer(a, g, 1);
      RefTensor gradient = ToRef(outputs.taps[0].at(NameOf(layer) + "/gradient"));
      for (std::size_t i = 0; i < product.size(); ++i) EXPECT_NEAR(product[i], gradient.data[i], 1e-6);
      factors[layer].See(a, g);
      factors[layer].Store(trained->states, NameOf(layer));
    }
  }
  return {};
}
std::vector<Trained> TrainAll(bool kfac, double rate, int steps) {
  World world(kRanks, {{"data", {0, 1}}, {"updates", {0, 1}}});
  std::vector<Trained> trained(kRanks);
  Status status = world.Run([&](std::int32_t rank) { return Train(world, rank, kfac, rate, steps, &trained[rank]); });
  EXPECT_TRUE(status.ok()) << status.ToString();
  return trained;
}

// Steps until the mean over ten steps and the ranks is below `target`.
int StepsTo(double target, const std::vector<Trained>& trained) {
  double sum = 0;
  auto mean = [&](std::size_t step) { return (trained[0].losses[step] + trained[1].losses[step]) / 2; };
  for (std::size_t step = 0; step < trained[0].losses.size(); ++step) {
    sum += mean(step) - (step >= 10 ? mean(step - 10) : 0);
    if (step >= 9 && sum / 10 < target) return static_cast<int>(step) + 1;
  }
  return static_cast<int>(trained[0].losses.size()) + 1;
}

TEST(Kfac, NeedsFewerStepsThanTheBestPlainGradient) {
  constexpr double kTarget = .45;
  constexpr int kSteps = 600;
  std::vector<Trained> kfac = TrainAll(true, .1, kSteps);
  int best = kSteps + 1;
  for (double rate : {.1, .3, 1., 2., 4.}) {
    int steps = StepsTo(kTarget, TrainAll(false, rate, kSteps));
    std::printf("plain gradient, rate %g: %d steps\n", rate, steps);
    best = std::min(best, steps);
  }
  int steps = StepsTo(kTarget, kfac);
  std::printf("K-FAC: %d steps; loss %.3f to %.3f\n", steps, kfac[0].losses[0], MeanOfLast(kfac[0].losses, 20));
  EXPECT_LE(steps, kSteps);
  EXPECT_LT(2 * steps, best);
  EXPECT_EQ(Different(kfac[0].graph, kfac[0].states, kfac[1].states), std::vector<std::string>());
}

// A tap keeps its tensor through the passes; without taps the tensors die early, and no rank holds factors of what it does not own.
TEST(Kfac, OwnersAloneTapAndHoldFactors) {
  std::vector<Trained> kfac = TrainAll(true, .1, 2);
  for (std::int32_t rank = 0; rank < kRanks; ++rank) {
    EXPECT_GT(kfac[rank].arena_bytes[0], kfac[rank].arena_bytes[1]);
    for (int layer = 0; layer < kLayers; ++layer) {
      EXPECT_EQ(kfac[rank].states.Get(NameOf(layer) + "/a_inverse").bytes.empty(), OwnerOf(layer) != rank);
      EXPECT_FALSE(kfac[rank].states.Get(NameOf(layer)).bytes.empty());
    }
    int messages = 0;
    for (const Op& op : kfac[rank].graph.ops) messages += op.def->traits.collective;
    EXPECT_EQ(messages, 2 * kLayers);  // a sum of gradients and an update for each layer: no factor travels
  }
}

}  // namespace
}  // namespace ropewalk::mlrunner::prototypes
