#include "mlrunner/models/gpt.h"

#include "mlrunner/train/families/attention_keys.h"

namespace ropewalk::mlrunner {
namespace {

Result<Learnt> Build(const Batch& batch) {
  const KeyValues& keys = batch.keys;
  const Model model = Gpt(batch.b,
                          {.vocabulary = batch.FieldOf("tokens").classes,
                           .length = keys.Number("length"),
                           .width = keys.Number("width"),
                           .heads = keys.Number("heads"),
                           .layers = keys.Number("layers"),
                           .tied = keys.Switch("tied")},
                          batch.At("tokens"));
  return Classify(batch, model, batch.At("next"));
}

}  // namespace

const ModelFamily& GptFamily() {
  using enum ConfigType;
  static const ModelFamily family{
      .name = "gpt",
      .help = "a decoder that says the next token",
      .learns_from = {SampleKind::kTokens},
      .keys = AttentionKeys({{"tied", kSwitch, "false", "the last map is the table of tokens"}}),
      .check = HeadsDivide,
      .build = Build,
  };
  return family;
}

}  // namespace ropewalk::mlrunner
