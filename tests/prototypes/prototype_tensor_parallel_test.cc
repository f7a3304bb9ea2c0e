// Megatron's column and row linear layers over two and four ranks: what is copied forward is summed backward (f), and the reverse (g).
// Parameters are slices of the dense model's, by their sharding, so both begin alike; losses and parameters stay those of the dense model.
#include "mlrunner/graph/grad.h"
#include "mlrunner/graph/optimizers.h"
#include "tests/prototypes/ranks.h"

namespace ropewalk::mlrunner::prototypes {
namespace {

constexpr int kWidth = 12, kHidden = 24, kBlocks = 2, kSteps = 40, kRows = 16;

// What a control leaves out.
struct Sums {
  bool forward = true, backward = true;
  bool of_squares = true;  // of the norm: a rank holds slices of some parameters only
};

// The norm of all gradients: squares of what is cut are summed over the ranks, those of what every rank holds count once.
Value NormOf(Builder& b, const std::vector<Parameter>& parameters, const std::vector<Gradient>& gradients, StateId channel, bool sums) {
  auto guard = b.With(UpdateScope(b, parameters[0]));
  Value cut, whole;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    Value& sum = b.graph().state(parameters[i].state).sharding.IsReplicated() ? whole : cut;
    const Value squares = ReduceSum(Square(gradients[i]));
    sum = sum.valid() ? sum + squares : squares;
  }
  return Sqrt(whole + (sums ? AllReduce(cut, channel, "tensor") : cut));
}

Graph Model(int ranks, Dtype dtype, Sums sums = {}) {
  Builder b;
  b.mutable_graph().mesh = {{{"tensor", ranks}}};
  StateId channel = b.NewChannel("tensor");
  const ShardingSpec columns{{ShardingSpec::kReplicated, 0}, {}}, rows{{0, ShardingSpec::kReplicated}, {}}, vector{{0}, {}};
  std::vector<Parameter> parameters;
  auto parameter = [&](std::string name, Shape shape, double deviation, ShardingSpec sharding = {}) {
    return parameters.emplace_back(b.NewParameter(std::move(name), std::move(shape), Initializer::Normal(deviation), dtype, sharding));
  };
  auto f = [&](const Value& v) {
    if (ranks == 1 || !sums.backward) return v;
    return b.CustomGradient(
        {v}, {v}, [channel](const GradientContext& c) { return std::vector<Gradient>{AllReduce(c.grads[0], channel, "tensor")}; })[0];
  };
  auto g = [&](const Value& v) {
    if (ranks == 1 || !sums.forward) return v;
    return b.CustomGradient({v}, {AllReduce(v, channel, "tensor")},
                            [](const GradientContext& c) { return std::vector<Gradient>{c.grads[0]}; })[0];
  };
  Value x = b.Input("x", dtype, {b.NewSymbol("B", 1, 64), 8}), labels = b.Input("labels", Dtype::kI32, {x.dim(0)});
  Value h = MatMul(x, parameter("in/w", {8, kWidth}, .4));
  for (int block = 0; block < kBlocks; ++block) {
    auto guard = b.Module("block" + std::to_string(block), block);
    Value up = Gelu(MatMul(f(h), parameter("column/w", {kWidth, kHidden}, .3, columns)) + parameter("column/b", {kHidden}, .1, vector));
    h = h + g(MatMul(up, parameter("row/w", {kHidden, kWidth}, .3, rows))) + parameter("row/b", {kWidth}, .1);
    h = Dropout(h, .1);  // of what all ranks hold alike: it has to stay so
  }
  Value loss = Mean(CrossEntropy(MatMul(h, parameter("out/w", {kWidth, 4}, .4)), labels));
  b.Output("loss", loss);
  const std::vector<Gradient> gradients = Grad(loss, {parameters.begin(), parameters.end()});
  b.Output("norm", NormOf(b, parameters, gradients, channel, ranks > 1 && sums.of_squares));
  ApplyAdamW(b, parameters, gradients, .01);
  auto graph = b.Finish();
  EXPECT_TRUE(graph.ok()) << graph.status().ToString();
  return RemoveDeadCode(MergeEqual(Simplify(*graph)));
}

struct Trained {
  StateStore states;
  std::vector<double> losses, norms;
};

Status Train(const Graph& graph, Dtype dtype, std::int32_t rank, const KernelTable& kernels, Trained* trained) {
  ASSIGN_OR_RETURN(auto executable, Compile(graph, {kRows}, DefaultProgram(graph), kernels));
  for (int step = 0; step < kSteps; ++step) {
    const Batch batch = MakeBatch(step, kRows, dtype);
    RunInputs inputs;
    inputs.micro_batches[0] = {&batch.x, &batch.labels};
    inputs.run.rank = rank;
    inputs.run.step = static_cast<std::uint64_t>(step);
    ASSIGN_OR_RETURN(const RunOutputs outputs, executable->Run(inputs, trained->states));
    trained->losses.push_back(Scalar(outputs.outputs[0][0]));
    trained->norms.push_back(Scalar(outputs.outputs[0][1]));
  }
  return {};
}

// Trains on `ranks` ranks; rank r's parameters are compared with their slices of the dense model's.
struct Compared {
  double loss = 0, loss_of_ten = 0, parameters = 0, norm = 0;  // the largest differences; loss_of_ten: of the first ten steps
};
Compared CompareWithDense(int ranks, Dtype dtype, Sums sums = {}) {
  Trained dense;
  Graph whole = Model(1, dtype);
  EXPECT_TRUE(Train(whole, dtype, 0, CpuKernels(), &dense).ok());
  EXPECT_LT(dense.losses.back(), .8 * dense.losses.front());
  std::vector<std::int32_t> members;
  for (int rank = 0; rank < ranks; ++rank) members.push_back(rank);
  World world(ranks, {{"tensor", members}});
  std::vector<Trained> cut(ranks);
  Graph graph = Model(ranks, dtype, sums);
  Status status = world.Run([&](std::int32_t rank) { return Train(graph, dtype, rank, world.Kernels(rank), &cut[rank]); });
  EXPECT_TRUE(status.ok()) << status.ToString();
  Compared worst;
  for (int rank = 0; rank < ranks && status.ok(); ++rank) {
    for (int step = 0; step < kSteps; ++step) {
      worst.loss = std::max(worst.loss, std::fabs(cut[rank].losses[step] - dense.losses[step]) / dense.losses[step]);
      worst.norm = std::max(worst.norm, std::fabs(cut[rank].norms[step] - dense.norms[step]) / dense.norms[step]);
      if (step == 9) worst.loss_of_ten = worst.loss;
    }
    for (const StateInfo& state : graph.states) {
      if (state.kind != StateKind::kParameter) continue;
      RefTensor all = ToRef(dense.states.Get(state.name)), own = ToRef(cut[rank].states.Get(state.name));
      Slice slice = SliceOf(all.dims, state.sharding, graph.mesh, rank);
      Dims index = slice.begin;
      for (double value : own.data) {
        std::int64_t at = 0;
        for (std::size_t d = 0; d < index.size(); ++d) at = at * all.dims[d] + index[d];
        worst.parameters = std::max(worst.parameters, std::fabs(value - all.data[at]));
        for (std::size_t d = index.size(); d-- > 0;) {
          if (++index[d] < slice.end[d]) break;
          index[d] = slice.begin[d];
        }
      }
    }
  }
  return worst;
}

TEST(TensorParallel, EqualsTheDenseModel) {
  for (int ranks : {2, 4}) {
    Compared f64 = CompareWithDense(ranks, Dtype::kF64);
    EXPECT_LT(f64.loss, 1e-9);
    EXPECT_LT(f64.parameters, 1e-9);
    EXPECT_LT(f64.norm, 1e-9);
  }
  Compared f32 = CompareWithDense(2, Dtype::kF32);
  EXPECT_LT(f32.loss_of_ten, 1e-5);
  EXPECT_LT(f32.loss, 1e-3);
}

TEST(TensorParallel, OneSumEachWayForABlockAndSlicesOfTheMoments) {
  Graph graph = Model(2, Dtype::kF32);
  int sums[2] = {0, 0};
  for (const Op& op : graph.ops) {
    if (op.def == &kAllReduce && op.provenance.phase != Phase::kUpdate) ++sums[op.provenance.phase == Phase::kBackward];
  }
  EXPECT_EQ(sums[0], kBlocks);
  EXPECT_EQ(sums[1], kBlocks);
  for (const StateInfo& state : graph.states) {
    if (state.kind != StateKind::kOptimizer) continue;
    EXPECT_EQ(state.type, graph.state(state.of).type) << state.name;
    EXPECT_EQ(state.sharding, graph.state(state.of).sharding) << state.name;
  }
}

// The controls: a model without either sum is another model.
TEST(TensorParallel, WithoutASumItIsAnotherModel) {
  EXPECT_GT(CompareWithDense(2, Dtype::kF64, {.forward = false}).loss, 1e-2);
  EXPECT_GT(CompareWithDense(2, Dtype::kF64, {.backward = false}).parameters, 1e-2);
  const Compared norm = CompareWithDense(4, Dtype::kF64, {.of_squares = false});
  EXPECT_GT(norm.norm, 1e-2);
  EXPECT_LT(norm.parameters, 1e-9) << "only the norm was spoilt";
}

// What dropout leaves of a tensor of ones, on a rank whose first sample is number `first`.
std::vector<double> MaskOf(std::int32_t rank, std::int64_t first, std::uint64_t step = 3) {
  Builder b;
  Value x = b.Input("x", Dtype::kF32, {b.NewSymbol("B", 1, 64), 50});
  b.Output("y", Dropout(x, .5));
  auto graph = b.Finish();
  EXPECT_TRUE(graph.ok()) << graph.status().ToString();
  auto executable = Compile(*graph, {8}, DefaultProgram(*graph), CpuKernels());
  EXPECT_TRUE(executable.ok()) << executable.status().ToString();
  const Tensor ones = ToTensor(Dtype::kF32, {{8, 50}, std::vector<double>(400, 1)});
  RunInputs inputs;
  inputs.micro_batches[0] = {&ones};
  inputs.run = {.seed = 9, .step = step, .sample_offset = first};
  inputs.run.rank = rank;
  StateStore none;
  auto outputs = (*executable)->Run(inputs, none);
  EXPECT_TRUE(outputs.ok()) << outputs.status().ToString();
  return ToRef(outputs->outputs[0][0]).data;
}

// Ranks of a tensor-parallel group have the same samples, ranks of a data-parallel one others.
TEST(TensorParallel, DropoutAgreesWhereSamplesAreTheSameAndDiffersWhereTheyAreNot) {
  const std::vector<double> mask = MaskOf(0, 16);
  EXPECT_EQ(MaskOf(1, 16), mask) << "a rank of the same tensor-parallel group";
  EXPECT_NE(MaskOf(1, 24), mask) << "a rank of the same data-parallel group";
  EXPECT_NE(MaskOf(0, 16, 4), mask) << "another step";
  // Sample 20 has its mask wherever it lies.
  const std::vector<double> moved = MaskOf(3, 20);
  EXPECT_TRUE(std::equal(mask.begin() + 4 * 50, mask.begin() + 5 * 50, moved.begin()));
}

}  // namespace
}  // namespace ropewalk::mlrunner::prototypes
