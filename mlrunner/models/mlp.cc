#include "mlrunner/models/mlp.h"

#include "mlrunner/graph/maths.h"

namespace ropewalk::mlrunner {

Model Mlp(Builder& b, const MlpShape& shape, Value x) {
  Layers m(b);
  std::int32_t layer = 0;
  for (std::int64_t width : shape.hidden) {
    auto module = b.Module("layer" + std::to_string(layer), layer);
    x = Relu(m.Linear("linear", x, width, FanIn(x, 2)));
    ++layer;
  }
  Value logits = m.Linear("out", x, shape.classes, FanIn(x, 1));
  return {logits, m.parameters()};
}

}  // namespace ropewalk::mlrunner
