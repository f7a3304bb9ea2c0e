// What families of tables have in common: features and a label in each row.
//
// Thread rule: pure functions.
#pragma once

#include <vector>

#include "mlrunner/data/table.h"
#include "mlrunner/train/family.h"

namespace ropewalk::mlrunner {

// `own`, and then classes, scale, held_out.
inline std::vector<FamilyKey> TableKeys(std::vector<FamilyKey> own) {
  using enum ConfigType;
  own.push_back({"classes", kNumber, "0", "labels lie in [0, classes); 0: as the data has them", 0, 1 << 20});
  own.push_back({"scale", kSwitch, "true", "features are moved and divided to mean 0 and deviation 1"});
  own.push_back({"held_out", kDecimal, "0.1", "part of the rows that is not trained on", 0, 1});
  return own;
}

inline TableOptions TableOptionsOf(const KeyValues& keys) {
  return {.classes = keys.Number("classes"), .held_out = keys.Decimal("held_out"), .scale = keys.Switch("scale")};
}

}  // namespace ropewalk::mlrunner
