#include "mlrunner/models/bert.h"

#include "mlrunner/graph/maths.h"
#include "mlrunner/train/families/attention_keys.h"

namespace ropewalk::mlrunner {
namespace {

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
  Learnt learnt{
      .parameters = model.parameters, .loss = ReduceSum(CrossEntropy(model.logits, original) * weights), .hits = {}, .said = model.logits};
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
      .keys = AttentionKeys({{"inner", kNumber, "1024", "numbers inside of a block", 1},
                             {"masked", kDecimal, "0.15", "part of the tokens that is asked for", 0, 1},
                             {"dropout", kDecimal, "0", "of embeddings, attention and what blocks add", 0, 1}}),
      .check = HeadsDivide,
      .build = Build,
  };
  return family;
}

}  // namespace ropewalk::mlrunner
