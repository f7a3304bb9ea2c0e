// BERT: its size, one block beside PyTorch's numbers, what a mask hides, and gradients.
#include <gtest/gtest.h>

#include "mlrunner/models/bert.h"
#include "tests/unit/built_models.h"

namespace ropewalk::mlrunner {
namespace {

constexpr std::int64_t kLength = 3, kVocabulary = 5;
constexpr BertShape kSmall{.vocabulary = kVocabulary, .places = 4, .width = 4, .heads = 2, .layers = 1, .inner = 6};

BertInputs InputsOf(Builder& b, std::int64_t length) {
  Dim rows = b.NewSymbol("B");
  return {b.Input("ids", Dtype::kI32, {rows, length}), b.Input("segments", Dtype::kI32, {rows, length}),
          b.Input("mask", Dtype::kF32, {rows, length})};
}

// From the shapes alone: nothing of that size is made.
TEST(Bert, BaseHasItsSize) {
  Builder b;
  Layers m(b);
  BertResult r = BertEncoder(b, m, {}, InputsOf(b, 128));
  std::int64_t numbers = 0;
  for (const Parameter& p : m.parameters()) numbers += NumElements(p.shape()).Constant().value_or(0);
  EXPECT_EQ(numbers, 109482240);
  EXPECT_EQ(ToString(r.hidden.shape(), b.graph().symbols), "(B, 128, 768)");
  EXPECT_EQ(ToString(r.pooled.shape(), b.graph().symbols), "(B, 768)");
  EXPECT_TRUE(b.Finish().ok());
}

// A block of PyTorch 2.15 (nn.TransformerEncoderLayer, post-norm, gelu, with src_key_padding_mask) in float64 between the embeddings and
// the pooler. Parameter k, as listed below, is sin(k + .7 i) at its element i; PyTorch's weights are the transposed ones.
TEST(Bert, ABlockIsPyTorchs) {
  Builder b;
  Layers m(b);
  BertResult r = BertEncoder(b, m, kSmall, InputsOf(b, kLength));
  b.Output("hidden", r.hidden);
  b.Output("pooled", r.pooled);
  std::vector<std::string> names;
  for (const Parameter& p : m.parameters()) names.push_back(b.graph().state(p.state).name);
  EXPECT_EQ(names, (std::vector<std::string>{"tokens", "places", "segments", "norm/gain", "norm/bias", "layer0/qkv/w", "layer0/qkv/b",
                                             "layer0/out/w", "layer0/out/b", "layer0/norm1/gain", "layer0/norm1/bias", "layer0/up/w",
                                             "layer0/up/b", "layer0/down/w", "layer0/down/b", "layer0/norm2/gain", "layer0/norm2/bias",
                                             "pooler/w", "pooler/b"}));
  auto graph = b.Finish();
  ASSERT_TRUE(graph.ok()) << graph.status().ToString();
  auto wide = ChangeFloats(*graph, Dtype::kF32, Dtype::kF64);
  ASSERT_TRUE(wide.ok()) << wide.status().ToString();
  std::map<std::string, RefTensor> states;
  for (std::size_t k = 0; k < names.size(); ++k) {
    RefTensor tensor{Evaluate(wide->states[k].logical, {}), {}};
    for (std::int64_t i = 0; i < NumElements(tensor.dims); ++i) {
      tensor.data.push_back(std::sin(static_cast<double>(k + 1) + .7 * static_cast<double>(i)));
    }
    states[names[k]] = tensor;
  }
  auto result = Evaluate(*wide, {2}, {{{2, 3}, {1, 4, 2, 0, 3, 3}}, {{2, 3}, {0, 1, 1, 0, 0, 1}}, {{2, 3}, {1, 1, 1, 1, 1, 0}}}, states);
  ASSERT_TRUE(result.ok()) << result.status().ToString();
  const std::vector<std::vector<double>> want = {
      {-1.3201231070241985, -1.482105242822927,  0.7739461155452442,  0.7307923156887317,  -1.0389775165749386, -1.3396852244528603,
       -1.3348370928064934, 1.396928550401132,   -0.9668799622359951, -1.9527067702098155, -0.7128477804960408, 1.298320359916357,
       -1.253245063602961,  -1.548933369832773,  1.081971670730867,   0.4155022014101502,  -1.2462974714351704, 0.052358334559893055,
       0.393956321409368,   -0.4319409224029224, -1.112775034557693,  -2.0245411023162374, 0.8298344718619222,  0.6432160764849004},
      {-0.30162021820112883, 0.33709359638253394, 0.6899862010856346, 0.7380826786423058, -0.7748189275357106, -0.20637134143591362,
       0.6119242727399381, 0.8613367434150401}};
  for (std::size_t k = 0; k < want.size(); ++k) {
    ASSERT_EQ(result->outputs[k].data.size(), want[k].size());
    for (std::size_t i = 0; i < want[k].size(); ++i) EXPECT_NEAR(result->outputs[k].data[i], want[k][i], 1e-12) << k << " at " << i;
  }
}

Built BuildClassifier(const BertShape& shape) {
  Builder b;
  BertInputs in = InputsOf(b, kLength);
  in.mask = {};  // drawn numbers are no mask
  Value labels = b.Input("labels", Dtype::kI32, {in.ids.dim(0)});
  return Finish(b, BertClassifier(b, shape, 2, in), labels);
}
Built BuildMasked(const BertShape& shape) {
  Builder b;
  Value ids = b.Input("ids", Dtype::kI32, {b.NewSymbol("B"), kLength});
  Value labels = b.Input("labels", Dtype::kI32, ids.shape());
  return Finish(b, BertMaskedLanguage(b, shape, {.ids = ids, .segments = {}, .mask = {}}), labels);
}

TEST(Bert, GradientsAreThoseOfTheLoss) {
  Built classifier = BuildClassifier(kSmall);
  EXPECT_EQ(classifier.logits, "(B, 2)");
  GradientsAreDifferences(classifier, 2);
  Built masked = BuildMasked(kSmall);
  EXPECT_EQ(masked.logits, "(B, 3, 5)");
  EXPECT_EQ(masked.parameters.size(), 24u);
  GradientsAreDifferences(masked, kVocabulary, {"pooler/w", "pooler/b"});  // of whole sequences, which nothing asks for here
}

// What a hidden place holds changes no other place; what one that may be looked at holds changes all of its sequence.
TEST(Bert, AMaskHides) {
  for (bool masked : {true, false}) {
    Builder b;
    Layers m(b);
    b.Output("hidden", BertEncoder(b, m, kSmall, InputsOf(b, kLength)).hidden);
    auto graph = b.Finish();
    ASSERT_TRUE(graph.ok()) << graph.status().ToString();
    std::map<std::string, RefTensor> states;
    auto run = [&](double last) {
      return Evaluate(*graph, {1}, {{{1, 3}, {1, 4, last}}, {{1, 3}, {0, 0, 0}}, {{1, 3}, {1, 1, masked ? 0.0 : 1.0}}}, states)
          ->outputs[0]
          .data;
    };
    const std::vector<double> before = run(2), after = run(3);
    for (std::size_t place = 0; place < 3; ++place) {
      const bool same =
          std::equal(before.begin() + static_cast<std::ptrdiff_t>(4 * place), before.begin() + static_cast<std::ptrdiff_t>(4 * place + 4),
                     after.begin() + static_cast<std::ptrdiff_t>(4 * place));
      EXPECT_EQ(same, masked && place < 2) << "masked " << masked << ", place " << place;
    }
  }
}

}  // namespace
}  // namespace ropewalk::mlrunner
