// What families of CSV files have in common: where labels are, what stands between fields, which columns are left out.
//
// Thread rule: pure functions.
#pragma once

#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "mlrunner/train/comma_list.h"
#include "mlrunner/train/family.h"

namespace ropewalk::mlrunner {

// label, header, separator, leave_out, missing, and then `more`.
inline std::vector<FamilyKey> CsvKeys(std::vector<FamilyKey> more) {
  using enum ConfigType;
  std::vector<FamilyKey> keys = {{"label", kText, "", "column of the label, by name or by number from 1 on; empty: the last one"},
                                 {"header", kSwitch, "true", "the first line names the columns"},
                                 {"separator", kText, ",", "the character between fields, or tab"},
                                 {"leave_out", kText, "", "columns that are not learnt from: \"id, name\", or by number \"3-5\""},
                                 {"missing", kText, "refuse", "refuse or mean: what is done where a feature is missing"}};
  keys.insert(keys.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
  return keys;
}

// Columns that a key names.
inline std::vector<std::string> ColumnsOf(const KeyValues& keys, const char* name) { return CommaList(keys.Text(name)); }

inline bool FillsMissing(const KeyValues& keys) { return keys.Text("missing") == "mean"; }

inline char SeparatorOf(const KeyValues& keys) {
  const std::string& text = keys.Text("separator");
  return text == "tab" ? '\t' : text[0];
}

inline Status CsvKeysFit(const KeyValues& keys) {
  const std::string& separator = keys.Text("separator");
  if (separator != "tab" && (separator.size() != 1 || separator == "\"" || separator == "\n" || separator == "\r"))
    return keys.Bad("separator", "it is one character, or tab");
  if (const std::string& missing = keys.Text("missing"); missing != "refuse" && missing != "mean")
    return keys.Bad("missing", "it takes one of: refuse, mean");
  return {};
}

}  // namespace ropewalk::mlrunner
