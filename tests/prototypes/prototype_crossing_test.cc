// Crossing the barrier between steps, after ByteScheduler: an ordinary data-parallel graph is rotated, so that a step begins with the
// updates that the last step's gradients ask for, each just before the layer that reads the parameter. Gradients are pushed to an engine
// that cuts them into partitions and reduces the most urgent first. The numbers are those of the plain graph, bit for bit.
#include "mlrunner/graph/grad.h"
#include "mlrunner/graph/optimizers.h"
#include "tests/prototypes/ranks.h"

namespace ropewalk::mlrunner::prototypes {
namespace {

constexpr int kRanks = 2, kLayers = 4, kSteps = 12, kRows = 8, kPartition = 96;

// x -> x, and tells the engine. The engine is the peer of Send and Recv: it takes gradients and answers with what was summed last.
const OpDef kForwardDone{"ForwardDone", 1, 1, InferLikeFirst, [](const GradientContext& c) { return c.grads; }, nullptr, {}};

Graph Model() {
  Builder b;
  Value h = b.Input("x", Dtype::kF32, {kRows, 8}), labels = b.Input("labels", Dtype::kI32, {kRows});
  const int widths[kLayers + 1] = {8, 12, 16, 16, 24};
  std::vector<Parameter> parameters;
  for (int layer = 0; layer < kLayers; ++layer) {
    parameters.push_back(b.NewParameter("layer" + std::to_string(layer), {widths[layer], widths[layer + 1]}, Initializer::Normal(.35)));
    h = MatMul(h, parameters.back());
    if (layer == 0) h = b.EmitOne(kForwardDone, {h});
    if (layer < kLayers - 1) h = Relu(h);
  }
  Value loss = Mean(CrossEntropy(h, labels));
  b.Output("loss", loss);
  std::vector<Gradient> grads = Grad(loss, {parameters.begin(), parameters.end()});
  for (int layer = 0; layer < kLayers; ++layer) {
    auto guard = b.With(UpdateScope(b, parameters[layer]));
    grads[layer] = AllReduce(grads[layer], b.NewChannel("sum" + std::to_string(layer)), "data") * (1.0 / kRanks);
  }
  ApplySgd(b, parameters, grads, .2, {.momentum = .9});
  return RemoveDeadCode(MergeEqual(Simplify(*b.Finish())));
}

// Each update goes before the first read of its parameter (with `barrier`: before everything), and receives what the
// previous run sent to the engine; what was an AllReduce is a Send behind the backward.
Graph Rotate(const Graph& graph, bool barrier) {
  Rewriter rewriter(graph);
  std::map<ValueId, StateId> pushed;        // gradient -> channel
  std::map<StateId, ValueId> first, token;  // of the new graph
  for (const Op& op : graph.ops) {
    if (op.def == &kAllReduce) pushed[op.inputs[1]] = graph.value(op.inputs[0]).state;
    if (!op.def->traits.source) continue;
    rewriter.Copy(op);
    if (op.def == &kFirstVersion) first[graph.value(op.outputs[0]).state] = rewriter.At(op.outputs[0]);
  }
  auto update = [&](StateId parameter) {
    if (rewriter.At(graph.state(parameter).last).valid()) return;  // by an earlier read
    for (const Op& op : graph.ops) {
      if (graph.region(op.region).parameter != parameter) continue;
      Op copy = op;
      for (ValueId& in : copy.inputs) in = rewriter.At(in);
      if (op.def == &kAllReduce) {
        copy.def = &kRecv;
        copy.inputs.pop_back();
        const TensorType& type = graph.value(op.inputs[1]).type;
        copy.attrs = {{Attr::kShape, type.shape}, {Attr::kDtype, static_cast<std::int64_t>(type.dtype)}};
      }
      rewriter.Put(std::move(copy), op);
      if (op.def == &kAllReduce) token[graph.value(op.inputs[0]).state] = rewriter.At(op.outputs[0]);
    }
    // From here on the first version of this step's reads is the updated one.
    rewriter.Map(graph.state(parameter).first, rewriter.At(graph.state(parameter).last));
  };
  for (const StateInfo& state : graph.states)
    if (barrier && state.kind == StateKind::kParameter) update(graph.value(state.first).state);
  for (const Op& op : graph.ops) {
    if (op.def->traits.source || graph.region(op.region).kind == RegionKind::kUpdate) continue;
    StateId read = op.def == &kRead ? graph.value(op.inputs[0]).state : StateId{};
    if (read.valid() && graph.state(read).kind == StateKind::kParameter) update(read);
    rewriter.Copy(op);
    for (ValueId out : op.outputs) {
      auto found = pushed.find(out);
      if (found == pushed.end()) continue;
      Op send;
      send.def = &kSend;
      send.inputs = {token.at(found->second), rewriter.At(out)};
      send.region = op.region;
      token[found->second] = rewriter.graph().op(rewriter.Add(std::move(send), {{Dtype::kToken, {}}})).outputs[0];
    }
  }
  Graph rotated = rewriter.Finish();
  for (auto [state, version] : first) rotated.state(state).first = version;
  for (auto [state, version] : token) rotated.state(state).last = version;
  EXPECT_EQ(Check(rotated).ToString(), Status().ToString());
  return rotated;
}

// A partition of a layer's gradient.
struct Item {
  int layer = 0, part = 0;
  std::uint64_t step = 0;
};
struct Seen {                              // by the engine
  std::uint64_t pushes = 0, forwards = 0;  // gradients; forwards that have done layer 0
  std::vector<Item> reduced;               // in order
};
struct Way {
  bool rotated = true, barrier = false, by_priority = true;
  std::function<bool(const Item&, const Seen&)> may_go = [](const Item&, const Seen&) { return true; };
  int patience_ms = 60000;  // for what may not go
};

class Engine {  // of one rank
 public:
  Engine(World& world, std::int32_t rank, const Graph& graph, const Way& way) : rank_(rank), way_(way) {
    int layer = 0;
    for (const StateInfo& state : graph.states) {
      if (state.kind != StateKind::kParameter) continue;
      std::int64_t count = *NumElements(state.type.shape).Constant();
      gradients_[layer].resize(count);
      for (std::int64_t at = 0; at < count; at += kPartition) {
        auto plan = collective::BuildProgram("direct", {.ranks = kRanks, .deterministic = true}, rank);
        parts_[layer].push_back(*Bound::Make(std::move(plan), std::min<std::int64_t>(kPartition, count - at), world.EndOf("data", rank)));
      }
      ++layer;
    }
    collective::Request order{.collective = collective::Collective::kBroadcast, .dtype = Dtype::kI32, .ranks = kRanks};
    order_ = *Bound::Make(collective::BuildProgram("broadcast_tree", order, rank), 2, world.EndOf("order", rank));
    served_ = std::async(std::launch::async, [this] {
      Status status = Serve();
      Locked([&] { ended_ = true; });
      return status;
    });
  }

  Status Push(int layer, const float* gradient) {
    Locked([&] {
      std::copy_n(gradient, gradients_[layer].size(), gradients_[layer].begin());
      left_[layer] = static_cast<int>(parts_[layer].size());
      for (int part = 0; part < left_[layer]; ++part)
        queue_[{way_.by_priority ? layer : kLayers - layer, part}] = {layer, part, seen_.pushes / kLayers};
      ++seen_.pushes;
    });
    return {};
  }
  Status Pull(int layer, float* sum) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return left_[layer] == 0 || ended_; });
    if (left_[layer] > 0) return Status(Code::kUnavailable, "TEST01", "the engine has failed");  // Finish() says why
    std::copy(gradients_[layer].begin(), gradients_[layer].end(), sum);
    return {};
  }
  Status ForwardDone(void* to, const void* from, std::size_t bytes) {
    std::memcpy(to, from, bytes);
    Locked([&] { ++seen_.forwards; });
    return {};
  }
  // No more pushes; what was pushed is reduced.
  Status Finish() {
    Locked([&] { finishing_ = true; });
    return served_.get();
  }
  const Seen& seen() const { return seen_; }  // after Finish()

 private:
  void Locked(const std::function<void()>& change) {
    std::lock_guard lock(mutex_);
    change();
    changed_.notify_all();
  }
  auto Best() {  // the queue is in the order of urgency, or of readiness
    return std::find_if(queue_.begin(), queue_.end(), [this](const auto& entry) { return finishing_ || way_.may_go(entry.second, seen_); });
  }
  // Rank 0 decides what is next, so that all ranks reduce in one order.
  Status Serve() {
    for (;;) {
      std::pair<std::int32_t, std::int32_t> next = {-1, 0};
      std::unique_lock lock(mutex_);
      if (rank_ == 0) {
        changed_.wait(lock, [&] { return finishing_ || !queue_.empty(); });
        auto ready = [&] { return Best() != queue_.end() || (finishing_ && queue_.empty()); };
        if (!changed_.wait_for(lock, std::chrono::milliseconds(way_.patience_ms), ready))
          return Status(Code::kUnavailable, "TEST02", "what is held was never let go");
        if (Best() != queue_.end()) next = Best()->first;
      }
      lock.unlock();
      order_->Start(&next, &next);
      RETURN_IF_ERROR(order_->Wait());
      if (next.first < 0) return {};
      lock.lock();
      changed_.wait(lock, [&] { return queue_.contains(next) || finishing_; });
      if (!queue_.contains(next)) return Status(Code::kUnavailable, "TEST03", "this rank ended too early");
      Item item = queue_.extract(next).mapped();
      lock.unlock();
      float* place = &gradients_[item.layer][item.part * kPartition];
      parts_[item.layer][item.part]->Start(place, place);
      RETURN_IF_ERROR(parts_[item.layer][item.part]->Wait());
      Locked([&] {
        seen_.reduced.push_back(item);
        --left_[item.layer];
      });
    }
  }

  const std::int32_t rank_;
  const Way way_;
  std::vector<float> gradients_[kLayers];  // and then their sums
  std::vector<std::shared_ptr<Bound>> parts_[kLayers];
  std::shared_ptr<Bound> order_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::pair<std::int32_t, std::int32_t>, Item> queue_;
  int left_[kLayers] = {};  // partitions on their way
  Seen seen_;
  bool finishing_ = false, ended_ = false;
  std::future<Status> served_;
};

struct Trained {
  StateStore states;
  std::vector<double> losses;
  Seen seen;
};

Status Train(World& world, std::int32_t rank, const Graph& plain, const Way& way, Trained* trained) {
  Graph graph = way.rotated ? Rotate(plain, way.barrier) : plain;
  Engine engine(world, rank, graph, way);
  KernelTable table = world.Kernels(rank);
  auto layer_of = [](const KernelRequest& r) { return World::ChannelOf(r).back() - '0'; };
  AddKernel(table, kSend, Dtype::kF32, [&](const KernelRequest& r) -> RunKernel {
    return [&engine, layer = layer_of(r)](const KernelCall& c) { return engine.Push(layer, static_cast<const float*>(c.in[1])); };
  });
  AddKernel(table, kRecv, Dtype::kF32, [&](const KernelRequest& r) -> RunKernel {
    return [&engine, layer = layer_of(r)](const KernelCall& c) { return engine.Pull(layer, static_cast<float*>(c.out[1])); };
  });
  AddKernel(table, kForwardDone, Dtype::kF32, [&](const KernelRequest& r) -> RunKernel {
    return [&engine, bytes = r.in[0].Bytes()](const KernelCall& c) { return engine.ForwardDone(c.out[0], c.in[0], bytes); };
  });
  Status status = [&]() -> Status {
    ASSIGN_OR_RETURN(auto executable, Compile(graph, {}, way.rotated ? Program() : DefaultProgram(graph), table));
    // The rotated graph's run t + 1 does the updates of step t: one run more does the last.
    for (int step = 0; step < kSteps + way.rotated; ++step) {
      ASSIGN_OR_RETURN(double loss, Step(*executable, Part(MakeBatch(step, kRows * kRanks), rank, kRanks), trained->states));
      trained->losses.push_back(loss);
    }
    return {};
  }();
  if (!status.ok()) world.Abort();
  Status finished = engine.Finish();
  trained->seen = engine.seen();
  return finished.ok() ? status : finished;
}

std::vector<Trained> TrainAll(const Way& way, const char* failure = "") {
  std::vector<Trained> trained(kRanks);
  std::map<std::string, std::vector<std::int32_t>> channels = {{"data", {0, 1}}, {"order", {0, 1}}};
  for (int layer = 0; layer < kLayers; ++layer) channels["sum" + std::to_string(layer)] = {0, 1};
  World world(kRanks, channels);
  Status status = world.Run([&](std::int32_t rank) { return Train(world, rank, Model(), way, &trained[rank]); });
  EXPECT_EQ(status.tag(), failure) << status.ToString();
  return trained;
}

// The last layer's gradients stay until the next step's forward has done layer 0.
bool AfterNextForward(const Item& i, const Seen& seen) { return i.layer < kLayers - 1 || seen.forwards >= i.step + 2; }

TEST(Crossing, EqualsThePlainGraphBitForBitAndCrossesTheBarrier) {
  std::vector<Trained> plain = TrainAll({.rotated = false});
  EXPECT_LT(plain[0].losses.back(), .8 * plain[0].losses.front());
  for (const Way& way : {Way{}, Way{.by_priority = false}, Way{.may_go = AfterNextForward}}) {
    // Held back: step t + 1 has begun its forward before the last layer's gradient of step t is reduced, at every step.
    std::vector<Trained> rotated = TrainAll(way);
    for (int rank = 0; rank < kRanks; ++rank) {
      rotated[rank].losses.pop_back();
      EXPECT_EQ(rotated[rank].losses, plain[rank].losses);
      EXPECT_EQ(Different(Model(), plain[rank].states, rotated[rank].states), std::vector<std::string>());
    }
  }
}

// The control: with all updates before the forward, as a barrier has it, the same hold never ends.
TEST(Crossing, ABarrierWouldWaitForEver) {
  TrainAll({.barrier = true});
  TrainAll({.barrier = true, .may_go = AfterNextForward, .patience_ms = 300}, "TEST02");
}

// The last layer's gradient is there first: after its first partition all other layers go before its rest.
TEST(Crossing, TheMostUrgentGoesFirst) {
  // The first partition goes alone, the others when all gradients of the step are there.
  auto all_pushed = [](const Item& item, const Seen& seen) {
    auto is_first = [&](const Item& i) { return i.step == item.step && i.layer == kLayers - 1 && i.part == 0; };
    bool gone = std::any_of(seen.reduced.begin(), seen.reduced.end(), is_first);
    return is_first(item) || (gone && seen.pushes >= (item.step + 1) * kLayers);
  };
  for (bool by_priority : {true, false}) {
    std::vector<int> order;  // of layers, in step 3
    std::vector<Trained> rotated = TrainAll({.by_priority = by_priority, .may_go = all_pushed});
    for (const Item& item : rotated[1].seen.reduced)
      if (item.step == 3) order.push_back(item.layer);
    EXPECT_EQ(order, by_priority ? (std::vector<int>{3, 0, 1, 1, 2, 2, 2, 3, 3, 3}) : (std::vector<int>{3, 3, 3, 3, 2, 2, 2, 1, 1, 0}));
  }
}

}  // namespace
}  // namespace ropewalk::mlrunner::prototypes
