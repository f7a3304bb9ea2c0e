// Residual networks after He et al. 2015 (Deep Residual Learning for Image Recognition): batch norm behind every convolution, and a
// projection (a convolution of 1 x 1 with its norm) where a block changes the shape of what goes by.
//
// Thread rule: as the builder's.
#pragma once

#include <cstdint>
#include <vector>

#include "mlrunner/models/layers.h"

namespace ropewalk::mlrunner {

struct ResNetShape {
  enum class Stem : std::uint8_t {
    kSmall,  // 3 x 3: images of 32 x 32
    kLarge,  // 7 x 7 and a pool, each halving the image: of 224 x 224
  } stem = Stem::kSmall;
  enum class Block : std::uint8_t {
    kBasic,       // two convolutions of 3 x 3
    kBottleneck,  // 1 x 1, 3 x 3 and 1 x 1 to four times the width; where the image is halved, the one of 3 x 3 does it
  } block = Block::kBasic;
  std::vector<std::int64_t> blocks = {1, 1, 1};  // of each stage; from stage to stage the width doubles and the image is halved
  std::int64_t width = 16;                       // of the first stage
  std::int64_t classes = 10;
};

ResNetShape ResNet8(std::int64_t classes = 10);     // images of 32 x 32: 3 stages of one block
ResNetShape ResNet18(std::int64_t classes = 1000);  // 11,689,512 parameters
ResNetShape ResNet50(std::int64_t classes = 1000);  // 25,557,032

// x (N, C, H, W) -> logits (N, classes)
Model ResNet(Builder& b, const ResNetShape& shape, const Value& x, const LayerOptions& options = {});

}  // namespace ropewalk::mlrunner
