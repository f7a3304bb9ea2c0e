// Each op of an import against numbers from its definition; lengths that are computed when a model is read; decomposed ops that are found
// again; and that no op is said to be known which no test runs.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "mlrunner/onnx/file.h"
#include "mlrunner/onnx/recognise.h"
#include "tests/unit/onnx_models.h"

namespace ropewalk::mlrunner::onnx {
namespace {

using testing::CountOps;
using testing::DataPath;
using testing::Distance;
using Attributes = std::map<std::string, Attribute>;
using Ints = std::vector<std::int64_t>;

struct Given {
  Dtype dtype;
  RefTensor values;
};
Given Reals(Dims dims, std::vector<double> values) { return {Dtype::kF64, {std::move(dims), std::move(values)}}; }
Given Wholes(Dims dims, std::vector<double> values) { return {Dtype::kI64, {std::move(dims), std::move(values)}}; }
Given Flags(Dims dims, std::vector<double> values) { return {Dtype::kBool, {std::move(dims), std::move(values)}}; }
Given Row(const std::vector<double>& values) { return Wholes({static_cast<std::int64_t>(values.size())}, values); }

struct OpCase {
  std::string op;
  std::vector<Given> inputs;
  RefTensor expected;
  Attributes attributes = {};
  std::set<std::size_t> constant = {};  // inputs that must be known when the model is read; others come with a run
  std::int64_t opset = 17;
};

const Given kX = Reals({2, 3}, {-2, -.5, 0, .25, 1, 3});
RefTensor Each(double (*f)(double)) {
  RefTensor y = kX.values;
  for (double& value : y.data) value = f(value);
  return y;
}
RefTensor Positive(double (*f)(double)) {
  RefTensor y = kX.values;
  for (double& value : y.data) value = f(std::fabs(value) + 1);
  return y;
}
const Given kPositive = {Dtype::kF64, Positive([](double x) { return x; })};

std::vector<OpCase> Cases() {
  const Given a = Reals({2, 2}, {1, 5, -3, 2}), b = Reals({2}, {2, 2}), n = Wholes({2, 2}, {7, -7, 4, 9}), m = Wholes({2}, {2, 3});
  const Given p = Flags({2, 2}, {1, 1, 0, 0}), q = Flags({2, 2}, {1, 0, 1, 0});
  const Given image = Reals({1, 1, 3, 3}, {1, 2, 3, 4, 5, 6, 7, 8, 9});
  const Dims s{2, 2}, v{2, 3};
  return {
      {"Abs", {kX}, Each([](double x) { return std::fabs(x); })},
      {"Cos", {kX}, Each([](double x) { return std::cos(x); })},
      {"Sin", {kX}, Each([](double x) { return std::sin(x); })},
      {"Erf", {kX}, Each([](double x) { return std::erf(x); })},
      {"Exp", {kX}, Each([](double x) { return std::exp(x); })},
      {"Log", {kPositive}, Positive([](double x) { return std::log(x); })},
      {"Neg", {kX}, Each([](double x) { return -x; })},
      {"Reciprocal", {kPositive}, Positive([](double x) { return 1 / x; })},
      {"Sqrt", {kPositive}, Positive([](double x) { return std::sqrt(x); })},
      {"Relu", {kX}, Each([](double x) { return std::max(x, 0.); })},
      {"Sigmoid", {kX}, Each([](double x) { return 1 / (1 + std::exp(-x)); })},
      {"Sign", {kX}, Each([](double x) { return x > 0   ? 1.
                                                : x < 0 ? -1.
                                                        : 0.; })},
      {"Tanh", {kX}, Each([](double x) { return std::tanh(x); })},
      {"Softplus", {kX}, Each([](double x) { return std::log1p(std::exp(x)); })},
      {"Mish", {kX}, Each([](double x) { return x * std::tanh(std::log1p(std::exp(x))); })},
      {"Elu", {kX}, Each([](double x) { return x > 0 ? x : 2 * std::expm1(x); }), {{"alpha", 2.}}},
      {"Selu", {kX}, Each([](double x) { return 1.05070102214813232421875 * (x > 0 ? x : 1.67326319217681884765625 * std::expm1(x)); })},
      {"LeakyRelu", {kX}, Each([](double x) { return x > 0 ? x : .1 * x; }), {{"alpha", .1}}},
      {"PRelu", {kX, Reals({3}, {2, 3, 4})}, {v, {-4, -1.5, 0, .25, 1, 3}}},
      {"HardSigmoid", {kX}, Each([](double x) { return std::clamp(.2 * x + .5, 0., 1.); })},
      {"HardSwish", {kX}, Each([](double x) { return x * std::clamp(x / 6 + .5, 0., 1.); })},
      {"Gelu", {kX}, Each([](double x) { return .5 * x * (1 + std::erf(x / std::sqrt(2))); })},
      {"Gelu",
       {kX},
       Each([](double x) { return .5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + .044715 * x * x * x))); }),
       {{"approximate", std::string("tanh")}}},
      {"Floor", {kX}, Each([](double x) { return std::floor(x); }), {}, {0}},
      {"Ceil", {kX}, Each([](double x) { return std::ceil(x); }), {}, {0}},
      {"Round", {kX}, Each([](double x) { return std::nearbyint(x); }), {}, {0}},
      {"Identity", {kX}, kX.values},
      {"Dropout", {kX}, kX.values},
      {"Add", {a, b}, {s, {3, 7, -1, 4}}},
      {"Add", {n, m}, {s, {9, -4, 6, 12}}},
      {"Sub", {a, b}, {s, {-1, 3, -5, 0}}},
      {"Sub", {n, m}, {s, {5, -10, 2, 6}}},
      {"Mul", {a, b}, {s, {2, 10, -6, 4}}},
      {"Mul", {n, m}, {s, {14, -21, 8, 27}}},
      {"Div", {a, b}, {s, {.5, 2.5, -1.5, 1}}},
      {"Div", {n, m}, {s, {3, -2, 2, 3}}},
      {"Pow", {a, Reals({}, {3})}, {s, {1, 125, -27, 8}}},
      {"Pow", {a, Reals({}, {2})}, {s, {1, 25, 9, 4}}},
      {"Pow", {kPositive, Reals({3}, {.5, 2, -1})}, {v, {std::sqrt(3), 2.25, 1, std::sqrt(1.25), 4, .25}}},
      {"Max", {a, b}, {s, {2, 5, 2, 2}}},
      {"Max", {n, m, Wholes({}, {8})}, {s, {8, 8, 8, 9}}},
      {"Min", {a, b}, {s, {1, 2, -3, 2}}},
      {"Min", {n, m}, {s, {2, -7, 2, 3}}},
      {"Sum", {a, b, b}, {s, {5, 9, 1, 6}}},
      {"Mean", {a, b}, {s, {1.5, 3.5, -.5, 2}}},
      {"Clip", {kX, Reals({}, {-1}), Reals({}, {1})}, {v, {-1, -.5, 0, .25, 1, 1}}},
      {"Equal", {n, Wholes({}, {4})}, {s, {0, 0, 1, 0}}},
      {"Less", {a, b}, {s, {1, 0, 1, 0}}},
      {"LessOrEqual", {a, b}, {s, {1, 0, 1, 1}}},
      {"Greater", {a, b}, {s, {0, 1, 0, 0}}},
      {"GreaterOrEqual", {a, b}, {s, {0, 1, 0, 1}}},
      {"GreaterOrEqual", {Reals({2}, {NAN, 1}), b}, {{2}, {0, 0}}},
      {"Not", {p}, {s, {0, 0, 1, 1}}},
      {"And", {p, q}, {s, {1, 0, 0, 0}}},
      {"Or", {p, q}, {s, {1, 1, 1, 0}}},
      {"Xor", {p, q}, {s, {0, 1, 1, 0}}},
      {"IsNaN", {Reals({3}, {NAN, 1, HUGE_VAL})}, {{3}, {1, 0, 0}}},
      {"IsInf", {Reals({3}, {NAN, 1, -HUGE_VAL})}, {{3}, {0, 0, 1}}},
      {"Where", {p, a, b}, {s, {1, 5, 2, 2}}},
      {"Where", {p, n, m}, {s, {7, -7, 2, 3}}},
      {"Cast", {Reals({3}, {-1.7, 0, 2.2})}, {{3}, {-1, 0, 2}}, {{"to", std::int64_t{7}}}},
      {"Cast", {Reals({3}, {-1.7, 0, 2.2})}, {{3}, {1, 0, 1}}, {{"to", std::int64_t{9}}}},
      {"CastLike", {n, b}, n.values},
      {"Concat", {a, Reals({2, 1}, {8, 9})}, {v, {1, 5, 8, -3, 2, 9}}, {{"axis", std::int64_t{1}}}},
      {"Concat", {m, Row({4})}, {{3}, {2, 3, 4}}, {{"axis", std::int64_t{0}}}},
      {"Expand", {b, Row({3, 2})}, {{3, 2}, {2, 2, 2, 2, 2, 2}}, {}, {1}},
      {"ConstantOfShape", {Row({2, 1})}, {{2, 1}, {0, 0}}, {}, {0}},
      {"Flatten", {image}, {{1, 9}, image.values.data}},
      {"Reshape", {kX, Row({0, -1, 1})}, {{2, 3, 1}, kX.values.data}, {}, {1}},
      {"Squeeze", {image}, {{3, 3}, image.values.data}},
      {"Squeeze", {image, Row({0})}, {{1, 3, 3}, image.values.data}, {}, {1}},
      {"Unsqueeze", {b, Row({0, -1})}, {{1, 2, 1}, {2, 2}}, {}, {1}},
      {"Transpose", {kX}, {{3, 2}, {-2, .25, -.5, 1, 0, 3}}},
      {"Transpose", {n}, {s, {7, 4, -7, 9}}, {{"perm", Ints{1, 0}}}},
      {"Shape", {kX}, {{2}, {2, 3}}},
      {"Shape", {kX}, {{1}, {3}}, {{"start", std::int64_t{-1}}}},
      {"Size", {kX}, {{}, {6}}},
      {"Range", {Wholes({}, {5}), Wholes({}, {-2}), Wholes({}, {-3})}, {{3}, {5, 2, -1}}, {}, {0, 1, 2}},
      {"Range", {Reals({}, {0}), Reals({}, {1}), Reals({}, {.4})}, {{3}, {0, .4, .8}}, {}, {0, 1, 2}},
      {"Slice", {kX, Row({1}), Row({99}), Row({1})}, {{2, 2}, {-.5, 0, 1, 3}}, {}, {1, 2, 3}},
      {"Slice", {kX, Row({-1, 0}), Row({-9, 1}), Row({1, 0}), Row({-2, 1})}, {{1, 2}, {0, -2}}, {}, {1, 2, 3, 4}},
      {"Slice", {kX, Row({-2}), Row({-1}), Row({-1})}, {{2, 1}, {-.5, 1}}, {}, {1, 2, 3}},
      {"Slice", {n, Row({1}), Row({2})}, {{1, 2}, {4, 9}}, {}, {1, 2}},
      {"Split", {kX, Row({1, 2})}, {{2, 1}, {-2, .25}}, {{"axis", std::int64_t{1}}}, {1}},
      {"Split", {kX}, {{2, 2}, {-2, -.5, .25, 1}}, {{"axis", std::int64_t{-1}}, {"num_outputs", std::int64_t{2}}}, {}, 18},
      {"Tile", {b, Row({3})}, {{6}, {2, 2, 2, 2, 2, 2}}, {}, {1}},
      {"Pad", {b, Row({1, 2}), Reals({}, {7})}, {{5}, {7, 2, 2, 7, 7}}, {}, {1, 2}},
      {"Pad", {kX, Row({0, -1, 0, 1})}, {v, {-.5, 0, 0, 1, 3, 0}}, {}, {1}},
      {"Trilu", {a, Wholes({}, {0})}, {s, {1, 5, 0, 2}}, {}, {1}},
      {"Trilu", {a, Wholes({}, {-1})}, {s, {0, 0, -3, 0}}, {{"upper", std::int64_t{0}}}, {1}},
      {"ArgMax", {kX}, {{2, 1}, {2, 2}}, {{"axis", std::int64_t{1}}}},
      {"CumSum", {kX, Wholes({}, {1})}, {v, {-2, -2.5, -2.5, .25, 1.25, 4.25}}, {}, {1}},
      {"CumSum", {n, Wholes({}, {0})}, {s, {4, 9, 0, 0}}, {{"exclusive", std::int64_t{1}}, {"reverse", std::int64_t{1}}}, {1}},
      {"Gather", {kX, Wholes({2}, {2, 0})}, {s, {0, -2, 3, .25}}, {{"axis", std::int64_t{1}}}},
      {"Gather", {kX, Wholes({}, {-1})}, {{3}, {.25, 1, 3}}, {}, {1}},
      {"GatherElements", {kX, Wholes({1, 3}, {1, 0, 1})}, {{1, 3}, {.25, -.5, 3}}, {{"axis", std::int64_t{0}}}},
      {"GatherND", {kX, Wholes({2, 2}, {0, 1, 1, 2})}, {{2}, {-.5, 3}}},
      {"GatherND", {kX, Wholes({1, 1}, {1})}, {{1, 3}, {.25, 1, 3}}},
      {"ScatterND", {kX, Wholes({2, 2}, {0, 1, 1, 2}), Reals({2}, {8, 0})}, {v, {-2, 8, 0, .25, 1, 0}}},
      {"ScatterND",
       {kX, Wholes({3, 1}, {0, 1, 0}), Reals({3, 3}, {1, 1, 1, 2, 2, 2, 3, 3, 3})},
       {v, {2, 3.5, 4, 2.25, 3, 5}},
       {{"reduction", std::string("add")}}},
      {"OneHot", {Wholes({2}, {1, 0}), Wholes({}, {2}), Reals({2}, {-1, 4})}, {s, {-1, 4, 4, -1}}, {}, {1}},
      {"ReduceSum", {kX, Row({1})}, {{2, 1}, {-2.5, 4.25}}, {}, {1}},
      {"ReduceSum", {kX}, {{1, 1}, {1.75}}},
      {"ReduceSum", {kX}, kX.values, {{"noop_with_empty_axes", std::int64_t{1}}}},
      {"ReduceMean", {kX}, {{3}, {-.875, .25, 1.5}}, {{"axes", Ints{0}}, {"keepdims", std::int64_t{0}}}},
      {"ReduceMean", {kX, Row({-1})}, {{2, 1}, {-2.5 / 3, 4.25 / 3}}, {}, {1}, 18},
      {"ReduceMax", {kX}, {{2, 1}, {0, 3}}, {{"axes", Ints{1}}}},
      {"ReduceMin", {kX}, {{2, 1}, {-2, .25}}, {{"axes", Ints{1}}}},
      {"ReduceL1", {kX}, {{2, 1}, {2.5, 4.25}}, {{"axes", Ints{1}}}},
      {"ReduceL2", {Reals({2}, {3, 4})}, {{1}, {5}}, {{"axes", Ints{0}}}},
      {"ReduceSumSquare", {Reals({2}, {3, 4})}, {{1}, {25}}, {{"axes", Ints{0}}}},
      {"ReduceProd", {m}, {{}, {6}}, {{"keepdims", std::int64_t{0}}}, {0}},
      {"Softmax", {Reals({2, 2}, {0, 0, std::log(3), 0})}, {s, {.25, .5, .75, .5}}, {{"axis", std::int64_t{0}}}},
      {"LogSoftmax", {Reals({1, 2}, {0, std::log(3)})}, {{1, 2}, {std::log(.25), std::log(.75)}}},
      {"TopK", {kX, Row({2})}, {{2, 2}, {0, -.5, 3, 1}}, {}, {1}},
      {"MatMul", {Reals({2}, {1, 2}), a}, {{2}, {-5, 9}}},
      {"MatMul", {a, Reals({2}, {1, 2})}, {{2}, {11, 1}}},
      {"MatMul", {Reals({2}, {1, 2}), Reals({2}, {3, 4})}, {{}, {11}}},
      {"Gemm",
       {a, a, b},
       {s, {2 * 1 - 2 * 15 + 1, 2 * 5 + 2 * 10 + 1, -2 * 3 - 2 * 6 + 1, -2 * 15 + 2 * 4 + 1}},
       {{"alpha", 2.}, {"beta", .5}}},
      {"Gemm", {a, a}, {s, {10, -1, -1, 29}}, {{"transA", std::int64_t{1}}}},
      {"Conv", {image, Reals({1, 1, 2, 2}, {1, 0, 0, 1}), Reals({1}, {.5})}, {{1, 1, 2, 2}, {6.5, 8.5, 12.5, 14.5}}},
      {"Conv",
       {image, Reals({1, 1, 2, 2}, {1, 0, 0, 1})},
       {{1, 1, 2, 2}, {6, 3, 7, 9}},
       {{"strides", Ints{2, 2}}, {"auto_pad", std::string("SAME_UPPER")}, {"kernel_shape", Ints{2, 2}}}},
      {"Conv", {Reals({1, 2, 1, 1}, {3, 4}), Reals({2, 1, 1, 1}, {10, 100})}, {{1, 2, 1, 1}, {30, 400}}, {{"group", std::int64_t{2}}}},
      {"Conv", {image, Reals({1, 1, 2, 2}, {1, 0, 0, 1})}, {{1, 1, 1, 1}, {10}}, {{"dilations", Ints{2, 2}}}},
      {"MaxPool", {image}, {{1, 1, 3, 1}, {3, 6, 9}}, {{"kernel_shape", Ints{1, 3}}}},
      // Over one axis, (N, C, L).
      {"Conv",
       {Reals({1, 2, 4}, {1, 2, 3, 4, 10, 20, 30, 40}), Reals({1, 2, 2}, {1, 0, 0, 1}), Reals({1}, {.5})},
       {{1, 1, 2}, {10.5, 32.5}},
       {{"strides", Ints{2}}, {"pads", Ints{1, 0}}}},
      {"Conv",
       {Reals({1, 2, 4}, {1, 2, 3, 4, 10, 20, 30, 40}), Reals({2, 1, 2}, {1, 1, 1, -1})},
       {{1, 2, 2}, {4, 6, -20, -20}},
       {{"dilations", Ints{2}}, {"group", std::int64_t{2}}}},
      {"Conv",
       {Reals({1, 1, 3}, {1, 2, 3}), Reals({1, 1, 2}, {1, 10})},
       {{1, 1, 3}, {21, 32, 3}},
       {{"auto_pad", std::string("SAME_UPPER")}}},
      {"MaxPool",
       {Reals({1, 1, 4}, {4, 1, 2, 3})},
       {{1, 1, 3}, {4, 2, 3}},
       {{"kernel_shape", Ints{2}}, {"strides", Ints{2}}, {"pads", Ints{1, 1}}}},
      {"AveragePool",
       {Reals({1, 1, 4}, {4, 1, 2, 3})},
       {{1, 1, 3}, {4, 1.5, 3}},
       {{"kernel_shape", Ints{2}}, {"strides", Ints{2}}, {"pads", Ints{1, 1}}}},
      // One step of one number, by hand: sigmoid(0) = .5 everywhere.
      {"RNN",
       {Reals({2, 1, 1}, {1, -3}), Reals({1, 1, 1}, {2}), Reals({1, 1, 1}, {.5}), Reals({1, 2}, {1, -.5})},
       {{2, 1, 1, 1}, {2.5, 0}},
       {{"hidden_size", std::int64_t{1}}, {"activations", std::vector<std::string>{"Relu"}}}},
      {"MaxPool", {image}, {{1, 1, 2, 2}, {5, 6, 8, 9}}, {{"kernel_shape", Ints{2, 2}}}},
      {"AveragePool",
       {image},
       {{1, 1, 2, 1}, {2, 6.5}},
       {{"kernel_shape", Ints{2, 3}}, {"strides", Ints{2, 1}}, {"pads", Ints{1, 0, 1, 0}}}},
      {"BatchNormalization",
       {Reals({2, 1, 2}, {1, 5, 3, 3}), Reals({1}, {2}), Reals({1}, {1}), Reals({1}, {0}), Reals({1}, {0})},
       {{2, 1, 2}, {1 - 4 / std::sqrt(3), 1 + 4 / std::sqrt(3), 1, 1}},
       {{"epsilon", 1.}, {"training_mode", std::int64_t{1}}}},
      {"MaxPool",
       {image},
       {{1, 1, 2, 2}, {1, 3, 7, 9}},
       {{"kernel_shape", Ints{2, 2}}, {"strides", Ints{2, 2}}, {"pads", Ints{1, 1, 0, 0}}}},
      {"AveragePool",
       {image},
       {{1, 1, 2, 2}, {1, 2.5, 5.5, 7}},
       {{"kernel_shape", Ints{2, 2}}, {"strides", Ints{2, 2}}, {"pads", Ints{1, 1, 0, 0}}}},
      {"AveragePool",
       {image},
       {{1, 1, 2, 2}, {.25, 1.25, 2.75, 7}},
       {{"kernel_shape", Ints{2, 2}}, {"strides", Ints{2, 2}}, {"pads", Ints{1, 1, 0, 0}}, {"count_include_pad", std::int64_t{1}}}},
      {"GlobalAveragePool", {image}, {{1, 1, 1, 1}, {5}}},
      {"GlobalMaxPool", {image}, {{1, 1, 1, 1}, {9}}},
      {"BatchNormalization",
       {Reals({2, 1}, {1, 5}), Reals({1}, {2}), Reals({1}, {1}), Reals({1}, {3}), Reals({1}, {3})},
       {{2, 1}, {-1, 3}},
       {{"epsilon", 1.}}},
      {"LayerNormalization",
       {Reals({1, 2, 1}, {1, 5}), Reals({2, 1}, {2, 3})},
       {{1, 2, 1}, {-4 / std::sqrt(5), 6 / std::sqrt(5)}},
       {{"axis", std::int64_t{1}}, {"epsilon", 1.}}},
  };
}

// The op with its inputs from a run, or known when it is read.
Result<RefTensor> Computed(const OpCase& c, bool all_constant) {
  ModelDef model{c.opset, "test", {}};
  Node node{"node", c.op, "", {}, {"y", "second"}, c.attributes};
  std::vector<RefTensor> inputs;
  for (std::size_t i = 0; i < c.inputs.size(); ++i) {
    const std::string name = "in" + std::to_string(i);
    node.inputs.push_back(name);
    const Given& given = c.inputs[i];
    if (all_constant || c.constant.contains(i)) {
      Tensor tensor = ToTensor(given.dtype, given.values);
      const auto* bytes = reinterpret_cast<const char*>(tensor.bytes.data());
      model.graph.initializers.emplace_back(
          name, Literal{given.dtype, given.values.dims, std::make_shared<const std::string>(bytes, tensor.bytes.size())});
      continue;
    }
    ValueDef input{name, given.dtype, true, {}};
    for (std::int64_t dim : given.values.dims) input.dims.push_back({dim, ""});
    model.graph.inputs.push_back(std::move(input));
    inputs.push_back(given.values);
  }
  model.graph.nodes = {node};
  model.graph.outputs = {{"y", Dtype::kF64, false, {}}};
  Builder b;
  ASSIGN_OR_RETURN(ImportedModel made, ImportModel(b, model, "model.onnx", {.trainable = [](const std::string&) { return false; }}));
  b.Output("y", made.outputs[0].value);
  ASSIGN_OR_RETURN(Graph graph, b.Finish());
  std::map<std::string, RefTensor> states;
  for (const auto& [name, tensor] : made.weights) states[name] = ToRef(tensor);
  ASSIGN_OR_RETURN(RefResult got, Evaluate(graph, {}, inputs, states));
  return got.outputs[0];
}

TEST(OnnxOps, AreWhatTheyAreDefinedToBe) {
  for (const OpCase& c : Cases()) {
    for (bool all_constant : {false, true}) {
      SCOPED_TRACE(c.op + (all_constant ? " of constants" : " of what a run brings"));
      auto got = Computed(c, all_constant);
      if (!got.ok()) {
        ADD_FAILURE() << got.status().ToString();
        continue;
      }
      EXPECT_LT(Distance(*got, c.expected), 1e-12);
    }
  }
}

void OpsOf(const GraphDef& graph, std::set<std::string>* ops) {
  for (const Node& node : graph.nodes) {
    ops->insert(node.op);
    for (const auto& [name, value] : node.attributes) {
      if (const auto* body = std::get_if<std::shared_ptr<const GraphDef>>(&value)) OpsOf(**body, ops);
    }
  }
}

// SequenceConstruct is in the test behind this one, recurrent layers are in onnx_recurrent_test.cc.
TEST(OnnxOps, NoneIsKnownThatNoTestRuns) {
  std::set<std::string> tested{"SequenceConstruct", "GRU"};
  for (const OpCase& c : Cases()) tested.insert(c.op);
  storage::LocalFileSystem files;
  for (const auto& entry : std::filesystem::directory_iterator(ROPEWALK_ONNX_DATA)) {
    if (entry.path().extension() != ".onnx") continue;
    auto model = ReadModel(files, entry.path());
    ASSERT_TRUE(model.ok());
    OpsOf(model->graph, &tested);
  }
  for (const std::string& op : SupportedOps()) EXPECT_TRUE(tested.contains(op)) << op;
}

TEST(OnnxOps, TheManualListsThem) {
  std::ifstream file(ROPEWALK_MLRUNNER_PAGE);
  std::stringstream page;
  page << file.rdbuf();
  const std::string text = page.str();
  const std::string title = "\nOps that are known:\n\n```\n";
  const std::size_t begin = text.find(title) + title.size(), end = text.find("```", begin);
  ASSERT_NE(text.find(title), std::string::npos);
  std::istringstream words(text.substr(begin, end - begin));
  std::vector<std::string> listed;
  for (std::string word; words >> word;) listed.push_back(word);
  EXPECT_EQ(listed, SupportedOps());
}

// --- lengths ---

struct Lines {
  GraphDef graph;
  int names = 0;
  std::string Add(const char* op, std::vector<std::string> inputs, Attributes attributes = {}) {
    std::string name = "v" + std::to_string(names++);
    graph.nodes.push_back({name, op, "", std::move(inputs), {name}, std::move(attributes)});
    return name;
  }
  std::string Number(std::vector<std::int64_t> numbers, bool scalar = false) {
    return Add("Constant", {},
               {{"value", Literal::Of(Dtype::kI64, scalar ? Dims{} : Dims{static_cast<std::int64_t>(numbers.size())}, numbers)}});
  }
  std::string Real(double value) { return Add("Constant", {}, {{"value", Literal::Of(Dtype::kF64, {}, std::vector<double>{value})}}); }
};

// As exporters write x.view(B, T * 4), x.expand(...) and zeros(B, T): a dozen nodes of lengths, of which nothing stays.
TEST(OnnxLengths, AreComputedWhenTheModelIsRead) {
  Lines lines;
  lines.graph.inputs = {{"x", Dtype::kF64, true, {{-1, "B"}, {-1, "T"}, {4, ""}}}};
  std::string shape = lines.Add("Shape", {"x"});
  std::string batch = lines.Add("Gather", {shape, lines.Number({0}, true)}), length = lines.Add("Gather", {shape, lines.Number({1}, true)});
  std::string flat = lines.Add("Unsqueeze", {lines.Add("Mul", {length, lines.Number({4}, true)}), lines.Number({0})});
  std::string target = lines.Add("Concat", {lines.Add("Unsqueeze", {batch, lines.Number({0})}), flat}, {{"axis", std::int64_t{0}}});
  std::string view = lines.Add("Reshape", {"x", target});
  // expand(-1, T * 4): where(shape == -1, ones, shape), by which the exporter finds out what to keep.
  std::string ones = lines.Add("ConstantOfShape", {lines.Add("Shape", {target})}, {{"value", Literal::Of(Dtype::kI64, {1}, Ints{1})}});
  std::string unknown = lines.Add("Equal", {target, lines.Add("Mul", {ones, lines.Number({-1}, true)})});
  std::string sizes = lines.Add("Where", {unknown, ones, target});
  std::string wide = lines.Add("Expand", {lines.Real(3), sizes});
  std::string half = lines.Add("Slice", {view, lines.Number({0}), lines.Add("Div", {flat, lines.Number({2})}), lines.Number({1})});
  std::string range = lines.Add("Range", {lines.Number({0}, true), length, lines.Number({1}, true)});
  lines.graph.outputs = {
      {lines.Add("Add", {view, wide}), Dtype::kF64, false, {}}, {half, Dtype::kF64, false, {}}, {range, Dtype::kI64, false, {}}};
  Builder b;
  auto model = ImportModel(b, {17, "test", lines.graph}, "model.onnx");
  ASSERT_TRUE(model.ok()) << model.status().ToString();
  EXPECT_EQ(ToString(model->outputs[0].value.shape(), b.graph().symbols), "(B, 4*T)");
  EXPECT_EQ(ToString(model->outputs[1].value.shape(), b.graph().symbols), "(B, 2*T)");
  EXPECT_EQ(ToString(model->outputs[2].value.shape(), b.graph().symbols), "(T)");
  std::set<std::string> left;
  for (const Op& op : b.graph().ops) left.emplace(op.def->name);
  EXPECT_EQ(left, (std::set<std::string>{"Input", "Reshape", "Fill", "Add", "Slice", "Iota"}));
}

TEST(OnnxLengths, AreTheCallersWhereItGivesThem) {
  Lines lines;
  lines.graph.inputs = {{"x", Dtype::kF64, true, {{-1, "B"}, {-1, "T"}}}, {"y", Dtype::kF64, true, {{-1, "B"}, {-1, ""}}}};
  lines.graph.outputs = {{lines.Add("Concat", {"x", "y"}, {{"axis", std::int64_t{1}}}), Dtype::kF64, false, {}}};
  const ModelDef model{17, "test", lines.graph};
  Builder b;
  Dim mine = b.NewSymbol("N", 1, 32);
  auto made = ImportModel(b, model, "model.onnx", {.lengths = {{"B", mine}, {"T", 6}}});
  ASSERT_TRUE(made.ok()) << made.status().ToString();
  EXPECT_EQ(ToString(made->outputs[0].value.shape(), b.graph().symbols), "(N, y_1 + 6)");
  // Of an input that is given, the lengths are what the file's names stand for.
  Builder c;
  Value x = c.Input("mine", Dtype::kF64, {c.NewSymbol("rows"), 5}) * 2.0;
  auto given = ImportModel(c, model, "model.onnx", {.inputs = {{"x", x}}});
  ASSERT_TRUE(given.ok()) << given.status().ToString();
  EXPECT_EQ(ToString(given->outputs[0].value.shape(), c.graph().symbols), "(rows, y_1 + 5)");
}

TEST(OnnxLists, AreTakenApartWhenTheModelIsRead) {
  Lines lines;
  lines.graph.inputs = {{"x", Dtype::kF64, true, {{2, ""}, {3, ""}}}};
  std::string list = lines.Add("SequenceConstruct", {"x", lines.Add("Neg", {"x"})});
  std::string stacked = lines.Add("ConcatFromSequence", {list}, {{"axis", std::int64_t{0}}, {"new_axis", std::int64_t{1}}});
  std::string parts = lines.Add("SplitToSequence", {stacked}, {{"axis", std::int64_t{2}}, {"keepdims", std::int64_t{0}}});
  lines.graph.outputs = {{lines.Add("SequenceAt", {parts, lines.Number({-1}, true)}), Dtype::kF64, false, {}}};
  Builder b;
  auto model = ImportModel(b, {17, "test", lines.graph}, "model.onnx");
  ASSERT_TRUE(model.ok()) << model.status().ToString();
  b.Output("y", model->outputs[0].value);
  std::map<std::string, RefTensor> states;
  auto got = Evaluate(*b.Finish(), {}, {RefTensor{{2, 3}, {1, 2, 3, 4, 5, 6}}}, states);
  ASSERT_TRUE(got.ok());
  EXPECT_EQ(got->outputs[0].dims, (Dims{2, 2}));
  EXPECT_EQ(got->outputs[0].data, (std::vector<double>{3, 6, -3, -6}));
}

// --- decomposed ops ---

// How people and exporters write each: the last name is the result, of x (2, 4).
using Write = std::function<std::string(Lines&)>;
struct Form {
  const char* name;
  const char* op;  // that is found
  Write write;
};
std::vector<Form> Forms() {
  auto cube = [](Lines& l) { return l.Add("Mul", {l.Add("Mul", {"x", "x"}), "x"}); };
  auto tanh_of = [](Lines& l, const std::string& cubed) {
    std::string inner = l.Add("Add", {"x", l.Add("Mul", {cubed, l.Real(.044715)})});
    return l.Add("Add", {l.Real(1), l.Add("Tanh", {l.Add("Mul", {l.Real(std::sqrt(2 / M_PI)), inner})})});
  };
  auto erf_of = [](Lines& l) { return l.Add("Add", {l.Add("Erf", {l.Add("Div", {"x", l.Real(std::sqrt(2))})}), l.Real(1)}); };
  auto norm = [](Lines& l, bool by_power) {
    Attributes last{{"axes", Ints{-1}}};
    std::string centred = l.Add("Sub", {"x", l.Add("ReduceMean", {"x"}, last)});
    std::string square = by_power ? l.Add("Pow", {centred, l.Real(2)}) : l.Add("Mul", {centred, centred});
    std::string deviation = l.Add("Sqrt", {l.Add("Add", {l.Add("ReduceMean", {square}, last), l.Real(.01)})});
    return l.Add("Add", {l.Add("Mul", {l.Add("Div", {centred, deviation}), "gain"}), "bias"});
  };
  return {
      {"erf, torch", "Gelu", [=](Lines& l) { return l.Add("Mul", {l.Add("Mul", {"x", erf_of(l)}), l.Real(.5)}); }},
      {"erf, dynamo", "Gelu", [=](Lines& l) { return l.Add("Mul", {"x", l.Add("Mul", {l.Real(.5), erf_of(l)})}); }},
      {"erf, times", "Gelu",
       [=](Lines& l) {
         std::string erf = l.Add("Erf", {l.Add("Mul", {l.Real(std::sqrt(.5)), "x"})});
         return l.Add("Mul", {l.Add("Mul", {"x", l.Real(.5)}), l.Add("Add", {l.Real(1), erf})});
       }},
      {"tanh, by a product", "Gelu", [=](Lines& l) { return l.Add("Mul", {l.Add("Mul", {"x", l.Real(.5)}), tanh_of(l, cube(l))}); }},
      {"tanh, by a power", "Gelu",
       [=](Lines& l) { return l.Add("Mul", {l.Real(.5), l.Add("Mul", {"x", tanh_of(l, l.Add("Pow", {"x", l.Real(3)}))})}); }},
      {"tanh, factored", "Gelu",
       [=](Lines& l) {
         std::string square = l.Add("Mul", {l.Add("Mul", {l.Real(.044715), "x"}), "x"});
         std::string scaled = l.Add("Mul", {l.Add("Mul", {"x", l.Real(.7978845608)}), l.Add("Add", {square, l.Real(1)})});
         return l.Add("Mul", {l.Add("Mul", {"x", l.Real(.5)}), l.Add("Add", {l.Add("Tanh", {scaled}), l.Real(1)})});
       }},
      {"norm, by a power", "LayerNormalization", [=](Lines& l) { return norm(l, true); }},
      {"norm, by a product", "LayerNormalization", [=](Lines& l) { return norm(l, false); }},
  };
}
ModelDef ModelOf(const Write& write) {
  Lines lines;
  lines.graph.inputs = {{"x", Dtype::kF64, true, {{2, ""}, {4, ""}}}};
  lines.graph.initializers = {{"gain", Literal::Of(Dtype::kF64, {4}, std::vector<double>{1, 2, -1, .5})},
                              {"bias", Literal::Of(Dtype::kF64, {4}, std::vector<double>{0, 1, 0, -2})}};
  lines.graph.outputs = {{write(lines), Dtype::kF64, false, {}}};
  return {17, "test", lines.graph};
}
bool HasOp(const GraphDef& graph, const std::string& op) {
  return std::any_of(graph.nodes.begin(), graph.nodes.end(), [&](const Node& node) { return node.op == op; });
}

TEST(OnnxRecognise, FindsEachFormAndComputesTheSame) {
  for (const Form& form : Forms()) {
    SCOPED_TRACE(form.name);
    const ModelDef model = ModelOf(form.write);
    EXPECT_TRUE(HasOp(Recognise(model.graph), form.op));
    std::vector<RefTensor> results;
    for (bool recognise : {true, false}) {
      Builder b;
      auto made = ImportModel(b, model, "model.onnx", {.recognise = recognise});
      ASSERT_TRUE(made.ok()) << made.status().ToString();
      Value x = made->inputs[0].value, y = made->outputs[0].value;
      b.Output("y", y);
      b.Output("slope", Grad(ReduceSum(Sin(y)), {x})[0]);
      const bool norm = std::string(form.op) == "LayerNormalization";
      EXPECT_EQ(CountOps(b.graph(), "LayerNorm"), norm && recognise ? 1u : 0u);
      std::map<std::string, RefTensor> states;
      for (const auto& [name, tensor] : made->weights) states[name] = ToRef(tensor);
      auto got = Evaluate(*b.Finish(), {}, {RefTensor{{2, 4}, {-2, -1, -.1, 0, .3, 1, 2, 3}}}, states);
      ASSERT_TRUE(got.ok()) << got.status().ToString();
      results.insert(results.end(), got->outputs.begin(), got->outputs.end());
    }
    EXPECT_LT(Distance(results[0], results[2]), 1e-9);
    EXPECT_LT(Distance(results[1], results[3]), 1e-9);
  }
}

// One number, one input or one axis off, and it is something else.
TEST(OnnxRecognise, LeavesAloneWhatIsAnother) {
  auto gelu = [](double half, double root, double one, const char* x) {
    return [=](Lines& l) {
      std::string erf = l.Add("Erf", {l.Add("Div", {x, l.Real(root)})});
      return l.Add("Mul", {l.Add("Mul", {"x", l.Add("Add", {erf, l.Real(one)})}), l.Real(half)});
    };
  };
  EXPECT_TRUE(HasOp(Recognise(ModelOf(gelu(.5, std::sqrt(2), 1, "x")).graph), "Gelu"));
  EXPECT_FALSE(HasOp(Recognise(ModelOf(gelu(.6, std::sqrt(2), 1, "x")).graph), "Gelu"));
  EXPECT_FALSE(HasOp(Recognise(ModelOf(gelu(.5, 1.5, 1, "x")).graph), "Gelu"));
  EXPECT_FALSE(HasOp(Recognise(ModelOf(gelu(.5, std::sqrt(2), 2, "x")).graph), "Gelu"));
  EXPECT_FALSE(HasOp(Recognise(ModelOf(gelu(.5, std::sqrt(2), 1, "gain")).graph), "Gelu"));
  auto norm = [](std::int64_t axis, const char* other) {
    return [=](Lines& l) {
      Attributes axes{{"axes", Ints{axis}}};
      std::string centred = l.Add("Sub", {"x", l.Add("ReduceMean", {other}, axes)});
      std::string deviation = l.Add("Sqrt", {l.Add("Add", {l.Add("ReduceMean", {l.Add("Mul", {centred, centred})}, axes), l.Real(.01)})});
      return l.Add("Add", {l.Add("Mul", {l.Add("Div", {centred, deviation}), "gain"}), "bias"});
    };
  };
  EXPECT_TRUE(HasOp(Recognise(ModelOf(norm(-1, "x")).graph), "LayerNormalization"));
  EXPECT_FALSE(HasOp(Recognise(ModelOf(norm(0, "x")).graph), "LayerNormalization"));
  EXPECT_FALSE(HasOp(Recognise(ModelOf(norm(-1, "gain")).graph), "LayerNormalization"));
}

}  // namespace
}  // namespace ropewalk::mlrunner::onnx
