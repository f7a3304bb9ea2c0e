// What families of CSV files have in common: where labels are, what stands between fields, which columns are left out.
//
// Thread rule: pure functions.
#pragma once

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

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

// "id, name" in parts.
inline std::vector<std::string> PartsOf(const std::string& text) {
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
