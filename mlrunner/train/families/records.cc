#include "mlrunner/train/families/table_keys.h"

namespace ropewalk::mlrunner {

const DataFamily& RecordsFamily() {
  using enum ConfigType;
  static const DataFamily family{
      .name = "records",
      .help = "what WriteRecords writes of a label (32 bits) and floats",
      .gives = {SampleKind::kFeatures},
      .keys = TableKeys({{"features", kNumber, "1", "floats of a record, behind its label", 1, 1 << 20}}),
      .path_is = "folder of records",
      .default_path = "",
      .check = nullptr,
      .load = [](const DataRequest& r) { return LoadRecords(r.path, r.keys.Number("features"), TableOptionsOf(r.keys)); },
  };
  return family;
}

}  // namespace ropewalk::mlrunner
