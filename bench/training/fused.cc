// What fused ops bring: each against the same function composed of others, in pairs of runs that alternate, with the kernels, passes and
// executor of a training step.
//
// usage: bench_fused [REPETITIONS [THREADS]]
//   A row: median time of either, and of the ratios composed / fused the median and the least; memory that the plan of either takes. Of
//   attention (8 samples, 4 heads of 64) forward and backward, of norms those of a residual stream (1024 x 256), of updates one of a
//   parameter of 4 M numbers.
#include <omp.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "base/random.h"
#include "bench/must.h"
#include "mlrunner/executor/executor.h"
#include "mlrunner/graph/grad.h"
#include "mlrunner/graph/maths.h"
#include "mlrunner/graph/optimizers.h"
#include "mlrunner/graph/passes/fuse_ops.h"
#include "mlrunner/graph/passes/pass.h"

using namespace ropewalk;
using namespace ropewalk::mlrunner;

namespace {

using bench::Must;

double Now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// A graph that is compiled, with inputs drawn and states of its own.
class Contestant {
 public:
  Contestant(Graph graph, int threads) : graph_(std::move(graph)) {
    executable_ = Must(Compile(graph_, {}, DefaultProgram(graph_), CpuKernels(), {.num_threads = threads}));
    Random random(3);
    for (ValueId id : graph_.inputs) {
      const TensorType& type = graph_.value(id).type;
      RefTensor drawn{Evaluate(type.shape, {}), {}};
      for (std::int64_t i = 0; i < NumElements(drawn.dims); ++i) drawn.data.push_back(random.Unit() - .5);
      tensors_.push_back(ToTensor(type.dtype, drawn));
    }
    for (const Tensor& tensor : tensors_) inputs_.micro_batches[0].push_back(&tensor);
  }
  // Of as many runs as take a hundredth of a second, the time of one.
  double Seconds() {
    int runs = 0;
    const double begin = Now();
    do {
      Must(executable_->Run(inputs_, states_));
      ++runs;
    } while (Now() - begin < .01);
    return (Now() - begin) / runs;
  }
  double Mib() const { return static_cast<double>(executable_->arena_bytes()) / (1 << 20); }

 private:
  Graph graph_;
  std::unique_ptr<Executable> executable_;
  std::vector<Tensor> tensors_;
  RunInputs inputs_;
  StateStore states_;
};

Graph Prepared(Builder& b) { return RemoveDeadCode(MergeEqual(Simplify(Must(b.Finish())))); }
Graph Fused(const Graph& graph) { return FuseElementwise(RemoveDeadCode(FuseResidualNorms(FuseAttention(graph)))); }

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void Compare(const std::string& name, const Graph& composed, const Graph& fused, int repetitions, int threads) {
  Contestant a(composed, threads), b(fused, threads);
  a.Seconds();
  b.Seconds();
  std::vector<double> of_a, of_b, ratios;
  for (int i = 0; i < repetitions; ++i) {
    double first = 0, second = 0;
    if (i % 2 == 0) {
      first = a.Seconds();
      second = b.Seconds();
    } else {
      second = b.Seconds();
      first = a.Seconds();
    }
    of_a.push_back(first);
    of_b.push_back(second);
    ratios.push_back(first / second);
  }
  std::printf("%-28s %9.3f ms %9.3f ms   %5.2f (>= %.2f)   %8.1f %8.1f MiB\n", name.c_str(), Median(of_a) * 1e3, Median(of_b) * 1e3,
              Median(ratios), *std::min_element(ratios.begin(), ratios.end()), a.Mib(), b.Mib());
  std::fflush(stdout);
}

// Its gradients, too; sums of these are what is given back.
Graph AttentionGraph(std::int64_t length, bool causal, double dropout) {
  Builder b;
  const Shape shape{8, 4, length, 64};
  std::vector<Value> in;
  for (const char* name : {"q", "k", "v"}) in.push_back(b.Input(name, Dtype::kF32, shape));
  Value scores = MatMul(in[0], in[1], false, true) * .125;
  if (causal) {
    Value from = Reshape(Iota(b, Dtype::kF32, length), {length, 1}), to = Iota(b, Dtype::kF32, length);
    scores = scores + Select(Less(from, to), b.Number(-1e9, Dtype::kF32), b.Number(0, Dtype::kF32));
  }
  Value weights = Softmax(scores);
  if (dropout > 0) weights = Dropout(weights, dropout);
  Value mixed = MatMul(weights, in[2]);
  for (const Gradient& g : Grad(ReduceSum(mixed * mixed), in)) b.Output("g", ReduceSum(g.Dense()));
  return Prepared(b);
}

// Two blocks of a stream, forward and back; what else a block has is left out.
Graph NormGraph() {
  Builder b;
  std::vector<Value> in;
  for (const char* name : {"x", "r", "s"}) in.push_back(b.Input(name, Dtype::kF32, {1024, 256}));
  for (const char* name : {"c", "gain", "bias"}) in.push_back(b.Input(name, Dtype::kF32, {256}));
  Value x = in[0] + (in[1] + in[3]), y = LayerNorm(x, in[4], in[5]);
  x = x + (y * in[2] + in[3]);
  Value z = LayerNorm(x, in[4], in[5]);
  for (const Gradient& g : Grad(ReduceSum(x * z), {in[0], in[3], in[4], in[5]})) b.Output("g", ReduceSum(g.Dense()));
  return Prepared(b);
}

Graph UpdateGraph(const std::string& kind) {
  Builder b;
  Parameter w = b.NewParameter("w", {4, 1024, 1024}, Initializer::Normal(.02));
  const Gradient g = b.Input("g", Dtype::kF32, {4, 1024, 1024});
  if (kind == "AdamW") ApplyAdamW(b, {w}, {g}, 1e-3);
  if (kind == "Lamb") ApplyLamb(b, {w}, {g}, 1e-3);
  if (kind == "Adagrad") ApplyAdagrad(b, {w}, {g}, 1e-3, {.weight_decay = .01});
  return Prepared(b);
}

}  // namespace

int main(int argc, char** argv) {
  const int repetitions = argc > 1 ? std::max(1, std::atoi(argv[1])) : 9, threads = argc > 2 ? std::max(1, std::atoi(argv[2])) : 2;
  omp_set_num_threads(threads);
  std::printf("%-28s %12s %12s   %-15s   %s\n", "", "composed", "fused", "ratio", "memory of each");
  for (std::int64_t length : {128, 512, 1024}) {
    for (bool causal : {true, false}) {
      const Graph graph = AttentionGraph(length, causal, 0);
      Compare((causal ? "causal attention, " : "attention, ") + std::to_string(length), FuseElementwise(graph), Fused(graph), repetitions,
              threads);
    }
  }
  const Graph dropping = AttentionGraph(128, false, .1), norms = NormGraph();
  Compare("attention with dropout, 128", FuseElementwise(dropping), Fused(dropping), repetitions, threads);
  Compare("residual norms", FuseElementwise(norms), Fused(norms), repetitions, threads);
  for (const char* kind : {"AdamW", "Lamb", "Adagrad"}) {
    const Graph graph = UpdateGraph(kind);
    Compare(kind, FuseElementwise(Must(Expand(graph, {kind}))), FuseElementwise(graph), repetitions, threads);
  }
  return 0;
}
