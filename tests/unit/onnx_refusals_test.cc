// What an import refuses, and in which words: files that are none or not whole, data that lies elsewhere, ops that are not known, shapes
// that do not fit or are not known before a run. Each says what, why and how to mend it.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>

#include "base/random.h"
#include "mlrunner/onnx/file.h"
#include "tests/unit/onnx_models.h"
#include "tests/unit/temp_folder.h"

namespace ropewalk::mlrunner::onnx {
namespace {

using mlrunner::testing::TempFolder;
using testing::DataPath;

class OnnxRefusals : public ::testing::Test {
 protected:
  std::string Path(const std::string& name = "model.onnx") const { return folder_.path() + "/" + name; }
  std::string Bytes(const std::string& path) {
    std::string bytes;
    EXPECT_EQ(files_.ReadSmall(path, 1 << 24, &bytes), 0);
    return bytes;
  }
  void Put(const std::string& bytes, const std::string& name = "model.onnx") { std::ofstream(Path(name), std::ios::binary) << bytes; }
  Status Imported(const ImportOptions& options = {}) {
    Builder b;
    Status status = ImportOnnx(b, files_, Path(), options).status();
    EXPECT_EQ(status.ok(), b.status().ok());
    return status;
  }
  // A graph of (B, 4) -> one node -> y.
  Status ImportedNode(Node node, std::vector<std::pair<std::string, Literal>> initializers = {}) {
    ModelDef model{17, "test", {}};
    model.graph.inputs = {{"x", Dtype::kF32, true, {{-1, "B"}, {4, ""}}}, {"ids", Dtype::kI64, true, {{-1, "B"}}}};
    node.name = "the_node";
    node.outputs = {"y"};
    model.graph.nodes = {std::move(node)};
    model.graph.initializers = std::move(initializers);
    model.graph.outputs = {{"y", Dtype::kF32, false, {}}};
    EXPECT_TRUE(WriteModel(files_, Path(), model).ok());
    return Imported();
  }
  static Literal Numbers(std::vector<std::int64_t> numbers) {
    const auto count = static_cast<std::int64_t>(numbers.size());
    return Literal::Of(Dtype::kI64, {count}, numbers);
  }
  TempFolder folder_;
  storage::LocalFileSystem files_;
};

void ExpectRefused(const Status& status, const char* tag, std::initializer_list<const char*> words) {
  EXPECT_EQ(status.tag(), tag) << status.ToString();
  EXPECT_FALSE(status.what().empty() || status.why().empty() || status.fix().empty()) << status.ToString();
  for (const char* word : words)
    EXPECT_NE(status.ToString().find(word), std::string::npos) << word << " is missing in:\n" << status.ToString();
}

TEST_F(OnnxRefusals, FilesThatAreNone) {
  ExpectRefused(Imported(), "ONNX01", {"model.onnx"});
  Put("");
  ExpectRefused(Imported(), "ONNX01", {"0 bytes"});
  Put("This is a letter, and no model.");
  ExpectRefused(Imported(), "ONNX01", {"31 bytes"});
}

TEST_F(OnnxRefusals, FilesThatAreCutOff) {
  const std::string whole = Bytes(DataPath("mlp.torchscript.onnx"));
  int refused = 0;
  for (std::size_t bytes = 0; bytes < whole.size(); bytes += 7) {
    Put(whole.substr(0, bytes));
    Status status = Imported();
    // What is cut between two fields is a message, too: of a model without the opset, which comes last.
    ASSERT_FALSE(status.ok()) << bytes;
    refused += status.tag() == "ONNX01";
  }
  EXPECT_GT(refused, 100);
}

// Any byte of a file, changed: it is refused, or imported; it does no harm.
TEST_F(OnnxRefusals, ChangedBytesDoNoHarm) {
  const std::uint64_t seed = 3;
  SCOPED_TRACE(seed);
  Random random(seed);
  int refused = 0, imported = 0;
  for (const char* name : {"mlp.opset14.onnx", "dlrm.torchscript.onnx"}) {
    const std::string whole = Bytes(DataPath(name));
    for (int trial = 0; trial < 400; ++trial) {
      std::string changed = whole;
      changed[random.Below(changed.size())] = static_cast<char>(random.Below(256));
      Put(changed);
      (Imported().ok() ? imported : refused)++;
    }
  }
  EXPECT_GT(refused, 50);
  EXPECT_GT(imported, 20);
}

TEST_F(OnnxRefusals, OtherOpsets) {
  for (std::int64_t opset : {12, 24}) {
    ModelDef model{opset, "test", {}};
    ASSERT_TRUE(WriteModel(files_, Path(), model).ok());
    ExpectRefused(Imported(), "ONNX02", {"13 to 23", "opset_version=17"});
  }
}

TEST_F(OnnxRefusals, DataThatIsElsewhere) {
  const std::string model = Bytes(DataPath("mlp.dynamo.onnx"));
  Put(model);
  ExpectRefused(Imported(), "ONNX04", {"mlp.dynamo.onnx.data", "no such file"});
  Put(Bytes(DataPath("mlp.dynamo.onnx.data")).substr(0, 300), "mlp.dynamo.onnx.data");
  ExpectRefused(Imported(), "ONNX04", {"300 bytes", "cut off"});
  ASSERT_EQ(unlink(Path("mlp.dynamo.onnx.data").c_str()), 0);
  ASSERT_EQ(symlink("/etc/passwd", Path("mlp.dynamo.onnx.data").c_str()), 0);
  ExpectRefused(Imported(), "ONNX04", {"links"});
  // Names of the same length, so that the messages around them still fit.
  for (const char* outside :
       {"../../../etc/passwd.", "/etc/passwd/////////", "a/../../secret/datax", "....................", "./.././//secret/file"}) {
    std::string changed = model;
    for (std::size_t at; (at = changed.find("mlp.dynamo.onnx.data")) != std::string::npos;) changed.replace(at, 20, outside, 20);
    Put(changed);
    ExpectRefused(Imported(), "ONNX04", {});
  }
}

// A folder on the way may be a link, too; and a path may lead through a file.
TEST_F(OnnxRefusals, DataBehindALinkedFolder) {
  std::string model = Bytes(DataPath("mlp.dynamo.onnx"));
  for (std::size_t at; (at = model.find("mlp.dynamo.onnx.data")) != std::string::npos;) model.replace(at, 20, "folder/a/././/a/data");
  Put(model);
  ASSERT_EQ(mkdir(Path("elsewhere").c_str(), 0755), 0);
  ASSERT_EQ(mkdir(Path("elsewhere/a").c_str(), 0755), 0);
  ASSERT_EQ(mkdir(Path("elsewhere/a/a").c_str(), 0755), 0);
  Put(Bytes(DataPath("mlp.dynamo.onnx.data")), "elsewhere/a/a/data");
  ASSERT_EQ(symlink("elsewhere", Path("folder").c_str()), 0);
  ExpectRefused(Imported(), "ONNX04", {"links"});
  ASSERT_EQ(unlink(Path("folder").c_str()), 0);
  Put("a file", "folder");
  ExpectRefused(Imported(), "ONNX04", {"folder"});
  ASSERT_EQ(unlink(Path("folder").c_str()), 0);
  ASSERT_EQ(rename(Path("elsewhere").c_str(), Path("folder").c_str()), 0);
  EXPECT_TRUE(Imported().ok()) << Imported().ToString();
}

// Many tensors of the same bytes: a small file would fill the memory.
TEST_F(OnnxRefusals, DataThatSeveralTensorsShare) {
  std::string model = Bytes(DataPath("mlp.dynamo.onnx"));
  int changed = 0;
  for (std::size_t at = 0; (at = model.find("offset\x12", at)) != std::string::npos;) {
    at += 7;
    const auto digits = static_cast<std::size_t>(model[at]);
    model.replace(at + 1, digits, digits, '0');
    ++changed;
  }
  ASSERT_GE(changed, 5);
  Put(model);
  Put(Bytes(DataPath("mlp.dynamo.onnx.data")).substr(0, 300), "mlp.dynamo.onnx.data");
  ExpectRefused(Imported(), "ONNX04", {"300 bytes", "together"});
}

// What a file calls its nodes does not reach a terminal as it is.
TEST_F(OnnxRefusals, NamesAreShownEscaped) {
  Node node{"", "Quux\x1b[2J", "", {"x", "evil\x1b[31m"}, {}, {}};
  EXPECT_EQ(ImportedNode(node).ToString().find('\x1b'), std::string::npos);
  node.op = "Add";
  EXPECT_EQ(ImportedNode(node).ToString().find('\x1b'), std::string::npos);
  const Status tensor = ImportedNode(node, {{"evil\x1b[31m", {Dtype::kF32, {5}, std::make_shared<const std::string>(16, '\0')}}});
  ExpectRefused(tensor, "ONNX07", {"evil"});
  EXPECT_EQ(tensor.ToString().find('\x1b'), std::string::npos);
  // Of inputs, where a value is given under a name that none has.
  ModelDef model{17, "test", {}};
  model.graph.inputs = {{"evil\x1b[31m", Dtype::kF32, true, {}}};
  Builder b;
  const Status input = ImportModel(b, model, "m.onnx", {.inputs = {{"x", b.Number(0, Dtype::kF32)}}}).status();
  ExpectRefused(input, "ONNX05", {"evil\\x1b[31m"});
}

TEST_F(OnnxRefusals, TensorsThatDoNotFit) {
  Node node{"", "Add", "", {"x", "w"}, {}, {}};
  ExpectRefused(ImportedNode(node, {{"w", {Dtype::kF32, {5}, std::make_shared<const std::string>(16, '\0')}}}), "ONNX07",
                {"w", "16 bytes", "20"});
  ExpectRefused(ImportedNode(node, {{"w", {Dtype::kF32, {-4}, std::make_shared<const std::string>(16, '\0')}}}), "ONNX07", {"(-4)"});
  ExpectRefused(ImportedNode(node, {{"w", {Dtype::kF32, {std::int64_t{1} << 62, 8}, std::make_shared<const std::string>()}}}), "ONNX07",
                {});
}

TEST_F(OnnxRefusals, OpsThatAreNotKnown) {
  ExpectRefused(ImportedNode({"", "Einsum", "", {"x"}, {}, {}}), "ONNX03", {"the_node", "Einsum", "matmul"});
  ExpectRefused(ImportedNode({"", "Quux", "", {"x"}, {}, {}}), "ONNX03", {"the_node", "Quux", "docs/mlrunner.md"});
  ExpectRefused(ImportedNode({"", "Add", "com.example", {"x", "x"}, {}, {}}), "ONNX03", {"com.example"});
}

TEST_F(OnnxRefusals, ShapesThatDoNotFit) {
  std::vector<float> weights(15);
  std::pair<std::string, Literal> w{"w", Literal::Of(Dtype::kF32, {5, 3}, weights)};
  ExpectRefused(ImportedNode({"", "MatMul", "", {"x", "w"}, {}, {}}, {w}), "GRAPH01", {"the_node", "MatMul", "(B, 4)", "(5, 3)"});
  ExpectRefused(ImportedNode({"", "Reshape", "", {"x", "s"}, {}, {}}, {{"s", Numbers({-1, 3})}}), "ONNX05", {"the_node", "4*B", "3"});
  ExpectRefused(ImportedNode({"", "Reshape", "", {"x", "s"}, {}, {}}, {{"s", Numbers({-1, -1})}}), "ONNX05", {"-1"});
  ExpectRefused(ImportedNode({"", "Squeeze", "", {"x", "s"}, {}, {}}, {{"s", Numbers({1})}}), "ONNX05", {"the_node"});
  ExpectRefused(ImportedNode({"", "Unsqueeze", "", {"x", "s"}, {}, {}}, {{"s", Numbers({7})}}), "ONNX05", {"axis 7"});
  ExpectRefused(ImportedNode({"", "Gather", "", {"w", "s"}, {}, {}}, {w, {"s", Numbers({5})}}), "ONNX05", {"row 5 of 5"});
  ExpectRefused(ImportedNode({"", "Softmax", "", {"x"}, {}, {{"axis", std::int64_t{2}}}}), "ONNX05", {"axis 2"});
  ExpectRefused(ImportedNode({"", "Split", "", {"x", "s"}, {}, {{"axis", std::int64_t{1}}}}, {{"s", Numbers({2, 3})}}), "ONNX05", {"5"});
  ExpectRefused(ImportedNode({"", "Add", "", {"x", "nobody"}, {}, {}}), "ONNX05", {"nobody"});
  ExpectRefused(ImportedNode({"", "Add", "", {"x"}, {}, {}}), "ONNX05", {"input 1"});
}

TEST_F(OnnxRefusals, ShapesThatOnlyARunKnows) {
  ExpectRefused(ImportedNode({"", "Reshape", "", {"x", "ids"}, {}, {}}), "ONNX06", {"the_node", "lengths"});
  ExpectRefused(ImportedNode({"", "Expand", "", {"x", "ids"}, {}, {}}), "ONNX06", {"the_node"});
  ExpectRefused(ImportedNode({"", "Slice", "", {"x", "s", "e"}, {}, {}}, {{"s", Numbers({0})}, {"e", Numbers({3})}}), "ONNX05",
                {"B", "bounds"});
}

TEST_F(OnnxRefusals, InputsThatDoNotFit) {
  ASSERT_TRUE(ImportedNode({"", "Relu", "", {"x"}, {}, {}}).ok());
  auto with = [&](Dtype dtype, Shape shape, const char* name) {
    Builder b;
    Value value = b.Input("given", dtype, std::move(shape));
    return ImportOnnx(b, files_, Path(), {.inputs = {{name, value}}}).status();
  };
  EXPECT_TRUE(with(Dtype::kF32, {3, 4}, "x").ok());
  ExpectRefused(with(Dtype::kF32, {3, 5}, "x"), "ONNX05", {"(3, 5)", "(B, 4)"});
  ExpectRefused(with(Dtype::kF64, {3, 4}, "x"), "ONNX05", {"f64", "f32"});
  ExpectRefused(with(Dtype::kF32, {3, 4}, "image"), "ONNX05", {"image", "x, ids"});
}

// Weights of a Loop that no bag of embeddings has.
TEST_F(OnnxRefusals, LoopsThatAreNoSums) {
  auto body = std::make_shared<GraphDef>();
  body->inputs = {{"i", Dtype::kI64, true, {}}, {"go", Dtype::kBool, true, {}}, {"state", Dtype::kF32, false, {}}};
  body->nodes = {{"", "Identity", "", {"go"}, {"still"}, {}}, {"", "Tanh", "", {"state"}, {"next"}, {}}};
  body->outputs = {{"still", Dtype::kBool, false, {}}, {"next", Dtype::kF32, false, {}}};
  ModelDef model{17, "test", {}};
  Node loop{"l", "Loop", "", {"n", "", "x"}, {"y"}, {}};
  loop.attributes["body"] = std::shared_ptr<const GraphDef>(body);
  model.graph.nodes = {loop};
  // The writer has no bodies: what is imported is given as data.
  Builder b;
  model.graph.inputs = {{"x", Dtype::kF32, true, {{2, ""}}}};
  model.graph.initializers = {{"n", Literal::Of(Dtype::kI64, {}, std::vector<std::int64_t>{3})}};
  model.graph.outputs = {{"y", Dtype::kF32, false, {}}};
  ExpectRefused(ImportModel(b, model, "model.onnx").status(), "ONNX05", {"Loop", "round"});
}

}  // namespace
}  // namespace ropewalk::mlrunner::onnx
