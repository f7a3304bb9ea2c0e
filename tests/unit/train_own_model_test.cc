// Models that are brought along: an ONNX file is trained and fine-tuned by any number of ranks, goes on from a checkpoint, and what was
// trained is exported and loaded again; first values from files; parameters that are frozen.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <numeric>

#include "base/random.h"
#include "mlrunner/graph/maths.h"
#include "mlrunner/kernels/reference.h"
#include "mlrunner/onnx/export.h"
#include "mlrunner/onnx/file.h"
#include "mlrunner/onnx/import.h"
#include "mlrunner/tensors/safetensors.h"
#include "mlrunner/train/checkpoint_reader.h"
#include "mlrunner/train/step_graph.h"
#include "tests/unit/train_ranks.h"

namespace ropewalk::mlrunner {
namespace {

using testing::JobOf;
using testing::RankResult;
using testing::TrainOnThreads;

constexpr std::int64_t kSamples = 24, kHeldOut = 7;

std::string DataPath(const std::string& name) { return std::string(ROPEWALK_ONNX_DATA) + "/" + name; }

// Samples that a seed makes: rows of features, or images, in which the class is to be seen.
class Drawn final : public Samples {
 public:
  Drawn(std::string name, std::vector<std::int64_t> dims, std::int64_t classes, std::int64_t count, std::uint64_t seed)
      : fields_{{std::move(name), Dtype::kF32, std::move(dims), 0}, {"label", Dtype::kI32, {}, classes}}, count_(count), seed_(seed) {}
  std::int64_t count() const override { return count_; }
  const std::vector<Field>& fields() const override { return fields_; }
  std::uint64_t content_hash() const override { return seed_ * 1000 + static_cast<std::uint64_t>(count_); }
  void Fill(const FillCall& call) const override {
    std::size_t at = 0;
    for (std::int64_t id : call.ids) {
      Random random(seed_ * 4096 + static_cast<std::uint64_t>(id));
      const auto label = static_cast<std::int64_t>(random.Below(static_cast<std::uint64_t>(fields_[1].classes)));
      if (call.field == 1) {
        static_cast<std::int32_t*>(call.rows)[at++] = static_cast<std::int32_t>(label);
        continue;
      }
      for (std::int64_t i = 0; i < NumElements(fields_[0].dims); ++i) {
        const double number = random.Unit() - .5 + (i % fields_[1].classes == label ? 1.5 : 0);
        if (call.dtype == Dtype::kF64) {
          static_cast<double*>(call.rows)[at++] = number;
        } else {
          static_cast<float*>(call.rows)[at++] = static_cast<float>(number);
        }
      }
    }
  }

 private:
  std::vector<Field> fields_;
  std::int64_t count_;
  std::uint64_t seed_;
};

DataSet Rows(std::int64_t held_out = kHeldOut) {
  return {std::make_unique<Drawn>("features", std::vector<std::int64_t>{6}, 4, kSamples, 3),
          std::make_unique<Drawn>("features", std::vector<std::int64_t>{6}, 4, held_out, 4)};
}
DataSet Images() {
  return {std::make_unique<Drawn>("image", std::vector<std::int64_t>{3, 16, 16}, 3, kSamples, 5),
          std::make_unique<Drawn>("image", std::vector<std::int64_t>{3, 16, 16}, 3, kHeldOut, 6)};
}
testing::RunOptions With(DataSet (*data)()) {
  return {.load = [data](testing::ThreadGang&) -> Result<DataSet> { return data(); }};
}
DataSet RowsOfAnyCount() { return Rows(); }

class OwnModel : public ::testing::Test {
 protected:
  // The MLP of six features that PyTorch has exported, at steps whose last batch of an epoch is short.
  std::vector<std::string> Mlp(std::vector<std::string> more = {}) {
    return Of("mlp.torchscript.onnx", {"train.batch=7", "train.steps=9", "optimizer.learning_rate=0.05"}, std::move(more));
  }
  static std::vector<std::string> Of(const std::string& file, std::vector<std::string> settings, std::vector<std::string> more) {
    settings.insert(settings.end(), {"model.kind=onnx", "model.path=" + DataPath(file), "train.threads=1"});
    settings.insert(settings.end(), more.begin(), more.end());
    return settings;
  }
  std::string Path(const std::string& name) const { return folder_.path() + "/" + name; }
  static std::vector<RankResult> Train(const std::vector<std::string>& settings, std::int32_t ranks = 1,
                                       DataSet (*data)() = RowsOfAnyCount) {
    return TrainOnThreads(JobOf(settings), ranks, With(data));
  }
  std::map<std::string, Tensor> ReadTensors(const std::string& path) {
    auto file = SafetensorsFile::Open(files_, path);
    EXPECT_TRUE(file.ok()) << file.status().ToString();
    return file.ok() ? *file->ReadAll() : std::map<std::string, Tensor>();
  }
  // What the file says of an input, as a model that is run.
  RefTensor RunFile(const std::string& path, const RefTensor& input) {
    Builder b;
    auto model = onnx::ImportOnnx(b, files_, path, {.mode = onnx::ImportMode::kEvaluation});
    EXPECT_TRUE(model.ok()) << model.status().ToString();
    if (!model.ok()) return {};
    b.Output("y", model->outputs.at(0).value);
    auto graph = b.Finish();
    std::map<std::string, RefTensor> states;
    for (const auto& [name, tensor] : model->weights) states[name] = ToRef(tensor);
    auto got = Evaluate(*graph, Bindings(graph->symbols.size(), input.dims[0]), {input}, states);
    EXPECT_TRUE(got.ok()) << got.status().ToString();
    return got.ok() ? got->outputs[0] : RefTensor();
  }
  std::map<std::string, Tensor> WeightsOf(const std::string& path) {
    Builder b;
    auto model = onnx::ImportOnnx(b, files_, path);
    EXPECT_TRUE(model.ok()) << model.status().ToString();
    return model.ok() ? model->weights : std::map<std::string, Tensor>();
  }
  testing::TempFolder folder_;
  storage::LocalFileSystem files_;
};

void ExpectFine(const std::vector<RankResult>& results) {
  for (const RankResult& result : results) ASSERT_TRUE(result.status.ok()) << result.status.ToString();
}
void ExpectNear(const std::vector<double>& a, const std::vector<double>& b, double tolerance) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], tolerance) << "step " << i;
}
void ExpectSame(const std::map<std::string, Tensor>& a, const std::map<std::string, Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, tensor] : a) {
    ASSERT_TRUE(b.contains(name)) << name;
    EXPECT_EQ(tensor.dims, b.at(name).dims) << name;
    EXPECT_TRUE(tensor.bytes == b.at(name).bytes) << name;
  }
}

// The first loss is that of the file's values: cross entropy of what it says of the first batch.
TEST_F(OwnModel, BeginsWithWhatTheFileHolds) {
  const auto results = Train(Mlp({"train.batch=24", "train.steps=1", "train.dtype=f64"}));
  ExpectFine(results);
  const DataSet data = Rows();
  std::vector<std::int64_t> ids(kSamples);
  std::iota(ids.begin(), ids.end(), 0);
  RefTensor x{{kSamples, 6}, std::vector<double>(kSamples * 6)};
  std::vector<std::int32_t> labels(kSamples);
  data.training->Fill({.field = 0, .ids = ids, .dtype = Dtype::kF64, .rows = x.data.data()});
  data.training->Fill({.field = 1, .ids = ids, .dtype = Dtype::kI32, .rows = labels.data()});
  const RefTensor said = RunFile(DataPath("mlp.torchscript.onnx"), x);  // logarithms of probabilities
  double loss = 0;
  for (std::size_t i = 0; i < labels.size(); ++i) loss -= said.data[i * 4 + static_cast<std::size_t>(labels[i])] / kSamples;
  EXPECT_NEAR(results[0].losses[0], loss, 1e-4);
}

TEST_F(OwnModel, RanksTrainWhatOneTrains) {
  const std::vector<std::string> settings = Mlp({"train.dtype=f64", "train.steps=12"});
  const auto one = Train(settings), three = Train(settings, 3);
  ExpectFine(one);
  ExpectFine(three);
  ExpectNear(one[0].losses, three[0].losses, 1e-9);
  EXPECT_LT(one[0].losses.back(), one[0].losses.front() * .8) << "nothing is learnt";
  EXPECT_EQ(one[0].summary.held_out_hits, three[0].summary.held_out_hits);
}

// Moments of batch norms are those of the global batch, and their running statistics are no parameters: weight decay does not touch them.
TEST_F(OwnModel, BatchNormsOfAFileGoByTheGlobalBatch) {
  for (const char* file : {"resnet.torchscript.onnx", "resnet.dynamo.onnx"}) {
    const std::vector<std::string> settings = Of(
        file, {"train.batch=7", "train.steps=4", "train.dtype=f64", "optimizer.learning_rate=0.01"}, {"train.export=" + Path("out.onnx")});
    const auto one = Train(settings, 1, Images);
    ExpectFine(one);
    const auto statistics = WeightsOf(Path("out.onnx"));
    const auto two = Train(settings, 2, Images);
    ExpectFine(two);
    ExpectNear(one[0].losses, two[0].losses, 1e-9);
    const auto again = WeightsOf(Path("out.onnx")), before = WeightsOf(DataPath(file));
    std::size_t moved = 0;
    for (const auto& [name, tensor] : before) {
      if (name.find("running") == std::string::npos) continue;
      const RefTensor was = ToRef(tensor), is = ToRef(statistics.at(name)), of_two = ToRef(again.at(name));
      for (std::size_t i = 0; i < is.data.size(); ++i) EXPECT_NEAR(is.data[i], of_two.data[i], 1e-5) << name;
      if (was.data != is.data) ++moved;
    }
    EXPECT_EQ(moved, 12u) << "running statistics of six batch norms";
  }
}

TEST_F(OwnModel, RunningBatchNormsStayAsTheFileHasThem) {
  ExpectFine(Train(Of("resnet.torchscript.onnx", {"train.batch=8", "train.steps=2"},
                      {"model.batch_norm=running", "train.export=" + Path("out.safetensors")}),
                   1, Images));
  const auto before = WeightsOf(DataPath("resnet.torchscript.onnx")), after = ReadTensors(Path("out.safetensors"));
  for (const auto& [name, tensor] : before) {
    const bool is_running = name.find("running") != std::string::npos;
    EXPECT_EQ(tensor.bytes == after.at(name).bytes, is_running) << name;
  }
}

// A checkpoint wins over what the file holds, bit for bit.
TEST_F(OwnModel, GoesOnFromACheckpoint) {
  const auto settings = [&](int steps, const std::string& folder) {
    return Mlp({"train.steps=" + std::to_string(steps), "checkpoint.folder=" + Path(folder), "optimizer.kind=adamw"});
  };
  for (std::int32_t ranks : {1, 2}) {
    const std::string parts = "parts" + std::to_string(ranks), whole = "whole" + std::to_string(ranks);
    ExpectFine(Train(settings(4, parts), ranks));
    const auto rest = Train(settings(9, parts), ranks), all = Train(settings(9, whole), ranks);
    ExpectFine(rest);
    ExpectFine(all);
    EXPECT_EQ(rest[0].summary.resumed_from, 4);
    ASSERT_EQ(rest[0].losses.size(), 5u);
    EXPECT_TRUE(std::equal(rest[0].losses.begin(), rest[0].losses.end(), all[0].losses.begin() + 4));
  }
}

TEST_F(OwnModel, IsExportedAndTrainedOn) {
  const auto first = Train(Mlp({"train.export=" + Path("out.onnx")}));
  ExpectFine(first);
  const auto before = WeightsOf(DataPath("mlp.torchscript.onnx")), after = WeightsOf(Path("out.onnx"));
  ASSERT_EQ(before.size(), after.size());
  for (const auto& [name, tensor] : before) EXPECT_FALSE(tensor.bytes == after.at(name).bytes) << name;
  // The file has the inputs and outputs of the one that was brought, and no labels.
  auto file = onnx::ReadModel(files_, Path("out.onnx"));
  auto brought = onnx::ReadModel(files_, DataPath("mlp.torchscript.onnx"));
  ASSERT_TRUE(file.ok() && brought.ok());
  ASSERT_EQ(file->graph.inputs.size(), 1u);
  EXPECT_EQ(file->graph.inputs[0].name, brought->graph.inputs[0].name);
  EXPECT_EQ(file->graph.outputs[0].name, brought->graph.outputs[0].name);
  // No step away from what was trained: its loss begins where the other one's ended, and no more is lost.
  auto settings = Mlp({"model.path=" + Path("out.onnx"), "train.steps=1", "optimizer.learning_rate=0", "optimizer.momentum=0"});
  const auto second = Train(settings);
  ExpectFine(second);
  EXPECT_EQ(second[0].summary.held_out_hits, first[0].summary.held_out_hits);
  EXPECT_NEAR(second[0].summary.held_out_loss, first[0].summary.held_out_loss, 1e-6);
}

TEST_F(OwnModel, ExportedAveragesAreWhatIsCounted) {
  const auto first = Train(Mlp({"optimizer.average=0.7", "train.frozen=*.bias", "train.export=" + Path("out.onnx")}));
  ExpectFine(first);
  const auto second = Train(Mlp({"model.path=" + Path("out.onnx"), "train.steps=1", "optimizer.learning_rate=0", "optimizer.momentum=0"}));
  ExpectFine(second);
  EXPECT_NEAR(second[0].summary.held_out_loss, first[0].summary.held_out_loss, 1e-6);
  EXPECT_EQ(second[0].summary.held_out_hits, first[0].summary.held_out_hits);
}

TEST_F(OwnModel, WhatIsFrozenStays) {
  ExpectFine(Train(Mlp({"train.frozen=layers.0.*, *.bias", "optimizer.weight_decay=0.1", "train.metrics=" + Path("m.jsonl"),
                        "train.export=" + Path("out.safetensors")}),
                   2));
  const auto before = WeightsOf(DataPath("mlp.torchscript.onnx")), after = ReadTensors(Path("out.safetensors"));
  std::size_t frozen = 0;
  for (const auto& [name, tensor] : before) {
    const bool is_frozen = name.starts_with("layers.0.") || name.ends_with(".bias");
    EXPECT_EQ(tensor.bytes == after.at(name).bytes, is_frozen) << name;
    frozen += is_frozen ? 1 : 0;
  }
  EXPECT_EQ(frozen, 5u);
  const auto none = Train(Mlp({"train.frozen=encoder.*"})), all = Train(Mlp({"train.frozen=*"}));
  EXPECT_EQ(none[0].status.tag(), "TRAIN11");
  EXPECT_EQ(all[0].status.tag(), "TRAIN11");
  EXPECT_NE(none[0].status.why().find("layers.0.weight"), std::string::npos) << none[0].status.ToString();
}

TEST_F(OwnModel, FirstValuesOfAFileThatFits) {
  const std::vector<std::string> tiny = {"model.hidden=5", "train.batch=8", "train.steps=3", "train.threads=1"};
  auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), tiny.begin(), tiny.end());
    return more;
  };
  ExpectFine(Train(with({"train.seed=7", "train.export=" + Path("w.safetensors"), "checkpoint.folder=" + Path("ckpt")})));
  const std::vector<std::string> still = {"train.seed=8", "train.steps=1", "optimizer.learning_rate=0", "optimizer.momentum=0",
                                          "train.export=" + Path("again.safetensors")};
  const auto begun_with = [&](const std::string& path, std::int32_t ranks) {
    std::vector<std::string> more = still;
    more.push_back("model.first_values=" + path);
    return Train(with(more), ranks);
  };
  ExpectFine(begun_with(Path("w.safetensors"), 2));
  ExpectSame(ReadTensors(Path("again.safetensors")), ReadTensors(Path("w.safetensors")));
  ASSERT_EQ(files_.RemoveFile(Path("again.safetensors")), 0);
  ExpectFine(begun_with(Path("ckpt/step-000000000003.safetensors"), 1));
  ExpectSame(ReadTensors(Path("again.safetensors")), ReadTensors(Path("w.safetensors")));

  // All that does not fit is said at once.
  auto tensors = ReadTensors(Path("w.safetensors"));
  ASSERT_TRUE(tensors.contains("out/b"));
  tensors["out/weight"] = tensors.at("out/w");
  tensors.erase("out/w");
  tensors["out/b"].dims = {2, 2};
  ASSERT_TRUE(WriteSafetensors(files_, Path("bad.safetensors"), tensors).ok());
  const auto bad = begun_with(Path("bad.safetensors"), 1);
  EXPECT_EQ(bad[0].status.tag(), "TRAIN11");
  EXPECT_EQ(bad[0].status.why(), "it has no out/w; nothing here is called out/weight; out/b is (2, 2) there and (4) here");
  EXPECT_EQ(begun_with(Path("nowhere.safetensors"), 1)[0].status.tag(), "TENS01");
}

// Ranks that read different files would train different models.
TEST_F(OwnModel, RanksWithOtherFirstValuesAreRefused) {
  auto weights = WeightsOf(DataPath("mlp.torchscript.onnx"));
  ASSERT_TRUE(WriteSafetensors(files_, Path("0"), weights).ok());
  weights.begin()->second.bytes[0] ^= std::byte{1};
  ASSERT_TRUE(WriteSafetensors(files_, Path("1"), weights).ok());
  // One path, at which each rank finds another file.
  const std::string path = Path("link");
  TrainJob job = JobOf(Mlp({"model.first_values=" + path}));
  class Turned final : public storage::FileSystem {
   public:
    Turned(std::string link, std::string folder) : link_(std::move(link)), folder_(std::move(folder)) {}
    int Create(const std::string& p, std::unique_ptr<storage::WritableFile>* file) override { return files_.Create(p, file); }
    int ReadSmall(const std::string& p, std::size_t max, std::string* bytes) override { return files_.ReadSmall(p, max, bytes); }
    int ReadAt(const std::string& p, std::uint64_t offset, std::span<std::byte> into, std::size_t* read) override {
      thread_local const int mine = next_++;
      return files_.ReadAt(p == link_ ? folder_ + "/" + std::to_string(mine % 2) : p, offset, into, read);
    }
    int MakeFolder(const std::string& p) override { return files_.MakeFolder(p); }
    int SyncFolder(const std::string& p) override { return files_.SyncFolder(p); }
    int Look(const std::string& p, storage::FileFacts* facts) override { return files_.Look(p, facts); }
    int List(const std::string& p, std::vector<std::string>* names) override { return files_.List(p, names); }
    int Rename(const std::string& a, const std::string& b, storage::RenameMode mode) override { return files_.Rename(a, b, mode); }
    int RemoveFile(const std::string& p) override { return files_.RemoveFile(p); }
    int RemoveFolder(const std::string& p) override { return files_.RemoveFolder(p); }

   private:
    storage::LocalFileSystem files_;
    std::string link_, folder_;
    std::atomic<int> next_{0};
  } turned(path, folder_.path());
  testing::RunOptions options = With(RowsOfAnyCount);
  options.files = &turned;
  const auto results = TrainOnThreads(job, 2, options);
  EXPECT_EQ(results[0].status.tag(), "TRAIN02") << results[0].status.ToString();
}

// --- a loss of the file's own ---

enum class Loss { kMean, kOfEach };
// logits = x w; loss = -log softmax(logits)[label], of each row or their mean.
std::string WriteWithLoss(storage::FileSystem& files, const std::string& path, Loss loss) {
  using namespace onnx;  // NOLINT: of a test's own
  ModelDef model{17, "test", {}};
  const auto literal = [](Dtype dtype, Dims dims, const std::vector<double>& numbers) {
    const Tensor tensor = ToTensor(dtype, RefTensor{dims, numbers});
    return Literal{dtype, dims,
                   std::make_shared<const std::string>(reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size())};
  };
  std::vector<double> weights(24);
  for (std::size_t i = 0; i < weights.size(); ++i) weights[i] = .1 * static_cast<double>(i % 7) - .3;
  GraphDef& graph = model.graph;
  graph.name = "with_loss";
  graph.initializers = {{"w", literal(Dtype::kF32, {6, 4}, weights)},
                        {"depth", literal(Dtype::kI64, {}, {4})},
                        {"ends", literal(Dtype::kF32, {2}, {0, 1})},
                        {"axes", literal(Dtype::kI64, {1}, {1})}};
  graph.inputs = {{"x", Dtype::kF32, true, {{-1, "batch"}, {6, ""}}}, {"target", Dtype::kI64, true, {{-1, "batch"}}}};
  graph.nodes = {{"", "MatMul", "", {"x", "w"}, {"logits"}, {}},
                 {"", "LogSoftmax", "", {"logits"}, {"logs"}, {}},
                 {"", "OneHot", "", {"target", "depth", "ends"}, {"one"}, {}},
                 {"", "Mul", "", {"logs", "one"}, {"chosen"}, {}},
                 {"", "ReduceSum", "", {"chosen", "axes"}, {"each"}, {{"keepdims", std::int64_t{0}}}},
                 {"", "Neg", "", {"each"}, {loss == Loss::kMean ? "losses" : "loss"}, {}}};
  if (loss == Loss::kMean) graph.nodes.push_back({"", "ReduceMean", "", {"losses"}, {"loss"}, {{"keepdims", std::int64_t{0}}}});
  graph.outputs = {{"loss", Dtype::kF32, false, {}}, {"logits", Dtype::kF32, false, {}}};
  const Status written = WriteModel(files, path, model);
  EXPECT_TRUE(written.ok()) << written.ToString();
  return path;
}

TEST_F(OwnModel, ALossOfTheFilesOwnIsTheSameTraining) {
  const std::string each = WriteWithLoss(files_, Path("each.onnx"), Loss::kOfEach),
                    mean = WriteWithLoss(files_, Path("mean.onnx"), Loss::kMean);
  const auto of = [&](const std::string& path, int batch, std::vector<std::string> more) {
    std::vector<std::string> settings = {"model.kind=onnx", "model.path=" + path, "train.batch=" + std::to_string(batch),
                                         "train.steps=9",   "train.threads=1",    "train.dtype=f64"};
    settings.insert(settings.end(), more.begin(), more.end());
    return settings;
  };
  const std::vector<std::string> ours = {"model.loss=cross-entropy", "model.inputs=features, label"};
  const auto expected = Train(of(each, 7, ours), 2), short_batches = Train(of(each, 7, {}), 2);
  ExpectFine(expected);
  ExpectFine(short_batches);
  ExpectNear(expected[0].losses, short_batches[0].losses, 1e-9);
  EXPECT_EQ(expected[0].summary.held_out_hits, short_batches[0].summary.held_out_hits);
  EXPECT_NEAR(expected[0].summary.held_out_loss, short_batches[0].summary.held_out_loss, 1e-9);
  EXPECT_LT(expected[0].losses.back(), expected[0].losses.front() * .9);

  // A mean of its own is right where batches come out even, and refused where they do not.
  const auto even = Train(of(each, 8, {}), 2), of_mean = Train(of(mean, 8, {"train.export=" + Path("out.onnx")}), 2);
  ExpectFine(even);
  ExpectFine(of_mean);
  ExpectNear(even[0].losses, of_mean[0].losses, 1e-9);
  EXPECT_NEAR(even[0].summary.held_out_loss, of_mean[0].summary.held_out_loss, 1e-9);
  EXPECT_EQ(Train(of(mean, 7, {}), 2)[0].status.tag(), "TRAIN10");
  auto file = onnx::ReadModel(files_, Path("out.onnx"));
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  EXPECT_EQ(file->graph.inputs.size(), 1u) << "neither loss nor labels are for others";
  EXPECT_EQ(file->graph.outputs.size(), 1u);
}

TEST_F(OwnModel, SquaredErrorsAndJudgementsOfOneNumber) {
  Builder b;
  Value x = b.Input("x", Dtype::kF32, {b.NewSymbol("batch"), 6});
  b.Output("y", MatMul(x, b.NewParameter("w", {6, 1}, Initializer::Zeros())));
  auto graph = b.Finish();
  ASSERT_TRUE(graph.ok());
  const auto zeros = [](const StateInfo&) -> Result<Tensor> {
    return ToTensor(Dtype::kF32, RefTensor{{6, 1}, std::vector<double>(6, .25)});
  };
  ASSERT_TRUE(onnx::ExportOnnx(*graph, {{}, zeros}, files_, Path("one.onnx")).ok());
  for (const char* loss : {"squared-error", "binary-cross-entropy"}) {
    const auto load = [&](testing::ThreadGang&) -> Result<DataSet> {
      return DataSet{std::make_unique<Drawn>("features", std::vector<std::int64_t>{6}, 2, kSamples, 3), nullptr};
    };
    const auto results = TrainOnThreads(JobOf({"model.kind=onnx", "model.path=" + Path("one.onnx"), std::string("model.loss=") + loss,
                                               "train.batch=7", "train.epochs=20", "train.threads=1", "optimizer.learning_rate=0.02"}),
                                        1, {.load = load});
    ExpectFine(results);
    EXPECT_LT(results[0].losses.back(), results[0].losses.front() * .7) << loss;
  }
}

// --- what is refused ---

TEST_F(OwnModel, WhatDoesNotFitTheDataIsSaid) {
  const auto refused = [&](const std::vector<std::string>& settings, DataSet (*data)() = RowsOfAnyCount) {
    return Train(settings, 1, data)[0].status;
  };
  EXPECT_EQ(refused(Mlp({"model.output=logits"})).tag(), "SPEC02");
  EXPECT_EQ(refused(Mlp({"model.loss=huber"})).tag(), "SPEC02");
  EXPECT_EQ(refused(Mlp({"model.inputs=image"})).tag(), "SPEC02");
  EXPECT_EQ(refused(Mlp({"model.inputs=features, label"})).tag(), "SPEC02");
  EXPECT_EQ(refused(Mlp({"model.loss=squared-error"})).tag(), "SPEC02");
  EXPECT_EQ(refused(Mlp(), Images).tag(), "SPEC02");
  EXPECT_EQ(refused(Mlp({"model.path=" + Path("nowhere.onnx")})).tag(), "ONNX01");
  EXPECT_EQ(refused(Mlp({"train.export=" + Path("no/folder/out.onnx")})).tag(), "TRAIN09");
  const Status status = refused(Mlp(), Images);
  EXPECT_NE(status.why().find("768 numbers a sample, and 6 are wanted"), std::string::npos) << status.ToString();
}

// What a file calls its inputs and outputs does not reach a terminal as it is.
TEST_F(OwnModel, NamesOfAFileAreShownEscaped) {
  auto model = onnx::ReadModel(files_, DataPath("mlp.torchscript.onnx"));
  ASSERT_TRUE(model.ok());
  onnx::GraphDef& graph = model->graph;
  const std::string evil = "evil\x1b[31m";
  graph.nodes.push_back({"", "Identity", "", {graph.outputs.at(0).name}, {evil}, {}});
  graph.outputs[0].name = evil;
  ASSERT_TRUE(onnx::WriteModel(files_, Path("evil.onnx"), *model).ok());
  const Status status = Train({"model.kind=onnx", "model.path=" + Path("evil.onnx"), "model.output=nobody", "train.batch=7"})[0].status;
  EXPECT_EQ(status.tag(), "SPEC02") << status.ToString();
  EXPECT_NE(status.why().find("evil\\x1b[31m"), std::string::npos) << status.ToString();
}

TEST(OwnModelJob, KeysAreChecked) {
  const auto read = [](const std::vector<std::string>& settings) {
    Config config(TrainKeys());
    for (const std::string& setting : settings) EXPECT_TRUE(ApplySetting(&config, setting).ok()) << setting;
    return ReadTrainJob(config).status();
  };
  EXPECT_TRUE(read({"model.kind=onnx", "model.path=/m.onnx", "train.export=/out.onnx", "train.frozen=*.bias"}).ok());
  EXPECT_EQ(read({"model.kind=onnx"}).tag(), "SPEC02");
  EXPECT_EQ(read({"model.kind=mlp", "model.path=/m.onnx"}).tag(), "SPEC02");
  EXPECT_EQ(read({"model.kind=onnx", "model.path=/m.onnx", "model.batch_norm=none"}).tag(), "SPEC02");
  EXPECT_EQ(read({"train.export=/out.pt"}).tag(), "SPEC02");
}

}  // namespace
}  // namespace ropewalk::mlrunner
