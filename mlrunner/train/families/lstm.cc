#include "mlrunner/models/lstm.h"

#include "mlrunner/train/family.h"

namespace ropewalk::mlrunner {
namespace {

Result<Learnt> Build(const Batch& batch) {
  const KeyValues& keys = batch.keys;
  const Model model = LstmLanguage(batch.b,
                                   {.symbols = batch.FieldOf("tokens").classes,
                                    .width = keys.Number("width"),
                                    .hidden = keys.Number("cells"),
                                    .layers = keys.Number("layers"),
                                    .dropout = batch.training ? keys.Decimal("dropout") : 0},
                                   batch.At("tokens"));
  return Classify(batch, model, batch.At("next"));
}

}  // namespace

const ModelFamily& LstmFamily() {
  using enum ConfigType;
  static const ModelFamily family{
      .name = "lstm",
      .help = "recurrent layers that say the next token",
      .learns_from = {SampleKind::kTokens},
      .keys = {{"layers", kNumber, "4", "layers", 1, 1000},
               {"width", kNumber, "256", "numbers that stand for a token", 1},
               {"cells", kNumber, "256", "numbers of a layer's state", 1},
               {"length", kNumber, "128", "tokens of a sample", 1, 1 << 16},
               {"dropout", kDecimal, "0", "of what goes from one layer to the next", 0, 1}},
      .check = nullptr,
      .build = Build,
  };
  return family;
}

}  // namespace ropewalk::mlrunner
