#include "mlrunner/models/bert.h"

#include <fmt/format.h>

#include "mlrunner/graph/maths.h"
#include "mlrunner/train/family.h"

namespace ropewalk::mlrunner {
namespace {

Status HeadsDivide(const KeyValues& keys) {
  const std::int64_t width = keys.Number("width"), heads = keys.Number("heads");
  return width % heads == 0 ? Status() : keys.Bad("heads", fmt::format("{} heads do not divide a width of {}", heads, width));
}

// What was at the places that are masked; the others do not count.
Result<Learnt> Build(const Batch& batch) {
  const KeyValues& keys = batch.keys;
  const Value &original = batch.At("original"), &masked = batch.At("mask");
  const Model model = BertMaskedLanguage(batch.b,
                                         {.vocabulary = batch.FieldOf("tokens").classes,
                                          .places = keys.Number("length"),
                                          .width = keys.Number("width"),
                                          .heads = keys.Number("heads"),
                                          .layers = keys.Number("layers"),
                                          .inner = keys.Number("inner"),
                                          .dropout = batch.training ? keys.Decimal("dropout") : 0},
                                         {.ids = batch.At("tokens"), .segments = {}, .mask = {}});
  const Value weights = masked * batch.WeightsFor(masked);
  Learnt learnt{.parameters = model.parameters, .loss = ReduceSum(CrossEntropy(model.logits, original) * weights), .hits = {}};
  if (!batch.training) {
    learnt.hits = ReduceSum(Cast(Equal(Cast(ArgMax(model.logits), Dtype::kI32), original), Dtype::kF32) * weights);
  }
  return learnt;
}

}  // namespace

const ModelFamily& BertFamily() {
  using enum ConfigType;
  static const ModelFamily family{
      .name = "bert",
      .help = "an encoder that says what was at places that are masked",
      .learns_from = {SampleKind::kMaskedTokens},
      .keys = {{"layers", kNumber, "4", "blocks", 1, 1000},
               {"width", kNumber, "256", "numbers that stand for a token", 1},
               {"heads", kNumber, "4", "of attention; they divide the width", 1, 1024},
               {"inner", kNumber, "1024", "numbers inside of a block", 1},
               {"length", kNumber, "128", "tokens of a sample", 1, 1 << 16},
               {"dropout", kDecimal, "0", "of embeddings, attention and what blocks add", 0, 1}},
      .check = HeadsDivide,
      .build = Build,
  };
  return family;
}

}  // namespace ropewalk::mlrunner
