#include "mlrunner/train/nodes.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "base/random.h"
#include "mlrunner/executor/executor.h"
#include "mlrunner/graph/grad.h"
#include "mlrunner/graph/maths.h"
#include "mlrunner/graph/optimizers.h"
#include "mlrunner/graph/passes/pass.h"
#include "mlrunner/models/gnn.h"
#include "mlrunner/models/mlp.h"

namespace ropewalk::mlrunner {
namespace {

using Ids = std::vector<std::int32_t>;

enum class Purpose : std::uint64_t { kDivide = 1, kOrder = 2, kSample = 3 };
Random RandomFor(const NodeJob& job, Purpose purpose) { return Random::ForPurpose(job.seed, static_cast<std::uint64_t>(purpose)); }

void Shuffle(Ids* ids, Random* random) {
  for (std::size_t i = ids->size(); i > 1; --i) std::swap((*ids)[i - 1], (*ids)[random->Below(i)]);
}

struct Parts {
  Ids training, validation, test;
};
Parts Divide(const NodeGraph& graph, const NodeJob& job) {
  Ids all(static_cast<std::size_t>(graph.nodes()));
  std::iota(all.begin(), all.end(), 0);
  Random random = RandomFor(job, Purpose::kDivide);
  Shuffle(&all, &random);
  auto up_to = [&](double part) { return all.begin() + static_cast<std::ptrdiff_t>(part * static_cast<double>(all.size())); };
  const auto training = up_to(job.training_part), validation = up_to(job.training_part + job.validation_part);
  return {{all.begin(), training}, {training, validation}, {validation, all.end()}};
}

Model ModelOf(Builder& b, const NodeGraph& graph, const NodeJob& job, const Value& x, const Edges& edges) {
  const GnnShape shape{.hidden = job.hidden, .classes = graph.classes};
  if (job.model == NodeModel::kMlp) return Mlp(b, {.hidden = job.hidden, .classes = graph.classes}, x);
  return job.model == NodeModel::kGcn ? Gcn(b, shape, x, edges) : Sage(b, shape, x, edges);
}

// A step, whose loss is the sum of each node's, times its weight; or, not to train, what the model says of each node.
Result<Graph> MakeGraph(const NodeGraph& graph, const NodeJob& job, bool training) {
  Builder b;
  const Dim nodes = b.NewSymbol("N", 1), edges = b.NewSymbol("E", 1);
  const Value x = b.Input("x", Dtype::kF32, {nodes, graph.features});
  const Edges among{b.Input("from", Dtype::kI32, {edges}), b.Input("to", Dtype::kI32, {edges})};
  const Model model = ModelOf(b, graph, job, x, among);
  if (training) {
    const Value labels = b.Input("labels", Dtype::kI32, {nodes}), weights = b.Input("weights", Dtype::kF32, {nodes});
    const Value loss = ReduceSum(CrossEntropy(model.logits, labels) * weights);
    const std::vector<Gradient> gradients = Grad(loss, {model.parameters.begin(), model.parameters.end()});
    b.Output("loss", loss);
    ApplyAdamW(b, model.parameters, gradients, job.learning_rate, {.weight_decay = job.weight_decay, .decay_of = DecayOf::kMatrices});
  } else {
    b.Output("class", ArgMax(model.logits));
  }
  ASSIGN_OR_RETURN(const Graph made, b.Finish());
  return FuseElementwise(RemoveDeadCode(MergeEqual(Simplify(made))));
}

// A part of the graph as inputs, filled up to `nodes` and `edges` by nodes that count nothing and hear only the last one of them.
struct PartTensors {
  Tensor x, from, to, labels, weights;

  PartTensors(const NodeGraph& graph, const Subgraph& part, std::int64_t nodes, std::int64_t edges) {
    x = Zeros(Dtype::kF32, {nodes, graph.features});
    labels = Zeros(Dtype::kI32, {nodes});
    weights = Zeros(Dtype::kF32, {nodes});
    for (std::size_t i = 0; i < part.nodes.size(); ++i) {
      const auto node = static_cast<std::size_t>(part.nodes[i]), width = static_cast<std::size_t>(graph.features);
      std::copy_n(graph.x.begin() + static_cast<std::ptrdiff_t>(node * width), width, At<float>(x) + i * width);
      At<std::int32_t>(labels)[i] = graph.labels[node];
    }
    from = Filled(part.from, edges, static_cast<std::int32_t>(nodes - 1));
    to = Filled(part.to, edges, static_cast<std::int32_t>(nodes - 1));
  }
  template <class T>
  static T* At(Tensor& tensor) {
    return reinterpret_cast<T*>(tensor.bytes.data());
  }
  std::vector<const Tensor*> Inputs(bool training) const {
    if (!training) return {&x, &from, &to};
    return {&x, &from, &to, &labels, &weights};
  }

 private:
  static Tensor Zeros(Dtype dtype, Dims dims) {
    const std::size_t bytes = static_cast<std::size_t>(NumElements(dims)) * SizeOf(dtype);
    return {dtype, std::move(dims), std::vector<std::byte>(bytes)};
  }
  static Tensor Filled(const Ids& ids, std::int64_t count, std::int32_t rest) {
    Tensor tensor = Zeros(Dtype::kI32, {count});
    std::fill(std::copy(ids.begin(), ids.end(), At<std::int32_t>(tensor)), At<std::int32_t>(tensor) + count, rest);
    return tensor;
  }
};

// The next of a few sizes, four from each power of two to the next, so that few executables serve all samples.
std::int64_t RoundedUp(std::size_t count) {
  const std::size_t step = std::max<std::size_t>(std::bit_floor(count) / 4, 64);
  return static_cast<std::int64_t>((count + step - 1) / step * step);
}

class Training {
 public:
  Training(const NodeGraph& graph, const NodeJob& job) : graph_(graph), job_(job), parts_(Divide(graph, job)), neighbours_(graph) {}

  Result<NodesTrained> Run() {
    const auto start = std::chrono::steady_clock::now();
    if (parts_.training.empty() || parts_.validation.empty() || parts_.test.empty())
      return Wrong(fmt::format("of {} nodes {} are to train on, {} to validate and {} to test with", graph_.nodes(), parts_.training.size(),
                               parts_.validation.size(), parts_.test.size()),
                   "each part needs one", "take other parts, or a larger graph");
    ASSIGN_OR_RETURN(step_graph_, MakeGraph(graph_, job_, true));
    ASSIGN_OR_RETURN(count_graph_, MakeGraph(graph_, job_, false));
    const Subgraph whole = WholeOf(neighbours_);
    // A node more than there are, for edges that fill up.
    whole_ = std::make_unique<PartTensors>(graph_, whole, graph_.nodes() + 1, std::max<std::int64_t>(1, neighbours_.edges()));
    for (std::int32_t node : parts_.training)
      PartTensors::At<float>(whole_->weights)[node] = 1 / static_cast<float>(parts_.training.size());
    Majority();
    for (std::int64_t epoch = 1; epoch <= job_.epochs; ++epoch) {
      RETURN_IF_ERROR(job_.batch == 0 ? Step(*whole_, 1) : SampledEpoch());
      if (epoch % job_.evaluate_every == 0 || epoch == job_.epochs) RETURN_IF_ERROR(Evaluate(epoch));
    }
    trained_.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return trained_;
  }

  static Status Wrong(const std::string& what, const std::string& why, const std::string& fix) {
    return Status(Code::kUserError, "TRAIN09", "training on a graph: " + what, why, fix);
  }

 private:
  // One of the executables of the step, by how many nodes and edges it takes.
  Result<Executable*> ExecutableFor(const PartTensors& part) {
    std::unique_ptr<Executable>& executable = executables_[{part.x.dims[0], part.from.dims[0]}];
    if (executable == nullptr) {
      ASSIGN_OR_RETURN(executable, CompileFor(step_graph_, part));
    }
    return executable.get();
  }
  Result<std::unique_ptr<Executable>> CompileFor(const Graph& graph, const PartTensors& part) const {
    return Compile(graph, {part.x.dims[0], part.from.dims[0]}, DefaultProgram(graph), CpuKernels(), {.num_threads = job_.threads});
  }
  RunInputs InputsOf(const PartTensors& part, bool training) const {
    RunInputs inputs;
    inputs.micro_batches[0] = part.Inputs(training);
    inputs.run = {.seed = job_.seed, .step = static_cast<std::uint64_t>(step_)};
    return inputs;
  }

  // One of `steps` of an epoch.
  Status Step(const PartTensors& part, std::int64_t steps) {
    ASSIGN_OR_RETURN(Executable* const executable, ExecutableFor(part));
    ASSIGN_OR_RETURN(const RunOutputs outputs, executable->Run(InputsOf(part, true), states_));
    const double loss = ToRef(outputs.outputs[0][0]).data.at(0);
    if (!std::isfinite(loss))
      return Status(Code::kUserError, "TRAIN01", fmt::format("step {}: the loss is {}", step_, loss), "the parameters are spoilt",
                    "take a smaller learning_rate");
    ++step_;
    if (steps_of_epoch_++ == 0) trained_.losses.push_back(0);
    trained_.losses.back() += loss / static_cast<double>(steps);
    if (steps_of_epoch_ == steps) steps_of_epoch_ = 0;
    return {};
  }

  // All training nodes once, in an order of this epoch.
  Status SampledEpoch() {
    Shuffle(&parts_.training, &order_);
    const std::span<const std::int32_t> all(parts_.training);
    const auto batch = static_cast<std::size_t>(job_.batch);
    const std::size_t steps = (all.size() + batch - 1) / batch;
    for (std::size_t begin = 0; begin < all.size(); begin += batch) {
      const auto targets = all.subspan(begin, std::min(batch, all.size() - begin));
      const Subgraph part = SampleNeighbours(neighbours_, targets, job_.fan_out, &sample_);
      PartTensors tensors(graph_, part, RoundedUp(part.nodes.size() + 1), RoundedUp(part.from.size() + 1));
      std::fill_n(PartTensors::At<float>(tensors.weights), targets.size(), 1 / static_cast<float>(targets.size()));
      RETURN_IF_ERROR(Step(tensors, static_cast<std::int64_t>(steps)));
    }
    return {};
  }

  Status Evaluate(std::int64_t epoch) {
    if (counting_ == nullptr) {
      ASSIGN_OR_RETURN(counting_, CompileFor(count_graph_, *whole_));
    }
    ASSIGN_OR_RETURN(const RunOutputs outputs, counting_->Run(InputsOf(*whole_, false), states_));
    const RefTensor said = ToRef(outputs.outputs[0][0]);
    auto count = [&](const Ids& nodes) {
      NodeCounts counts{0, static_cast<std::int64_t>(nodes.size())};
      for (std::int32_t node : nodes)
        counts.right += said.data[static_cast<std::size_t>(node)] == graph_.labels[static_cast<std::size_t>(node)] ? 1 : 0;
      return counts;
    };
    const NodeCounts validation = count(parts_.validation);
    if (trained_.epoch > 0 && validation.right <= trained_.validation.right) return {};
    trained_.epoch = epoch;
    trained_.training = count(parts_.training);
    trained_.validation = validation;
    trained_.test = count(parts_.test);
    return {};
  }

  void Majority() {
    std::vector<std::int64_t> of(static_cast<std::size_t>(graph_.classes));
    for (std::int32_t node : parts_.training) ++of[static_cast<std::size_t>(graph_.labels[static_cast<std::size_t>(node)])];
    trained_.majority = std::max_element(of.begin(), of.end()) - of.begin();
    trained_.majority_of_test.nodes = static_cast<std::int64_t>(parts_.test.size());
    for (std::int32_t node : parts_.test)
      trained_.majority_of_test.right += graph_.labels[static_cast<std::size_t>(node)] == trained_.majority ? 1 : 0;
  }

  const NodeGraph& graph_;
  const NodeJob& job_;
  Parts parts_;
  Neighbours neighbours_;
  Random order_ = RandomFor(job_, Purpose::kOrder), sample_ = RandomFor(job_, Purpose::kSample);
  Graph step_graph_, count_graph_;
  StateStore states_;
  std::unique_ptr<PartTensors> whole_;
  std::map<std::pair<std::int64_t, std::int64_t>, std::unique_ptr<Executable>> executables_;
  std::unique_ptr<Executable> counting_;
  std::int64_t step_ = 0, steps_of_epoch_ = 0;
  NodesTrained trained_;
};

Status CheckJob(const NodeJob& job) {
  const auto is_positive = [](std::int64_t number) { return number > 0; };
  if (!std::all_of(job.hidden.begin(), job.hidden.end(), is_positive))
    return Training::Wrong("a hidden layer has a width below 1", "it would say nothing", "take a width of 1 and more");
  if (job.epochs < 1 || job.evaluate_every < 1 || job.batch < 0 || job.threads < 1)
    return Training::Wrong(
        fmt::format("epochs is {}, evaluate_every {}, batch {}, threads {}", job.epochs, job.evaluate_every, job.batch, job.threads),
        "they are 1 and more, a batch 0 and more", "mend the value");
  if (!(job.training_part > 0) || !(job.validation_part > 0) || !(job.training_part + job.validation_part < 1))
    return Training::Wrong(fmt::format("the parts to train on and to validate with are {} and {}", job.training_part, job.validation_part),
                           "both are above 0, and something has to be left to test with", "mend the values");
  if (job.batch == 0) return {};
  if (job.model != NodeModel::kSage)
    return Training::Wrong("only GraphSAGE has batches", "the others are made for all nodes", "leave batch at 0");
  if (job.fan_out.size() != job.hidden.size() + 1 || !std::all_of(job.fan_out.begin(), job.fan_out.end(), is_positive))
    return Training::Wrong(fmt::format("fan_out has {} numbers", job.fan_out.size()),
                           fmt::format("there are {} layers, and each hears 1 neighbour and more", job.hidden.size() + 1),
                           "give one number above 0 for each");
  return {};
}

}  // namespace

Result<NodesTrained> TrainNodes(const NodeGraph& graph, const NodeJob& job) {
  RETURN_IF_ERROR(Check(graph));
  RETURN_IF_ERROR(CheckJob(job));
  return Training(graph, job).Run();
}

}  // namespace ropewalk::mlrunner
