#include "mlrunner/train/step_graph.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "base/escape.h"
#include "mlrunner/data/sampler.h"
#include "mlrunner/graph/grad.h"
#include "mlrunner/graph/maths.h"
#include "mlrunner/graph/ops.h"
#include "mlrunner/graph/optimizers.h"
#include "mlrunner/graph/passes/fuse_ops.h"
#include "mlrunner/graph/passes/pass.h"
#include "mlrunner/train/buckets.h"
#include "mlrunner/train/family.h"
#include "mlrunner/train/frozen.h"
#include "mlrunner/train/gradients.h"
#include "mlrunner/train/loss_scale.h"
#include "mlrunner/train/recompute.h"

namespace ropewalk::mlrunner {
namespace {

Shape Rows(const Dim& rows, const std::vector<std::int64_t>& dims) {
  Shape shape{rows};
  shape.insert(shape.end(), dims.begin(), dims.end());
  return shape;
}

Result<const ModelFamily*> FamilyOf(const TrainJob& job) {
  const ModelFamily* family = FindModelFamily(job.model.kind);
  if (family != nullptr) return family;
  return Status(Code::kInvalid, "SPEC02", fmt::format("\"{}\" is no value for model.kind", EscapeForLog(job.model.kind, 200)),
                "there is no such family of models", "`ropewalk train --help` lists them");
}

Result<Learnt> Build(Builder& b, const TrainJob& job, const Samples& samples, bool training, std::int32_t ranks) {
  ASSIGN_OR_RETURN(const ModelFamily* family, FamilyOf(job));
  ASSIGN_OR_RETURN(const KeyValues keys, KeyValues::Of(job.model, family->keys));
  const Dim rows = b.NewSymbol("B", 1);
  Batch batch{
      .b = b, .keys = keys, .fields = samples.fields(), .values = {}, .rows = rows, .weights = {}, .training = training, .ranks = ranks};
  for (const Field& field : batch.fields) batch.values.push_back(b.Input(field.name, field.dtype, Rows(rows, field.dims)));
  batch.weights = b.Input("weights", Dtype::kF32, {rows});
  return family->build(batch);
}

void Update(Builder& b, const OptimizerSpec& spec, const std::vector<Parameter>& parameters, const std::vector<Gradient>& gradients) {
  const DecayOf decay_of = spec.decay_matrices ? DecayOf::kMatrices : DecayOf::kAll;
  const double rate = spec.learning_rate, decay = spec.weight_decay, beta1 = spec.beta1, beta2 = spec.beta2, epsilon = spec.epsilon;
  switch (spec.kind) {
    case OptimizerSpec::Kind::kSgd:
      ApplySgd(b, parameters, gradients, rate, {spec.momentum, decay, spec.nesterov, decay_of});
      break;
    case OptimizerSpec::Kind::kAdamW:
      ApplyAdamW(b, parameters, gradients, rate, {beta1, beta2, epsilon, decay, decay_of});
      break;
    case OptimizerSpec::Kind::kAdam:
      ApplyAdam(b, parameters, gradients, rate, {beta1, beta2, epsilon, decay, decay_of});
      break;
    case OptimizerSpec::Kind::kLamb:
      ApplyLamb(b, parameters, gradients, rate, {beta1, beta2, epsilon, decay, decay_of});
      break;
    case OptimizerSpec::Kind::kAdagrad:
      ApplyAdagrad(b, parameters, gradients, rate, {epsilon, decay, decay_of});
      break;
  }
  if (spec.average > 0) AverageParameters(b, parameters, spec.average);
}

Result<Graph> Finish(Builder& b, const TrainJob& job) {
  ASSIGN_OR_RETURN(Graph graph, b.Finish());
  graph = RemoveDeadCode(MergeEqual(Simplify(graph)));
  if (job.precision != Dtype::kF32) return Autocast(graph, job.precision);  // attention stays products, which it is for
  // Kernels of these are f32 alone, and the CPU's: a GPU has products, which a fused attention would take from it.
  if (job.dtype == Dtype::kF32) {
    if (!job.gpu) graph = FuseAttention(graph);
    graph = RemoveDeadCode(FuseResidualNorms(graph));
  }
  return graph;
}

Result<Graph> Fuse(const Graph& graph, Dtype dtype) {
  Graph fused = FuseElementwise(RemoveDeadCode(graph));
  if (dtype == Dtype::kF32) return fused;
  return ChangeFloats(fused, Dtype::kF32, dtype);
}

}  // namespace

Result<Graph> StepGraph(const TrainJob& job, const Samples& samples, std::int32_t ranks, Beginning* beginning) {
  Builder b;
  b.mutable_graph().mesh = {{{kDataAxis, ranks}}};
  ASSIGN_OR_RETURN(Learnt learnt, Build(b, job, samples, true, ranks));
  ASSIGN_OR_RETURN(const std::vector<Parameter> parameters, WithoutFrozen(b.graph(), learnt.parameters, job.frozen));
  if (beginning != nullptr) *beginning = {std::move(learnt.first_values), learnt.needs_whole_batches, parameters.size()};
  std::optional<LossScale> loss_scale;
  if (ScalesLoss(job)) loss_scale = NewLossScale(b);
  std::vector<Gradient> gradients =
      loss_scale ? ScaledGrad(b, *loss_scale, learnt.loss, parameters) : Grad(learnt.loss, {parameters.begin(), parameters.end()});
  std::vector<Value> loss{learnt.loss};  // and what else is summed as it is
  for (const Learnt::Figure& figure : learnt.figures) loss.push_back(figure.value);
  const bool several = job.micro_batches > 1, clips = job.optimizer.clip_norm > 0;
  // What every update waits for.
  const bool skips = job.nan == NanPolicy::kSkip || loss_scale, waits = clips || skips;
  // Micro-batches are summed here before ranks are.
  if (several)
    gradients =
        SumOverMicroBatches(b, parameters, gradients, &loss, ranks > 1 ? BesideLastScope(b, parameters) : BetweenScope(b, parameters));
  if (ranks > 1) {
    BucketOptions buckets{.group = kDataAxis, .bytes = job.bucket_bytes};
    const std::int64_t all = job.data.samples_max > 0 ? std::min(job.data.samples_max, samples.count()) : samples.count();
    if (!several) buckets.bindings = {ShareOf(std::min(job.batch, all), 0, ranks).count};
    if (several) buckets.sum_in = BesideLastScope(b, parameters);
    // A norm is of all sums, so nobody gains by waiting for some only.
    if (waits) buckets.read_in = BetweenScope(b, parameters);
    gradients = SumOverRanks(b, parameters, gradients, &loss, buckets);
  }
  std::vector<Value> squares;
  if (WatchesGradients(job))
    squares = SquaresOf(b, parameters, gradients,
                        [&](const Parameter& parameter) { return waits ? BetweenScope(b, parameters) : UpdateScope(b, parameter); });
  std::optional<Builder::GuardAssigns> guard;
  Value finite, unscaling, used;
  if (skips && b.status().ok()) {
    auto between = b.With(BetweenScope(b, parameters));
    Value all = loss[0];
    for (const Value& square : squares) all = all + square;
    finite = IsFinite(all);
    if (loss_scale) {
      // The sums over ranks and micro-batches were of scaled gradients: what one rank finds all find, without asking.
      unscaling = Unscaling(b, *loss_scale);
      for (Value& square : squares) square = square * unscaling * unscaling;
      used = b.Read(loss_scale->scale);
      AdjustLossScale(b, *loss_scale, finite);
    }
  }
  if (clips) {
    gradients = ClipByGlobalNorm(b, parameters, gradients, job.optimizer.clip_norm, unscaling);
  } else if (unscaling.valid()) {
    gradients = ScaleBy(b, parameters, gradients, unscaling);
  }
  b.Output("loss", loss[0]);
  for (std::size_t i = 0; i < squares.size() && b.status().ok(); ++i) b.Output(b.graph().state(parameters[i].state).name, squares[i]);
  for (std::size_t i = 0; i < learnt.figures.size(); ++i) b.Output(learnt.figures[i].name, loss[1 + i]);
  if (used.valid()) b.Output(kLossScale, used);
  if (finite.valid()) guard.emplace(b, finite);
  Update(b, job.optimizer, parameters, gradients);
  guard.reset();
  ASSIGN_OR_RETURN(Graph graph, Finish(b, job));
  ASSIGN_OR_RETURN(graph, RecomputeAs(graph, job.recompute));
  ASSIGN_OR_RETURN(graph, Fuse(graph, job.dtype));
  if (ranks > 1) graph = OverlapCollectives(graph);
  RETURN_IF_ERROR(Check(graph));
  return graph;
}

bool ScalesLoss(const TrainJob& job) { return job.precision == Dtype::kF16; }

bool WatchesGradients(const TrainJob& job) {
  return job.nan == NanPolicy::kSkip || ScalesLoss(job) || !job.metrics.empty() || !job.tensorboard.empty();
}

Program StepProgram(const Graph& graph, std::int32_t micro_batches) {
  Program program, once;  // what runs once a step, before all micro-batches; behind them
  std::vector<RegionId> each;
  RegionId beside_last;
  for (const ProgramStep& step : DefaultProgram(graph)) {
    const RegionInfo& region = graph.region(step.region);
    if (region.kind == RegionKind::kUpdate) {
      once.push_back(step);
    } else if (IsBesideLast(region)) {
      beside_last = step.region;
    } else if (region.parameter.valid()) {
      program.push_back(step);
    } else {
      each.push_back(step.region);
    }
  }
  for (std::int32_t micro_batch = 0; micro_batch < micro_batches; ++micro_batch) {
    for (RegionId region : each) {
      const bool is_last = micro_batch + 1 == micro_batches && graph.region(region).kind == RegionKind::kBackward;
      program.push_back({region, micro_batch, 0, is_last ? beside_last : RegionId()});
    }
  }
  program.insert(program.end(), once.begin(), once.end());
  return program;
}

Result<Graph> CountGraph(const TrainJob& job, const Samples& samples) {
  Builder b;
  ASSIGN_OR_RETURN(const Learnt learnt, Build(b, job, samples, false, 1));
  b.Output("loss", learnt.loss);
  b.Output("hits", learnt.hits);
  if (learnt.scores.valid()) b.Output("scores", learnt.scores);
  ASSIGN_OR_RETURN(const Graph graph, Finish(b, job));
  return Fuse(graph, job.dtype);
}

Result<Graph> ForwardGraph(const TrainJob& job, const Samples& samples) {
  ASSIGN_OR_RETURN(const ModelFamily* family, FamilyOf(job));
  Builder b;
  if (family->forward != nullptr) {
    ASSIGN_OR_RETURN(const KeyValues keys, KeyValues::Of(job.model, family->keys));
    ASSIGN_OR_RETURN(const Exported exported, family->forward(b, keys));
    for (const auto& [name, value] : exported.outputs) b.Output(name, value);
  } else {
    ASSIGN_OR_RETURN(const Learnt learnt, Build(b, job, samples, false, 1));
    b.Output("said", learnt.said);
  }
  ASSIGN_OR_RETURN(const Graph graph, b.Finish());
  return RemoveDeadCode(graph);
}

void AddSumKernels(KernelTable* table, collective::Communicator* ranks, bool deterministic) {
  auto compile = [ranks, deterministic](const KernelRequest& r) -> Result<CompiledKernel> {
    struct State {
      std::string name;
      collective::CollectiveCall call;
      collective::Handle handle;
    };
    auto state = std::make_shared<State>();
    state->name = r.graph.state(r.graph.value(r.op.inputs[0]).state).name;  // of the channel
    const bool gathers = r.op.def == &kAllGather;
    // What is gathered lies side by side: the parts' first dimension is what they are parts of.
    if (gathers && r.op.attrs.Int(Attr::kAxis) != 0) return Status(Code::kInternal, "TRAIN02", "ranks gather along the first axis only");
    state->call = {.collective = gathers ? collective::Collective::kAllgather : collective::Collective::kAllreduce,
                   .count = NumElements(r.out[1].dims),
                   .dtype = r.in[1].dtype,
                   .name = state->name,
                   .deterministic = deterministic};
    CompiledKernel kernel;
    kernel.run = [state, ranks](const KernelCall& c) -> Status {
      state->call.in = c.in[1];
      state->call.out = c.out[1];
      ASSIGN_OR_RETURN(state->handle, ranks->Submit(state->call, {}));
      return {};
    };
    kernel.wait = [state, ranks] { return ranks->Wait(state->handle); };
    return kernel;
  };
  for (Dtype dtype : {Dtype::kF32, Dtype::kF64, Dtype::kF16, Dtype::kBF16}) table->Add(kAllReduce, Device::kCpu, dtype, compile);
  for (Dtype dtype : {Dtype::kF32, Dtype::kF64, Dtype::kF16, Dtype::kBF16, Dtype::kI32, Dtype::kI64})
    table->Add(kAllGather, Device::kCpu, dtype, compile);
}

}  // namespace ropewalk::mlrunner
