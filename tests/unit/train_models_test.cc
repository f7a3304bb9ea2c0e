// The models: shapes and sizes, gradients against central differences in float64, and what a place of a GPT may see.
#include <gtest/gtest.h>

#include "mlrunner/models/gpt.h"
#include "mlrunner/models/mlp.h"
#include "tests/unit/built_models.h"

namespace ropewalk::mlrunner {
namespace {

constexpr std::int64_t kLength = 5, kVocabulary = 7;

Built BuildMlp(const MlpShape& shape, std::int64_t features) {
  Builder b;
  Value x = b.Input("x", Dtype::kF32, {b.NewSymbol("B"), features}), labels = b.Input("labels", Dtype::kI32, {x.dim(0)});
  return Finish(b, Mlp(b, shape, x), labels);
}
Built BuildGpt(const GptShape& shape) {
  Builder b;
  Value ids = b.Input("ids", Dtype::kI32, {b.NewSymbol("B"), shape.length}), labels = b.Input("labels", Dtype::kI32, ids.shape());
  return Finish(b, Gpt(b, shape, ids), labels);
}
GptShape SmallGpt(bool tied) { return {.vocabulary = kVocabulary, .length = kLength, .width = 6, .heads = 2, .layers = 2, .tied = tied}; }

TEST(Models, MlpShapesAndSizes) {
  Built built = BuildMlp({.hidden = {512, 512}, .classes = 10}, 784);
  EXPECT_EQ(built.logits, "(B, 10)");
  EXPECT_EQ(built.numbers, 784 * 512 + 512 + 512 * 512 + 512 + 512 * 10 + 10);
  EXPECT_EQ(built.parameters,
            (std::vector<std::string>{"layer0/linear/w", "layer0/linear/b", "layer1/linear/w", "layer1/linear/b", "out/w", "out/b"}));
  EXPECT_EQ(BuildMlp({.hidden = {}, .classes = 10}, 784).numbers, 7850);
}

// As docs/mlrunner.md shows it: x (..., width) + a map of its norm through `hidden` numbers and back.
Value Residual(Layers& m, const std::string& name, const Value& x, std::int64_t width, std::int64_t hidden) {
  Value up = Gelu(m.Linear(name + "/up", m.Norm(name + "/norm", x), hidden, FanIn(x, 2)));
  return x + m.Linear(name + "/down", up, width, FanIn(up, 1));
}

TEST(Models, ALayerIsAFunction) {
  Builder b;
  Value x = b.Input("x", Dtype::kF32, {b.NewSymbol("B"), 6}), labels = b.Input("labels", Dtype::kI32, {x.dim(0)});
  Layers m(b);
  Value h = Residual(m, "first", x, 6, 8);
  h = Residual(m, "second", h, 6, 5);
  Value logits = m.Linear("out", h, kVocabulary, FanIn(h, 1));
  Built built = Finish(b, {logits, m.parameters()}, labels);
  EXPECT_EQ(built.logits, "(B, 7)");
  EXPECT_EQ(built.parameters, (std::vector<std::string>{"first/norm/gain", "first/norm/bias", "first/up/w", "first/up/b", "first/down/w",
                                                        "first/down/b", "second/norm/gain", "second/norm/bias", "second/up/w",
                                                        "second/up/b", "second/down/w", "second/down/b", "out/w", "out/b"}));
  EXPECT_EQ(built.numbers, 2 * 12 + (6 * 8 + 8 + 8 * 6 + 6) + (6 * 5 + 5 + 5 * 6 + 6) + 6 * 7 + 7);
  GradientsAreDifferences(built, kVocabulary);
}

TEST(Models, GptShapesAndSizes) {
  const std::int64_t v = 5000, t = 128, c = 256, layers = 4;
  // A block: two norms, queries keys and values, the map out, up and down.
  const std::int64_t block = 4 * c + (c * 3 * c + 3 * c) + (c * c + c) + (c * 4 * c + 4 * c) + (4 * c * c + c);
  Built built = BuildGpt({.vocabulary = v, .length = t, .width = c, .heads = 4, .layers = layers});
  EXPECT_EQ(built.logits, "(B, 128, 5000)");
  EXPECT_EQ(built.numbers, v * c + t * c + layers * block + 2 * c + c * v);
  EXPECT_EQ(BuildGpt({.vocabulary = v, .length = t, .width = c, .heads = 4, .layers = layers, .tied = true}).numbers,
            v * c + t * c + layers * block + 2 * c);
}

TEST(Models, GradientsAreThoseOfTheLoss) {
  GradientsAreDifferences(BuildMlp({.hidden = {6, 5}, .classes = 4}, 8), 4);
  GradientsAreDifferences(BuildGpt(SmallGpt(false)), kVocabulary);
  GradientsAreDifferences(BuildGpt(SmallGpt(true)), kVocabulary);
}

TEST(Models, AGptLooksBackOnly) { LooksBackOnly(BuildGpt(SmallGpt(false)), kLength, kVocabulary); }

TEST(Models, WrongShapesNameBothAndTheLine) {
  Builder b;
  Value ids = b.Input("ids", Dtype::kI32, {b.NewSymbol("B"), 9});  // not as long as the model is made for
  Gpt(b, SmallGpt(false), ids);
  auto graph = b.Finish();
  ASSERT_FALSE(graph.ok());
  EXPECT_EQ(graph.status().tag(), "GRAPH01");
  EXPECT_NE(graph.status().what().find("gpt.cc:"), std::string::npos) << graph.status().ToString();
  EXPECT_NE(graph.status().what().find("(B, 9, 6)"), std::string::npos) << graph.status().ToString();
  EXPECT_NE(graph.status().what().find("(5, 6)"), std::string::npos) << graph.status().ToString();
}

}  // namespace
}  // namespace ropewalk::mlrunner
