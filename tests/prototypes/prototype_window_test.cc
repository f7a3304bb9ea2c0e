// One-sided window averages: each rank trains by itself, puts its parameters into windows of its neighbours, and mixes what lies in its own
// (x = W (x - rate g), the adapt-then-combine of decentralised SGD). The plans are those of the collectives' room, run by their interpreter
// with a machine of this file: ranks are threads, so a put is a copy.
#include <barrier>
#include <latch>

#include "mlrunner/collective/check/check.h"
#include "mlrunner/collective/run/kernels.h"
#include "mlrunner/graph/grad.h"
#include "mlrunner/graph/optimizers.h"
#include "tests/prototypes/ranks.h"

namespace ropewalk::mlrunner::prototypes {
namespace {

constexpr int kRanks = 4, kRows = 8;
constexpr double kRate = .3;

// A ring: half of one's own, a quarter of each neighbour.
collective::Request Asked(bool mixes) {
  collective::Request request{.collective = collective::Collective::kMix, .ranks = kRanks};
  request.mixing.assign(kRanks, std::vector<double>(kRanks));
  for (int i = 0; i < kRanks; ++i) {
    request.mixing[i][i] = mixes ? .5 : 1;
    for (int d : {1, kRanks - 1}) request.mixing[i][(i + d) % kRanks] = mixes ? .25 : 0;
  }
  return request;
}

// What the ranks share of one parameter: windows, counters.
struct Shared {
  collective::Plan plan;
  std::mutex mutex;
  std::condition_variable changed;
  std::uint64_t version = 0;
  std::vector<float> windows[kRanks];
  std::vector<std::int64_t> counters[kRanks];
};

// One rank's machine for the one-sided steps of a plan.
class Mixer : public collective::Machine {
 public:
  static Result<std::shared_ptr<Mixer>> Make(Shared* shared, std::int32_t rank, std::int64_t count, int patience_ms) {
    auto mixer = std::shared_ptr<Mixer>(new Mixer);
    mixer->shared_ = shared;
    mixer->rank_ = rank;
    mixer->patience_ms_ = patience_ms;
    const collective::Program& program = shared->plan.programs[rank];
    RETURN_IF_ERROR(collective::CheckProgram(shared->plan.header, program));
    ASSIGN_OR_RETURN(mixer->layout_, collective::Layout::Make(shared->plan.header, program, {.count = count}));
    mixer->interpreter_ = std::make_unique<collective::Interpreter>(&program, &mixer->layout_);
    return mixer;
  }
  Status Run(const float* in, float* out) {
    in_ = in;
    out_ = out;
    interpreter_->Restart();
    for (;;) {
      std::unique_lock lock(shared_->mutex);
      const std::uint64_t seen = shared_->version;
      lock.unlock();
      collective::Outcome outcome = interpreter_->Advance(*this);
      if (outcome == collective::Outcome::kDone) return {};
      if (outcome == collective::Outcome::kFailed) return Status(Code::kInternal, "TEST06", "a step that this machine does not know");
      lock.lock();
      if (!shared_->changed.wait_for(lock, std::chrono::milliseconds(patience_ms_), [&] { return shared_->version != seen; }))
        return Status(Code::kUnavailable, "TEST05", "rank " + std::to_string(rank_) + " waits for a neighbour that does not come");
    }
  }

 private:
  collective::Outcome Try(const collective::Interpreter& at, const collective::Step& step) override {
    std::lock_guard lock(shared_->mutex);
    const collective::Operand* operands = at.program().operands.data() + step.first_operand;
    auto changed = [&] {
      ++shared_->version;
      shared_->changed.notify_all();
      return collective::Outcome::kDone;
    };
    switch (step.op) {
      case collective::Op::kPut:
        std::copy_n(PlaceOf(at, operands[0].chunk), at.At(operands[0].chunk).count,
                    shared_->windows[step.to].data() + at.At(step.remote).offset);
        return changed();
      case collective::Op::kFlush:
        return collective::Outcome::kDone;  // a put is done when it returns
      case collective::Op::kNotify:
        ++shared_->counters[step.to][step.counter];
        return changed();
      case collective::Op::kWait:
        if (shared_->counters[rank_][step.counter] < step.threshold) return collective::Outcome::kBlocked;
        shared_->counters[rank_][step.counter] -= step.threshold;
        return collective::Outcome::kDone;
      case collective::Op::kReduce: {
        std::vector<collective::Row> rows;
        for (std::int32_t i = 0; i < step.operand_count; ++i) {
          double scale = operands[i].scale < 0 ? 1 : shared_->plan.header.scales[operands[i].scale];
          rows.push_back({PlaceOf(at, operands[i].chunk), Dtype::kF32, scale});
        }
        collective::FoldRows(shared_->plan.header.op, Dtype::kF32, rows, 1, Dtype::kF32, out_, at.At(step.dst).count);
        return collective::Outcome::kDone;
      }
      default:
        return collective::Outcome::kFailed;
    }
  }
  const float* PlaceOf(const collective::Interpreter& at, std::int32_t chunk) const {
    const float* base = at.program().chunks[chunk].buffer == 0 ? in_ : shared_->windows[rank_].data();
    return base + at.At(chunk).offset;
  }

  Shared* shared_ = nullptr;
  std::int32_t rank_ = 0;
  int patience_ms_ = 0;
  collective::Layout layout_;
  std::unique_ptr<collective::Interpreter> interpreter_;
  const float* in_ = nullptr;
  float* out_ = nullptr;
};

// (channel, x) -> channel, the mixed x.
Result<Types> InferMix(const InferContext& c) { return Types{c.in[0], c.in[1]}; }
const OpDef kMix{"Mix", 2, 2, InferMix, nullptr, nullptr, {.collective = true}};

Graph Model(bool mixes) {
  Builder b;
  StateId channel = b.NewChannel("windows");
  Value x = b.Input("x", Dtype::kF32, {kRows, 8}), labels = b.Input("labels", Dtype::kI32, {kRows});
  Linear first(b, "first", 8, 24), second(b, "second", 24, 4);
  Value loss = Mean(CrossEntropy(second(Relu(first(x))), labels));
  b.Output("loss", loss);
  std::vector<Parameter> parameters = {first.w, first.c, second.w, second.c};
  std::vector<Gradient> grads = Grad(loss, {parameters.begin(), parameters.end()});
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    auto guard = b.With(UpdateScope(b, parameters[i]));
    Value next = b.Read(parameters[i].state) - grads[i] * kRate;
    if (mixes) {
      std::vector<Value> mixed =
          b.Emit(kMix, {b.Token(channel), next}, {{Attr::kKey, static_cast<std::int64_t>(parameters[i].state.value)}});
      b.SetToken(channel, mixed[0]);
      next = mixed[1];
    }
    b.Assign(parameters[i].state, next);
  }
  auto graph = b.Finish();
  EXPECT_TRUE(graph.ok()) << graph.status().ToString();
  return RemoveDeadCode(MergeEqual(Simplify(*graph)));
}

struct Options {
  const char* algorithm = "window";
  int steps = 40, patience_ms = 60000;
  bool stops = false, mixes = true;  // the last rank stands still until the others have ended
};
struct Trained {
  StateStore states;
  std::vector<double> losses;
};
Status Train(const Options& options, std::vector<Trained>* trained) {
  *trained = std::vector<Trained>(kRanks);
  Graph graph = Model(true);
  std::map<std::int64_t, Shared> shared;  // by the parameter's state
  for (std::uint32_t s = 0; s < graph.states.size(); ++s) {
    if (graph.states[s].kind != StateKind::kParameter) continue;
    Shared& one = shared[s];
    ASSIGN_OR_RETURN(one.plan, collective::BuildPlan(options.algorithm, Asked(options.mixes)));
    RETURN_IF_ERROR(collective::CheckAll(one.plan));
    RefTensor initial = Initial(graph, graph.states[s], {}, {});
    for (int rank = 0; rank < kRanks; ++rank) {
      for (int slot = 0; slot < kRanks; ++slot) one.windows[rank].insert(one.windows[rank].end(), initial.data.begin(), initial.data.end());
      one.counters[rank].assign(one.plan.header.counter_count, 0);
    }
  }
  std::latch others_ended(kRanks - 1);
  std::barrier others_together(kRanks - 1);  // of one speed, as machines are; how they wait for each other is not the plan's doing
  World world(kRanks, {});
  return world.Run([&](std::int32_t rank) -> Status {
    KernelTable table = CpuKernels();
    table.Add(kMix, Device::kCpu, Dtype::kF32, [&](const KernelRequest& r) -> Result<CompiledKernel> {
      ASSIGN_OR_RETURN(auto mixer,
                       Mixer::Make(&shared.at(r.op.attrs.Int(Attr::kKey)), rank, NumElements(r.in[1].dims), options.patience_ms));
      return CompiledKernel{
          [mixer](const KernelCall& call) { return mixer->Run(static_cast<const float*>(call.in[1]), static_cast<float*>(call.out[1])); }};
    });
    Status status = [&]() -> Status {
      ASSIGN_OR_RETURN(auto executable, Compile(graph, {}, DefaultProgram(graph), table));
      for (int step = 0; step < options.steps; ++step) {
        if (options.stops && rank == kRanks - 1 && step == 10) others_ended.wait();
        if (options.stops && rank < kRanks - 1) others_together.arrive_and_wait();
        ASSIGN_OR_RETURN(double loss, Step(*executable, Part(MakeBatch(step, kRows * kRanks), rank, kRanks), (*trained)[rank].states));
        (*trained)[rank].losses.push_back(loss);
      }
      return {};
    }();
    if (rank < kRanks - 1) {
      others_ended.count_down();
      others_together.arrive_and_drop();
    }
    return status;
  });
}

// The largest difference of a parameter between ranks.
double Apart(const Graph& graph, const std::vector<Trained>& trained) {
  double worst = 0;
  for (const StateInfo& state : graph.states)
    for (int rank = 1; rank < kRanks && state.kind == StateKind::kParameter; ++rank)
      worst = std::max(worst, Distance(trained[0].states.Get(state.name), trained[rank].states.Get(state.name)));
  return worst;
}

// In one process: a step of each rank without mixing, then the mean of what the rank and its neighbours have.
TEST(Window, OrderedMixingEqualsOneProcess) {
  std::vector<Trained> ranks;
  Status status = Train({}, &ranks);
  ASSERT_TRUE(status.ok()) << status.ToString();
  Graph graph = Model(false);
  auto executable = Compile(graph, {}, DefaultProgram(graph), CpuKernels());
  ASSERT_TRUE(executable.ok());
  StateStore states[kRanks];
  for (int step = 0; step < 40; ++step) {
    for (int rank = 0; rank < kRanks; ++rank)
      EXPECT_EQ(*Step(**executable, Part(MakeBatch(step, kRows * kRanks), rank, kRanks), states[rank]), ranks[rank].losses[step]);
    for (const StateInfo& state : graph.states) {
      if (state.kind != StateKind::kParameter) continue;
      std::vector<RefTensor> before;
      for (StateStore& store : states) before.push_back(ToRef(store.Get(state.name)));
      for (int rank = 0; rank < kRanks; ++rank) {
        int a = (rank + 1) % kRanks, c = (rank + kRanks - 1) % kRanks;
        RefTensor mixed = before[rank];
        for (std::size_t i = 0; i < mixed.data.size(); ++i) {  // weights are powers of two: only the order of the sum rounds
          float sum = static_cast<float>(before[rank].data[i] * .5) + static_cast<float>(before[std::min(a, c)].data[i] * .25);
          mixed.data[i] = sum + static_cast<float>(before[std::max(a, c)].data[i] * .25);
        }
        states[rank].Set(state.name, ToTensor(Dtype::kF32, mixed));
      }
    }
  }
  for (int rank = 0; rank < kRanks; ++rank) EXPECT_EQ(Different(graph, states[rank], ranks[rank].states), std::vector<std::string>());
}

TEST(Window, MixingKeepsRanksTogether) {
  std::vector<Trained> mixed, alone;
  ASSERT_TRUE(Train({.steps = 200}, &mixed).ok());
  ASSERT_TRUE(Train({.steps = 200, .mixes = false}, &alone).ok());  // the control
  double together = Apart(Model(false), mixed), apart = Apart(Model(false), alone);
  std::printf("ranks are %.3f apart, without mixing %.3f; loss %.3f to %.3f\n", together, apart, mixed[0].losses[0],
              MeanOfLast(mixed[0].losses, 20));
  EXPECT_LT(5 * together, apart);
  EXPECT_LT(MeanOfLast(mixed[0].losses, 20), .4 * mixed[0].losses[0]);
}

// A rank that stands still stops nobody where windows are relaxed; where they are ordered (the control) it stops its neighbours.
TEST(Window, ARankThatStandsStillStopsNobody) {
  std::vector<Trained> ranks;
  Status status = Train({.algorithm = "window_relaxed", .steps = 200, .stops = true}, &ranks);
  ASSERT_TRUE(status.ok()) << status.ToString();
  // It draws its neighbours to where it stands, so they learn less than among equals.
  for (const Trained& rank : ranks) EXPECT_LT(MeanOfLast(rank.losses, 20), .8 * rank.losses[0]);
  EXPECT_EQ(Train({.patience_ms = 300, .stops = true}, &ranks).tag(), "TEST05");
}

}  // namespace
}  // namespace ropewalk::mlrunner::prototypes
