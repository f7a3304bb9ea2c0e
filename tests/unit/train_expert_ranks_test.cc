// Experts cut over ranks, as a strategy: an op of its own, the all-to-all, brings tokens to the ranks of their experts and back, and its
// gradient is itself. Each rank has its part of the batch; parameters of experts are whole gradients where they lie, all others are summed.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "base/random.h"
#include "mlrunner/graph/grad.h"
#include "mlrunner/graph/optimizers.h"
#include "mlrunner/models/moe.h"
#include "tests/prototypes/ranks.h"

namespace ropewalk::mlrunner::prototypes {
namespace {

constexpr std::int64_t kExperts = 4, kTokens = 6, kWidth = 5, kSequences = 8, kClasses = 3, kTopK = 2;
constexpr int kSteps = 10;
constexpr const char* kAxis = "experts";

// (channel, x (n, ...)) -> the channel's next version, y: part j of x on rank i, along its first dimension, is part i of y on rank j.
Result<std::vector<TensorType>> InferExchange(const InferContext& c) { return std::vector<TensorType>{{Dtype::kToken, {}}, c.in.at(1)}; }
const OpDef kExchange{"ExchangeTokens", 2, 2, InferExchange, nullptr, nullptr, {.collective = true}};

Value Exchange(const Value& x, StateId channel) {
  Builder& b = *x.builder;
  std::vector<Value> results = b.Emit(kExchange, {b.Token(channel), x});
  b.SetToken(channel, results[0]);
  return results[1];
}
// Behind it a gradient goes the way back: the same exchange.
Value ExchangeBothWays(const Value& x, StateId channel) {
  return x.builder->CustomGradient({x}, {Exchange(x, channel)},
                                   [channel](const GradientContext& c) { return std::vector<Gradient>{Exchange(c.grads[0], channel)}; })[0];
}

struct Options {
  int ranks = 1;
  double capacity_factor = .8;
  bool gives_back_gradients = true;  // the control: false
};

Graph Model(const Options& options) {
  Builder b;
  const int ranks = options.ranks;
  b.mutable_graph().mesh = {{{kAxis, ranks}}};
  const StateId channel = b.NewChannel(kAxis), sums = b.NewChannel("sums");
  Layers m(b);
  Value in = b.Input("x", Dtype::kF32, {b.NewSymbol("B"), kTokens, kWidth}), labels = b.Input("labels", Dtype::kI32, {in.dim(0), kTokens});
  MoeOptions moe{.experts = kExperts,
                 .each = kTopK,
                 .hidden = 7,
                 .capacity_factor = options.capacity_factor,
                 .auxiliary = .1,
                 .grouped = true,
                 .sharding = {}};
  auto exchange = [&](const Value& x) {
    return options.gives_back_gradients ? ExchangeBothWays(x, channel) : StopGradient(Exchange(x, channel));
  };
  if (ranks > 1) {
    moe.sharding = {{0, ShardingSpec::kReplicated, ShardingSpec::kReplicated}, {}};
    moe.to_experts = [&](const Value& x) {
      const Dim here = kExperts / ranks, seats = x.dim(1);
      Value all = Transpose(Reshape(exchange(x), {ranks, here, seats, kWidth}), {1, 0, 2, 3});
      return Reshape(all, {here, Dim(ranks) * seats, kWidth});
    };
    moe.from_experts = [&](const Value& y) {
      const Dim here = kExperts / ranks, seats = *y.dim(1).DividedBy(Dim(ranks));
      Value all = Transpose(Reshape(y, {here, ranks, seats, kWidth}), {1, 0, 2, 3});
      return exchange(Reshape(all, {kExperts, seats, kWidth}));
    };
  }
  Value x = m.Linear("in", in, kWidth, Initializer::Normal(.6));
  MoeResult r = MoeBlock(b, m, "moe", x, moe);
  Value logits = m.Linear("out", r.y, kClasses, Initializer::Normal(.6));
  Value loss = ReduceSum(CrossEntropy(logits, labels)) * (1.0 / (kSequences * kTokens)) + ReduceSum(r.auxiliary_loss) * (1.0 / kSequences);
  Value dropped = ReduceSum(r.dropped);
  const std::vector<Parameter> parameters = m.parameters();
  std::vector<Gradient> gradients = Grad(loss, {parameters.begin(), parameters.end()});
  if (ranks > 1) {
    loss = AllReduce(loss, sums, kAxis);
    dropped = AllReduce(dropped, sums, kAxis);
    Scope backward;
    backward.role = Role::kCommunication;
    backward.phase = Phase::kBackward;
    backward.region = RegionKind::kBackward;
    auto guard = b.With(backward);
    for (std::size_t i = 0; i < parameters.size(); ++i)
      if (b.graph().state(parameters[i].state).sharding.IsReplicated()) gradients[i] = AllReduce(gradients[i], sums, kAxis);
  }
  b.Output("loss", loss);
  b.Output("dropped", dropped);
  ApplyAdamW(b, parameters, gradients, .02);
  auto graph = b.Finish();
  EXPECT_TRUE(graph.ok()) << graph.status().ToString();
  return RemoveDeadCode(MergeEqual(Simplify(*graph)));
}

struct Trained {
  StateStore states;
  std::vector<double> losses, dropped;
};

// `alike`: all tokens are the same one, so that they have the same experts and the others have none.
Status Train(const Graph& graph, Dtype dtype, int rank, int ranks, bool alike, const KernelTable& kernels, Trained* trained) {
  const std::int64_t rows = kSequences / ranks;
  ASSIGN_OR_RETURN(auto executable, Compile(graph, {rows}, DefaultProgram(graph), kernels));
  Random random(4);
  for (int step = 0; step < kSteps; ++step) {
    RefTensor x{{kSequences, kTokens, kWidth}, {}}, labels{{kSequences, kTokens}, {}};
    for (std::int64_t i = 0; i < kSequences * kTokens * kWidth; ++i)
      x.data.push_back(RoundTo(dtype, alike ? .1 * static_cast<double>(1 + i % kWidth) : random.Unit() * 2 - 1));
    for (std::int64_t i = 0; i < kSequences * kTokens; ++i) labels.data.push_back(static_cast<double>(random.Below(kClasses)));
    const Tensor mine = Rows(ToTensor(dtype, x), rank * rows, (rank + 1) * rows),
                 asked = Rows(ToTensor(Dtype::kI32, labels), rank * rows, (rank + 1) * rows);
    RunInputs inputs;
    inputs.micro_batches[0] = {&mine, &asked};
    inputs.run.rank = rank;
    ASSIGN_OR_RETURN(RunOutputs outputs, executable->Run(inputs, trained->states));
    trained->losses.push_back(Scalar(outputs.outputs[0][0]));
    trained->dropped.push_back(Scalar(outputs.outputs[0][1]));
  }
  return {};
}

void AddExchange(World& world, std::int32_t rank, KernelTable* table) {
  for (Dtype dtype : {Dtype::kF32, Dtype::kF64}) {
    table->Add(kExchange, Device::kCpu, dtype, [&world, rank](const KernelRequest& request) -> Result<CompiledKernel> {
      const std::string channel = World::ChannelOf(request);
      const std::int32_t ranks = world.SizeOf(channel);
      collective::Request wanted{.collective = collective::Collective::kAllToAll, .dtype = request.in[1].dtype, .ranks = ranks};
      ASSIGN_OR_RETURN(auto bound, Bound::Make(collective::BuildProgram("all_to_all", wanted, world.PlaceIn(channel, rank)),
                                               NumElements(request.in[1].dims) / ranks, world.EndOf(channel, rank)));
      return KernelOf(bound, 1, 1);
    });
  }
}

std::vector<Trained> TrainOn(const Options& options, Dtype dtype, bool alike = false) {
  const int ranks = options.ranks;
  auto graph = ChangeFloats(Model(options), Dtype::kF32, dtype);
  EXPECT_TRUE(graph.ok()) << graph.status().ToString();
  std::vector<Trained> trained(static_cast<std::size_t>(ranks));
  std::vector<std::int32_t> members;
  for (int rank = 0; rank < ranks; ++rank) members.push_back(rank);
  World world(ranks, {{kAxis, members}, {"sums", members}});
  const Status status = world.Run([&](std::int32_t rank) {
    KernelTable kernels = world.Kernels(rank);
    AddExchange(world, rank, &kernels);
    return Train(*graph, dtype, rank, ranks, alike, kernels, &trained[static_cast<std::size_t>(rank)]);
  });
  EXPECT_TRUE(status.ok()) << status.ToString();
  return trained;
}

double WorstOf(const std::vector<double>& got, const std::vector<double>& want) {
  double worst = got.size() == want.size() ? 0 : HUGE_VAL;
  for (std::size_t i = 0; i < std::min(got.size(), want.size()); ++i) worst = std::max(worst, std::fabs(got[i] - want[i]) / want[i]);
  return worst;
}

TEST(ExpertRanks, AreOneRank) {
  for (Dtype dtype : {Dtype::kF64, Dtype::kF32}) {
    const std::vector<Trained> one = TrainOn({.ranks = 1}, dtype);
    EXPECT_LT(one[0].losses.back(), one[0].losses.front());
    EXPECT_GT(one[0].dropped[0], 0);
    for (int ranks : {2, 4}) {
      SCOPED_TRACE(std::to_string(ranks) + " ranks, " + std::string(Name(dtype)));
      for (const Trained& rank : TrainOn({.ranks = ranks}, dtype)) {
        EXPECT_LT(WorstOf(rank.losses, one[0].losses), dtype == Dtype::kF64 ? 1e-12 : 1e-5);
        EXPECT_EQ(rank.dropped, one[0].dropped) << "every choice is somebody's";
      }
    }
  }
}

// What has no room is all that is over 2 choices of each of 6 tokens; ranks whose experts are asked for nothing take part all the same.
TEST(ExpertRanks, AnEmptyExpertHoldsNobodyUp) {
  const double room = 3;  // ceil(.8 * 2 * 6 / 4): of each expert for a sequence
  for (int ranks : {1, 2, 4}) {
    for (const Trained& rank : TrainOn({.ranks = ranks}, Dtype::kF64, true)) {
      ASSERT_EQ(rank.dropped.size(), static_cast<std::size_t>(kSteps));
      EXPECT_EQ(rank.dropped[0], kSequences * kTopK * (kTokens - room)) << "two experts have all tokens, and two have none";
    }
  }
}

// The control: experts that get no gradients from other ranks are another model.
TEST(ExpertRanks, WithoutTheWayBackItIsAnotherModel) {
  const std::vector<Trained> one = TrainOn({.ranks = 1}, Dtype::kF64),
                             two = TrainOn({.ranks = 2, .gives_back_gradients = false}, Dtype::kF64);
  EXPECT_GT(WorstOf(two[0].losses, one[0].losses), 1e-3);
}

}  // namespace
}  // namespace ropewalk::mlrunner::prototypes
