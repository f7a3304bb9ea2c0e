// Families of models and data: what the tables promise of each, and what a family is given to build its loss of.
#include "mlrunner/train/family.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/random.h"
#include "mlrunner/graph/maths.h"
#include "mlrunner/kernels/reference.h"
#include "mlrunner/train/job.h"
#include "mlrunner/train/spec_members.h"

namespace ropewalk::mlrunner {
namespace {

// What every section's families have to hold for.
template <class Family, class Spec>
void ExpectSound(const std::vector<const Family*>& families) {
  std::set<std::string> names;
  std::map<std::string, FamilyKey> keys;
  const std::map<std::string, std::string> members = TextsOf(Spec());
  for (const Family* family : families) {
    SCOPED_TRACE(family->name);
    EXPECT_TRUE(names.insert(family->name).second) << "two families of one name";
    EXPECT_FALSE(family->help.empty());
    for (const FamilyKey& key : family->keys) {
      EXPECT_FALSE(key.help.empty()) << key.name;
      EXPECT_EQ(keys.try_emplace(key.name, key).first->second.type, key.type) << key.name << " is of two types";
      if (const auto member = members.find(key.name); member != members.end()) {
        EXPECT_EQ(member->second, key.fallback) << key.name << " is a member, and begins otherwise";
      }
    }
    Spec spec;
    spec.kind = family->name;
    if (family->name == "onnx") spec.more["path"] = "/model.onnx";  // of which there is none to begin with
    const Result<KeyValues> values = KeyValues::Of(spec, family->keys);
    ASSERT_TRUE(values.ok()) << values.status().ToString();
    EXPECT_TRUE(family->check == nullptr || family->check(*values).ok());
    Spec again;
    SetTexts(values->All(), &again);
    const Result<KeyValues> same = KeyValues::Of(again, family->keys);
    ASSERT_TRUE(same.ok()) << same.status().ToString();
    EXPECT_EQ(same->All(), values->All());
  }
}

TEST(Families, OfModelsAreSound) {
  ExpectSound<ModelFamily, ModelSpec>(ModelFamilies());
  for (const ModelFamily* family : ModelFamilies()) {
    SCOPED_TRACE(family->name);
    EXPECT_NE(family->build, nullptr);
    EXPECT_FALSE(family->learns_from.empty());
    const bool masked = LearnsFrom(*family, SampleKind::kMaskedTokens);
    const KeyValues keys = *KeyValues::Of(ModelSpec(), family->keys);
    EXPECT_TRUE(keys.Has("length") || !(masked || LearnsFrom(*family, SampleKind::kTokens)));
    EXPECT_TRUE(keys.Has("masked") || !masked);
  }
}

TEST(Families, OfDataAreSound) {
  ExpectSound<DataFamily, DataSpec>(DataFamilies());
  for (const DataFamily* family : DataFamilies()) {
    SCOPED_TRACE(family->name);
    EXPECT_NE(family->load, nullptr);
    EXPECT_FALSE(family->gives.empty());
    EXPECT_FALSE(family->path_is.empty());
  }
}

TEST(Families, AreFoundByNameAndGoTogetherByWhatTheyShare) {
  const ModelFamily *mlp = FindModelFamily("mlp"), *gpt = FindModelFamily("gpt");
  const DataFamily *images = FindDataFamily("fashion-mnist"), *text = FindDataFamily("text");
  ASSERT_TRUE(mlp != nullptr && gpt != nullptr && images != nullptr && text != nullptr);
  EXPECT_EQ(FindModelFamily("mpl"), nullptr);
  EXPECT_EQ(*KindFor(*mlp, *images), SampleKind::kImages);
  EXPECT_EQ(*KindFor(*gpt, *text), SampleKind::kTokens);
  EXPECT_EQ(KindFor(*mlp, *text).status().tag(), "SPEC02");
  EXPECT_EQ(KindFor(*gpt, *images).status().fix().substr(0, 18), "gpt goes with text");
}

// A family whose keys are no members: they travel by name, and are as strict.
TEST(Families, KeysThatAreNoMembersAreAsStrict) {
  const std::vector<FamilyKey> keys = {{"blocks", ConfigType::kNumbers, "2, 2", "of each stage", 1, 9},
                                       {"rate", ConfigType::kDecimal, "0.5", "of dropout", 0, 1},
                                       {"width", ConfigType::kNumber, "256", "channels", 1, 512}};
  ModelSpec spec{.kind = "one", .width = 64, .more = {{"blocks", "3, 4"}}};
  const Result<KeyValues> values = KeyValues::Of(spec, keys);
  ASSERT_TRUE(values.ok()) << values.status().ToString();
  EXPECT_EQ(values->Numbers("blocks"), (std::vector<std::int64_t>{3, 4}));
  EXPECT_EQ(values->Decimal("rate"), .5);
  EXPECT_EQ(values->Number("width"), 64);
  EXPECT_FALSE(values->Has("heads")) << "a member that the family has no key for";
  struct Case {
    const char *name, *text, *tag, *why;
  };
  for (const Case& c : {Case{"block", "1", "SPEC01", "accepts"},
                        {"blocks", "3, 0", "SPEC02", "each number lies in [1, 9]"},
                        {"rate", "1", "SPEC02", "it lies in [0, 1)"},
                        {"rate", "much", "SPEC02", "a number like"}}) {
    spec.more = {{c.name, c.text}};
    const Status status = KeyValues::Of(spec, keys).status();
    EXPECT_EQ(status.tag(), c.tag) << c.name;
    EXPECT_NE(status.ToString().find(c.why), std::string::npos) << status.ToString();
    EXPECT_FALSE(status.what().empty() || status.why().empty() || status.fix().empty()) << status.ToString();
  }
  spec.more.clear();
  spec.width = 513;
  EXPECT_EQ(KeyValues::Of(spec, keys).status().what(), "ModelSpec: \"513\" is no value for model.width");
}

// A loss of logits (B, ...) that are an input, with its sum and hits as outputs.
template <class Make>
Graph LossGraph(const std::vector<Field>& fields, bool training, const Make& make) {
  Builder b;
  const KeyValues keys = *KeyValues::Of(ModelSpec(), {});
  const Dim rows = b.NewSymbol("B", 1);
  Batch batch{.b = b, .keys = keys, .fields = fields, .values = {}, .rows = rows, .weights = {}, .training = training};
  for (const Field& field : fields) {
    Shape shape{rows};
    shape.insert(shape.end(), field.dims.begin(), field.dims.end());
    batch.values.push_back(b.Input(field.name, field.dtype, shape));
  }
  batch.weights = b.Input("weights", Dtype::kF32, {rows});
  const Learnt learnt = make(batch);
  b.Output("loss", learnt.loss);
  EXPECT_EQ(learnt.hits.valid(), !training);
  if (learnt.hits.valid()) b.Output("hits", learnt.hits);
  Result<Graph> graph = b.Finish();
  EXPECT_TRUE(graph.ok()) << graph.status().ToString();
  return *graph;
}

TEST(Families, JudgeIsBinaryCrossEntropyWithTheRowsWeights) {
  const std::vector<Field> fields = {{"x", Dtype::kF32, {}}, {"click", Dtype::kF32, {}}};
  const auto judge = [](const Batch& batch) { return Judge(batch, {batch.At("x"), {}}, batch.At("click")); };
  const Graph graph = LossGraph(fields, false, judge);
  const std::vector<double> logits = {-80, -3, -.5, .25, 2, 80}, clicks = {0, 1, 0, 1, 0, 1}, weights = {1, 2, .5, 1, 0, 3};
  std::vector<RefTensor> inputs;
  for (const std::vector<double>& of : {logits, clicks, weights}) inputs.push_back({{6}, of});
  std::map<std::string, RefTensor> states;
  const auto got = Evaluate(graph, {6}, inputs, states);
  ASSERT_TRUE(got.ok()) << got.status().ToString();
  double loss = 0, hits = 0;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const double p = 1 / (1 + std::exp(-logits[i]));
    loss -= weights[i] * (clicks[i] == 1 ? std::log(p) : std::log1p(-p));
    hits += weights[i] * ((logits[i] > 0) == (clicks[i] == 1) ? 1 : 0);
  }
  EXPECT_NEAR(got->outputs[0].data[0], loss, 1e-6 * std::abs(loss));
  EXPECT_EQ(got->outputs[1].data[0], hits);
  LossGraph(fields, true, judge);
}

// Weights of rows reach each label of a sample, however many dimensions it has.
TEST(Families, ClassifyWeighsEachLabelOfARow) {
  const std::vector<Field> fields = {{"logits", Dtype::kF32, {2, 3, 4}}, {"label", Dtype::kI32, {2, 3}, 4}};
  const Graph graph =
      LossGraph(fields, false, [](const Batch& batch) { return Classify(batch, {batch.At("logits"), {}}, batch.At("label")); });
  Random random(4);
  RefTensor logits{{2, 2, 3, 4}, {}}, labels{{2, 2, 3}, {}}, weights{{2}, {.25, 2}};
  for (int i = 0; i < 48; ++i) logits.data.push_back(random.Unit() * 4 - 2);
  for (int i = 0; i < 12; ++i) labels.data.push_back(static_cast<double>(random.Below(4)));
  std::map<std::string, RefTensor> states;
  const auto got = Evaluate(graph, {2}, {logits, labels, weights}, states);
  ASSERT_TRUE(got.ok()) << got.status().ToString();
  double loss = 0, hits = 0;
  for (std::size_t i = 0; i < 12; ++i) {
    const double* row = logits.data.data() + 4 * i;
    const auto label = static_cast<std::size_t>(labels.data[i]);
    double sum = 0;
    for (int k = 0; k < 4; ++k) sum += std::exp(row[k]);
    const double weight = weights.data[i / 6];
    loss += weight * (std::log(sum) - row[label]);
    hits += weight * (std::max_element(row, row + 4) == row + label ? 1 : 0);
  }
  EXPECT_NEAR(got->outputs[0].data[0], loss, 1e-6 * loss);
  EXPECT_NEAR(got->outputs[1].data[0], hits, 1e-12);
}

}  // namespace
}  // namespace ropewalk::mlrunner
