#include "mlrunner/train/anatomy.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <map>

#include <fmt/format.h>

#include "base/escape.h"
#include "mlrunner/graph/attention.h"
#include "mlrunner/graph/maths.h"
#include "mlrunner/graph/op_def.h"
#include "mlrunner/graph/ops.h"

namespace ropewalk::mlrunner {
namespace {

constexpr std::int64_t kProbeSize = 1024;
constexpr int kProbeRounds = 5;

}  // namespace

double ProductsOf(const Graph& graph, const Op& op, const Bindings& bindings) {
  auto dims = [&](ValueId value) { return Evaluate(graph.value(value).type.shape, bindings); };
  if (op.def == &kMatMul) {
    const Dims a = dims(op.inputs[0]);
    const std::int64_t inner = op.attrs.Int(Attr::kTransposeA) != 0 ? a[a.size() - 2] : a.back();
    return static_cast<double>(NumElements(dims(op.outputs[0]))) * static_cast<double>(inner);
  }
  // Of attention two products of all pairs of places, and four in backward (what is computed again does not count); of a causal one half
  // of the pairs.
  const bool attends = op.def == &kAttention || op.def == &kCausalAttention;
  if (attends || op.def == &kAttentionGrad || op.def == &kCausalAttentionGrad) {
    const Dims q = dims(op.inputs[0]), v = dims(op.inputs[2]);
    const auto width = static_cast<double>(q.back() + v.back()),
               places = static_cast<double>(NumElements(q) / std::max<std::int64_t>(1, q.back()));
    const double pairs = places * static_cast<double>(v[v.size() - 2]) / (IsCausal(*op.def) ? 2 : 1);
    return pairs * width * (attends ? 1 : 2);
  }
  // Forward (x, w) -> y; the gradients have as many: each is a sum over the same pairs.
  if (op.def == &kConv2D || op.def == &kConv2DInputGrad || op.def == &kConv2DWeightGrad) {
    // Of the three tensors x, w and y two come in and one goes out: y (N, K, P, Q) x (C, R, S) of w (K, C, R, S).
    const Dims y = op.def == &kConv2D ? dims(op.outputs[0]) : dims(op.inputs[op.def == &kConv2DInputGrad ? 0 : 1]);
    const Dims w = op.def == &kConv2DWeightGrad ? dims(op.outputs[0]) : dims(op.inputs[1]);
    return static_cast<double>(NumElements(y)) * static_cast<double>(NumElements(w)) / static_cast<double>(w[0]);
  }
  return 0;
}

void AddTimes(const std::vector<OpTime>& times, StepSeconds* seconds) {
  for (const OpTime& time : times) {
    const double took = static_cast<double>(time.end_ns - time.begin_ns) * 1e-9;
    if (time.op->def->traits.collective) {
      seconds->communication += took;
    } else if (time.op->provenance.phase == Phase::kUpdate) {
      seconds->optimizer += took;
    } else {
      seconds->compute += took;
    }
  }
}

double FlopsOf(const Graph& graph, const Bindings& bindings, const Program& program) {
  std::map<RegionId, double> of_region;
  for (const Op& op : graph.ops)
    if (op.half != Half::kDone) of_region[op.region] += 2 * ProductsOf(graph, op, bindings);
  double flops = 0;
  for (const ProgramStep& step : program) {
    flops += of_region[step.region];
    if (step.beside.valid()) flops += of_region[step.beside];
  }
  return flops;
}

Result<double> PeakFlops(const KernelTable& kernels, const ExecutorOptions& options) {
  Builder b;
  Value x = b.Input("x", Dtype::kF32, {kProbeSize, kProbeSize}), y = b.Input("y", Dtype::kF32, {kProbeSize, kProbeSize});
  b.Output("corner", SliceAxis(SliceAxis(MatMul(x, y), 0, 0, 1), 1, 0, 1));
  ASSIGN_OR_RETURN(const Graph graph, b.Finish());
  ExecutorOptions alone = options;
  alone.registered_memory = nullptr;
  ASSIGN_OR_RETURN(const auto executable, Compile(graph, {}, DefaultProgram(graph), kernels, alone));
  const Tensor ones = ToTensor(Dtype::kF32, {{kProbeSize, kProbeSize}, std::vector<double>(kProbeSize * kProbeSize, 1)});
  RunInputs inputs;
  inputs.micro_batches[0] = {&ones, &ones};
  StateStore none;
  double best_s = std::numeric_limits<double>::infinity();
  for (int round = 0; round < kProbeRounds; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    RETURN_IF_ERROR(executable->Run(inputs, none).status());
    best_s = std::min(best_s, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  return 2.0 * kProbeSize * kProbeSize * kProbeSize / best_s;
}

std::string ChromeTrace(const std::vector<OpTime>& times, std::int32_t rank, std::int64_t step) {
  std::int64_t origin_ns = std::numeric_limits<std::int64_t>::max();
  for (const OpTime& time : times) origin_ns = std::min(origin_ns, time.begin_ns);
  std::string events;
  auto add = [&](const std::string& name, std::string_view category, std::int64_t begin_ns, std::int64_t end_ns, int thread,
                 const std::string& module, std::int32_t micro_batch) {
    events += fmt::format(
        "{}{{\"name\":{},\"cat\":{},\"ph\":\"X\",\"ts\":{:.3f},\"dur\":{:.3f},\"pid\":{},\"tid\":{},\"args\":{{\"module\":{},"
        "\"micro_batch\":{}}}}}",
        events.empty() ? "" : ",\n", JsonString(name), JsonString(category), static_cast<double>(begin_ns - origin_ns) * 1e-3,
        static_cast<double>(end_ns - begin_ns) * 1e-3, rank, thread, JsonString(module), micro_batch);
  };
  std::map<std::pair<std::uint64_t, std::int32_t>, std::int64_t> handed_over;  // by stable id
  for (const OpTime& time : times) {
    const Op& op = *time.op;
    const std::pair<std::uint64_t, std::int32_t> key{op.stable_id, time.micro_batch};
    const bool collective = op.def->traits.collective;
    const std::string half = op.half == Half::kStart ? " start" : op.half == Half::kDone ? " wait" : "";
    add(std::string(op.def->name) + half, Name(op.provenance.phase), time.begin_ns, time.end_ns, 0, op.provenance.module, time.micro_batch);
    if (collective && op.half == Half::kStart) handed_over[key] = time.end_ns;
    if (collective && op.half == Half::kDone && handed_over.contains(key))
      add(std::string(op.def->name), "between ranks", handed_over[key], time.end_ns, 1, op.provenance.module, time.micro_batch);
  }
  return fmt::format("{{\"displayTimeUnit\":\"ms\",\"otherData\":{{\"step\":{}}},\"traceEvents\":[\n{}\n]}}\n", step, events);
}

}  // namespace ropewalk::mlrunner
