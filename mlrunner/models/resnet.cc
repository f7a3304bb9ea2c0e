#include "mlrunner/models/resnet.h"

#include <string>

#include "mlrunner/graph/maths.h"

namespace ropewalk::mlrunner {
namespace {

// A convolution and its norm; `name` counts them in the block.
Value ConvNorm(Layers& m, const std::string& name, const Value& x, std::int64_t out, ConvLayer conv, bool relu) {
  return m.BatchNorm("norm" + name, m.Conv("conv" + name, x, out, conv), {.relu = relu});
}

Value Residual(Layers& m, const ResNetShape& s, const Value& x, std::int64_t width, std::int64_t stride) {
  const ConvLayer across{.kernel = 3, .stride = stride, .padding = 1}, same{.kernel = 3, .padding = 1}, point{.kernel = 1};
  const bool bottleneck = s.block == ResNetShape::Block::kBottleneck;
  const std::int64_t out = bottleneck ? 4 * width : width;
  Value y;
  if (bottleneck) {
    y = ConvNorm(m, "1", x, width, point, true);
    y = ConvNorm(m, "2", y, width, across, true);
    y = ConvNorm(m, "3", y, out, point, false);
  } else {
    y = ConvNorm(m, "1", x, width, across, true);
    y = ConvNorm(m, "2", y, out, same, false);
  }
  const bool keeps_shape = stride == 1 && x.dim(1).Is(out);
  return Relu(y + (keeps_shape ? x : ConvNorm(m, "_by", x, out, {.kernel = 1, .stride = stride}, false)));
}

}  // namespace

ResNetShape ResNet8(std::int64_t classes) { return {.classes = classes}; }
ResNetShape ResNet18(std::int64_t classes) {
  return {.stem = ResNetShape::Stem::kLarge, .blocks = {2, 2, 2, 2}, .width = 64, .classes = classes};
}
ResNetShape ResNet50(std::int64_t classes) {
  return {
      .stem = ResNetShape::Stem::kLarge, .block = ResNetShape::Block::kBottleneck, .blocks = {3, 4, 6, 3}, .width = 64, .classes = classes};
}

Model ResNet(Builder& b, const ResNetShape& s, const Value& x, const LayerOptions& options) {
  Layers m(b, options);
  Value h;
  {
    auto module = b.Module("stem");
    const bool large = s.stem == ResNetShape::Stem::kLarge;
    const ConvLayer conv = large ? ConvLayer{.kernel = 7, .stride = 2, .padding = 3} : ConvLayer{.kernel = 3, .padding = 1};
    h = ConvNorm(m, "", x, s.width, conv, true);
    if (large) h = MaxPool2D(h, 3, 2, 1);
  }
  std::int32_t layer = 0;
  for (std::size_t stage = 0; stage < s.blocks.size(); ++stage) {
    for (std::int64_t block = 0; block < s.blocks[stage]; ++block) {
      auto module = b.Module("stage" + std::to_string(stage + 1) + "/block" + std::to_string(block), layer++);
      h = Residual(m, s, h, s.width << stage, stage > 0 && block == 0 ? 2 : 1);
    }
  }
  h = GlobalAvgPool2D(h);
  return {m.Linear("out", h, s.classes, FanIn(h, 1)), m.parameters()};
}

}  // namespace ropewalk::mlrunner
