#include "mlrunner/data/table.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "base/escape.h"
#include "base/hash.h"
#include "mlrunner/data/csv.h"
#include "mlrunner/data/hold_out.h"
#include "storage/input.h"
#include "storage/io_error.h"
#include "storage/read_whole.h"

namespace ropewalk::mlrunner {
namespace {

using storage::QuotedPath;

constexpr std::size_t kBytesMax = std::size_t{4} << 30;
constexpr std::int64_t kClassesMax = 1 << 20;
constexpr std::size_t kShownMax = 40;  // bytes of a value in an error

Status Bad(const char* tag, std::string what, std::string why, std::string fix) {
  return Status(Code::kUserError, tag, std::move(what), std::move(why), std::move(fix));
}
std::string Shown(std::string_view text) { return "\"" + EscapeForLog(text, kShownMax) + "\""; }

class Table final : public Samples {
 public:
  Table(std::vector<float> features, std::vector<std::int32_t> labels, std::int64_t width, std::int64_t classes, std::uint64_t names_hash)
      : features_(std::move(features)),
        labels_(std::move(labels)),
        width_(width),
        fields_{{"features", Dtype::kF32, {width}}, {"label", Dtype::kI32, {}, classes}} {
    hash_ = HashCombine(names_hash,
                        HashCombine(Checksum64(std::as_bytes(std::span(features_))), Checksum64(std::as_bytes(std::span(labels_)))));
  }
  std::int64_t count() const override { return static_cast<std::int64_t>(labels_.size()); }
  const std::vector<Field>& fields() const override { return fields_; }
  void Fill(const FillCall& call) const override {
    if (call.field == 1) {
      auto* label = static_cast<std::int32_t*>(call.rows);
      for (std::int64_t id : call.ids) *label++ = labels_[static_cast<std::size_t>(id)];
    } else if (call.dtype == Dtype::kF64) {
      Copy(call.ids, static_cast<double*>(call.rows));
    } else {
      Copy(call.ids, static_cast<float*>(call.rows));
    }
  }
  std::uint64_t content_hash() const override { return hash_; }

 private:
  template <class T>
  void Copy(std::span<const std::int64_t> ids, T* row) const {
    for (std::int64_t id : ids) {
      const float* features = features_.data() + id * width_;
      row = std::copy(features, features + width_, row);
    }
  }

  std::vector<float> features_;  // (rows, width)
  std::vector<std::int32_t> labels_;
  std::int64_t width_;
  std::vector<Field> fields_;
  std::uint64_t hash_ = 0;
};

// Rows as they were read; a feature that is missing is no number.
struct Rows {
  std::vector<float> features;
  std::vector<std::int32_t> labels;
  std::int64_t width = 0, classes = 0;
  std::uint64_t names_hash = 0;  // of the names that labels stand for
};

// What a feature is moved and divided by, of the rows that are trained on. What is missing becomes the mean.
void Scale(Rows* rows, const std::vector<std::int64_t>& training, bool scale) {
  const auto width = static_cast<std::size_t>(rows->width);
  for (std::size_t column = 0; column < width; ++column) {
    double sum = 0, squares = 0;
    std::int64_t count = 0;
    for (std::int64_t row : training) {
      const double feature = rows->features[static_cast<std::size_t>(row) * width + column];
      if (std::isnan(feature)) continue;
      ++count;
      const double off = feature - sum / static_cast<double>(std::max<std::int64_t>(1, count - 1));  // Welford's: no large squares
      sum += feature;
      squares += off * (feature - sum / static_cast<double>(count));
    }
    const double mean = count == 0 ? 0 : sum / static_cast<double>(count);
    const double deviation = count == 0 ? 0 : std::sqrt(squares / static_cast<double>(count));
    const double divisor = deviation > 0 ? deviation : 1;  // a column that says nothing becomes zeros
    for (std::size_t at = column; at < rows->features.size(); at += width) {
      float& feature = rows->features[at];
      if (std::isnan(feature)) feature = static_cast<float>(mean);
      if (scale) feature = static_cast<float>((feature - mean) / divisor);
    }
  }
}

Result<DataSet> Divide(Rows rows, const std::string& path, const TableOptions& options) {
  const HoldOut drawn = DrawHoldOut(static_cast<std::int64_t>(rows.labels.size()), options.held_out);
  if (drawn.training.empty())
    return Bad("DATA08", QuotedPath(path) + " has no rows to learn from", fmt::format("it has {} in all", rows.labels.size()),
               "name a file with rows");
  Scale(&rows, drawn.training, options.scale);
  auto part = [&](const std::vector<std::int64_t>& ids) {
    std::vector<float> features;
    std::vector<std::int32_t> labels;
    features.reserve(ids.size() * static_cast<std::size_t>(rows.width));
    for (std::int64_t id : ids) {
      const auto first = rows.features.begin() + id * rows.width;
      features.insert(features.end(), first, first + rows.width);
      labels.push_back(rows.labels[static_cast<std::size_t>(id)]);
    }
    return std::make_unique<Table>(std::move(features), std::move(labels), rows.width, rows.classes, rows.names_hash);
  };
  DataSet data;
  data.training = part(drawn.training);
  if (!drawn.held_out.empty()) data.held_out = part(drawn.held_out);
  return data;
}

std::string_view Trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}
bool IsMissing(std::string_view text) {
  for (const char* word : {"", "NA", "N/A", "NaN", "nan", "NULL", "null", "?"})
    if (text == word) return true;
  return false;
}
template <class T>
bool ParseWhole(std::string_view text, T* value) {
  if (text.starts_with('+')) text.remove_prefix(1);
  const auto [behind, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  return error == std::errc() && behind == text.data() + text.size() && !text.empty();
}

// The columns of a CSV file, and what is made of its records.
class CsvTable {
 public:
  CsvTable(const std::string& path, const CsvOptions& options) : path_(path), options_(options) {}

  Result<DataSet> Load() {
    ASSIGN_OR_RETURN(const std::string text, storage::ReadWhole(path_, kBytesMax));
    CsvReader reader(text, path_, options_.separator);
    std::vector<std::string> fields;
    for (bool first = true;; first = false) {
      ASSIGN_OR_RETURN(const bool is_there, reader.Next(&fields));
      if (!is_there) break;
      if (first) {
        RETURN_IF_ERROR(ChooseColumns(fields));
        if (options_.header) continue;
      }
      RETURN_IF_ERROR(Take(fields, reader.line()));
    }
    RETURN_IF_ERROR(NumberLabels());
    return Divide(std::move(rows_), path_, options_.table);
  }

 private:
  std::string Named(std::size_t column) const {
    return options_.header ? fmt::format("column {} ({})", column + 1, Shown(names_[column])) : fmt::format("column {}", column + 1);
  }

  // By name, or by number.
  Result<std::size_t> Find(const std::string& column) const {
    if (options_.header) {
      const auto found = std::find(names_.begin(), names_.end(), column);
      if (found != names_.end()) return static_cast<std::size_t>(found - names_.begin());
    }
    std::size_t number = 0;
    if (ParseWhole(column, &number) && number >= 1 && number <= names_.size()) return number - 1;
    const std::string there = fmt::format("it has {} columns", names_.size());
    return Bad("DATA18", fmt::format("{} has no column {}", QuotedPath(path_), Shown(column)),
               options_.header ? fmt::format("{}: {}", there, EscapeForLog(fmt::format("{}", fmt::join(names_, ", ")), 200)) : there,
               "give a column's name in the header, or its number from 1 on");
  }

  Status ChooseColumns(const std::vector<std::string>& first) {
    names_ = first;
    for (std::string& name : names_) name = std::string(Trimmed(name));
    label_ = names_.size() - 1;
    if (!options_.label.empty()) {
      ASSIGN_OR_RETURN(label_, Find(options_.label));
    }
    is_feature_.assign(names_.size(), true);
    is_feature_[label_] = false;
    for (const std::string& column : options_.left_out) {
      ASSIGN_OR_RETURN(const std::size_t at, Find(column));
      is_feature_[at] = false;
    }
    rows_.width = std::count(is_feature_.begin(), is_feature_.end(), true);
    if (rows_.width == 0)
      return Bad("DATA05", QuotedPath(path_) + " has no features", fmt::format("of its {} columns one is the label", names_.size()),
                 "name a file with more columns, or leave fewer out");
    return {};
  }

  Status Take(const std::vector<std::string>& fields, std::int64_t line) {
    const std::string where = fmt::format("line {} of {}", line, QuotedPath(path_));
    if (fields.size() != names_.size())
      return Bad("DATA05", fmt::format("{} has {} fields", where, fields.size()),
                 fmt::format("the first record has {}, and all have equally many", names_.size()),
                 "mend the line, or name the character between its fields");
    for (std::size_t column = 0; column < fields.size(); ++column) {
      const std::string_view field = Trimmed(fields[column]);
      if (column == label_) {
        if (IsMissing(field))
          return Bad("DATA06", fmt::format("{} has no label", where), fmt::format("its {} is {}", Named(column), Shown(field)),
                     "remove the line, or give it a label");
        const auto next = static_cast<std::int32_t>(labels_.size());
        rows_.labels.push_back(labels_.try_emplace(std::string(field), Label{next, line}).first->second.number);
        if (static_cast<std::int64_t>(labels_.size()) > kClassesMax)
          return Bad("DATA06", fmt::format("{} has the label {}", where, Shown(field)),
                     fmt::format("it is one more than the {} different ones that there may be", kClassesMax),
                     "name the column of the label");
      }
      if (!is_feature_[column]) continue;
      double number = std::numeric_limits<double>::quiet_NaN();
      if (IsMissing(field)) {
        if (!options_.fill_missing)
          return Bad("DATA07", fmt::format("{}: its {} is missing", where, Named(column)), "a model learns from numbers",
                     "set data.missing = \"mean\", leave the column out, or remove the line");
      } else if (!ParseWhole(field, &number) || !std::isfinite(static_cast<float>(number))) {
        return Bad("DATA07", fmt::format("{}: its {} is {}", where, Named(column), Shown(field)),
                   "a model learns from numbers that are finite in 32 bits", "mend the value, or leave the column out");
      }
      rows_.features.push_back(static_cast<float>(number));
    }
    return {};
  }

  // Until now a label has the number of its first row.
  Status NumberLabels() {
    std::vector<std::int64_t> whole(labels_.size(), -1);
    const std::int64_t classes = options_.table.classes;
    bool are_numbers = true;
    std::int64_t largest = -1;
    for (const auto& [text, label] : labels_) {
      std::int64_t number = -1;
      if (!ParseWhole(text, &number) || number < 0) {
        are_numbers = false;
        // Whoever says how many classes there are, and has numbered some, has numbered all of them.
        continue;
      }
      whole[static_cast<std::size_t>(label.number)] = number;
      largest = std::max(largest, number);
    }
    const bool some_are = largest >= 0;
    for (const auto& [text, label] : labels_) {
      const std::int64_t number = whole[static_cast<std::size_t>(label.number)], most = classes > 0 ? classes : kClassesMax;
      if ((are_numbers && number >= most) || (!are_numbers && some_are && classes > 0 && number < 0))
        return Bad("DATA06", fmt::format("line {} of {} has the label {}", label.line, QuotedPath(path_), Shown(text)),
                   classes > 0 ? fmt::format("there are {} classes: labels lie in [0, {})", classes, classes)
                               : fmt::format("labels lie in [0, {})", most),
                   classes > 0 ? "mend the label, or say how many classes there are" : "number the classes from 0 on");
    }
    if (!are_numbers) {
      if (classes > 0 && static_cast<std::int64_t>(labels_.size()) > classes)
        return Bad("DATA06", fmt::format("{} has {} different labels", QuotedPath(path_), labels_.size()),
                   fmt::format("there are {} classes", classes), "mend the labels, or say how many classes there are");
      std::int64_t next = 0;
      for (const auto& [text, label] : labels_) {
        whole[static_cast<std::size_t>(label.number)] = next++;
        rows_.names_hash = HashCombine(rows_.names_hash, Checksum64(text));
      }
      largest = next - 1;
    }
    rows_.classes = classes > 0 ? classes : largest + 1;
    for (std::int32_t& label : rows_.labels) label = static_cast<std::int32_t>(whole[static_cast<std::size_t>(label)]);
    return {};
  }

  struct Label {
    std::int32_t number = 0;  // in the order in which they come
    std::int64_t line = 0;    // the first one that has it
  };
  const std::string& path_;
  const CsvOptions& options_;
  std::vector<std::string> names_;
  std::size_t label_ = 0;
  std::vector<bool> is_feature_;
  std::map<std::string, Label> labels_;
  Rows rows_;
};

}  // namespace

Result<DataSet> LoadCsv(const std::string& path, const CsvOptions& options) { return CsvTable(path, options).Load(); }

Result<DataSet> LoadRecords(const std::string& path, std::int64_t width, const TableOptions& options) {
  const auto record_bytes = static_cast<std::uint32_t>(sizeof(std::int32_t) + static_cast<std::size_t>(width) * sizeof(float));
  const std::string patterns[] = {path};
  ASSIGN_OR_RETURN(const storage::InputListing listing, storage::ListInputs(patterns, "/"));
  Rows rows;
  rows.width = width;
  std::int32_t largest = -1;
  for (const storage::InputFile& file : listing.files) {
    RETURN_IF_ERROR(storage::CheckFixedRecords(file, record_bytes));
    Status wrong;
    auto take = [&](std::span<const std::byte> record, std::uint64_t offset) -> Status {
      const std::string where = fmt::format("the record at byte {} of {}", offset, QuotedPath(file.path));
      std::int32_t label = 0;
      std::memcpy(&label, record.data(), sizeof label);
      const std::int64_t most = options.classes > 0 ? options.classes : kClassesMax;
      if (label < 0 || label >= most)
        return Bad("DATA06", fmt::format("{} has the label {}", where, label), fmt::format("labels lie in [0, {})", most),
                   "mend it where the records are made, or say how many features one has");
      largest = std::max(largest, label);
      rows.labels.push_back(label);
      const std::size_t first = rows.features.size();
      rows.features.resize(first + static_cast<std::size_t>(width));
      std::memcpy(rows.features.data() + first, record.data() + sizeof label, static_cast<std::size_t>(width) * sizeof(float));
      for (std::int64_t i = 0; i < width; ++i) {
        if (const float feature = rows.features[first + static_cast<std::size_t>(i)]; !std::isfinite(feature))
          return Bad("DATA07", fmt::format("{}: its feature {} is {}", where, i, feature), "what is no number makes every later step none",
                     "mend it where the records are made, or say how many features one has");
      }
      return {};
    };
    RETURN_IF_ERROR(storage::ReadFixedRecords(file, {.begin = 0, .end = file.bytes}, record_bytes,
                                              [&](std::span<const std::byte> records, std::uint64_t offset) {
                                                for (; !records.empty() && wrong.ok(); offset += record_bytes) {
                                                  wrong = take(records.first(record_bytes), offset);
                                                  records = records.subspan(record_bytes);
                                                }
                                                return wrong.ok();
                                              }));
    RETURN_IF_ERROR(std::move(wrong));
    if (rows.features.size() * sizeof(float) > kBytesMax)
      return Bad("DATA08", QuotedPath(path) + " holds more records than are kept in memory",
                 fmt::format("they may have {} bytes of features", kBytesMax), "train on a part of them");
  }
  rows.classes = options.classes > 0 ? options.classes : largest + 1;
  return Divide(std::move(rows), path, options);
}

}  // namespace ropewalk::mlrunner
