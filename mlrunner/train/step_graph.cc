#include "mlrunner/train/step_graph.h"

#include <string>
#include <utility>

#include "mlrunner/graph/grad.h"
#include "mlrunner/graph/maths.h"
#include "mlrunner/graph/ops.h"
#include "mlrunner/graph/optimizers.h"
#include "mlrunner/graph/passes/pass.h"
#include "mlrunner/models/gpt.h"
#include "mlrunner/models/mlp.h"
#include "mlrunner/train/buckets.h"
#include "mlrunner/train/gradients.h"

namespace ropewalk::mlrunner {
namespace {

constexpr const char* kData = "data";  // the axis of the mesh over which batches are cut

Shape Batch(const Dim& rows, const std::vector<std::int64_t>& dims) {
  Shape shape{rows};
  shape.insert(shape.end(), dims.begin(), dims.end());
  return shape;
}

struct Forward {
  Model model;
  Value labels, weights;  // weights (B) or (B, 1): they broadcast over the labels of a sample
  Value loss;
};

Forward BuildForward(Builder& b, const TrainJob& job, const Samples& samples) {
  Dim rows = b.NewSymbol("B", 1);
  Value x = b.Input("inputs", samples.inputs_are_ids() ? Dtype::kI32 : Dtype::kF32, Batch(rows, samples.input_dims()));
  Forward f;
  f.labels = b.Input("labels", Dtype::kI32, Batch(rows, samples.label_dims()));
  f.weights = b.Input("weights", Dtype::kF32, {rows});
  if (job.model.kind == ModelSpec::Kind::kMlp) {
    f.model = Mlp(b, {job.model.hidden, samples.classes()}, x);
  } else {
    f.model = Gpt(b,
                  {.vocabulary = samples.classes(),
                   .length = job.model.length,
                   .width = job.model.width,
                   .heads = job.model.heads,
                   .layers = job.model.layers,
                   .tied = job.model.tied},
                  x);
  }
  if (!samples.label_dims().empty()) f.weights = Reshape(f.weights, {rows, 1});
  f.loss = ReduceSum(CrossEntropy(f.model.logits, f.labels) * f.weights);
  return f;
}

void Update(Builder& b, const OptimizerSpec& spec, const std::vector<Parameter>& parameters, const std::vector<Gradient>& gradients) {
  if (spec.kind == OptimizerSpec::Kind::kSgd) {
    ApplySgd(b, parameters, gradients, spec.learning_rate, {.momentum = spec.momentum, .weight_decay = spec.weight_decay});
  } else {
    ApplyAdamW(b, parameters, gradients, spec.learning_rate,
               {.beta1 = spec.beta1, .beta2 = spec.beta2, .epsilon = spec.epsilon, .weight_decay = spec.weight_decay});
  }
}

Result<Graph> Finish(Builder& b, Dtype dtype) {
  ASSIGN_OR_RETURN(Graph graph, b.Finish());
  graph = FuseElementwise(RemoveDeadCode(MergeEqual(Simplify(graph))));
  if (dtype != Dtype::kF32) {
    ASSIGN_OR_RETURN(graph, ChangeFloats(graph, Dtype::kF32, dtype));
  }
  return graph;
}

}  // namespace

Result<Graph> StepGraph(const TrainJob& job, const Samples& samples, std::int32_t ranks) {
  Builder b;
  b.mutable_graph().mesh = {{{kData, ranks}}};
  Forward f = BuildForward(b, job, samples);
  std::vector<Gradient> gradients = Grad(f.loss, {f.model.parameters.begin(), f.model.parameters.end()});
  std::vector<Value> loss{f.loss};
  const std::vector<Parameter>& parameters = f.model.parameters;
  const bool several = job.micro_batches > 1, clips = job.optimizer.clip_norm > 0;
  // Micro-batches are summed here before ranks are.
  if (several)
    gradients =
        SumOverMicroBatches(b, parameters, gradients, &loss, ranks > 1 ? BesideLastScope(b, parameters) : BetweenScope(b, parameters));
  if (ranks > 1) {
    BucketOptions buckets{.group = kData, .bytes = job.bucket_bytes};
    if (several) buckets.sum_in = BesideLastScope(b, parameters);
    // A norm is of all sums, so nobody gains by waiting for some only.
    if (clips) buckets.read_in = BetweenScope(b, parameters);
    gradients = SumOverRanks(b, parameters, gradients, &loss, buckets);
  }
  if (clips) gradients = ClipByGlobalNorm(b, parameters, gradients, job.optimizer.clip_norm);
  b.Output("loss", loss[0]);
  Update(b, job.optimizer, parameters, gradients);
  ASSIGN_OR_RETURN(Graph graph, Finish(b, job.dtype));
  if (ranks > 1) graph = OverlapCollectives(graph);
  RETURN_IF_ERROR(Check(graph));
  return graph;
}

Program StepProgram(const Graph& graph, std::int32_t micro_batches) {
  Program program, once;
  std::vector<RegionId> each;
  RegionId beside_last;
  for (const ProgramStep& step : DefaultProgram(graph)) {
    const RegionInfo& region = graph.region(step.region);
    if (region.kind == RegionKind::kUpdate) {
      once.push_back(step);
    } else if (IsBesideLast(region)) {
      beside_last = step.region;
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
  Forward f = BuildForward(b, job, samples);
  b.Output("loss", f.loss);
  Value hit = Cast(Equal(Cast(ArgMax(f.model.logits), Dtype::kI32), f.labels), Dtype::kF32);
  b.Output("hits", ReduceSum(hit * f.weights));
  return Finish(b, job.dtype);
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
    state->call = {.count = NumElements(r.in[1].dims), .dtype = r.in[1].dtype, .name = state->name, .deterministic = deterministic};
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
}

}  // namespace ropewalk::mlrunner
