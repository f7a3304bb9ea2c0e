#include "mlrunner/models/dlrm.h"

#include "mlrunner/train/family.h"

namespace ropewalk::mlrunner {
namespace {

Result<Learnt> Build(const Batch& batch) {
  const KeyValues& keys = batch.keys;
  const Field& ids = batch.FieldOf("ids");
  DlrmShape shape{.tables = {}, .width = keys.Number("vector"), .bottom = keys.Numbers("bottom"), .top = keys.Numbers("top")};
  shape.tables.assign(static_cast<std::size_t>(ids.dims.empty() ? 1 : ids.dims[0]), ids.classes);
  return Judge(batch, Dlrm(batch.b, shape, batch.At("dense"), batch.At("ids")), batch.At("click"));
}

}  // namespace

const ModelFamily& DlrmFamily() {
  using enum ConfigType;
  static const ModelFamily family{
      .name = "dlrm",
      .help = "tables of categories and dense features that say whether it is a click",
      .learns_from = {SampleKind::kClicks},
      .keys = {{"vector", kNumber, "16", "numbers that stand for an id", 1},
               {"bottom", kNumbers, "512, 256, 64", "widths of the layers of dense features", 1},
               {"top", kNumbers, "512, 256", "widths of the layers of pairs", 1}},
      .check = nullptr,
      .build = Build,
  };
  return family;
}

}  // namespace ropewalk::mlrunner
