// Convolutional models: names and sizes of their parameters, gradients against central differences in float64, running statistics, and
// that they learn.
#include <gtest/gtest.h>

#include <functional>

#include "mlrunner/executor/executor.h"
#include "mlrunner/graph/optimizers.h"
#include "mlrunner/models/convnets.h"
#include "mlrunner/models/resnet.h"
#include "tests/unit/built_models.h"

namespace ropewalk::mlrunner {
namespace {

using MakeModel = std::function<Model(Builder&, const Value&, const LayerOptions&)>;

MakeModel Of(const ResNetShape& shape) {
  return [shape](Builder& b, const Value& x, const LayerOptions& o) { return ResNet(b, shape, x, o); };
}
MakeModel OfLeNet() {
  return [](Builder& b, const Value& x, const LayerOptions& o) { return LeNet5(b, 10, x, o); };
}
MakeModel Of(const CnnShape& shape) {
  return [shape](Builder& b, const Value& x, const LayerOptions& o) { return Cnn(b, shape, x, o); };
}

// Outputs: the loss, the logits; and with `gradients` that of each parameter, else after a step of SGD if the model trains.
Built Build(const MakeModel& make, Shape image, Mode mode, bool gradients) {
  Builder b;
  Shape shape{b.NewSymbol("B")};
  shape.insert(shape.end(), image.begin(), image.end());
  Value x = b.Input("x", Dtype::kF32, shape), labels = b.Input("labels", Dtype::kI32, {x.dim(0)});
  Model model = make(b, x, {.mode = mode});
  Value loss = Mean(CrossEntropy(model.logits, labels));
  b.Output("loss", loss);
  b.Output("logits", model.logits);
  Built built = Describe(b, model);
  if (gradients || mode == Mode::kTraining) {
    std::vector<Gradient> grads = Grad(loss, {model.parameters.begin(), model.parameters.end()});
    for (std::size_t i = 0; i < grads.size() && gradients; ++i) b.Output("gradient", grads[i]);
    if (!gradients) ApplySgd(b, model.parameters, grads, .1, {.momentum = .9});
  }
  auto graph = b.Finish();
  EXPECT_TRUE(graph.ok()) << graph.status().ToString();
  if (graph.ok()) built.graph = *graph;
  return built;
}

TEST(VisionModels, NamesAndSizes) {
  const Built lenet = Build(OfLeNet(), {1, 28, 28}, Mode::kEvaluation, false);
  EXPECT_EQ(lenet.logits, "(B, 10)");
  EXPECT_EQ(lenet.numbers, 61706);
  EXPECT_EQ(lenet.parameters, (std::vector<std::string>{"conv1/w", "conv1/b", "conv2/w", "conv2/b", "linear1/w", "linear1/b", "linear2/w",
                                                        "linear2/b", "out/w", "out/b"}));
  const Built cnn = Build(Of(CnnShape{}), {1, 28, 28}, Mode::kTraining, false);
  EXPECT_EQ(cnn.numbers, 9 * 32 + 64 + 9 * 32 * 64 + 128 + (7 * 7 * 64 * 128 + 128) + (128 * 10 + 10));
  const Built small = Build(Of(ResNet8()), {3, 32, 32}, Mode::kTraining, false);
  EXPECT_EQ(small.logits, "(B, 10)");
  EXPECT_EQ(small.numbers, 78042);
  EXPECT_EQ(std::vector<std::string>(small.parameters.begin(), small.parameters.begin() + 6),
            (std::vector<std::string>{"stem/conv/w", "stem/norm/gain", "stem/norm/bias", "stage1/block0/conv1/w",
                                      "stage1/block0/norm1/gain", "stage1/block0/norm1/bias"}));
  // As the papers have them, and the models that everybody loads.
  EXPECT_EQ(Build(Of(ResNet18()), {3, 224, 224}, Mode::kEvaluation, false).numbers, 11689512);
  EXPECT_EQ(Build(Of(ResNet50()), {3, 224, 224}, Mode::kEvaluation, false).numbers, 25557032);
}

TEST(VisionModels, BothModesHaveTheSameStates) {
  auto names = [](const Graph& graph) {
    std::set<std::string> all;
    for (const StateInfo& state : graph.states) {
      if (state.kind == StateKind::kParameter || state.kind == StateKind::kStatistic)
        all.insert(state.name + ToString(Evaluate(state.logical, {1})));
    }
    all.erase(std::string(kLearningRate) + "()");
    return all;
  };
  const std::set<std::string> training = names(Build(Of(ResNet8()), {3, 32, 32}, Mode::kTraining, false).graph);
  EXPECT_EQ(training, names(Build(Of(ResNet8()), {3, 32, 32}, Mode::kEvaluation, false).graph));
  EXPECT_TRUE(training.contains("stage2/block0/norm_by/running_variance(32)"));
}

// A few elements of every parameter. Where a ReLU or a maximum changes its mind between the two losses another element is taken.
void GradientsAreDifferences(const MakeModel& make, const Shape& image, Mode mode) {
  constexpr std::int64_t kClasses = 4;
  const Built built = Build(make, image, mode, true);
  auto wide = ChangeFloats(built.graph, Dtype::kF32, Dtype::kF64);
  ASSERT_TRUE(wide.ok() && Check(*wide).ok());
  const std::vector<RefTensor> inputs = Inputs(*wide, 7, kClasses);
  std::map<std::string, RefTensor> states;
  ASSERT_TRUE(Evaluate(*wide, {kRows}, inputs, states).ok());
  Random random(11);
  for (auto& [name, tensor] : states) {
    for (double& value : tensor.data) value += (random.Unit() - .5) * .2;
  }
  std::map<std::string, RefTensor> after = states;
  auto at = Evaluate(*wide, {kRows}, inputs, after);
  ASSERT_TRUE(at.ok()) << at.status().ToString();
  for (std::size_t p = 0; p < built.parameters.size(); ++p) {
    const RefTensor& gradient = at->outputs[2 + p];
    int agreed = 0, kinks = 0;
    double largest = 0;
    for (double value : gradient.data) largest = std::max(largest, std::fabs(value));
    EXPECT_GT(largest, 0) << built.parameters[p] << " learns nothing";
    while (agreed < 2 && kinks < 6) {
      const std::size_t element = random.Below(gradient.data.size());
      auto loss = [&](double by) {
        std::map<std::string, RefTensor> moved = states;
        moved[built.parameters[p]].data[element] += by;
        return Evaluate(*wide, {kRows}, inputs, moved)->outputs[0].data[0];
      };
      const double fine = (loss(1e-6) - loss(-1e-6)) / 2e-6, coarse = (loss(2e-6) - loss(-2e-6)) / 4e-6;
      const double tolerance = 1e-6 * std::max(1.0, std::fabs(fine));
      if (std::fabs(fine - coarse) > tolerance) {
        ++kinks;
        continue;
      }
      EXPECT_NEAR(gradient.data[element], fine, tolerance) << built.parameters[p];
      ++agreed;
    }
    EXPECT_LT(kinks, 6) << built.parameters[p];
  }
}

TEST(VisionModels, GradientsAreThoseOfTheLoss) {
  const ResNetShape basic{.blocks = {1, 1}, .width = 3, .classes = 4};
  ResNetShape bottleneck = basic;
  bottleneck.block = ResNetShape::Block::kBottleneck;
  bottleneck.stem = ResNetShape::Stem::kLarge;
  bottleneck.width = 2;
  for (Mode mode : {Mode::kTraining, Mode::kEvaluation}) {
    GradientsAreDifferences(Of(basic), {2, 6, 6}, mode);
    GradientsAreDifferences(Of(bottleneck), {1, 16, 16}, mode);
  }
  GradientsAreDifferences(Of(CnnShape{.width = 2, .hidden = 5, .classes = 4}), {1, 8, 8}, Mode::kTraining);
}

// torch.nn.BatchNorm1d(2, momentum=.1) after batches [[1, 10], [3, 10], [5, 40]] and [[-1, 0], [1, 0], [0, 3]]: the first has the means 3
// and 20, and the variances (divided by one less) 4 and 300; the second 0 and 1, 1 and 3.
TEST(BatchNormLayer, RunningStatisticsFollowTheConvention) {
  for (bool padded : {false, true}) {
    const std::int64_t rows = padded ? 4 : 3;
    Builder b;
    Value x = b.Input("x", Dtype::kF32, {rows, 2});
    Layers m(b, {.weights = b.Input("weights", Dtype::kF32, {rows})});
    b.Output("y", m.BatchNorm("norm", x));
    auto graph = b.Finish();
    ASSERT_TRUE(graph.ok()) << graph.status().ToString();
    auto wide = ChangeFloats(*graph, Dtype::kF32, Dtype::kF64);
    ASSERT_TRUE(wide.ok());
    std::map<std::string, RefTensor> states;
    RefTensor counted{{rows}, {.25, .25, .25}}, first{{rows, 2}, {1, 10, 3, 10, 5, 40}}, second{{rows, 2}, {-1, 0, 1, 0, 0, 3}};
    if (padded) {
      counted.data.push_back(0);
      for (RefTensor* batch : {&first, &second}) batch->data.insert(batch->data.end(), {777, -55});
    }
    for (const RefTensor& batch : {first, second}) {
      auto result = Evaluate(*wide, {}, {batch, counted}, states);
      ASSERT_TRUE(result.ok()) << result.status().ToString();
      const std::vector<double>& y = result->outputs[0].data;
      EXPECT_NEAR(y[0] + y[2] + y[4], 0, 1e-12);
      EXPECT_NEAR(y[0] * y[0] + y[2] * y[2] + y[4] * y[4], 3, 1e-4);  // a variance of 1, but for epsilon
    }
    const std::vector<double>&mean = states.at("norm/running_mean").data, &variance = states.at("norm/running_variance").data;
    EXPECT_NEAR(mean[0], .9 * .3, 1e-12);
    EXPECT_NEAR(mean[1], .9 * 2 + .1, 1e-12);
    EXPECT_NEAR(variance[0], .9 * (.9 + .4) + .1, 1e-12);
    EXPECT_NEAR(variance[1], .9 * (.9 + 30) + .3, 1e-12);
  }
}

// Which quarter of the image is bright: a training finds out, and an evaluation on its states, by running statistics, agrees.
TEST(VisionModels, LearnAndAreEvaluated) {
  constexpr std::int64_t kRows = 32, kClasses = 4, kSize = 12;
  struct Case {
    const char* name;
    MakeModel make;
    int steps;
  };
  const std::vector<Case> cases = {
      {"resnet", Of(ResNetShape{.blocks = {1, 1}, .width = 16, .classes = kClasses}), 60},
      {"cnn", Of(CnnShape{.width = 8, .hidden = 16, .classes = kClasses}), 40},
      {"lenet", [](Builder& b, const Value& x, const LayerOptions& o) { return LeNet5(b, kClasses, x, o); }, 60},
  };
  for (const Case& test : cases) {
    SCOPED_TRACE(test.name);
    auto passed = [](const Graph& graph) { return FuseElementwise(RemoveDeadCode(MergeEqual(Simplify(graph)))); };
    const Graph training = passed(Build(test.make, {1, kSize, kSize}, Mode::kTraining, false).graph);
    const Graph evaluation = passed(Build(test.make, {1, kSize, kSize}, Mode::kEvaluation, false).graph);
    auto step = Compile(training, {kRows}, DefaultProgram(training), CpuKernels());
    auto count = Compile(evaluation, {kRows}, DefaultProgram(evaluation), CpuKernels());
    ASSERT_TRUE(step.ok() && count.ok()) << step.status().ToString() << count.status().ToString();
    EXPECT_EQ((*step)->fallback_ops(), 0u);
    EXPECT_EQ((*count)->fallback_ops(), 0u);
    StateStore states;
    Random random(5);
    auto batch = [&](RefTensor* x, RefTensor* labels) {
      *x = {{kRows, 1, kSize, kSize}, {}};
      *labels = {{kRows}, {}};
      for (std::int64_t row = 0; row < kRows; ++row) {
        const auto quarter = static_cast<std::int64_t>(random.Below(kClasses));
        labels->data.push_back(static_cast<double>(quarter));
        for (std::int64_t at = 0; at < kSize * kSize; ++at) {
          const bool bright = at / kSize / (kSize / 2) == quarter / 2 && at % kSize / (kSize / 2) == quarter % 2;
          x->data.push_back(random.Unit() - .5 + (bright ? 1 : 0));
        }
      }
    };
    double first = 0, last = 0;
    for (int i = 0; i <= test.steps; ++i) {
      // Towards the end the model must stand still for its running statistics to be those of the model that it is.
      states.Set(kLearningRate, ToTensor(Dtype::kF32, RefTensor::Scalar(i + 20 < test.steps ? .02 : .001)));
      RefTensor x, labels;
      batch(&x, &labels);
      const Tensor xt = ToTensor(Dtype::kF32, x), lt = ToTensor(Dtype::kI32, labels);
      RunInputs inputs;
      inputs.micro_batches[0] = {&xt, &lt};
      auto out = (i == test.steps ? *count : *step)->Run(inputs, states);
      ASSERT_TRUE(out.ok()) << out.status().ToString();
      last = ToRef(out->outputs[0][0]).data[0];
      if (i == 0) first = last;
    }
    EXPECT_LT(last, .4 * first) << "of " << first;
  }
}

}  // namespace
}  // namespace ropewalk::mlrunner
