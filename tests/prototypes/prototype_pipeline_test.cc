// 1F1B over two stages: one logical graph is cut by the stages of its regions, what crosses is sent, and each rank runs a program of its
// own over micro-batches. The parameters are, bit for bit, those of one process that accumulates the same micro-batches.
#include "mlrunner/graph/grad.h"
#include "mlrunner/graph/optimizers.h"
#include "tests/prototypes/ranks.h"

namespace ropewalk::mlrunner::prototypes {
namespace {

constexpr int kStages = 2, kRows = 4, kSteps = 10;

// kFrozenAndTied: the second layer is not trained, and the last one has the first one's weights, of the other stage.
enum class Weights { kPlain, kFrozenAndTied };

// Four layers, two a stage. The channels come first: one for each value that the other stage needs, in the order of their making.
Graph Model(int micro_batches, Weights weights = Weights::kPlain) {
  Builder b;
  if (weights == Weights::kFrozenAndTied) b.NewChannel("weight down");
  b.NewChannel("down");
  if (weights == Weights::kFrozenAndTied) b.NewChannel("weight up");
  b.NewChannel("up");
  Dim rows = b.NewSymbol("B", 1, 64);
  auto at_stage = [&](int stage) {
    Scope scope = b.scope();
    scope.stage = stage;
    return scope;
  };
  Value h = b.Input("x", Dtype::kF32, {rows, 8});
  std::vector<Parameter> parameters;
  for (int layer = 0; layer < 4; ++layer) {
    auto guard = b.With(at_stage(layer / 2));
    if (layer == 3 && weights == Weights::kFrozenAndTied) {
      h = MatMul(h, parameters[0], false, true);  // of eight labels four do not occur
      break;
    }
    Linear linear(b, "layer" + std::to_string(layer), layer == 0 ? 8 : 24, layer == 3 ? 4 : 24);
    if (layer != 1 || weights == Weights::kPlain) parameters.insert(parameters.end(), {linear.w, linear.c});
    h = layer == 3 ? linear(h) : Relu(linear(h));
    if (layer == 1) h = Dropout(h, .1);
  }
  Value loss;
  {
    auto guard = b.With(at_stage(1));
    loss = Mean(CrossEntropy(h, b.Input("labels", Dtype::kI32, {rows})));
  }
  b.Output("loss", loss);
  std::vector<Gradient> grads = AccumulateGradients(b, parameters, Grad(loss, {parameters.begin(), parameters.end()}), micro_batches);
  ApplyAdamW(b, parameters, grads, .01);
  auto graph = b.Finish();
  EXPECT_TRUE(graph.ok()) << graph.status().ToString();
  return RemoveDeadCode(MergeEqual(Simplify(*graph)));
}

// What rank `stage` runs of `graph`. A value that the other stage made is received where its region first needs it, over a channel of its
// own: messages of one channel wait for each other, and one stage may need them in another order than the other makes them. The sends are
// halves, done at the end of that micro-batch's backward, since two ranks that both wait for their sends would stand still.
Graph Cut(const Graph& graph, int stage) {
  Rewriter rewriter(graph);
  Graph& to = rewriter.graph();
  auto place = [&](const Op& op) {  // -1: every stage has it, as the step counter of the optimiser
    const RegionInfo& region = graph.region(op.region);
    bool counts = region.parameter.valid() && graph.state(region.parameter).kind == StateKind::kScalar;
    return op.def == &kFirstVersion || counts ? -1 : region.stage;
  };
  std::map<ValueId, StateId> channels;  // of the values that cross
  for (const Op& op : graph.ops) {
    for (ValueId in : op.inputs) {
      int maker = place(graph.op(graph.value(in).producer));
      if (maker >= 0 && place(op) >= 0 && maker != place(op)) channels[in] = {};
    }
  }
  std::uint32_t next = 0;
  for (auto& [value, channel] : channels) {
    channel = StateId{next++};
    EXPECT_EQ(graph.state(channel).kind, StateKind::kChannel) << "the model has too few channels";
  }
  std::map<StateId, ValueId> tokens;  // the newest version of each channel
  auto between = [&](const OpDef& def, StateId channel, RegionId region, std::vector<ValueId> inputs, std::vector<TensorType> types) {
    Op op;
    op.def = &def;
    op.inputs = std::move(inputs);
    op.inputs.insert(op.inputs.begin(), tokens[channel]);
    op.region = region;
    op.attrs = {{Attr::kPeer, std::int64_t{1 - stage}}};
    if (!types.empty()) op.attrs.Set(Attr::kShape, types[0].shape);
    if (!types.empty()) op.attrs.Set(Attr::kDtype, static_cast<std::int64_t>(types[0].dtype));
    op.provenance.role = Role::kCommunication;
    types.insert(types.begin(), TensorType{Dtype::kToken, {}});
    const Op& made = to.op(rewriter.Add(std::move(op), std::move(types)));
    tokens[channel] = made.outputs[0];
    return made.outputs;
  };
  for (const Op& op : graph.ops) {
    if (place(op) >= 0 && place(op) != stage) continue;
    for (ValueId in : op.inputs) {
      if (!channels.contains(in) || rewriter.At(in).valid() || place(graph.op(graph.value(in).producer)) == stage) continue;
      rewriter.Map(in, between(kRecv, channels[in], op.region, {}, {graph.value(in).type})[1]);
    }
    rewriter.Copy(op);
    for (ValueId out : op.outputs) {
      if (op.def == &kFirstVersion && graph.state(graph.value(out).state).kind == StateKind::kChannel)
        tokens[graph.value(out).state] = rewriter.At(out);
      if (channels.contains(out)) between(kSend, channels[out], op.region, {rewriter.At(out)}, {});
    }
  }
  Graph cut = rewriter.Finish();
  for (const auto& [channel, token] : tokens) cut.state(channel).last = token;
  std::erase_if(cut.outputs, [](const NamedValue& output) { return !output.value.valid(); });
  std::erase_if(cut.inputs, [](ValueId input) { return !input.valid(); });
  for (std::uint32_t i = 0; i < cut.ops.size(); ++i) {
    if (cut.ops[i].def != &kSend || cut.ops[i].half != Half::kWhole) continue;
    cut = *SplitStartDone(cut, OpId{i}, cut.ops.size());
    for (Op& op : cut.ops) {
      if (op.def == &kSend && op.half == Half::kDone) op.region = cut.RegionOf(RegionKind::kBackward, stage);
    }
  }
  Status status = Check(cut);
  EXPECT_TRUE(status.ok()) << status.ToString();
  return cut;
}

enum class Order { kOneForwardOneBackward, kAllForwardFirst, kSwapped };

// The regions of `stages` over the micro-batches, then the updates.
Program ProgramOf(const Graph& graph, const std::vector<int>& stages, int micro_batches, Order order) {
  Program program;
  auto add = [&](RegionKind kind, int micro_batch) {
    std::vector<int> sorted = stages;
    if (kind == RegionKind::kBackward) std::reverse(sorted.begin(), sorted.end());
    for (int stage : sorted) {
      for (std::uint32_t r = 0; r < graph.regions.size(); ++r)
        if (graph.regions[r].kind == kind && graph.regions[r].stage == stage) program.push_back({RegionId{r}, micro_batch, 0});
    }
  };
  int warm_up = order == Order::kAllForwardFirst ? micro_batches : std::min(kStages - 1 - stages.back(), micro_batches);
  for (int forward = 0, backward = 0; backward < micro_batches;) {
    if (forward < std::min(micro_batches, warm_up + 1 + backward)) {
      add(RegionKind::kForward, order == Order::kSwapped && stages[0] == 1 ? forward ^ 1 : forward);
      ++forward;
    } else {
      add(RegionKind::kBackward, order == Order::kSwapped && stages[0] == 1 ? backward ^ 1 : backward);
      ++backward;
    }
  }
  for (const ProgramStep& step : DefaultProgram(graph))
    if (graph.region(step.region).kind == RegionKind::kUpdate) program.push_back(step);
  return program;
}

struct Trained {
  StateStore states;
  std::vector<double> losses;
  std::size_t arena_bytes = 0;
};

Status Train(const Graph& graph, const Program& program, int micro_batches, const KernelTable& kernels, Trained* trained) {
  ASSIGN_OR_RETURN(auto executable, Compile(graph, {kRows}, program, kernels));
  trained->arena_bytes = executable->arena_bytes();
  for (int step = 0; step < kSteps; ++step) {
    Batch batch = MakeBatch(step, kRows * micro_batches);
    std::vector<Batch> parts;
    for (int m = 0; m < micro_batches; ++m) parts.push_back(Part(batch, m, micro_batches));
    RunInputs inputs;
    inputs.micro_batches.assign(micro_batches, {});
    inputs.run.step = static_cast<std::uint64_t>(step);  // dropout: of the step, and of each sample's place in the whole batch
    for (int m = 0; m < micro_batches; ++m) inputs.sample_offsets.push_back(m * kRows);
    for (int m = 0; m < micro_batches; ++m) {
      for (ValueId input : graph.inputs) inputs.micro_batches[m].push_back(graph.value(input).name == "x" ? &parts[m].x : &parts[m].labels);
    }
    ASSIGN_OR_RETURN(RunOutputs outputs, executable->Run(inputs, trained->states));
    double loss = 0;
    for (const auto& micro_batch : outputs.outputs) loss += micro_batch.empty() ? 0 : Scalar(micro_batch[0]) / micro_batches;
    trained->losses.push_back(loss);
  }
  return {};
}

// By name, the ranks of each channel: both.
std::map<std::string, std::vector<std::int32_t>> ChannelsOf(const Graph& graph) {
  std::map<std::string, std::vector<std::int32_t>> channels;
  for (const StateInfo& state : graph.states)
    if (state.kind == StateKind::kChannel) channels[state.name] = {0, 1};
  return channels;
}

struct Pipeline {
  Trained rank[kStages];
};
void TrainPipeline(const Graph& graph, int micro_batches, Order order, Pipeline* pipeline, Kind kind = Kind::kThreads,
                   bool recomputes = false) {
  World world(kStages, ChannelsOf(graph), kind);
  Status status = world.Run([&](std::int32_t rank) {
    Graph own = Cut(graph, rank);
    // After the cut: a clone of another stage's op would ask for that stage's values.
    if (recomputes) own = Recompute(own, [](const Op& op) { return op.def != &kMatMul; });
    return Train(own, ProgramOf(own, {rank}, micro_batches, order), micro_batches, world.Kernels(rank), &pipeline->rank[rank]);
  });
  ASSERT_TRUE(status.ok()) << status.ToString();
}

// Parameters whose bits differ; `of(rank)` is the store that rank's are compared with.
std::vector<std::string> DifferentFrom(const Graph& graph, const std::function<const StateStore&(int rank)>& of, const Pipeline& pipeline) {
  std::vector<std::string> names;
  for (int rank = 0; rank < kStages; ++rank) {
    auto more = Different(graph, of(rank), pipeline.rank[rank].states, [&](const StateInfo& state) {
      return (state.name < "layer2") == (rank == 0);  // layers 0 and 1 are stage 0's
    });
    names.insert(names.end(), more.begin(), more.end());
  }
  return names;
}

TEST(Pipeline, OneForwardOneBackwardEqualsAccumulatedMicroBatches) {
  for (int micro_batches : {1, 2, 4, 6}) {
    SCOPED_TRACE(micro_batches);
    Graph graph = Model(micro_batches);
    Trained one;
    ASSERT_TRUE(
        Train(graph, ProgramOf(graph, {0, 1}, micro_batches, Order::kOneForwardOneBackward), micro_batches, CpuKernels(), &one).ok());
    Pipeline pipeline;
    Kind kind = micro_batches == 6 ? Kind::kSockets : Kind::kThreads;
    ASSERT_NO_FATAL_FAILURE(TrainPipeline(graph, micro_batches, Order::kOneForwardOneBackward, &pipeline, kind));
    EXPECT_EQ(pipeline.rank[1].losses, one.losses);
    EXPECT_EQ(DifferentFrom(graph, [&](int) -> const StateStore& { return one.states; }, pipeline), std::vector<std::string>());
    EXPECT_LT(one.losses.back(), one.losses.front());
    // A rank holds the states of its own stage, and no others.
    EXPECT_TRUE(pipeline.rank[0].states.Get("layer2/w").bytes.empty());
    EXPECT_TRUE(pipeline.rank[1].states.Get("layer0/w/first_moment").bytes.empty());
  }
}

// A weight that is not trained stays as it is on its stage; one that both stages use gets the gradients of both.
TEST(Pipeline, FrozenAndTiedWeightsSurvive) {
  constexpr int kMicroBatches = 4;
  const Graph graph = Model(kMicroBatches, Weights::kFrozenAndTied);
  Trained one;
  ASSERT_TRUE(Train(graph, ProgramOf(graph, {0, 1}, kMicroBatches, Order::kOneForwardOneBackward), kMicroBatches, CpuKernels(), &one).ok());
  Pipeline pipeline;
  ASSERT_NO_FATAL_FAILURE(TrainPipeline(graph, kMicroBatches, Order::kOneForwardOneBackward, &pipeline));
  EXPECT_EQ(pipeline.rank[1].losses, one.losses);
  EXPECT_EQ(DifferentFrom(graph, [&](int) -> const StateStore& { return one.states; }, pipeline), std::vector<std::string>());
  EXPECT_LT(one.losses.back(), one.losses.front());
  // As it began: what a training of no step has.
  StateStore begun;
  for (const StateInfo& state : graph.states) {
    if (state.name == "layer1/w" || state.name == "layer0/w") {
      ASSERT_TRUE(begun.Find(graph, state, {kRows}, {}).ok());
    }
  }
  EXPECT_EQ(pipeline.rank[0].states.Get("layer1/w").bytes, begun.Get("layer1/w").bytes);
  EXPECT_NE(pipeline.rank[0].states.Get("layer0/w").bytes, begun.Get("layer0/w").bytes) << "the control";
  EXPECT_TRUE(pipeline.rank[0].states.Get("layer1/w/first_moment").bytes.empty());
  EXPECT_TRUE(pipeline.rank[1].states.Get("layer0/w").bytes.empty()) << "one stage holds the weight, and sends it";
}

// 1F1B keeps min(p - s, m) micro-batches of activations alive, all forwards first keeps m.
TEST(Pipeline, OneForwardOneBackwardBoundsTheActivations) {
  std::size_t bytes[2][2];
  for (int i = 0; i < 2; ++i) {
    for (Order order : {Order::kOneForwardOneBackward, Order::kAllForwardFirst}) {
      Graph own = Cut(Model(i == 0 ? 4 : 8), 0);
      World world(1, ChannelsOf(own));
      auto executable = Compile(own, {kRows}, ProgramOf(own, {0}, i == 0 ? 4 : 8, order), world.Kernels(0));
      ASSERT_TRUE(executable.ok()) << executable.status().ToString();
      bytes[order == Order::kAllForwardFirst][i] = (*executable)->arena_bytes();
    }
  }
  EXPECT_EQ(bytes[0][1], bytes[0][0]);
  EXPECT_GT(bytes[1][1], bytes[1][0] * 4 / 3);
  EXPECT_LT(bytes[0][0], bytes[1][0]);
}

// Activations that are made again in the backward: less memory, the same bits, the same dropout.
TEST(Pipeline, RecomputedActivationsAreTheSame) {
  Graph graph = Model(4);
  Pipeline kept, again;
  ASSERT_NO_FATAL_FAILURE(TrainPipeline(graph, 4, Order::kOneForwardOneBackward, &kept));
  ASSERT_NO_FATAL_FAILURE(TrainPipeline(graph, 4, Order::kOneForwardOneBackward, &again, Kind::kThreads, true));
  auto of_kept = [&](int rank) -> const StateStore& { return kept.rank[rank].states; };
  EXPECT_EQ(DifferentFrom(graph, of_kept, again), std::vector<std::string>());
  EXPECT_EQ(again.rank[1].losses, kept.rank[1].losses);
  EXPECT_LT(again.rank[0].arena_bytes, kept.rank[0].arena_bytes);
}

// The control: the second stage takes the micro-batches in another order than the first sends them.
TEST(Pipeline, AnotherOrderOfMicroBatchesIsNoticed) {
  Graph graph = Model(4);
  Pipeline right, wrong;
  ASSERT_NO_FATAL_FAILURE(TrainPipeline(graph, 4, Order::kOneForwardOneBackward, &right));
  ASSERT_NO_FATAL_FAILURE(TrainPipeline(graph, 4, Order::kSwapped, &wrong));
  EXPECT_FALSE(DifferentFrom(graph, [&](int rank) -> const StateStore& { return right.rank[rank].states; }, wrong).empty());
  EXPECT_GT(std::fabs(right.rank[1].losses.back() - wrong.rank[1].losses.back()), 1e-3);
}

}  // namespace
}  // namespace ropewalk::mlrunner::prototypes
