#include "mlrunner/data/clicks.h"

#include "mlrunner/train/families/csv_keys.h"

namespace ropewalk::mlrunner {
namespace {

// `own`, and then rows, scale, held_out.
std::vector<FamilyKey> ClickKeys(std::vector<FamilyKey> own) {
  using enum ConfigType;
  own.push_back({"rows", kNumber, "10000", "of the table of each category", 2, 1 << 24});
  own.push_back({"scale", kSwitch, "true", "features are moved and divided to mean 0 and deviation 1"});
  own.push_back({"held_out", kDecimal, "0.1", "part of the rows that is not trained on", 0, 1});
  return own;
}
ClickOptions ClickOptionsOf(const KeyValues& keys) {
  return {.rows = keys.Number("rows"), .held_out = keys.Decimal("held_out"), .scale = keys.Switch("scale")};
}

Result<DataSet> LoadCsv(const DataRequest& r) {
  return LoadCsvClicks(r.path, {.label = r.keys.Text("label"),
                                .categories = PartsOf(r.keys.Text("categories")),
                                .left_out = PartsOf(r.keys.Text("leave_out")),
                                .separator = SeparatorOf(r.keys),
                                .header = r.keys.Switch("header"),
                                .fill_missing = r.keys.Text("missing") == "mean",
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
