// Files that somebody wrote to do harm: graphs that lead into themselves, numbers that no tensor has, inputs of kinds that an op does not
// take. Each is refused, or imported; nothing crashes (under the sanitizers: nothing overflows or reads outside), and nothing goes on for
// ever.
#include <gtest/gtest.h>

#include <cstdlib>
#include <limits>
#include <memory>

#include "base/random.h"
#include "mlrunner/onnx/file.h"
#include "tests/unit/onnx_models.h"

namespace ropewalk::mlrunner::onnx {
namespace {

using testing::DataPath;

constexpr std::int64_t kLeast = std::numeric_limits<std::int64_t>::min(), kMost = std::numeric_limits<std::int64_t>::max();

Literal Whole(const std::vector<std::int64_t>& numbers) {
  return Literal::Of(Dtype::kI64, {static_cast<std::int64_t>(numbers.size())}, numbers);
}
Literal Real(const std::vector<float>& numbers) { return Literal::Of(Dtype::kF32, {static_cast<std::int64_t>(numbers.size())}, numbers); }

// A file of these nodes, of which the last one's first output is the model's.
struct File {
  std::vector<Node> nodes;
  std::vector<std::pair<std::string, Literal>> initializers;
  std::vector<ValueDef> inputs = {
      {"x", Dtype::kF32, true, {{-1, "B"}, {4, ""}}}, {"ids", Dtype::kI64, true, {{-1, "B"}}}, {"number", Dtype::kF32, true, {}}};

  ModelDef Model() const {
    ModelDef model{17, "test", {}};
    model.graph.nodes = nodes;
    model.graph.initializers = initializers;
    model.graph.inputs = inputs;
    model.graph.outputs = {{nodes.back().outputs.at(0), Dtype::kF32, false, {}}};
    return model;
  }
  // All of the import, and what comes after it before a run.
  Status Imported() const {
    Builder b;
    auto made = ImportModel(b, Model(), "model.onnx", {.trainable = [](const std::string&) { return false; }});
    if (!made.ok()) return made.status();
    for (const NamedResult& output : made->outputs) b.Output(output.name, output.value);
    auto graph = b.Finish();
    return graph.ok() ? Check(Simplify(*graph)) : graph.status();
  }
};
Node MakeNode(std::string op, std::vector<std::string> inputs, std::map<std::string, Attribute> attributes = {}, std::string out = "y") {
  return {"n", std::move(op), "", std::move(inputs), {std::move(out)}, std::move(attributes)};
}

void ExpectRefused(const File& file, std::initializer_list<const char*> words = {}) {
  const Status status = file.Imported();
  EXPECT_FALSE(status.ok()) << file.nodes.back().op;
  EXPECT_FALSE(!status.ok() && (status.what().empty() || status.why().empty() || status.fix().empty())) << status.ToString();
  for (const char* word : words)
    EXPECT_NE(status.ToString().find(word), std::string::npos) << word << " is missing in:\n" << status.ToString();
}

// What is recognised goes from a node to those that made its inputs.
TEST(OnnxHostile, GraphsThatLeadIntoThemselves) {
  ExpectRefused({{MakeNode("Mul", {"y", "x"})}}, {"given by no node before it"});
  ExpectRefused({{MakeNode("Mul", {"y", "y"})}});
  ExpectRefused({{MakeNode("Mul", {"b", "x"}, {}, "a"), MakeNode("Mul", {"a", "x"}, {}, "b"), MakeNode("Mul", {"b", "x"})}});
  ExpectRefused({{MakeNode("Reshape", {"a", "x"}, {}, "a"), MakeNode("Mul", {"a", "x"})}});
  ExpectRefused({{MakeNode("Div", {"y", "a"}), MakeNode("Reshape", {"a", "a"}, {}, "a"), MakeNode("Mul", {"y", "x"}, {}, "z")}});
  ExpectRefused({{MakeNode("ReduceMean", {"x", "a"}, {}, "m"), MakeNode("Reshape", {"a", "a"}, {}, "a"), MakeNode("Add", {"m", "m"})}});
}

TEST(OnnxHostile, ChainsThatAreDeep) {
  File file;
  file.nodes.push_back(MakeNode("Mul", {"x", "number"}, {}, "v0"));
  for (int i = 1; i < 20000; ++i)
    file.nodes.push_back(MakeNode("Mul", {"v" + std::to_string(i - 1), "number"}, {}, "v" + std::to_string(i)));
  EXPECT_TRUE(file.Imported().ok()) << file.Imported().ToString();
}

// A length (B + 1)^(2^k) has as many summands as its power.
TEST(OnnxHostile, PolynomialsThatGrow) {
  File file;
  file.initializers = {{"one", Whole({1})}, {"seven", Whole({7})}};
  file.nodes = {MakeNode("Shape", {"ids"}, {}, "s"), MakeNode("Add", {"s", "one"}, {}, "v0")};
  for (int i = 1; i < 50; ++i) {
    const std::string before = "v" + std::to_string(i - 1);
    file.nodes.push_back(MakeNode("Mul", {before, before}, {}, "v" + std::to_string(i)));
  }
  file.nodes.push_back(MakeNode("Expand", {"number", "v49"}));
  ExpectRefused(file);
}

TEST(OnnxHostile, LengthsThatNoTensorHas) {
  for (std::int64_t length : {std::int64_t{-2}, std::int64_t{-4096}, kLeast, kMost, std::int64_t{1} << 62}) {
    SCOPED_TRACE(length);
    const std::vector<std::pair<std::string, Literal>> one = {{"s", Whole({length})}}, two = {{"s", Whole({length, length})}};
    ExpectRefused({{MakeNode("Expand", {"number", "s"})}, one});
    ExpectRefused({{MakeNode("Expand", {"number", "s"})}, two});
    ExpectRefused({{MakeNode("ConstantOfShape", {"s"})}, one});
    ExpectRefused({{MakeNode("ConstantOfShape", {"s"})}, two});
    ExpectRefused({{MakeNode("Reshape", {"x", "s"})}, one});
    ExpectRefused({{MakeNode("Tile", {"x", "s"})}, two});
    ExpectRefused({{MakeNode("OneHot", {"ids", "s", "values"})}, {one[0], {"values", Real({0, 1})}}});
    ExpectRefused({{MakeNode("Split", {"x", "s"}, {{"axis", std::int64_t{1}}})}, two});
    ExpectRefused({{MakeNode("TopK", {"x", "s"})}, one});
    ExpectRefused({{MakeNode("Unsqueeze", {"x", "s"})}, {{"s", Whole({length == -2 ? -5 : length})}}});  // -2 is an axis
    ExpectRefused({{MakeNode("Squeeze", {"x", "s"})}, one});
    ExpectRefused({{MakeNode("ReduceSum", {"x", "s"})}, {{"s", Whole({length == -2 ? -5 : length})}}});
  }
  File file{{MakeNode("Relu", {"large"})}};
  file.inputs.push_back({"large", Dtype::kF32, true, {{kMost, ""}, {kMost, ""}}});
  ExpectRefused(file, {"large"});
}

// Numbers at the ends of what 64 bits hold, added, multiplied and divided here.
TEST(OnnxHostile, NumbersThatOverflow) {
  const std::vector<std::int64_t> ends = {kLeast, kLeast + 1, -1, 0, 1, kMost - 1, kMost};
  for (std::int64_t a : ends) {
    for (std::int64_t b : ends) {
      for (const char* op : {"Add", "Sub", "Mul", "Div", "Max", "Min", "Equal", "Less", "GreaterOrEqual"}) {
        File file{{MakeNode(op, {"a", "b"})}, {{"a", Whole({a})}, {"b", Whole({b})}}};
        Status status = file.Imported();
        EXPECT_TRUE(status.ok() || !status.tag().empty());
        file = {{MakeNode("Add", {"s", "a"}, {}, "c"), MakeNode(op, {"c", "b"}, {}, "d"),
                 MakeNode("Cast", {"d"}, {{"to", std::int64_t{7}}}, "e"), MakeNode("Expand", {"number", "e"})},
                file.initializers};
        file.nodes.insert(file.nodes.begin(), MakeNode("Shape", {"ids"}, {}, "s"));
        status = file.Imported();
        EXPECT_TRUE(status.ok() || !status.tag().empty());
      }
      for (std::int64_t step : ends) {
        const std::vector<std::pair<std::string, Literal>> numbers = {
            {"a", Whole({a})}, {"b", Whole({b})}, {"axis", Whole({1})}, {"step", Whole({step})}};
        (void)File{{MakeNode("Slice", {"x", "a", "b", "axis", "step"})}, numbers}.Imported();
        (void)File{{MakeNode("Range", {"a", "b", "step"})}, numbers}.Imported();
        (void)File{{MakeNode("Pad", {"x", "p"})}, {{"p", Whole({0, a, 0, b})}}}.Imported();
      }
    }
  }
}

// Real numbers where whole ones belong, and the other way round.
TEST(OnnxHostile, NumbersOfTheOtherKind) {
  const std::pair<std::string, Literal> real{"real", Real({1})}, whole{"whole", Whole({1})}, table{"table", Whole({5, 6, 7})};
  const Literal scalar = Literal::Of(Dtype::kF32, {}, std::vector<float>{1});
  const std::vector<std::pair<std::string, Literal>> all = {real, whole, table, {"scalar", scalar}};
  const Node row = MakeNode("Range", {"zero", "length", "one"}, {}, "row");
  auto with_row = [&](Node node) {
    File file{{MakeNode("Shape", {"ids"}, {}, "shape"), MakeNode("Squeeze", {"shape"}, {}, "length"), row, std::move(node)}, all};
    file.initializers.emplace_back("zero", Literal::Of(Dtype::kI64, {}, std::vector<std::int64_t>{0}));
    file.initializers.emplace_back("one", Literal::Of(Dtype::kI64, {}, std::vector<std::int64_t>{1}));
    return file;
  };
  ExpectRefused({{MakeNode("Gather", {"table", "real"})}, all});
  ExpectRefused({{MakeNode("Gather", {"table", "scalar"})}, all});
  ExpectRefused({{MakeNode("Gather", {"x", "real"})}, all});
  ExpectRefused(with_row(MakeNode("Gather", {"row", "scalar"})));
  ExpectRefused(with_row(MakeNode("Add", {"row", "real"})));
  ExpectRefused(with_row(MakeNode("Concat", {"row", "real"}, {{"axis", std::int64_t{0}}})));
  ExpectRefused({{MakeNode("GatherElements", {"table", "real"})}, all});
  ExpectRefused({{MakeNode("Where", {"real", "table", "whole"})}, all});
  ExpectRefused({{MakeNode("Range", {"scalar", "whole", "whole"})}, all});
  ExpectRefused({{MakeNode("Range", {"whole", "scalar", "scalar"})}, all});
  ExpectRefused({{MakeNode("Concat", {"real", "whole"}, {{"axis", std::int64_t{0}}})}, all});
}

// An attribute that is of another kind than its op's definition says.
TEST(OnnxHostile, AttributesOfTheOtherKind) {
  const std::pair<std::string, Literal> lengths{"s", Whole({2})};
  ExpectRefused({{MakeNode("ConstantOfShape", {"s"}, {{"value", std::int64_t{1}}})}, {lengths}}, {"one number"});
  ExpectRefused({{MakeNode("ConstantOfShape", {"s"}, {{"value", Whole({1, 2})}})}, {lengths}}, {"one number"});
  ExpectRefused({{MakeNode("MaxPool", {"x"}, {{"kernel_shape", std::int64_t{2}}})}});
  ExpectRefused({{MakeNode("If", {"s"}, {{"then_branch", 1.}, {"else_branch", std::int64_t{2}}})}, {{"s", Whole({1})}}}, {"branch"});
}

// Axes that an input has not, twice the same, or of a number that has none.
TEST(OnnxHostile, AxesThatAreNotThere) {
  const std::vector<std::pair<std::string, Literal>> zero = {{"zero", Whole({0})}, {"table", Whole({5, 6, 7})}};
  for (std::int64_t axis : {std::int64_t{-1}, std::int64_t{0}, std::int64_t{1}, std::int64_t{7}, kLeast, kMost}) {
    SCOPED_TRACE(axis);
    const std::map<std::string, Attribute> at = {{"axis", axis}};
    for (const char* op : {"Softmax", "LogSoftmax", "ArgMax", "Split"}) ExpectRefused({{MakeNode(op, {"number"}, at)}});
    ExpectRefused({{MakeNode("Gather", {"number", "ids"}, at)}});
    ExpectRefused({{MakeNode("GatherElements", {"number", "ids"}, at)}});
    ExpectRefused({{MakeNode("LayerNormalization", {"number", "number"}, at)}});
    ExpectRefused({{MakeNode("CumSum", {"number", "axis"})}, {{"axis", Whole({axis})}}});
    ExpectRefused({{MakeNode("Concat", {"number", "number"}, at)}});
  }
  ExpectRefused({{MakeNode("Unsqueeze", {"x", "axes"})}, {{"axes", Whole({3, 3})}}});
  ExpectRefused({{MakeNode("Unsqueeze", {"number", "axes"})}, {{"axes", Whole({1, 1})}}});
  ExpectRefused({{MakeNode("Transpose", {"table"}, {{"perm", std::vector<std::int64_t>{5}}})}, zero});
  ExpectRefused({{MakeNode("Transpose", {"x"}, {{"perm", std::vector<std::int64_t>{1, 1}}})}});
  ExpectRefused({{MakeNode("GatherElements", {"x", "ids"}, {{"axis", std::int64_t{1}}})}});
  ExpectRefused({{MakeNode("GatherND", {"x", "number"})}});
  ExpectRefused({{MakeNode("ScatterND", {"x", "number", "x"})}});
  for (const char* op : {"Trilu", "GlobalAveragePool", "TopK", "MatMul", "BatchNormalization", "LSTM", "Conv", "MaxPool"})
    ExpectRefused(
        {{MakeNode(op, {"number", "number", "number", "number", "number"}, {{"kernel_shape", std::vector<std::int64_t>{2, 2}}})}});
  ExpectRefused({{MakeNode("Trilu", {"x", "k"})}, {{"k", Real({1e30f})}}});
}

// Every op with every kind of input, too few and too many of them.
TEST(OnnxHostile, AnyOpOfAnything) {
  const std::uint64_t seed = std::getenv("ROPEWALK_SEED") != nullptr ? std::strtoull(std::getenv("ROPEWALK_SEED"), nullptr, 10) : 11;
  const int trials = std::getenv("ROPEWALK_TRIALS") != nullptr ? std::atoi(std::getenv("ROPEWALK_TRIALS")) : 4000;
  Random random(seed);
  const std::vector<std::string> ops = SupportedOps();
  const std::vector<std::int64_t> numbers = {kLeast,  -(std::int64_t{1} << 40), -3,   -2, -1, 0, 1, 2, 3, 4, 7,
                                             1 << 20, std::int64_t{1} << 31,    kMost};
  auto number = [&] { return numbers[random.Below(numbers.size())]; };
  auto row = [&] {
    std::vector<std::int64_t> some(random.Below(5));
    for (std::int64_t& each : some) each = number();
    return some;
  };
  const std::vector<std::string> attributes = {"axis",          "axes",
                                               "perm",          "kernel_shape",
                                               "strides",       "pads",
                                               "dilations",     "group",
                                               "keepdims",      "to",
                                               "start",         "end",
                                               "split",         "num_outputs",
                                               "epsilon",       "momentum",
                                               "training_mode", "mode",
                                               "value",         "largest",
                                               "direction",     "hidden_size",
                                               "batch_dims",    "upper",
                                               "allowzero",     "count_include_pad",
                                               "exclusive",     "reverse",
                                               "new_axis",      "transA",
                                               "alpha",         "auto_pad",
                                               "ceil_mode",     "noop_with_empty_axes"};
  int imported = 0;
  for (int trial = 0; trial < trials; ++trial) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed << ", trial " << trial);
    File file;
    file.inputs.push_back({"image", Dtype::kF32, true, {{-1, "B"}, {3, ""}, {8, ""}, {8, ""}}});
    file.inputs.push_back({"flag", Dtype::kBool, true, {{-1, "B"}, {4, ""}}});
    file.inputs.push_back({"empty", Dtype::kF32, true, {{0, ""}, {4, ""}}});
    file.initializers = {{"w", Literal::Of(Dtype::kF32, {4, 4}, std::vector<float>(16, .5f))},
                         {"kernel", Literal::Of(Dtype::kF32, {2, 3, 3, 3}, std::vector<float>(54, .5f))},
                         {"scalar", Literal::Of(Dtype::kI64, {}, std::vector<std::int64_t>{number()})},
                         {"real", Real({static_cast<float>(number())})},
                         {"flags", Literal::Of(Dtype::kBool, {2}, std::vector<char>{0, 1})},
                         {"none", Whole({})}};
    for (const char* name : {"k0", "k1", "k2"}) file.initializers.emplace_back(name, Whole(row()));
    std::vector<std::string> names = {"x", "ids", "number", "image", "flag", "empty", ""};
    for (const auto& [name, literal] : file.initializers) names.push_back(name);
    const std::size_t count = 1 + random.Below(4);
    for (std::size_t i = 0; i < count; ++i) {
      Node node = MakeNode(ops[random.Below(ops.size())], {}, {}, "v" + std::to_string(i));
      for (std::size_t k = random.Below(6); k-- > 0;) {
        // Rather what is an image, a matrix or a row of numbers than anything.
        node.inputs.push_back(random.Below(3) == 0 ? "v" + std::to_string(random.Below(count)) : names[random.Below(names.size())]);
      }
      if (random.Below(4) == 0) node.outputs.push_back("w" + std::to_string(i));
      for (std::size_t k = random.Below(4); k-- > 0;) {
        Attribute& value = node.attributes[attributes[random.Below(attributes.size())]];
        switch (random.Below(6)) {
          case 0:
            value = row();
            break;
          case 1:
            value = static_cast<double>(number()) * .3;
            break;
          case 2:
            value = std::string("SAME_UPPER");
            break;
          case 3:
            value = Whole(row());
            break;
          default:
            value = number();
        }
      }
      if (random.Below(8) == 0) {
        auto body = std::make_shared<GraphDef>();
        body->inputs = {{"i", Dtype::kI64, true, {}}, {"go", Dtype::kBool, true, {}}};
        body->nodes = {MakeNode(ops[random.Below(ops.size())], {"i", "x"}, {}, "inner"), MakeNode("Identity", {"go"}, {}, "still")};
        body->outputs = {{"still", Dtype::kBool, false, {}}, {"inner", Dtype::kF32, false, {}}};
        node.attributes[std::vector<const char*>{"body", "then_branch", "else_branch"}[random.Below(3)]] =
            std::shared_ptr<const GraphDef>(body);
      }
      file.nodes.push_back(std::move(node));
    }
    Status status = file.Imported();
    imported += status.ok();
    if (!status.ok())
      EXPECT_FALSE(status.tag().empty() || status.what().empty() || status.why().empty() || status.fix().empty()) << status.ToString();
  }
  EXPECT_GT(imported, trials / 50);
}

// Real models with one number, name or op changed.
TEST(OnnxHostile, ChangedNodesDoNoHarm) {
  const std::uint64_t seed = std::getenv("ROPEWALK_SEED") != nullptr ? std::strtoull(std::getenv("ROPEWALK_SEED"), nullptr, 10) : 12;
  const int trials = std::getenv("ROPEWALK_TRIALS") != nullptr ? std::atoi(std::getenv("ROPEWALK_TRIALS")) : 300;
  Random random(seed);
  storage::LocalFileSystem files;
  const std::vector<std::int64_t> numbers = {kLeast, -2, -1, 0, 1, 2, 5, 1 << 20, std::int64_t{1} << 40, kMost};
  const std::vector<std::string> ops = SupportedOps();
  int imported = 0, refused = 0;
  for (const char* name :
       {"mlp.opset14.onnx", "resnet.torchscript.onnx", "gpt2.torchscript.onnx", "lstm.torchscript.onnx", "dlrm.torchscript.onnx"}) {
    auto read = ReadModel(files, DataPath(name));
    ASSERT_TRUE(read.ok()) << read.status().ToString();
    for (int trial = 0; trial < trials / 5; ++trial) {
      SCOPED_TRACE(::testing::Message() << name << ", seed " << seed << ", trial " << trial);
      ModelDef model = *read;
      std::vector<Node>& nodes = model.graph.nodes;
      Node& node = nodes[random.Below(nodes.size())];
      const std::int64_t number = numbers[random.Below(numbers.size())];
      switch (random.Below(7)) {
        case 0:
          node.op = ops[random.Below(ops.size())];
          break;
        case 1:
          if (!node.inputs.empty()) node.inputs[random.Below(node.inputs.size())] = nodes[random.Below(nodes.size())].outputs.at(0);
          break;
        case 2:
          if (!node.inputs.empty()) node.inputs.pop_back();
          break;
        case 3:
          std::swap(node, nodes[random.Below(nodes.size())]);
          break;
        case 4:
          for (auto& [key, value] : node.attributes) {
            if (auto* literal = std::get_if<Literal>(&value);
                literal != nullptr && literal->dtype == Dtype::kI64 && NumElements(literal->dims) > 0) {
              std::vector<std::int64_t> changed(static_cast<std::size_t>(NumElements(literal->dims)), number);
              *literal = Literal::Of(Dtype::kI64, literal->dims, changed);
            }
            if (auto* many = std::get_if<std::vector<std::int64_t>>(&value); many != nullptr && !many->empty()) many->back() = number;
            if (auto* one = std::get_if<std::int64_t>(&value)) *one = number;
          }
          break;
        case 5:
          if (!model.graph.initializers.empty()) {
            Literal& literal = model.graph.initializers[random.Below(model.graph.initializers.size())].second;
            std::reverse(literal.dims.begin(), literal.dims.end());
          }
          break;
        default:
          if (!model.graph.inputs.empty() && !model.graph.inputs[0].dims.empty()) model.graph.inputs[0].dims.back().value = number;
      }
      Builder b;
      auto made = ImportModel(b, model, name);
      Status status = made.status();
      if (status.ok()) {
        for (const NamedResult& output : made->outputs) b.Output(output.name, output.value);
        auto graph = b.Finish();
        status = graph.ok() ? Check(Simplify(*graph)) : graph.status();
      }
      (status.ok() ? imported : refused)++;
      if (!status.ok()) EXPECT_FALSE(status.tag().empty() || status.why().empty() || status.fix().empty()) << status.ToString();
    }
  }
  EXPECT_GT(refused, trials / 10);
  EXPECT_GT(imported, trials / 10);
}

}  // namespace
}  // namespace ropewalk::mlrunner::onnx
