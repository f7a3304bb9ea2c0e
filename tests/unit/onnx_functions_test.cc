// Functions that a file defines itself: calls become the nodes of the function, with the caller's names and attributes. The messages are
// written here by hand, as others write them: what a file's own function is, this repository writes nowhere.
#include <gtest/gtest.h>

#include <fstream>

#include "mlrunner/onnx/file.h"
#include "tests/unit/onnx_models.h"
#include "tests/unit/temp_folder.h"

namespace ropewalk::mlrunner::onnx {
namespace {

// A field of a message: a varint, or bytes.
std::string Varint(std::uint64_t number) {
  std::string bytes;
  for (; number >= 128; number >>= 7) bytes += static_cast<char>(number | 128);
  return bytes + static_cast<char>(number);
}
std::string Number(int field, std::uint64_t number) { return Varint(static_cast<std::uint64_t>(field) << 3) + Varint(number); }
std::string Bytes(int field, const std::string& bytes) {
  return Varint(static_cast<std::uint64_t>(field) << 3 | 2) + Varint(bytes.size()) + bytes;
}

constexpr int kFloat = 1, kString = 3, kGraph = 5;  // AttributeProto.type
std::string AttributeOf(const std::string& name, int type, const std::string& value) {
  return Bytes(1, name) + value + Number(20, static_cast<std::uint64_t>(type));
}
std::string Real(float value) {
  std::string bytes = Varint(2 << 3 | 5);
  return bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}
std::string Reference(const std::string& of) { return Bytes(21, of); }

std::string NodeOf(const std::string& op, const std::vector<std::string>& in, const std::vector<std::string>& out,
                   const std::vector<std::string>& attributes = {}, const std::string& domain = "") {
  std::string node;
  for (const std::string& name : in) node += Bytes(1, name);
  for (const std::string& name : out) node += Bytes(2, name);
  node += Bytes(3, op + "_of_function") + Bytes(4, op);
  for (const std::string& attribute : attributes) node += Bytes(5, attribute);
  return domain.empty() ? node : node + Bytes(7, domain);
}
struct Function {
  std::string name;
  std::vector<std::string> in, out;
  std::vector<std::string> nodes;
  std::vector<std::string> defaults = {};
  std::uint64_t opset = 17;
};
// A field of the model.
std::string Written(const Function& f) {
  std::string bytes = Bytes(1, f.name) + Bytes(10, "own") + Bytes(9, Bytes(1, "") + Number(2, f.opset));
  for (const std::string& name : f.in) bytes += Bytes(4, name);
  for (const std::string& name : f.out) bytes += Bytes(5, name);
  for (const std::string& node : f.nodes) bytes += Bytes(7, node);
  for (const std::string& attribute : f.defaults) bytes += Bytes(11, attribute);
  return Bytes(25, bytes);
}

class OnnxFunctions : public ::testing::Test {
 protected:
  // x (3) through `nodes` to y, where the file has these functions besides.
  Result<std::vector<double>> Run(std::vector<Node> nodes, const std::vector<Function>& functions) {
    ModelDef model{17, "test", {}};
    model.graph.inputs = {{"x", Dtype::kF64, true, {{3, ""}}}};
    model.graph.nodes = std::move(nodes);
    model.graph.outputs = {{"y", Dtype::kF64, false, {}}};
    EXPECT_TRUE(WriteModel(files_, path_, model).ok());
    std::ofstream file(path_, std::ios::binary | std::ios::app);  // messages behind each other are one message
    for (const Function& function : functions) file << Written(function);
    file.close();
    Builder b;
    ASSIGN_OR_RETURN(const ImportedModel made, ImportOnnx(b, files_, path_));
    b.Output("y", made.outputs[0].value);
    ASSIGN_OR_RETURN(const Graph graph, b.Finish());
    std::map<std::string, RefTensor> states;
    ASSIGN_OR_RETURN(const RefResult got, Evaluate(graph, {}, {RefTensor{{3}, {-1, 0, 2}}}, states));
    return got.outputs[0].data;
  }
  void Expect(std::vector<Node> nodes, const std::vector<Function>& functions, const std::vector<double>& expected) {
    auto got = Run(std::move(nodes), functions);
    ASSERT_TRUE(got.ok()) << got.status().ToString();
    for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR((*got)[i], expected[i], 1e-6) << i;
  }
  void ExpectRefused(std::vector<Node> nodes, const std::vector<Function>& functions, const std::string& word) {
    const Status status = Run(std::move(nodes), functions).status();
    EXPECT_EQ(status.tag(), "ONNX03") << status.ToString();
    EXPECT_NE(status.ToString().find(word), std::string::npos) << status.ToString();
  }
  mlrunner::testing::TempFolder folder_;
  const std::string path_ = folder_.path() + "/model.onnx";
  storage::LocalFileSystem files_;
};

// t = a + a; out = t * b. Values of two calls are others, though the function names them alike; and the graph has a `t` of its own.
TEST_F(OnnxFunctions, CallsAreTheirNodes) {
  const Function f{"F", {"a", "b"}, {"out"}, {NodeOf("Add", {"a", "a"}, {"t"}), NodeOf("Mul", {"t", "b"}, {"out"})}};
  Expect({{"", "Abs", "", {"x"}, {"t"}, {}}, {"first", "F", "own", {"x", "t"}, {"u"}, {}}, {"second", "F", "own", {"u", "x"}, {"y"}, {}}},
         {f}, {4, 0, 32});  // 2 (2 x |x|) x
  // A function that calls another, and one that gives back what it got.
  const Function g{"G", {"a"}, {"out"}, {NodeOf("F", {"a", "a"}, {"s"}, {}, "own"), NodeOf("Neg", {"s"}, {"out"})}};
  const Function same{"Same", {"a"}, {"a"}, {}};
  Expect({{"", "Same", "own", {"x"}, {"z"}, {}}, {"", "G", "own", {"z"}, {"y"}, {}}}, {same, g, f}, {-2, 0, -8});
}

// The graph may call its own values whatever a call could: nothing of it is overwritten.
TEST_F(OnnxFunctions, NamesOfTheGraphAreNotTaken) {
  const Function f{"F", {"a", "b"}, {"out"}, {NodeOf("Add", {"a", "a"}, {"t"}), NodeOf("Mul", {"t", "b"}, {"out"})}};
  for (const char* name : {"F.0/t", "call0/F/t", "call_0/F/t"}) {
    SCOPED_TRACE(name);
    Expect({{"", "Abs", "", {"x"}, {"call"}, {}},
            {"", "Neg", "", {"x"}, {name}, {}},
            {"", "F", "own", {"x", "call"}, {"u"}, {}},
            {"", "Add", "", {"u", name}, {"y"}, {}}},
           {f}, {-1, 0, 6});  // 2 x |x| - x
  }
}

TEST_F(OnnxFunctions, AttributesAreTheCallersOrTheDefaults) {
  const Function leaky{"Leaky",
                       {"a"},
                       {"out"},
                       {NodeOf("LeakyRelu", {"a"}, {"out"}, {AttributeOf("alpha", kFloat, Reference("slope"))})},
                       {AttributeOf("slope", kFloat, Real(.5F))}};
  Expect({{"", "Leaky", "own", {"x"}, {"y"}, {{"slope", .25}}}}, {leaky}, {-.25, 0, 2});
  Expect({{"", "Leaky", "own", {"x"}, {"y"}, {}}}, {leaky}, {-.5, 0, 2});
  // Without a default it is as if the op had none: .01.
  Function without = leaky;
  without.defaults.clear();
  Expect({{"", "Leaky", "own", {"x"}, {"y"}, {}}}, {without}, {-.01, 0, 2});
}

TEST_F(OnnxFunctions, WhatHasNoEndIsRefused) {
  const Function self{"Self", {"a"}, {"out"}, {NodeOf("Self", {"a"}, {"out"}, {}, "own")}};
  ExpectRefused({{"", "Self", "own", {"x"}, {"y"}, {}}}, {self}, "deeper than");
  // Each calls the one before twice: 2^40 nodes in a small file.
  std::vector<Function> bomb = {{"D0", {"a"}, {"out"}, {NodeOf("Neg", {"a"}, {"out"})}}};
  for (int i = 1; i <= 40; ++i) {
    const std::string before = "D" + std::to_string(i - 1);
    bomb.push_back(
        {"D" + std::to_string(i), {"a"}, {"out"}, {NodeOf(before, {"a"}, {"t"}, {}, "own"), NodeOf(before, {"t"}, {"out"}, {}, "own")}});
  }
  ExpectRefused({{"", "D40", "own", {"x"}, {"y"}, {}}}, bomb, "nodes");
  // 4 MiB that a caller gives, taken 300 times; and as many nodes as bytes, in a body.
  std::vector<std::string> taken;
  for (int i = 0; i < 300; ++i) taken.push_back(AttributeOf("a" + std::to_string(i), kString, Reference("large")));
  ExpectRefused({{"", "Take", "own", {"x"}, {"y"}, {{"large", std::string(4 << 20, 'a')}}}},
                {{"Take", {"a"}, {"out"}, {NodeOf("Neg", {"a"}, {"out"}, taken)}}}, "bytes");
  std::string body;
  for (int i = 0; i < 1 << 18; ++i) body += Bytes(1, "");
  ExpectRefused({{"", "Body", "own", {"x"}, {"y"}, {}}},
                {{"Body", {"a"}, {"out"}, {NodeOf("Neg", {"a"}, {"out"}, {AttributeOf("body", kGraph, Bytes(6, body))})}}}, "nodes");
  const Function f{"F", {"a"}, {"out"}, {NodeOf("Neg", {"a"}, {"out"})}};
  ExpectRefused({{"", "F\x1b[31m", "own", {"x", "x"}, {"y"}, {}}}, {{"F\x1b[31m", {"a"}, {"out"}, f.nodes}}, "F\\x1b[31m");
  Function graph = f;
  graph.defaults = {AttributeOf("body", kGraph, Bytes(6, ""))};
  ExpectRefused({{"", "F", "own", {"x"}, {"y"}, {}}}, {graph}, "is a graph");
  ExpectRefused({{"", "F", "own", {"x"}, {"y"}, {}}}, {f, f}, "two functions");
  ExpectRefused({{"", "F", "own", {"x", "x"}, {"y"}, {}}}, {f}, "more inputs");
  Function other = f;
  other.opset = 13;
  ExpectRefused({{"", "F", "own", {"x"}, {"y"}, {}}}, {other}, "opset 13");
  ExpectRefused({{"", "H", "own", {"x"}, {"y"}, {}}}, {f}, "own");  // no function of that name
  Function cut = f;
  cut.defaults = {"\x0a\x7f"};
  ExpectRefused({{"", "F", "own", {"x"}, {"y"}, {}}}, {cut}, "not whole");
}

// Any byte of a file with functions, references, defaults and bodies, changed: it is refused, or imported.
TEST_F(OnnxFunctions, ChangedBytesDoNoHarm) {
  const Function leaky{"Leaky",
                       {"a"},
                       {"out"},
                       {NodeOf("LeakyRelu", {"a"}, {"out"}, {AttributeOf("alpha", kFloat, Reference("slope"))})},
                       {AttributeOf("slope", kFloat, Real(.5F))}};
  const std::string branch = Bytes(1, NodeOf("Leaky", {"a"}, {"t"}, {}, "own")) + Bytes(2, "branch") + Bytes(12, Bytes(1, "t"));
  const Function chosen{
      "Chosen",
      {"a", "c"},
      {"out"},
      {NodeOf("If", {"c"}, {"out"},
              {AttributeOf("then_branch", kGraph, Bytes(6, branch)), AttributeOf("else_branch", kGraph, Bytes(6, branch))})}};
  const Literal yes = Literal::Of(Dtype::kBool, {}, std::vector<char>{1});
  Expect({{"", "Constant", "", {}, {"c"}, {{"value", yes}}}, {"n", "Chosen", "own", {"x", "c"}, {"y"}, {}}}, {leaky, chosen}, {-.5, 0, 2});
  std::ifstream file(path_, std::ios::binary);
  const std::string good{std::istreambuf_iterator<char>(file), {}};
  std::size_t refused = 0;
  for (std::size_t at = 0; at < good.size(); ++at) {
    for (const char flip : {'\x01', '\x10', '\x7f'}) {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ flip);
      std::ofstream(path_, std::ios::binary | std::ios::trunc) << bad;
      Builder b;
      const Status status = ImportOnnx(b, files_, path_).status();
      if (status.ok()) continue;
      ++refused;
      EXPECT_FALSE(status.tag().empty() || status.what().empty() || status.why().empty() || status.fix().empty()) << status.ToString();
    }
  }
  EXPECT_GT(refused, good.size());
}

}  // namespace
}  // namespace ropewalk::mlrunner::onnx
