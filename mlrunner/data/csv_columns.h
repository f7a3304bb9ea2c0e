// The columns of a CSV file, by name or by number, and how errors call them.
//
// Thread rule: values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace ropewalk::mlrunner {

// A cell in an error: in quotes, escaped, and not too long.
std::string ShownCell(std::string_view cell);
// "line 3 of "t.csv""
std::string LineOf(std::int64_t line, const std::string& path);

class CsvColumns {
 public:
  CsvColumns() = default;
  // `first` is the first record of the file `path`; with `header` it holds the names.
  CsvColumns(std::string path, bool header, const std::vector<std::string>& first);

  std::size_t count() const { return names_.size(); }
  // "column 1 ("age")"
  std::string Named(std::size_t column) const;
  // kUserError DATA18: there is no such column, or two of that name.
  Result<std::size_t> Find(const std::string& column) const;
  // The same of many; "15-40", where nothing is called that, are those from the 15th to the 40th.
  Result<std::vector<std::size_t>> FindAll(const std::vector<std::string>& columns) const;
  // The label's column: the last one where none is named.
  Result<std::size_t> FindLabel(const std::string& column) const;
  // kUserError DATA05: a record with another number of fields.
  Status CheckWidth(const std::vector<std::string>& fields, std::int64_t line) const;
  // A cell as a feature; no number where it is missing and may be (`may_miss`). kUserError DATA07: it is missing, or no number that is
  // finite in 32 bits.
  Result<float> FeatureOf(std::string_view cell, std::size_t column, std::int64_t line, bool may_miss) const;

 private:
  Status NoColumn(const std::string& column) const;
  std::string path_;
  bool header_ = false;
  std::vector<std::string> names_;
};

}  // namespace ropewalk::mlrunner
