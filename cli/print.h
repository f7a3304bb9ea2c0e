// How results are printed: aligned tables for people, JSON for programs. Bytes that others chose (names, reasons) are escaped.
//
// Thread rule: values.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "job/options.h"

namespace ropewalk::cli {

// An object whose members are printed in the order of their adding.
class JsonObject {
 public:
  JsonObject& Text(const std::string& name, std::string_view value);
  JsonObject& Number(const std::string& name, std::int64_t value);
  JsonObject& Raw(const std::string& name, const std::string& json);
  std::string str() const { return "{" + members_ + "}"; }

 private:
  std::string members_;
};
std::string JsonArray(const std::vector<std::string>& items);

// Rows of cells under a heading, columns padded to the widest (in UTF-8 characters); the last column is not padded.
std::string Table(const std::vector<std::string>& heading, const std::vector<std::vector<std::string>>& rows);

// A list in the form asked for: the table, {"name": [...]} in one line, or one object a line.
std::string Listing(job::OutputForm form, const std::string& name, const std::vector<std::string>& heading,
                    const std::vector<std::vector<std::string>>& rows, const std::vector<std::string>& objects);

std::string HumanDuration(std::int64_t ms);   // "0.42 s", "3 min 20 s", "2 h 5 min"
std::string HumanTime(std::int64_t unix_us);  // "2026-11-29 20:15:49 +0100" in local time; "-" for 0

}  // namespace ropewalk::cli
