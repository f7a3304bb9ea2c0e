#include "mlrunner/models/convnets.h"

#include <fmt/format.h>

#include "mlrunner/models/resnet.h"
#include "mlrunner/train/family.h"
#include "mlrunner/train/step_graph.h"

namespace ropewalk::mlrunner {
namespace {

// Statistics of a batch are those of the global one, and rows that only fill a rank's batch up are no part of them.
LayerOptions For(const Batch& batch) {
  return {.mode = batch.training ? Mode::kTraining : Mode::kEvaluation, .ranks = kDataAxis, .weights = batch.weights};
}
std::int64_t Classes(const Batch& batch) { return batch.FieldOf("label").classes; }

// ResNet-18, 34 and 50 as they are known; any other is 6 n + 2 deep, for small images: three stages of n blocks (He et al. 2015, 4.2).
Result<ResNetShape> ShapeOf(const KeyValues& keys, std::int64_t classes) {
  const std::int64_t depth = keys.Number("depth");
  if (depth == 18) return ResNet18(classes);
  if (depth == 50) return ResNet50(classes);
  ResNetShape shape = depth == 34 ? ResNet18(classes) : ResNet8(classes);
  if (depth == 34) {
    shape.blocks = {3, 4, 6, 3};
  } else if (depth % 6 == 2 && depth >= 8) {
    shape.blocks.assign(3, (depth - 2) / 6);
  } else {
    return keys.Bad("depth", "there is no such residual network", "take 18, 34 or 50, or 6 n + 2 for small images: 8, 14, 20, 26, 32, ...");
  }
  return shape;
}

}  // namespace

const ModelFamily& LeNetFamily() {
  static const ModelFamily family{
      .name = "lenet",
      .help = "LeNet-5, for images of 28 x 28 or so",
      .learns_from = {SampleKind::kImages},
      .keys = {},
      .check = nullptr,
      .build = [](const Batch& batch) -> Result<Learnt> {
        return Classify(batch, LeNet5(batch.b, Classes(batch), batch.At("image"), For(batch)), batch.At("label"));
      },
  };
  return family;
}

const ModelFamily& CnnFamily() {
  static const ModelFamily family{
      .name = "cnn",
      .help = "two convolutions with batch norm and pools, two linear maps",
      .learns_from = {SampleKind::kImages},
      .keys = {{"maps", ConfigType::kNumber, "32", "maps of the first convolution; the second has twice as many", 1, 4096}},
      .check = nullptr,
      .build = [](const Batch& batch) -> Result<Learnt> {
        const CnnShape shape{.width = batch.keys.Number("maps"), .classes = Classes(batch)};
        return Classify(batch, Cnn(batch.b, shape, batch.At("image"), For(batch)), batch.At("label"));
      },
  };
  return family;
}

const ModelFamily& ResNetFamily() {
  static const ModelFamily family{
      .name = "resnet",
      .help = "residual networks",
      .learns_from = {SampleKind::kImages},
      .keys = {{"depth", ConfigType::kNumber, "8", "18, 34 or 50, or 6 n + 2 (8, 14, 20, ...) for images of 32 x 32 or so", 8, 1202}},
      .check = [](const KeyValues& keys) { return ShapeOf(keys, 1).status(); },
      .build = [](const Batch& batch) -> Result<Learnt> {
        ASSIGN_OR_RETURN(const ResNetShape shape, ShapeOf(batch.keys, Classes(batch)));
        return Classify(batch, ResNet(batch.b, shape, batch.At("image"), For(batch)), batch.At("label"));
      },
  };
  return family;
}

}  // namespace ropewalk::mlrunner
