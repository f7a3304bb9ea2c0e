// Small convolutional networks for images of 28 x 28 or so.
//
// Thread rule: as the builder's.
#pragma once

#include <cstdint>

#include "mlrunner/models/layers.h"

namespace ropewalk::mlrunner {

// LeNet-5 after LeCun et al. 1998, as it is built today: ReLU and maxima, every map of the second convolution sees every one of the first.
// Of 28 x 28 pixels and 10 classes it has 61,706 parameters, as the paper's of 32 x 32: the first convolution pads by 2.
// x (N, C, H, W) -> logits (N, classes)
Model LeNet5(Builder& b, std::int64_t classes, const Value& x, const LayerOptions& options = {});

// Two convolutions with batch norm, each halving the image, and two linear maps.
struct CnnShape {
  std::int64_t width = 32;    // maps of the first convolution; the second has twice as many
  std::int64_t hidden = 128;  // between the linear maps
  std::int64_t classes = 10;
};
// x (N, C, H, W) -> logits (N, classes)
Model Cnn(Builder& b, const CnnShape& shape, const Value& x, const LayerOptions& options = {});

}  // namespace ropewalk::mlrunner
