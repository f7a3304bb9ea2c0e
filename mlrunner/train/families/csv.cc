#include "mlrunner/train/families/csv_keys.h"
#include "mlrunner/train/families/table_keys.h"

namespace ropewalk::mlrunner {
namespace {

Result<DataSet> Load(const DataRequest& r) {
  return LoadCsv(r.path, {.label = r.keys.Text("label"),
                          .separator = SeparatorOf(r.keys),
                          .header = r.keys.Switch("header"),
                          .left_out = ColumnsOf(r.keys, "leave_out"),
                          .fill_missing = FillsMissing(r.keys),
                          .table = TableOptionsOf(r.keys)});
}

}  // namespace

const DataFamily& CsvFamily() {
  static const DataFamily family{
      .name = "csv",
      .help = "rows of a CSV file: features and a label",
      .gives = {SampleKind::kFeatures},
      .keys = TableKeys(CsvKeys({})),
      .path_is = "CSV file",
      .default_path = "",
      .check = CsvKeysFit,
      .load = Load,
  };
  return family;
}

}  // namespace ropewalk::mlrunner
