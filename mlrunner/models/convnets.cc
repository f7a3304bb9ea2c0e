#include "mlrunner/models/convnets.h"

#include "mlrunner/graph/maths.h"

namespace ropewalk::mlrunner {
namespace {

// (N, C, H, W) -> (N, C * H * W)
Value Flat(const Value& x) { return Reshape(x, {x.dim(0), x.dim(1) * x.dim(2) * x.dim(3)}); }

}  // namespace

Model LeNet5(Builder& b, std::int64_t classes, const Value& x, const LayerOptions& options) {
  Layers m(b, options);
  Value h = MaxPool2D(Relu(m.Conv("conv1", x, 6, {.kernel = 5, .padding = 2, .bias = true})), 2, 2);
  h = Flat(MaxPool2D(Relu(m.Conv("conv2", h, 16, {.kernel = 5, .bias = true})), 2, 2));
  h = Relu(m.Linear("linear1", h, 120, FanIn(h, 2)));
  h = Relu(m.Linear("linear2", h, 84, FanIn(h, 2)));
  return {m.Linear("out", h, classes, FanIn(h, 1)), m.parameters()};
}

Model Cnn(Builder& b, const CnnShape& s, const Value& x, const LayerOptions& options) {
  Layers m(b, options);
  Value h = MaxPool2D(m.BatchNorm("norm1", m.Conv("conv1", x, s.width, {.padding = 1}), {.relu = true}), 2, 2);
  h = Flat(MaxPool2D(m.BatchNorm("norm2", m.Conv("conv2", h, 2 * s.width, {.padding = 1}), {.relu = true}), 2, 2));
  h = Relu(m.Linear("linear", h, s.hidden, FanIn(h, 2)));
  return {m.Linear("out", h, s.classes, FanIn(h, 1)), m.parameters()};
}

}  // namespace ropewalk::mlrunner
