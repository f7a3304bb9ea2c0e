#include "mlrunner/models/gpt.h"

#include <fmt/format.h>

#include "mlrunner/train/family.h"

namespace ropewalk::mlrunner {
namespace {

Status HeadsDivide(const KeyValues& keys) {
  const std::int64_t width = keys.Number("width"), heads = keys.Number("heads");
  return width % heads == 0 ? Status() : keys.Bad("heads", fmt::format("{} heads do not divide a width of {}", heads, width));
}

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
      .keys = {{"layers", kNumber, "4", "blocks", 1, 1000},
               {"width", kNumber, "256", "numbers that stand for a token", 1},
               {"heads", kNumber, "4", "of attention; they divide the width", 1, 1024},
               {"length", kNumber, "128", "tokens of a sample", 1, 1 << 16},
               {"tied", kSwitch, "false", "the last map is the table of tokens"}},
      .check = HeadsDivide,
      .build = Build,
  };
  return family;
}

}  // namespace ropewalk::mlrunner
