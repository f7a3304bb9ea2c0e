#include <algorithm>

#include "mlrunner/train/families/table_keys.h"

namespace ropewalk::mlrunner {
namespace {

// "id, name" in parts.
std::vector<std::string> Parts(const std::string& text) {
  std::vector<std::string> parts;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find(',', at), text.size());
    std::string part = text.substr(at, end - at);
    while (part.starts_with(' ')) part.erase(0, 1);
    while (part.ends_with(' ')) part.pop_back();
    if (!part.empty()) parts.push_back(part);
    at = end + 1;
  }
  return parts;
}

char SeparatorOf(const KeyValues& keys) {
  const std::string& text = keys.Text("separator");
  return text == "tab" ? '\t' : text[0];
}

Status Fits(const KeyValues& keys) {
  const std::string& separator = keys.Text("separator");
  if (separator != "tab" && (separator.size() != 1 || separator == "\"" || separator == "\n" || separator == "\r"))
    return keys.Bad("separator", "it is one character, or tab");
  if (const std::string& missing = keys.Text("missing"); missing != "refuse" && missing != "mean")
    return keys.Bad("missing", "it takes one of: refuse, mean");
  return {};
}

Result<DataSet> Load(const DataRequest& r) {
  return LoadCsv(r.path, {.label = r.keys.Text("label"),
                          .separator = SeparatorOf(r.keys),
                          .header = r.keys.Switch("header"),
                          .left_out = Parts(r.keys.Text("leave_out")),
                          .fill_missing = r.keys.Text("missing") == "mean",
                          .table = TableOptionsOf(r.keys)});
}

}  // namespace

const DataFamily& CsvFamily() {
  using enum ConfigType;
  static const DataFamily family{
      .name = "csv",
      .help = "rows of a CSV file: features and a label",
      .gives = {SampleKind::kFeatures},
      .keys = TableKeys({{"label", kText, "", "column of the label, by name or by number from 1 on; empty: the last one"},
                         {"header", kSwitch, "true", "the first line names the columns"},
                         {"separator", kText, ",", "the character between fields, or tab"},
                         {"leave_out", kText, "", "columns that are not learnt from: \"id, name\""},
                         {"missing", kText, "refuse", "refuse or mean: what is done where a feature is missing"}}),
      .path_is = "CSV file",
      .default_path = "",
      .check = Fits,
      .load = Load,
  };
  return family;
}

}  // namespace ropewalk::mlrunner
