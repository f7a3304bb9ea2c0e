#include "mlrunner/data/clicks.h"

#include <utility>

#include "mlrunner/train/families/csv_keys.h"
#include "mlrunner/train/families/table_keys.h"

namespace ropewalk::mlrunner {
namespace {

// `own`, and then rows, scale, held_out.
std::vector<FamilyKey> ClickKeys(std::vector<FamilyKey> own) {
  own.push_back({"rows", ConfigType::kNumber, "10000", "of the table of each category", 2, 1 << 24});
  return RowKeys(std::move(own));
}
ClickOptions ClickOptionsOf(const KeyValues& keys) {
  return {.rows = keys.Number("rows"), .held_out = keys.Decimal("held_out"), .scale = keys.Switch("scale")};
}

Result<DataSet> LoadCsv(const DataRequest& r) {
  return LoadCsvClicks(r.path, {.label = r.keys.Text("label"),
                                .categories = ColumnsOf(r.keys, "categories"),
                                .left_out = ColumnsOf(r.keys, "leave_out"),
                                .separator = SeparatorOf(r.keys),
                                .header = r.keys.Switch("header"),
                                .fill_missing = FillsMissing(r.keys),
                                .clicks = ClickOptionsOf(r.keys)});
}

}  // namespace

const DataFamily& ClicksFamily() {
  using enum ConfigType;
  static const DataFamily family{
      .name = "clicks",
      .help = "rows of a CSV file: features, categories, and a click of 0 or 1",
      .gives = {SampleKind::kClicks},
      .keys = ClickKeys(CsvKeys({{"categories", kText, "", "columns of categories: \"user, item\", or by number \"15-40\""}})),
      .path_is = "CSV file",
      .default_path = "",
      .check = CsvKeysFit,
      .load = LoadCsv,
  };
  return family;
}

const DataFamily& ClickRecordsFamily() {
  using enum ConfigType;
  static const DataFamily family{
      .name = "click-records",
      .help = "what WriteRecords writes of a click (32 bits), floats and ids (32 bits)",
      .gives = {SampleKind::kClicks},
      .keys = ClickKeys({{"dense", kNumber, "1", "floats of a record, behind its click", 0, 1 << 20},
                         {"ids", kNumber, "1", "ids of a record, behind its floats", 1, 1 << 20}}),
      .path_is = "folder of records",
      .default_path = "",
      .check = nullptr,
      .load =
          [](const DataRequest& r) {
            return LoadClickRecords(r.path, r.keys.Number("dense"), r.keys.Number("ids"), ClickOptionsOf(r.keys));
          },
  };
  return family;
}

}  // namespace ropewalk::mlrunner
