// Steps of training by the house: the trainer's own graph, kernels, executor and sums over ranks, on batches that are drawn, not read.
//
// usage: bench_training prepare|train|roofline mlp|gpt|lstm|dlrm|resnet KEY=NUMBER...
//   prepare: writes the first parameters and the batches into folder=..., for the peer to begin with the same
//   train: lines of JSON, one for each rank: times of steps, losses, memory, processor time, and times by op
//   roofline: one line: the best rate of products and of copies that all ranks reach at the same time
// Keys: batch, ranks, threads, steps, folder; mlp: features, hidden, hidden_layers, classes; gpt: vocabulary, length, width, heads, layers;
// lstm: vocabulary, length, width, cells, layers; dlrm: features, tables, rows, vector; resnet: depth, size, classes.
// Of all, where they are given: precision=bf16|f16, recompute=selective|blocks|sqrt.
#include <omp.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/hash.h"
#include "bench/hub.h"
#include "bench/must.h"
#include "mlrunner/collective/communicator.h"
#include "mlrunner/collective/run/call_steps.h"
#include "mlrunner/data/sampler.h"
#include "mlrunner/executor/executor.h"
#include "mlrunner/graph/builder.h"
#include "mlrunner/graph/maths.h"
#include "mlrunner/graph/op_def.h"
#include "mlrunner/graph/ops.h"
#include "mlrunner/train/anatomy.h"
#include "mlrunner/train/step_graph.h"

using namespace ropewalk;
using namespace ropewalk::mlrunner;

namespace {

constexpr int kBatches = 8;         // used in turn, so that a cache does not hold the only one
constexpr int kWarmSteps = 5;       // not measured
constexpr int kTracedSteps = 10;    // after those that are measured: op by op
constexpr std::uint64_t kSeed = 7;  // of batches and parameters

using bench::Must;

double Now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }
double ProcessorSeconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
}
// A line of /proc/self/status, in KiB.
long Resident(const std::string& key) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);)
    if (line.rfind(key + ":", 0) == 0) return std::atol(line.c_str() + key.size() + 1);
  return 0;
}

struct Setup {
  std::string model;  // the family
  std::map<std::string, std::string> keys;
  std::int64_t Number(const std::string& key) const {
    auto found = keys.find(key);
    if (found == keys.end()) {
      std::fprintf(stderr, "%s= is missing\n", key.c_str());
      std::_Exit(2);
    }
    return std::atoll(found->second.c_str());
  }
};

// Inputs and labels without a pattern: element e of sample s is a function of both.
class Drawn : public Samples {
 public:
  explicit Drawn(const Setup& s) : batch_(s.Number("batch")) {
    if (s.model == "gpt" || s.model == "lstm") {
      const std::int64_t length = s.Number("length"), symbols = s.Number("vocabulary");
      fields_ = {{"tokens", Dtype::kI32, {length}, symbols}, {"next", Dtype::kI32, {length}, symbols}};
    } else if (s.model == "dlrm") {
      fields_ = {{"dense", Dtype::kF32, {s.Number("features")}},
                 {"ids", Dtype::kI32, {s.Number("tables")}, s.Number("rows")},
                 {"click", Dtype::kF32, {}}};
    } else if (s.model == "resnet") {
      fields_ = {{"image", Dtype::kF32, {3, s.Number("size"), s.Number("size")}}, {"label", Dtype::kI32, {}, s.Number("classes")}};
    } else {
      fields_ = {{"features", Dtype::kF32, {s.Number("features")}}, {"label", Dtype::kI32, {}, s.Number("classes")}};
    }
  }
  std::int64_t count() const override { return batch_ * kBatches; }
  const std::vector<Field>& fields() const override { return fields_; }
  void Fill(const FillCall& call) const override {
    const Field& field = fields_[call.field];
    const std::int64_t length = NumElements(field.dims);
    // Labels and rows of tables are drawn by numbers that no element of the first field has; the next symbol is that of the next place.
    const std::int64_t first = field.name == "next" ? 1 : call.field == 0 ? 0 : -length * static_cast<std::int64_t>(call.field);
    std::size_t at = 0;
    for (std::int64_t id : call.ids)
      for (std::int64_t k = first; k < first + length; ++k, ++at) {
        const std::uint64_t drawn = Draw(id, k);
        if (field.dtype == Dtype::kI32) {
          static_cast<std::int32_t*>(call.rows)[at] = static_cast<std::int32_t>((drawn >> 8) % static_cast<std::uint64_t>(field.classes));
        } else if (field.name == "click") {
          static_cast<float*>(call.rows)[at] = static_cast<float>(drawn >> 8 & 1);
        } else {  // uniform, of variance 1
          static_cast<float*>(call.rows)[at] = (static_cast<float>(drawn >> 40) * 0x1p-24f * 2 - 1) * 1.7320508f;
        }
      }
  }
  std::uint64_t content_hash() const override { return kSeed; }

 private:
  static std::uint64_t Draw(std::int64_t id, std::int64_t k) {
    return HashCombine(HashCombine(kSeed, static_cast<std::uint64_t>(id)), static_cast<std::uint64_t>(k));
  }
  std::int64_t batch_;
  std::vector<Field> fields_;
};

TrainJob JobOf(const Setup& s) {
  TrainJob job;
  job.model.kind = s.model;
  job.optimizer = {.kind = OptimizerSpec::Kind::kSgd, .learning_rate = .1, .momentum = 0};
  if (s.model == "gpt") {
    job.model.layers = s.Number("layers");
    job.model.width = s.Number("width");
    job.model.heads = s.Number("heads");
    job.model.length = s.Number("length");
    job.optimizer = {
        .kind = OptimizerSpec::Kind::kAdamW, .learning_rate = 3e-4, .weight_decay = .01, .beta1 = .9, .beta2 = .999, .epsilon = 1e-8};
  } else if (s.model == "lstm") {
    job.model.layers = s.Number("layers");
    job.model.width = s.Number("width");
    job.model.length = s.Number("length");
    job.model.more["cells"] = s.keys.at("cells");
  } else if (s.model == "dlrm") {
    job.model.more["vector"] = s.keys.at("vector");
  } else if (s.model == "resnet") {
    job.model.more["depth"] = s.keys.at("depth");
    job.optimizer.learning_rate = .01;
  } else {
    job.model.hidden.assign(static_cast<std::size_t>(s.Number("hidden_layers")), s.Number("hidden"));
    job.optimizer.learning_rate = .01;
  }
  job.batch = s.Number("batch");
  job.seed = kSeed;
  if (auto precision = s.keys.find("precision"); precision != s.keys.end())
    job.precision = precision->second == "bf16" ? Dtype::kBF16 : precision->second == "f16" ? Dtype::kF16 : Dtype::kF32;
  if (auto marks = s.keys.find("recompute"); marks != s.keys.end())
    job.recompute = marks->second == "selective" ? RecomputeMarks::kSelective
                    : marks->second == "blocks"  ? RecomputeMarks::kBlocks
                    : marks->second == "sqrt"    ? RecomputeMarks::kRoots
                                                 : RecomputeMarks::kNone;
  return job;
}

// The fields of the samples, then the weights, as the graph takes them.
using Fields = std::vector<Tensor>;
Fields Make(const Drawn& samples, std::int64_t number, std::int64_t batch, Share share) {
  std::vector<std::int64_t> ids;
  for (std::int64_t i = 0; i < share.count; ++i) ids.push_back(number * batch + share.begin + i);
  auto tensor = [&](Dtype dtype, const std::vector<std::int64_t>& dims) {
    Tensor t{dtype, {share.count}, {}};
    t.dims.insert(t.dims.end(), dims.begin(), dims.end());
    t.bytes.resize(static_cast<std::size_t>(NumElements(t.dims)) * SizeOf(dtype));
    return t;
  };
  Fields all;
  for (std::size_t field = 0; field < samples.fields().size(); ++field) {
    const Field& of = samples.fields()[field];
    all.push_back(tensor(of.dtype, of.dims));
    samples.Fill({.field = field, .ids = ids, .dtype = of.dtype, .rows = all.back().bytes.data()});
  }
  all.push_back(tensor(Dtype::kF32, {}));
  std::fill_n(reinterpret_cast<float*>(all.back().bytes.data()), share.count,
              1 / static_cast<float>(batch * NumElements(samples.fields().back().dims)));
  return all;
}

int Prepare(const Setup& s) {
  Drawn samples(s);
  Graph graph = Must(StepGraph(JobOf(s), samples, 1));
  const std::string folder = s.keys.at("folder") + "/";
  std::ofstream parameters(folder + "parameters.f32", std::ios::binary), manifest(folder + "parameters.txt");
  StateStore store;
  RunContext run{.seed = kSeed};
  const std::int64_t batch = s.Number("batch");
  for (const StateInfo& state : graph.states) {
    if (state.kind != StateKind::kParameter || state.name == "optimizer/learning_rate") continue;
    Must(store.Find(graph, state, {batch}, run));
    Tensor tensor = store.Get(state.name);
    manifest << state.name << fmt::format(" {}\n", fmt::join(tensor.dims, " "));
    parameters.write(reinterpret_cast<const char*>(tensor.bytes.data()), static_cast<std::streamsize>(tensor.bytes.size()));
  }
  std::vector<std::ofstream> fields;
  for (const Field& field : samples.fields()) fields.emplace_back(folder + field.name, std::ios::binary);
  for (int k = 0; k < kBatches; ++k) {
    const Fields all = Make(samples, k, batch, {0, batch});
    for (std::size_t i = 0; i < fields.size(); ++i)
      fields[i].write(reinterpret_cast<const char*>(all[i].bytes.data()), static_cast<std::streamsize>(all[i].bytes.size()));
  }
  std::vector<std::ofstream*> files = {&parameters, &manifest};
  for (std::ofstream& file : fields) files.push_back(&file);
  for (std::ofstream* file : files) {
    file->close();
    if (!*file)
      Must(Status(Code::kUserError, "BENCH05", "files of the bench cannot be written into " + folder,
                  "the disk is full, or the folder is not ours", "make room there, or name another folder"));
  }
  return 0;
}

// What an op does at least: multiply-adds twice, or bytes read and written once.
struct Work {
  double flops = 0, bytes = 0;
};
Work WorkOf(const Graph& graph, const Op& op, const Bindings& bindings) {
  auto bytes = [&](ValueId v) {
    const TensorType& type = graph.value(v).type;
    return static_cast<double>(NumElements(Evaluate(type.shape, bindings))) * static_cast<double>(SizeOf(type.dtype));
  };
  auto sum = [&](const std::vector<ValueId>& values) {
    double total = 0;
    for (ValueId v : values) total += bytes(v);
    return total;
  };
  if (op.def->traits.view || op.def->traits.source || op.def == &kRead || op.def == &kAssign || op.half == Half::kDone) return {};
  if (const double products = ProductsOf(graph, op, bindings); products > 0) return {2 * products, 0};
  // The products of all steps, forward and back: (B, H) by (H, 4 H), and (B, 4 H) by (4 H, H).
  if (op.def == &kLstm || op.def == &kLstmGrad) {
    const bool forward = op.def == &kLstm;
    const TensorType &gates = graph.value(forward ? op.outputs[3] : op.inputs[3]).type, &w = graph.value(op.inputs[forward ? 2 : 0]).type;
    const auto products = NumElements(Evaluate(gates.shape, bindings)) * Evaluate(w.shape, bindings)[1];
    return {2.0 * static_cast<double>(products), 0};
  }
  // These read only a part of their first input, or change only a part of it.
  if (op.def == &kGather || op.def == &kSlice) return {0, 2 * sum(op.outputs)};
  if (op.def == &kAddRows) return {0, 3 * bytes(op.inputs[2])};
  return {0, sum(op.inputs) + sum(op.outputs)};
}

// A matrix of m × k times one of k × n by our own kernel, which is oneDNN's product and nothing else.
class Product {
 public:
  Product(std::int64_t m, std::int64_t k, std::int64_t n, int threads) : a_(Filled(m, k)), b_(Filled(k, n)) {
    Builder b;
    const auto left = b.Input("a", Dtype::kF32, {m, k}), right = b.Input("b", Dtype::kF32, {k, n});
    b.Output("c", MatMul(left, right));
    graph_ = Must(b.Finish());
    executable_ = Must(Compile(graph_, {}, DefaultProgram(graph_), CpuKernels(), {.num_threads = threads}));
    inputs_.micro_batches[0] = {&a_, &b_};
    inputs_.times = &times_;
  }
  // How long it took.
  double Seconds() {
    times_.clear();
    Must(executable_->Run(inputs_, none_));
    double seconds = 0;
    for (const OpTime& t : times_)
      if (t.op->def == &kMatMul) seconds += static_cast<double>(t.end_ns - t.begin_ns) * 1e-9;
    return seconds;
  }

 private:
  static Tensor Filled(std::int64_t rows, std::int64_t columns) {
    return ToTensor(Dtype::kF32, {{rows, columns}, std::vector<double>(static_cast<std::size_t>(rows * columns), .5)});
  }
  const Tensor a_, b_;
  Graph graph_;
  std::unique_ptr<Executable> executable_;
  StateStore none_;
  std::vector<OpTime> times_;
  RunInputs inputs_;
};

int TrainRank(const Setup& s, int rank, int ranks, int hub) {
  // Memory at rest: the program is loaded, its threads stand and have multiplied, as the peer's have, so that on both sides what the
  // library of products keeps is there (ours has two ways, one of them for wide results); nothing of the model is. From here the peak
  // counts.
  const int threads = static_cast<int>(s.Number("threads"));
  omp_set_num_threads(threads);
  Product(256, 256, 256, threads).Seconds();
  Product(256, 64, 512, threads).Seconds();
  std::ofstream("/proc/self/clear_refs") << "5";
  const long resting_kib = Resident("VmRSS");

  Drawn samples(s);
  const TrainJob job = JobOf(s);
  const std::int64_t batch = job.batch;
  const Share share = ShareOf(batch, rank, ranks);
  std::vector<Fields> batches;
  for (int k = 0; k < kBatches; ++k) batches.push_back(Make(samples, k, batch, share));
  const Graph graph = AssignLayouts(Must(StepGraph(job, samples, ranks)), CpuLayouts());
  std::unique_ptr<collective::Communicator> all;  // before the executable, which uses its memory
  KernelTable table = CpuKernels();
  ExecutorOptions options{.num_threads = static_cast<int>(s.Number("threads"))};
  if (ranks > 1) {
    collective::Rendezvous rendezvous{.rank = rank, .ranks = ranks, .machine = "here"};
    rendezvous.exchange = [&](const std::string& mine) { return Result<std::vector<std::string>>(bench::Exchange(hub, mine, ranks)); };
    all = Must(collective::Communicator::Connect(std::move(rendezvous), {}));
    AddSumKernels(&table, all.get(), job.deterministic);
    options.registered_memory = [&](std::size_t bytes) { return all->Allocate(bytes); };
  }
  const Bindings bindings{share.count};
  auto executable = Must(Compile(graph, bindings, StepProgram(graph, 1), table, options));
  // What the sums of a step take of the interpreter: each step must take as much, or something was measured that runs beside it.
  std::uint64_t steps_of_sums = 0;
  for (const Op& op : graph.ops) {
    const bool gathers = op.def == &kAllGather;
    if (all == nullptr || (op.def != &kAllReduce && !gathers) || op.half == Half::kDone) continue;
    const TensorType& type = graph.value(op.inputs[1]).type;
    const std::int64_t count = NumElements(Evaluate(type.shape, bindings)) * (gathers ? ranks : 1);
    const auto collective = gathers ? collective::Collective::kAllgather : collective::Collective::kAllreduce;
    steps_of_sums += Must(
        collective::StepsOf(*all, {.collective = collective, .count = count, .dtype = type.dtype, .deterministic = job.deterministic}));
  }
  StateStore states;
  std::vector<double> seconds, losses;
  std::vector<OpTime> times;
  struct Row {
    int count = 0;
    double seconds = 0;
    Work work;
  };
  std::map<std::string, Row> rows;
  const std::int64_t steps = s.Number("steps");
  double processor = 0;
  for (std::int64_t step = 0; step < kWarmSteps + steps + kTracedSteps; ++step) {
    RunInputs inputs;
    for (const Tensor& field : batches[step % kBatches]) inputs.micro_batches[0].push_back(&field);
    inputs.run = {.seed = kSeed, .step = static_cast<std::uint64_t>(step), .sample_offset = share.begin};
    const bool traced = step >= kWarmSteps + steps;
    if (traced) {
      times.clear();
      inputs.times = &times;
    }
    if (all != nullptr && step == kWarmSteps) Must(all->Barrier());
    if (step == kWarmSteps) processor = ProcessorSeconds();
    const std::uint64_t steps_before = all == nullptr ? 0 : all->steps();
    const double begin = Now();
    RunOutputs outputs = Must(executable->Run(inputs, states));
    if (step >= kWarmSteps && !traced) seconds.push_back(Now() - begin);
    if (const std::uint64_t done = all == nullptr ? 0 : all->steps() - steps_before; done != steps_of_sums || (all != nullptr && done == 0))
      Must(Status(Code::kInternal, "BENCH04", fmt::format("the sums of step {} took {} steps of the interpreter", step, done),
                  fmt::format("their programs have {}", steps_of_sums), "let all sums go through the communicator"));
    losses.push_back(ToRef(outputs.outputs[0][0]).data.at(0));
    if (step + 1 == kWarmSteps + steps) processor = ProcessorSeconds() - processor;
    for (const OpTime& t : times) {
      Work work = WorkOf(graph, *t.op, bindings);
      Row& row =
          rows[fmt::format("{}{} {}", t.op->def->name, t.op->half == Half::kDone ? " (waited for)" : "", Name(t.op->provenance.phase))];
      ++row.count;
      row.seconds += static_cast<double>(t.end_ns - t.begin_ns) * 1e-9;
      row.work.flops += work.flops;
      row.work.bytes += work.bytes;
    }
  }
  std::string by_op;
  for (const auto& [name, row] : rows)
    by_op += fmt::format("{}\"{}\": {{\"count\": {}, \"us\": {:.2f}, \"flops\": {:.0f}, \"bytes\": {:.0f}}}", by_op.empty() ? "" : ", ",
                         name, row.count / kTracedSteps, row.seconds * 1e6 / kTracedSteps, row.work.flops / kTracedSteps,
                         row.work.bytes / kTracedSteps);
  std::vector<double> ordered = seconds;
  std::sort(ordered.begin(), ordered.end());
  losses.resize(std::min<std::size_t>(losses.size(), 20));
  const std::string line = fmt::format(
      "{{\"rank\": {}, \"median_ms\": {:.4f}, \"min_ms\": {:.4f}, \"processor_ms\": {:.4f}, \"resting_kib\": {}, \"peak_kib\": {}, "
      "\"fallback_ops\": {}, \"arena_bytes\": {}, \"losses\": [{}], \"ops\": {{{}}}}}\n",
      rank, ordered[ordered.size() / 2] * 1e3, ordered[0] * 1e3, processor * 1e3 / static_cast<double>(steps), resting_kib,
      Resident("VmHWM"), executable->fallback_ops(), executable->arena_bytes(), fmt::join(losses, ", "), by_op);
  // In one piece: lines of two ranks must not mix.
  return write(1, line.data(), line.size()) == static_cast<ssize_t>(line.size()) ? 0 : 1;
}

int RooflineRank(const Setup& s, int rank, int ranks, int hub) {
  omp_set_num_threads(static_cast<int>(s.Number("threads")));
  double flops = 0, bandwidth = 0;
  constexpr double kSecondsOfSize = .25;
  for (std::int64_t n : {512, 1024, 2048}) {
    Product product(n, n, n, static_cast<int>(s.Number("threads")));
    bench::Exchange(hub, "meet", ranks);
    for (double end = Now() + kSecondsOfSize; Now() < end;)
      flops = std::max(flops, 2.0 * static_cast<double>(n * n * n) / product.Seconds());
  }
  const std::int64_t count = std::int64_t{32} << 20;  // floats: larger than any cache
  std::vector<float> from(count, 1.f), to(count);
  bench::Exchange(hub, "meet", ranks);
  for (double end = Now() + 4 * kSecondsOfSize; Now() < end;) {
    const double begin = Now();
#pragma omp parallel
    {
      const std::int64_t t = omp_get_thread_num(), n = omp_get_num_threads(), first = count * t / n, last = count * (t + 1) / n;
      std::memcpy(to.data() + first, from.data() + first, static_cast<std::size_t>(last - first) * sizeof(float));
    }
    bandwidth = std::max(bandwidth, 2.0 * sizeof(float) * static_cast<double>(count) / (Now() - begin));
  }
  const std::string line = fmt::format("{{\"rank\": {}, \"flops_per_s\": {:.4g}, \"bytes_per_s\": {:.4g}}}\n", rank, flops, bandwidth);
  return write(1, line.data(), line.size()) == static_cast<ssize_t>(line.size()) ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: bench_training prepare|train|roofline mlp|gpt KEY=NUMBER...\n");
    return 2;
  }
  const std::string verb = argv[1];
  Setup setup{.model = argv[2], .keys = {}};
  if (std::set<std::string>{"mlp", "gpt", "lstm", "dlrm", "resnet"}.count(setup.model) == 0) {
    std::fprintf(stderr, "there is no work %s\n", argv[2]);
    return 2;
  }
  for (int i = 3; i < argc; ++i) {
    const std::string argument = argv[i];
    const std::size_t at = argument.find('=');
    if (at != std::string::npos) setup.keys[argument.substr(0, at)] = argument.substr(at + 1);
  }
  if (verb == "prepare") return Prepare(setup);
  const int ranks = static_cast<int>(setup.Number("ranks"));
  if (verb == "roofline") return bench::RunRanks(ranks, [&](int rank, int hub) { return RooflineRank(setup, rank, ranks, hub); });
  return bench::RunRanks(ranks, [&](int rank, int hub) { return TrainRank(setup, rank, ranks, hub); });
}
