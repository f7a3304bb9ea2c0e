#include "mlrunner/data/table.h"

#include "mlrunner/train/family.h"

namespace ropewalk::mlrunner {

const DataFamily& RecordsFamily() {
  using enum ConfigType;
  static const DataFamily family{
      .name = "records",
      .help = "what WriteRecords writes of a label (32 bits) and floats",
      .gives = {SampleKind::kFeatures},
      .keys = {{"features", kNumber, "1", "floats of a record, behind its label", 1, 1 << 20},
               {"classes", kNumber, "0", "labels lie in [0, classes); 0: as the files have them", 0, 1 << 20},
               {"scale", kSwitch, "true", "features are moved and divided to mean 0 and deviation 1"},
               {"held_out", kDecimal, "0.1", "part of the records that is not trained on", 0, 1}},
      .path_is = "folder of records",
      .default_path = "",
      .check = nullptr,
      .load =
          [](const DataRequest& r) {
            return LoadRecords(
                r.path, r.keys.Number("features"),
                {.classes = r.keys.Number("classes"), .held_out = r.keys.Decimal("held_out"), .scale = r.keys.Switch("scale")});
          },
  };
  return family;
}

}  // namespace ropewalk::mlrunner
