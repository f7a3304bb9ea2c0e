// Families of models beyond the first two: their step graphs run on the CPU's own kernels alone, and learn what can be learnt.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "base/hash.h"
#include "mlrunner/executor/executor.h"
#include "mlrunner/graph/ops.h"
#include "mlrunner/train/family.h"
#include "mlrunner/train/step_graph.h"

namespace ropewalk::mlrunner {
namespace {

// Element e of field f of sample s is a function of all three.
class Made : public Samples {
 public:
  using Element = std::function<double(std::size_t field, std::int64_t sample, std::int64_t element)>;
  Made(std::vector<Field> fields, Element element) : fields_(std::move(fields)), element_(std::move(element)) {}
  std::int64_t count() const override { return 1 << 20; }
  const std::vector<Field>& fields() const override { return fields_; }
  void Fill(const FillCall& call) const override {
    const Field& field = fields_[call.field];
    const std::int64_t length = NumElements(field.dims);
    for (std::size_t i = 0; i < call.ids.size(); ++i) {
      for (std::int64_t e = 0; e < length; ++e) {
        const double value = element_(call.field, call.ids[i], e);
        const std::int64_t at = static_cast<std::int64_t>(i) * length + e;
        if (field.dtype == Dtype::kI32) {
          static_cast<std::int32_t*>(call.rows)[at] = static_cast<std::int32_t>(value);
        } else {
          static_cast<float*>(call.rows)[at] = static_cast<float>(value);
        }
      }
    }
  }
  std::uint64_t content_hash() const override { return 1; }

 private:
  std::vector<Field> fields_;
  Element element_;
};

std::uint64_t Draw(std::int64_t sample, std::int64_t element) {
  return HashCombine(static_cast<std::uint64_t>(sample), static_cast<std::uint64_t>(element)) >> 8;
}

struct Outcome {
  double first = 0, last = 0;
  double hits = 0;  // of what was not learnt from, a share of 1
};
void Learn(const TrainJob& job, const Samples& samples, int steps, Outcome* outcome) {
  auto inputs = [&](std::int64_t number, bool weighted, std::vector<Tensor>* all) {
    std::vector<std::int64_t> ids;
    for (std::int64_t i = 0; i < job.batch; ++i) ids.push_back(number * job.batch + i);
    for (std::size_t f = 0; f < samples.fields().size(); ++f) {
      Tensor t{samples.fields()[f].dtype, {job.batch}, {}};
      for (std::int64_t length : samples.fields()[f].dims) t.dims.push_back(length);
      t.bytes.resize(static_cast<std::size_t>(NumElements(t.dims)) * SizeOf(t.dtype));
      samples.Fill({.field = f, .ids = ids, .dtype = t.dtype, .rows = t.bytes.data()});
      all->push_back(std::move(t));
    }
    const double labels = weighted ? static_cast<double>(samples.NumLabels(ids)) : 1;
    all->push_back(ToTensor(Dtype::kF32, {{job.batch}, std::vector<double>(static_cast<std::size_t>(job.batch), 1 / labels)}));
  };
  StateStore store;
  auto run = [&](const Graph& graph, Executable& executable, std::int64_t number, bool weighted) {
    std::vector<Tensor> tensors;
    inputs(number, weighted, &tensors);
    RunInputs in;
    for (const Tensor& t : tensors) in.micro_batches[0].push_back(&t);
    in.run = {.seed = 3, .step = static_cast<std::uint64_t>(number)};
    auto ran = executable.Run(in, store);
    EXPECT_TRUE(ran.ok()) << ran.status().ToString() << graph.ops.size();
    return ran.ok() ? *std::move(ran) : RunOutputs{{{Tensor{}, Tensor{}}}, {}};
  };
  auto step = StepGraph(job, samples, 1), count = CountGraph(job, samples);
  ASSERT_TRUE(step.ok()) << step.status().ToString();
  ASSERT_TRUE(count.ok()) << count.status().ToString();
  auto training = Compile(*step, {job.batch}, StepProgram(*step, 1), CpuKernels());
  auto counting = Compile(*count, {job.batch}, DefaultProgram(*count), CpuKernels());
  ASSERT_TRUE(training.ok()) << training.status().ToString();
  ASSERT_TRUE(counting.ok()) << counting.status().ToString();
  EXPECT_EQ((*training)->fallback_ops(), 0u);
  for (int k = 0; k < steps; ++k) {
    const double loss = ToRef(run(*step, **training, k, true).outputs[0][0]).data.at(0);
    if (k == 0) outcome->first = loss;
    outcome->last = loss;
  }
  std::vector<std::int64_t> one(static_cast<std::size_t>(job.batch));
  outcome->hits = ToRef(run(*count, **counting, steps + 5, false).outputs[0][1]).data.at(0) / static_cast<double>(samples.NumLabels(one));
}

TrainJob JobOf(const std::string& kind, std::map<std::string, std::string> more) {
  TrainJob job;
  job.model.kind = kind;
  job.model.layers = 1;
  job.model.width = 16;
  job.model.heads = 2;
  job.model.length = 6;
  job.model.more = std::move(more);
  job.optimizer = {.kind = OptimizerSpec::Kind::kAdamW, .learning_rate = .01};
  job.batch = 32;
  return job;
}

constexpr std::int64_t kLength = 6, kSymbols = 9;

// The next symbol is the sum of the last two: one state of a recurrent layer has to remember.
TEST(Zoo, AnLstmRemembers) {
  const Made samples({{"tokens", Dtype::kI32, {kLength}, kSymbols}, {"next", Dtype::kI32, {kLength}, kSymbols}},
                     [](std::size_t field, std::int64_t sample, std::int64_t element) {
                       std::int64_t a = static_cast<std::int64_t>(Draw(sample, 0) % 3), b = static_cast<std::int64_t>(Draw(sample, 1) % 3);
                       for (std::int64_t k = 0; k < element + static_cast<std::int64_t>(field); ++k) {
                         const std::int64_t next = (a + b) % 3;
                         a = b;
                         b = next;
                       }
                       return static_cast<double>(a);
                     });
  Outcome outcome;
  ASSERT_NO_FATAL_FAILURE(Learn(JobOf("lstm", {{"cells", "16"}}), samples, 150, &outcome));
  EXPECT_GT(outcome.first, 1);
  EXPECT_LT(outcome.last, .35);  // of the first place's next symbol nothing is known: ln(3) / 6 is left
  EXPECT_GT(outcome.hits, .8);
}

// Two categories decide together, which no sum of their vectors does: the pairs do.
TEST(Zoo, ADlrmLearnsPairs) {
  auto id = [](std::int64_t sample, std::int64_t table) { return Draw(sample, table) % 4; };
  const Made samples({{"dense", Dtype::kF32, {3}}, {"ids", Dtype::kI32, {2}, 4}, {"click", Dtype::kF32, {}}},
                     [id](std::size_t field, std::int64_t sample, std::int64_t element) -> double {
                       if (field == 0) return static_cast<double>(Draw(sample, 10 + element) % 100) / 50 - 1;
                       if (field == 1) return static_cast<double>(id(sample, element));
                       return (id(sample, 0) ^ id(sample, 1)) & 1 ? 1 : 0;
                     });
  for (auto kind : {OptimizerSpec::Kind::kAdamW, OptimizerSpec::Kind::kSgd}) {
    TrainJob job = JobOf("dlrm", {{"vector", "8"}, {"bottom", "8"}, {"top", "16"}});
    job.optimizer.kind = kind;
    job.optimizer.momentum = 0;  // so that rows stay rows
    job.optimizer.weight_decay = 0;
    if (kind == OptimizerSpec::Kind::kSgd) {
      job.optimizer.learning_rate = .5;
      auto graph = StepGraph(job, samples, 1);
      ASSERT_TRUE(graph.ok()) << graph.status().ToString();
      const auto updates = std::count_if(graph->ops.begin(), graph->ops.end(), [](const Op& op) { return op.def == &kAddRows; });
      EXPECT_EQ(updates, 1);
    }
    Outcome outcome;
    ASSERT_NO_FATAL_FAILURE(Learn(job, samples, 400, &outcome));
    EXPECT_NEAR(outcome.first, std::log(2.0), .3);
    EXPECT_LT(outcome.last, .2);
    EXPECT_GT(outcome.hits, .95);
  }
}

// All symbols of a sequence are equal: what was at the masked place only the others know.
TEST(Zoo, ABertLooksAround) {
  const Made samples(
      {{"tokens", Dtype::kI32, {kLength}, kSymbols}, {"mask", Dtype::kF32, {kLength}}, {"original", Dtype::kI32, {kLength}, kSymbols}},
      [](std::size_t field, std::int64_t sample, std::int64_t element) -> double {
        const auto masked = static_cast<std::int64_t>(Draw(sample, 20) % kLength);
        if (field == 1) return element == masked ? 1 : 0;
        const auto symbol = static_cast<double>(Draw(sample, 0) % (kSymbols - 1));
        return field == 0 && element == masked ? kSymbols - 1 : symbol;
      });
  Outcome outcome;
  ASSERT_NO_FATAL_FAILURE(Learn(JobOf("bert", {{"inner", "32"}}), samples, 400, &outcome));
  // One of six places counts, and the mean is over all.
  EXPECT_NEAR(outcome.first, std::log(static_cast<double>(kSymbols)) / kLength, .1);
  EXPECT_LT(outcome.last, .1);
  EXPECT_GT(outcome.hits * kLength, .8);
}

}  // namespace
}  // namespace ropewalk::mlrunner
