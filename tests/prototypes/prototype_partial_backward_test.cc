// Structured partial backward, after the idea of SPB (details ours): of k ranks, rank i goes back through the last (i+1)/k of the layers,
// so the ranks' programs differ. Each layer's gradient is the mean over the ranks that computed it, and goes to all.
#include "mlrunner/collective/check/check.h"
#include "mlrunner/graph/grad.h"
#include "mlrunner/graph/optimizers.h"
#include "tests/prototypes/ranks.h"

namespace ropewalk::mlrunner::prototypes {
namespace {

constexpr int kRanks = 4, kLayers = 4, kWidth = 16, kRows = 8;

// --- a collective of this file: out of every rank = the mean of the last `quorum` ranks' in ---

constexpr std::int32_t kIn = 0, kOut = 1;

Status Declare(collective::Header* header) {
  header->buffers.push_back({.name = "in", .role = collective::Role::kIn});
  header->buffers.push_back({.name = "out", .role = collective::Role::kOut});
  header->scales.push_back(1.0 / header->request.quorum);
  return {};
}
void Write(collective::Writer& w) {
  const std::int32_t first = w.ranks() - w.request().quorum, rank = w.rank();
  auto part = [&](std::int32_t buffer, std::int32_t of) { return w.At(buffer, w.Part(w.Whole(), w.ranks(), of)); };
  for (std::int32_t d = 1; d < w.ranks() && rank >= first; ++d) w.Send(part(kIn, w.Around(d)), w.Around(d));
  std::vector<collective::Operand> operands;
  for (std::int32_t from = first; from < w.ranks(); ++from)
    operands.push_back(from == rank ? collective::Local(part(kIn, rank)) : collective::From(from, part(kIn, rank)));
  bool alone = operands.size() == 1 && rank == first;
  w.Fold(alone ? collective::Op::kCopy : collective::Op::kRecvReduce, operands, {.dst = part(kOut, rank), .scale = 0});
  for (std::int32_t d = 1; d < w.ranks(); ++d) w.Send(part(kOut, rank), w.Around(d));
  for (std::int32_t d = 1; d < w.ranks(); ++d) w.Recv(w.Around(-d), part(kOut, w.Around(-d)));
}
void Promise(collective::PostWriter& post) {
  std::vector<collective::Term> terms;
  for (std::int32_t rank = post.ranks() - post.request().quorum; rank < post.ranks(); ++rank)
    terms.push_back({.rank = rank, .chunk = post.At(kIn, post.Whole()), .coefficient = 1.0 / post.request().quorum});
  post.Fold(collective::kEveryRank, post.At(kOut, post.Whole()), terms);
  post.post().identical = true;
}
const collective::Algorithm kContributorsMean{"contributors_mean", collective::Collective::kAllreduce, false, Declare, Write, Promise};

TEST(PartialBackward, ItsCollectiveIsProved) {
  for (std::int32_t contributors = 1; contributors <= kRanks; ++contributors) {
    auto plan = collective::BuildPlan(kContributorsMean, {.ranks = kRanks, .quorum = contributors});
    ASSERT_TRUE(plan.ok()) << plan.status().ToString();
    Status status = collective::CheckAll(*plan);
    EXPECT_TRUE(status.ok()) << status.ToString();
  }
}

// --- its op: (channel, gradient) or, where this rank computed none, (channel) ---

Result<Types> InferMean(const InferContext& c) {
  return Types{{Dtype::kToken, {}}, {static_cast<Dtype>(c.op.attrs.Int(Attr::kDtype)), c.op.attrs.ShapeOf(Attr::kShape)}};
}
const OpDef kMeanOfContributors{"MeanOfContributors", -1, 2, InferMean, nullptr, nullptr, {.collective = true}};

KernelTable KernelsOf(World& world, std::int32_t rank) {
  KernelTable table = world.Kernels(rank);
  table.Add(kMeanOfContributors, Device::kCpu, Dtype::kF32, [&world, rank](const KernelRequest& r) -> Result<CompiledKernel> {
    collective::Request asked{.ranks = kRanks, .quorum = static_cast<std::int32_t>(r.op.attrs.Int(Attr::kCount))};
    ASSIGN_OR_RETURN(auto bound, Bound::Make(collective::BuildProgram(kContributorsMean, asked, rank), NumElements(r.out[1].dims),
                                             world.EndOf("data", rank)));
    return KernelOf(bound, r.in.size() > 1 ? 1 : -1, 1);
  });
  return table;
}

// --- the model ---

// How many ranks compute the gradient of a layer; rank i goes back through the last `depth` of the layers.
int Depth(std::int32_t rank, bool partial) { return partial ? (rank + 1) * kLayers / kRanks : kLayers; }
int Contributors(int layer, bool partial) {
  int count = 0;
  for (std::int32_t rank = 0; rank < kRanks; ++rank) count += layer >= kLayers - Depth(rank, partial);
  return count;
}

struct Own {
  Graph graph;
  std::uint64_t logical = 0;  // fingerprint of what all ranks share: the model
};
// `over_all`: the control that divides by the number of ranks.
Own Model(std::int32_t rank, bool partial, bool over_all = false) {
  Builder b;
  b.mutable_graph().mesh = {{{"data", kRanks}}};
  StateId channel = b.NewChannel("data");
  Value h = b.Input("x", Dtype::kF32, {kRows, 8}), labels = b.Input("labels", Dtype::kI32, {kRows});
  std::vector<Parameter> parameters;
  for (int layer = 0; layer < kLayers; ++layer) {
    auto guard = b.Module("layer" + std::to_string(layer), layer);
    Linear linear(b, "linear", layer == 0 ? 8 : kWidth, layer == kLayers - 1 ? 4 : kWidth);
    parameters.insert(parameters.end(), {linear.w, linear.c});
    h = layer == kLayers - 1 ? linear(h) : Relu(linear(h));
  }
  Value loss = Mean(CrossEntropy(h, labels));
  b.Output("loss", loss);
  Own own;
  own.logical = Fingerprint(b.graph());
  std::vector<Value> with(parameters.end() - 2 * Depth(rank, partial), parameters.end());
  std::vector<Gradient> grads = Grad(loss, with);
  for (std::size_t i = parameters.size(); i-- > 0;) {  // the last layer's gradient is there first
    int contributors = Contributors(static_cast<int>(i) / 2, partial);
    std::vector<Value> inputs = {b.Token(channel)};
    std::size_t skipped = parameters.size() - with.size();
    if (i >= skipped) inputs.push_back(grads[i - skipped]);
    auto guard = b.With(UpdateScope(b, parameters[i]));
    std::vector<Value> mean = b.Emit(kMeanOfContributors, inputs,
                                     {{Attr::kShape, parameters[i].shape()},
                                      {Attr::kDtype, static_cast<std::int64_t>(Dtype::kF32)},
                                      {Attr::kCount, std::int64_t{contributors}}});
    b.SetToken(channel, mean[0]);
    b.Assign(parameters[i].state, b.Read(parameters[i].state) - mean[1] * (over_all ? .3 * contributors / kRanks : .3));
  }
  auto graph = b.Finish();
  EXPECT_TRUE(graph.ok()) << graph.status().ToString();
  own.graph = RemoveDeadCode(MergeEqual(Simplify(*graph)));
  return own;
}

struct Trained {
  Own own;
  StateStore states;
  std::vector<double> losses;
};
std::vector<Trained> Train(int steps, bool partial, bool over_all = false) {
  World world(kRanks, {{"data", {0, 1, 2, 3}}});
  std::vector<Trained> trained(kRanks);
  Status status = world.Run([&](std::int32_t rank) -> Status {
    Trained& mine = trained[rank];
    mine.own = Model(rank, partial, over_all);
    ASSIGN_OR_RETURN(auto executable, Compile(mine.own.graph, {}, DefaultProgram(mine.own.graph), KernelsOf(world, rank)));
    for (int step = 0; step < steps; ++step) {
      ASSIGN_OR_RETURN(double loss, Step(*executable, Part(MakeBatch(step, kRows * kRanks), rank, kRanks), mine.states));
      mine.losses.push_back(loss);
    }
    return {};
  });
  EXPECT_TRUE(status.ok()) << status.ToString();
  return trained;
}

int BackwardProducts(const Graph& graph) {
  int count = 0;
  for (const Op& op : graph.ops) count += op.def == &kMatMul && op.provenance.phase == Phase::kBackward;
  return count;
}

TEST(PartialBackward, RanksDoTheirShareOfTheBackward) {
  int layers = 0;
  for (std::int32_t rank = 0; rank < kRanks; ++rank) {
    Own own = Model(rank, true);
    // A product for each layer's weights, and one for each input of a layer but the lowest.
    EXPECT_EQ(BackwardProducts(own.graph), 2 * Depth(rank, true) - 1) << rank;
    layers += (BackwardProducts(own.graph) + 1) / 2;
    EXPECT_EQ(own.logical, Model(0, true).logical);
    EXPECT_EQ(Fingerprint(own.graph) == Fingerprint(Model(0, true).graph), rank == 0);
  }
  EXPECT_EQ(layers / (1.0 * kRanks * kLayers), .625);  // (k + 1) / 2k
}

// One step against gradients of whole models in one process, averaged over the ranks that contribute.
double WorstOfOneStep(bool over_all) {
  std::vector<Trained> trained = Train(1, true, over_all);
  Builder b;
  Value h = b.Input("x", Dtype::kF32, {kRows, 8}), labels = b.Input("labels", Dtype::kI32, {kRows});
  std::vector<Value> parameters;
  for (int layer = 0; layer < kLayers; ++layer) {
    auto guard = b.Module("layer" + std::to_string(layer), layer);
    Linear linear(b, "linear", layer == 0 ? 8 : kWidth, layer == kLayers - 1 ? 4 : kWidth);
    parameters.insert(parameters.end(), {linear.w, linear.c});
    h = layer == kLayers - 1 ? linear(h) : Relu(linear(h));
  }
  for (const Gradient& grad : Grad(Mean(CrossEntropy(h, labels)), parameters)) b.Output("grad", grad);
  Graph graph = *b.Finish();
  std::map<std::string, RefTensor> states;
  std::vector<RefResult> of_rank;
  for (std::int32_t rank = 0; rank < kRanks; ++rank) {
    Batch batch = Part(MakeBatch(0, kRows * kRanks), rank, kRanks);
    of_rank.push_back(*Evaluate(graph, {}, {ToRef(batch.x), ToRef(batch.labels)}, states, {}, {.round = false}));
  }
  double worst = 0;
  for (std::size_t i = 0, p = 0; i < graph.states.size(); ++i) {
    if (graph.states[i].kind != StateKind::kParameter) continue;
    RefTensor expected = states.at(graph.states[i].name), got = ToRef(trained[0].states.Get(graph.states[i].name));
    int contributors = Contributors(static_cast<int>(p) / 2, true);
    for (std::size_t e = 0; e < expected.data.size(); ++e) {
      for (int rank = kRanks - contributors; rank < kRanks; ++rank)
        expected.data[e] -= .3 * of_rank[rank].outputs[p].data[e] / contributors;
      worst = std::max(worst, std::fabs(expected.data[e] - got.data[e]));
    }
    ++p;
  }
  return worst;
}

TEST(PartialBackward, AveragesOverThoseThatContribute) {
  EXPECT_LT(WorstOfOneStep(false), 1e-6);
  EXPECT_GT(WorstOfOneStep(true), 1e-3);  // the control: a mean over all ranks
}

TEST(PartialBackward, LearnsAsWellAsTheWholeBackward) {
  std::vector<Trained> partial = Train(400, true), whole = Train(400, false);
  for (std::int32_t rank = 1; rank < kRanks; ++rank)
    EXPECT_EQ(Different(partial[0].own.graph, partial[0].states, partial[rank].states), std::vector<std::string>());
  double first = 0, last = 0, reference = 0;
  for (std::int32_t rank = 0; rank < kRanks; ++rank) {
    first += partial[rank].losses[0] / kRanks;
    last += MeanOfLast(partial[rank].losses, 40) / kRanks;
    reference += MeanOfLast(whole[rank].losses, 40) / kRanks;
  }
  std::printf("loss %.4f, after 400 steps %.4f; whole backward %.4f\n", first, last, reference);
  EXPECT_LT(last, .5 * first);
  EXPECT_LT(last, reference + .15);
}

}  // namespace
}  // namespace ropewalk::mlrunner::prototypes
