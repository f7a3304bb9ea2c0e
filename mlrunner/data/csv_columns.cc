#include "mlrunner/data/csv_columns.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "base/escape.h"
#include "mlrunner/data/features.h"
#include "storage/io_error.h"

namespace ropewalk::mlrunner {

using storage::QuotedPath;

std::string ShownCell(std::string_view cell) {
  constexpr std::size_t kShownMax = 40;
  return "\"" + EscapeForLog(cell, kShownMax) + "\"";
}
std::string LineOf(std::int64_t line, const std::string& path) { return fmt::format("line {} of {}", line, QuotedPath(path)); }

CsvColumns::CsvColumns(std::string path, bool header, const std::vector<std::string>& first)
    : path_(std::move(path)), header_(header), names_(first) {
  for (std::string& name : names_) name = std::string(Trimmed(name));
}

std::string CsvColumns::Named(std::size_t column) const {
  return header_ ? fmt::format("column {} ({})", column + 1, ShownCell(names_[column])) : fmt::format("column {}", column + 1);
}

Status CsvColumns::NoColumn(const std::string& column) const {
  const std::string there = fmt::format("it has {} columns", names_.size());
  return Status(Code::kUserError, "DATA18", fmt::format("{} has no column {}", QuotedPath(path_), ShownCell(column)),
                header_ ? fmt::format("{}: {}", there, EscapeForLog(fmt::format("{}", fmt::join(names_, ", ")), 200)) : there,
                "give a column's name in the header, or its number from 1 on");
}

Result<std::size_t> CsvColumns::Find(const std::string& column) const {
  if (header_) {
    const auto found = std::find(names_.begin(), names_.end(), column);
    if (found != names_.end()) {
      const auto second = std::find(found + 1, names_.end(), column);
      if (second == names_.end()) return static_cast<std::size_t>(found - names_.begin());
      return Status(Code::kUserError, "DATA18", fmt::format("{} has two columns {}", QuotedPath(path_), ShownCell(column)),
                    fmt::format("they are columns {} and {}", found - names_.begin() + 1, second - names_.begin() + 1),
                    "name it by its number from 1 on, or give them two names");
    }
  }
  std::size_t number = 0;
  if (ParseWhole(column, &number) && number >= 1 && number <= names_.size()) return number - 1;
  return NoColumn(column);
}

Result<std::vector<std::size_t>> CsvColumns::FindAll(const std::vector<std::string>& columns) const {
  std::vector<std::size_t> found;
  for (const std::string& column : columns) {
    const auto one = Find(column);
    if (one.ok()) {
      found.push_back(*one);
      continue;
    }
    const std::size_t dash = std::min(column.find('-'), column.size());
    std::size_t from = 0, to = 0;
    if (!ParseWhole(std::string_view(column).substr(0, dash), &from) || dash == column.size() ||
        !ParseWhole(std::string_view(column).substr(dash + 1), &to) || from < 1 || from > to || to > names_.size())
      return one.status();
    for (; from <= to; ++from) found.push_back(from - 1);
  }
  return found;
}

Result<std::size_t> CsvColumns::FindLabel(const std::string& column) const {
  return column.empty() ? Result<std::size_t>(names_.size() - 1) : Find(column);
}

Status CsvColumns::CheckWidth(const std::vector<std::string>& fields, std::int64_t line) const {
  if (fields.size() == names_.size()) return {};
  return Status(Code::kUserError, "DATA05", fmt::format("{} has {} fields", LineOf(line, path_), fields.size()),
                fmt::format("the first record has {}, and all have equally many", names_.size()),
                "mend the line, or name the character between its fields");
}

Result<float> CsvColumns::FeatureOf(std::string_view cell, std::size_t column, std::int64_t line, bool may_miss) const {
  if (IsMissing(cell)) {
    if (may_miss) return std::numeric_limits<float>::quiet_NaN();
    return Status(Code::kUserError, "DATA07", fmt::format("{}: its {} is missing", LineOf(line, path_), Named(column)),
                  "a model learns from numbers", "set data.missing = \"mean\", leave the column out, or remove the line");
  }
  double number = 0;
  if (ParseWhole(cell, &number) && std::isfinite(static_cast<float>(number))) return static_cast<float>(number);
  return Status(Code::kUserError, "DATA07", fmt::format("{}: its {} is {}", LineOf(line, path_), Named(column), ShownCell(cell)),
                "a model learns from numbers that are finite in 32 bits", "mend the value, or leave the column out");
}

}  // namespace ropewalk::mlrunner
