// What families of transformers have in common: the keys of their blocks, and that heads divide the width.
//
// Thread rule: pure functions.
#pragma once

#include <iterator>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "mlrunner/train/family.h"

namespace ropewalk::mlrunner {

// layers, width, heads, length, and then `more`.
inline std::vector<FamilyKey> AttentionKeys(std::vector<FamilyKey> more) {
  using enum ConfigType;
  std::vector<FamilyKey> keys = {{"layers", kNumber, "4", "blocks", 1, 1000},
                                 {"width", kNumber, "256", "numbers that stand for a token", 1},
                                 {"heads", kNumber, "4", "of attention; they divide the width", 1, 1024},
                                 {"length", kNumber, "128", "tokens of a sample", 1, 1 << 16}};
  keys.insert(keys.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
  return keys;
}

inline Status HeadsDivide(const KeyValues& keys) {
  const std::int64_t width = keys.Number("width"), heads = keys.Number("heads");
  return width % heads == 0 ? Status() : keys.Bad("heads", fmt::format("{} heads do not divide a width of {}", heads, width));
}

}  // namespace ropewalk::mlrunner
