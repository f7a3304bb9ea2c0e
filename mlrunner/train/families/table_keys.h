// What families of rows have in common: features that are scaled, a part that is held out; those of tables, classes of labels.
//
// Thread rule: pure functions.
#pragma once

#include <utility>
#include <vector>

#include "mlrunner/data/table.h"
#include "mlrunner/train/family.h"

namespace ropewalk::mlrunner {

// `own`, and then scale, held_out.
inline std::vector<FamilyKey> RowKeys(std::vector<FamilyKey> own) {
  using enum ConfigType;
  own.push_back({"scale", kSwitch, "true", "features are moved and divided to mean 0 and deviation 1"});
  own.push_back({"held_out", kDecimal, "0.1", "part of the rows that is not trained on", 0, 1});
  return own;
}
// `own`, and then classes, scale, held_out.
inline std::vector<FamilyKey> TableKeys(std::vector<FamilyKey> own) {
  own.push_back({"classes", ConfigType::kNumber, "0", "labels lie in [0, classes); 0: as the data has them", 0, 1 << 20});
  return RowKeys(std::move(own));
}

inline TableOptions TableOptionsOf(const KeyValues& keys) {
  return {.classes = keys.Number("classes"), .held_out = keys.Decimal("held_out"), .scale = keys.Switch("scale")};
}

}  // namespace ropewalk::mlrunner
