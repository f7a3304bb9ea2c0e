// Multi-layer perceptron: linear maps with ReLU between them.
//
// Thread rule: as the builder's.
#pragma once

#include <cstdint>
#include <vector>

#include "mlrunner/models/layers.h"

namespace ropewalk::mlrunner {

struct MlpShape {
  std::vector<std::int64_t> hidden = {512, 512};
  std::int64_t classes = 10;
};

// x (B, features) -> logits (B, classes)
Model Mlp(Builder& b, const MlpShape& shape, Value x);

}  // namespace ropewalk::mlrunner
