#include "mlrunner/data/images.h"
#include "mlrunner/train/family.h"

namespace ropewalk::mlrunner {

const DataFamily& FashionMnistFamily() {
  static const DataFamily family{
      .name = "fashion-mnist",
      .help = "IDX files as MNIST has them",
      .gives = {SampleKind::kImages},
      .keys = {},
      .path_is = "folder of its four files",
      .default_path = kFashionMnistFolder,
      .check = nullptr,
      .load = [](const DataRequest& request) { return LoadFashionMnist(request.path); },
  };
  return family;
}

}  // namespace ropewalk::mlrunner
