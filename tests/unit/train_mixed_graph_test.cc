// What mixed precision and recomputation make of a step's graph: the same function but for roundings, each parameter cast once, and less
// memory with the same bits.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "base/hash.h"
#include "mlrunner/executor/executor.h"
#include "mlrunner/graph/attention.h"
#include "mlrunner/graph/explain.h"
#include "mlrunner/graph/op_def.h"
#include "mlrunner/graph/ops.h"
#include "mlrunner/graph/passes/pass.h"
#include "mlrunner/train/family.h"
#include "mlrunner/train/step_graph.h"

namespace ropewalk::mlrunner {
namespace {

// Element e of a field of sample s is drawn from all three.
class Drawn : public Samples {
 public:
  explicit Drawn(std::vector<Field> fields) : fields_(std::move(fields)) {}
  std::int64_t count() const override { return 1 << 20; }
  const std::vector<Field>& fields() const override { return fields_; }
  void Fill(const FillCall& call) const override {
    const Field& field = fields_[call.field];
    const std::int64_t length = NumElements(field.dims);
    for (std::size_t i = 0; i < call.ids.size(); ++i) {
      for (std::int64_t e = 0; e < length; ++e) {
        const std::uint64_t drawn =
            HashCombine(HashCombine(call.field, static_cast<std::uint64_t>(call.ids[i])), static_cast<std::uint64_t>(e)) >> 8;
        const std::int64_t at = static_cast<std::int64_t>(i) * length + e;
        if (field.dtype == Dtype::kI32) {
          static_cast<std::int32_t*>(call.rows)[at] = static_cast<std::int32_t>(drawn % static_cast<std::uint64_t>(field.classes));
        } else {
          static_cast<float*>(call.rows)[at] = static_cast<float>(drawn % 1000) / 1000;
        }
      }
    }
  }
  std::uint64_t content_hash() const override { return 1; }

 private:
  std::vector<Field> fields_;
};

Drawn Tokens() { return Drawn({{"tokens", Dtype::kI32, {8}, 9}, {"next", Dtype::kI32, {8}, 9}}); }
Drawn Images() { return Drawn({{"image", Dtype::kF32, {3, 16, 16}}, {"label", Dtype::kI32, {}, 4}}); }
Drawn Masked() { return Drawn({{"tokens", Dtype::kI32, {8}, 9}, {"mask", Dtype::kF32, {8}}, {"original", Dtype::kI32, {8}, 9}}); }

TrainJob JobOf(const std::string& kind, std::map<std::string, std::string> more = {}) {
  TrainJob job;
  job.model.kind = kind;
  job.model.layers = 4;
  job.model.width = 16;
  job.model.heads = 2;
  job.model.length = 8;
  job.model.more = std::move(more);
  job.optimizer = {.kind = OptimizerSpec::Kind::kAdamW, .learning_rate = .01};
  job.batch = 8;
  return job;
}

struct Subject {
  const char* name;
  TrainJob job;
  Drawn samples;
};
std::vector<Subject> Subjects() {
  return {{"gpt", JobOf("gpt"), Tokens()},
          {"bert", JobOf("bert", {{"inner", "32"}, {"dropout", "0.2"}}), Masked()},
          {"lstm", JobOf("lstm", {{"cells", "16"}, {"dropout", "0.2"}}), Tokens()},
          {"lenet", JobOf("lenet"), Drawn({{"image", Dtype::kF32, {1, 28, 28}}, {"label", Dtype::kI32, {}, 4}})},
          {"resnet", JobOf("resnet", {{"depth", "8"}}), Images()}};
}

Graph GraphOf(const Subject& subject, const TrainJob& job) {
  auto graph = StepGraph(job, subject.samples, 1);
  EXPECT_TRUE(graph.ok()) << graph.status().ToString();
  return graph.ok() ? *std::move(graph) : Graph();
}

std::vector<Tensor> Inputs(const Subject& subject, std::int64_t rows, std::int64_t number, double weight) {
  std::vector<Tensor> all;
  std::vector<std::int64_t> ids;
  for (std::int64_t i = 0; i < rows; ++i) ids.push_back(number * rows + i);
  for (std::size_t f = 0; f < subject.samples.fields().size(); ++f) {
    Tensor t{subject.samples.fields()[f].dtype, {rows}, {}};
    for (std::int64_t length : subject.samples.fields()[f].dims) t.dims.push_back(length);
    t.bytes.resize(static_cast<std::size_t>(NumElements(t.dims)) * SizeOf(t.dtype));
    subject.samples.Fill({.field = f, .ids = ids, .dtype = t.dtype, .rows = t.bytes.data()});
    all.push_back(std::move(t));
  }
  all.push_back(ToTensor(Dtype::kF32, {{rows}, std::vector<double>(static_cast<std::size_t>(rows), weight)}));
  return all;
}

struct Ran {
  std::vector<double> losses;
  std::size_t bytes = 0, fallbacks = 0;
  std::map<const Op*, int> times;  // how often each op ran in a step
};
Ran RunSteps(const Subject& subject, const Graph& graph, std::int32_t micro_batches, int steps) {
  Ran result;
  const std::int64_t rows = subject.job.batch / micro_batches;
  auto executable = Compile(graph, {rows}, StepProgram(graph, micro_batches), CpuKernels());
  EXPECT_TRUE(executable.ok()) << executable.status().ToString();
  if (!executable.ok()) return result;
  result.bytes = (*executable)->arena_bytes();
  result.fallbacks = (*executable)->fallback_ops();
  StateStore states;
  for (int step = 0; step < steps; ++step) {
    std::vector<std::vector<Tensor>> tensors;
    for (std::int32_t part = 0; part < micro_batches; ++part)
      tensors.push_back(Inputs(subject, rows, step * micro_batches + part, 1 / static_cast<double>(subject.job.batch)));
    RunInputs inputs;
    inputs.micro_batches.clear();
    for (const auto& list : tensors) {
      inputs.micro_batches.emplace_back();
      for (const Tensor& tensor : list) inputs.micro_batches.back().push_back(&tensor);
    }
    inputs.run = {.seed = 3, .step = static_cast<std::uint64_t>(step)};
    std::vector<OpTime> times;
    inputs.times = &times;
    auto ran = (*executable)->Run(inputs, states);
    EXPECT_TRUE(ran.ok()) << ran.status().ToString();
    if (!ran.ok()) return result;
    result.losses.push_back(ToRef(ran->outputs[0][0]).data.at(0));
    result.times.clear();
    for (const OpTime& time : times) ++result.times[time.op];
  }
  return result;
}

bool IsProduct(const Op& op) {
  return op.def == &kMatMul || op.def == &kConv2D || op.def == &kConv2DInputGrad || op.def == &kConv2DWeightGrad;
}

bool HasProducts(const Op& op) { return IsProduct(op) || op.def == &kAttention || op.def == &kCausalAttention; }

TEST(Autocast, ProductsAreOf16BitsAndSumsOfF32) {
  for (const Subject& subject : Subjects()) {
    SCOPED_TRACE(subject.name);
    TrainJob job = subject.job;
    job.precision = Dtype::kBF16;
    const Graph graph = GraphOf(subject, job);
    for (const StateInfo& state : graph.states) EXPECT_TRUE(state.type.dtype == Dtype::kF32 || SizeOf(state.type.dtype) == 0) << state.name;
    int products = 0, narrow = 0;
    for (const Op& op : graph.ops) {
      if (IsProduct(op)) {
        ++products;
        for (ValueId in : op.inputs) EXPECT_EQ(graph.value(in).type.dtype, Dtype::kBF16);
        narrow += graph.value(op.outputs[0]).type.dtype == Dtype::kBF16;
        if (op.def == &kConv2DWeightGrad) {
          EXPECT_EQ(graph.value(op.outputs[0]).type.dtype, Dtype::kF32);
        }
        continue;
      }
      const bool may_be_narrow = op.def->traits.view || op.def == &kMap || op.def == &kCast || op.def == &kTranspose || op.def == &kSlice ||
                                 op.def == &kPad || op.def == &kConcat || op.def == &kBroadcastTo || op.def == &kMaxPool2D ||
                                 op.def == &kMaxPool2DGrad;
      if (may_be_narrow) continue;
      for (const auto* list : {&op.inputs, &op.outputs})
        for (ValueId value : *list) EXPECT_NE(graph.value(value).type.dtype, Dtype::kBF16) << op.def->name;
    }
    EXPECT_GT(products, 5);
    if (std::string(subject.name) == "gpt") {
      EXPECT_GT(narrow, 5) << "activations are kept in 16 bits";
    }
  }
}

// Without roundings it is the function that it was, to the last bit of a double: casts are all that it adds.
TEST(Autocast, ChangesNothingButRoundings) {
  for (const Subject& subject : Subjects()) {
    SCOPED_TRACE(subject.name);
    TrainJob job = subject.job;
    const Graph plain = GraphOf(subject, job);
    for (Dtype precision : {Dtype::kBF16, Dtype::kF16}) {
      job.precision = precision;
      const Graph mixed = GraphOf(subject, job);
      constexpr std::int64_t kRows = 2;
      std::vector<RefTensor> inputs;
      for (const Tensor& tensor : Inputs(subject, kRows, 0, .5)) inputs.push_back(ToRef(tensor));
      std::map<std::string, RefTensor> before, after;
      const RunContext run{.seed = 3, .step = 0};
      auto a = Evaluate(plain, {kRows}, inputs, before, run, {.round = false});
      auto c = Evaluate(mixed, {kRows}, inputs, after, run, {.round = false});
      ASSERT_TRUE(a.ok() && c.ok()) << a.status().ToString() << c.status().ToString();
      EXPECT_NEAR(c->outputs[0].data[0], a->outputs[0].data[0], 1e-12 * a->outputs[0].data[0]);
      for (const auto& [name, value] : before) {
        double size = 0, worst = 0;
        for (std::size_t i = 0; i < value.data.size(); ++i) {
          size = std::max(size, std::fabs(value.data[i]));
          worst = std::max(worst, std::fabs(value.data[i] - after.at(name).data[i]));
        }
        EXPECT_LE(worst, 1e-9 * size) << name;
      }
    }
  }
}

// However often a parameter is used, and in however many micro-batches.
TEST(Autocast, EachParameterIsCastOnceAStep) {
  const Subject gpt = Subjects()[0];
  TrainJob job = gpt.job;
  job.precision = Dtype::kBF16;
  job.model.tied = true;  // the table is a factor of the last product, too
  for (std::int32_t micro_batches : {1, 4}) {
    job.micro_batches = micro_batches;
    const Graph graph = GraphOf(gpt, job);
    const Ran ran = RunSteps(gpt, graph, micro_batches, 2);
    std::map<std::string, int> casts;
    int products = 0;
    for (const auto& [op, times] : ran.times) {
      if (op->def == &kCast && graph.value(op->outputs[0]).type.dtype == Dtype::kBF16) {
        const Op& maker = graph.op(graph.value(op->inputs[0]).producer);
        if (maker.def == &kRead) casts[graph.state(graph.value(maker.inputs[0]).state).name] += times;
      }
      if (op->def == &kMatMul) products += times;
    }
    EXPECT_EQ(casts.size(), 4u * 4 + 1) << "four matrices a block, and the table";
    for (const auto& [name, times] : casts) EXPECT_EQ(times, 1) << name;
    EXPECT_GE(products, micro_batches * 3 * 25);
    EXPECT_EQ(ran.fallbacks, 0u);
  }
  const std::string text = ExplainText(GraphOf(gpt, job));
  for (const char* part : {"once, before forward:", " bf16 = Cast(", " bf16 = MatMul(", " f32 = MatMul("})
    EXPECT_NE(text.find(part), std::string::npos) << part;
}

// The kernels compute what the reference does with the roundings of the types, and none falls back to it that has a kernel of f32.
TEST(Autocast, KernelsAgreeWithTheReference) {
  for (const Subject& subject : Subjects()) {
    TrainJob job = subject.job;
    const Ran single = RunSteps(subject, GraphOf(subject, job), 1, 3);
    for (Dtype precision : {Dtype::kBF16, Dtype::kF16}) {
      SCOPED_TRACE(std::string(subject.name) + " " + std::string(Name(precision)));
      job.precision = precision;
      const Graph graph = GraphOf(subject, job);
      const Ran mixed = RunSteps(subject, graph, 1, 3);
      EXPECT_EQ(mixed.fallbacks, single.fallbacks);
      std::vector<RefTensor> inputs;
      for (const Tensor& tensor : Inputs(subject, subject.job.batch, 0, 1 / static_cast<double>(subject.job.batch)))
        inputs.push_back(ToRef(tensor));
      std::map<std::string, RefTensor> states;
      auto reference = Evaluate(graph, {subject.job.batch}, inputs, states, {.seed = 3, .step = 0});
      ASSERT_TRUE(reference.ok()) << reference.status().ToString();
      // A number that lies between two of bf16 is rounded to either side by sums in another order.
      EXPECT_NEAR(mixed.losses.at(0), reference->outputs[0].data[0], 2e-3 * single.losses.at(0));
    }
  }
}

// What forward keeps of products is half as large. (Of small convolutions it is not: their peak is the f32 copies of one of them.)
TEST(Autocast, TransformersNeedLessMemory) {
  for (const Subject& subject : {Subjects()[0], Subjects()[1]}) {
    SCOPED_TRACE(subject.name);
    TrainJob job = subject.job;
    const std::size_t single = RunSteps(subject, GraphOf(subject, job), 1, 1).bytes;
    job.precision = Dtype::kBF16;
    EXPECT_LT(RunSteps(subject, GraphOf(subject, job), 1, 1).bytes, .85 * static_cast<double>(single));
  }
}

TEST(RecomputeAs, LessMemoryAndTheSameBits) {
  for (const Subject& subject : Subjects()) {
    for (Dtype precision : {Dtype::kF32, Dtype::kBF16}) {
      TrainJob job = subject.job;
      job.precision = precision;
      const Ran all = RunSteps(subject, GraphOf(subject, job), 1, 4);
      const bool has_blocks = std::string(subject.name) != "lenet";
      for (RecomputeMarks marks : {RecomputeMarks::kSelective, RecomputeMarks::kBlocks, RecomputeMarks::kRoots}) {
        SCOPED_TRACE(std::string(subject.name) + " " + std::string(Name(precision)) + " marks " + std::to_string(static_cast<int>(marks)));
        job.recompute = marks;
        if (marks != RecomputeMarks::kSelective && !has_blocks) {
          EXPECT_EQ(StepGraph(job, subject.samples, 1).status().tag(), "TRAIN08");
          continue;
        }
        const Graph graph = GraphOf(subject, job);
        const Ran less = RunSteps(subject, graph, 1, 4);
        EXPECT_EQ(less.losses, all.losses);
        std::printf("%s %s marks %d: %zu of %zu bytes\n", subject.name, std::string(Name(precision)).c_str(), static_cast<int>(marks),
                    less.bytes, all.bytes);
        // LeNet's peak is where its images are, which both keep.
        if (has_blocks) {
          EXPECT_LT(less.bytes, all.bytes);
        } else {
          EXPECT_LE(less.bytes, all.bytes);
        }
        EXPECT_TRUE(std::any_of(graph.ops.begin(), graph.ops.end(), [](const Op& op) { return op.clone > 0; }));
        if (marks == RecomputeMarks::kSelective) {
          EXPECT_FALSE(std::any_of(graph.ops.begin(), graph.ops.end(), [](const Op& op) { return op.clone > 0 && HasProducts(op); }));
        }
      }
    }
  }
}

}  // namespace
}  // namespace ropewalk::mlrunner
