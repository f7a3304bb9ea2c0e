#include "mlrunner/data/text.h"

#include "mlrunner/train/family.h"

namespace ropewalk::mlrunner {

const DataFamily& TextFamily() {
  static const DataFamily family{
      .name = "text",
      .help = "the characters of a file",
      .gives = {SampleKind::kTokens},
      .keys = {{"held_out", ConfigType::kDecimal, "0.1", "the last part of it is not trained on", 0, 1}},
      .path_is = "text",
      .default_path = "",
      .check = nullptr,
      .load = [](const DataRequest& r) { return LoadText(r.path, r.model.Number("length"), r.keys.Decimal("held_out")); },
  };
  return family;
}

}  // namespace ropewalk::mlrunner
