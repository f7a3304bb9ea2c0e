#include "mlrunner/data/table.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "base/hash.h"
#include "mlrunner/data/csv.h"
#include "mlrunner/data/csv_columns.h"
#include "mlrunner/data/features.h"
#include "mlrunner/data/records.h"
#include "mlrunner/data/table_rows.h"
#include "storage/io_error.h"
#include "storage/read_whole.h"

namespace ropewalk::mlrunner {
namespace {

using storage::QuotedPath;

constexpr std::size_t kBytesMax = std::size_t{4} << 30;
constexpr std::int64_t kClassesMax = 1 << 20;

Status Bad(const char* tag, std::string what, std::string why, std::string fix) {
  return Status(Code::kUserError, tag, std::move(what), std::move(why), std::move(fix));
}

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
    if (call.field == 1) return CopyRows(labels_, 1, call.ids, static_cast<std::int32_t*>(call.rows));
    if (call.dtype == Dtype::kF64) return CopyRows(features_, width_, call.ids, static_cast<double*>(call.rows));
    CopyRows(features_, width_, call.ids, static_cast<float*>(call.rows));
  }
  std::uint64_t content_hash() const override { return hash_; }

 private:
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

Result<DataSet> Divide(Rows rows, const std::string& path, const TableOptions& options) {
  ASSIGN_OR_RETURN(const HoldOut drawn, DivideRows(path, static_cast<std::int64_t>(rows.labels.size()), options.held_out));
  FillAndScale(&rows.features, rows.width, drawn.training, options.scale);
  auto part = [&](const std::vector<std::int64_t>& ids) {
    return std::make_unique<Table>(RowsOf(rows.features, rows.width, ids), RowsOf(rows.labels, 1, ids), rows.width, rows.classes,
                                   rows.names_hash);
  };
  DataSet data;
  data.training = part(drawn.training);
  if (!drawn.held_out.empty()) data.held_out = part(drawn.held_out);
  return data;
}

// What is made of the records of a CSV file.
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
  Status ChooseColumns(const std::vector<std::string>& first) {
    columns_ = CsvColumns(path_, options_.header, first);
    ASSIGN_OR_RETURN(label_, columns_.FindLabel(options_.label));
    is_feature_.assign(columns_.count(), true);
    is_feature_[label_] = false;
    ASSIGN_OR_RETURN(const std::vector<std::size_t> left_out, columns_.FindAll(options_.left_out));
    for (std::size_t column : left_out) is_feature_[column] = false;
    rows_.width = std::count(is_feature_.begin(), is_feature_.end(), true);
    if (rows_.width == 0)
      return Bad("DATA05", QuotedPath(path_) + " has no features", fmt::format("of its {} columns one is the label", columns_.count()),
                 "name a file with more columns, or leave fewer out");
    return {};
  }

  Status Take(const std::vector<std::string>& fields, std::int64_t line) {
    RETURN_IF_ERROR(columns_.CheckWidth(fields, line));
    for (std::size_t column = 0; column < fields.size(); ++column) {
      const std::string_view field = Trimmed(fields[column]);
      if (column == label_) {
        if (IsMissing(field))
          return Bad("DATA06", LineOf(line, path_) + " has no label", fmt::format("its {} is {}", columns_.Named(column), ShownCell(field)),
                     "remove the line, or give it a label");
        const auto next = static_cast<std::int32_t>(labels_.size());
        rows_.labels.push_back(labels_.try_emplace(std::string(field), Label{next, line}).first->second.number);
        if (static_cast<std::int64_t>(labels_.size()) > kClassesMax)
          return Bad("DATA06", fmt::format("{} has the label {}", LineOf(line, path_), ShownCell(field)),
                     fmt::format("it is one more than the {} different ones that there may be", kClassesMax),
                     "name the column of the label");
      }
      if (!is_feature_[column]) continue;
      ASSIGN_OR_RETURN(const float feature, columns_.FeatureOf(field, column, line, options_.fill_missing));
      rows_.features.push_back(feature);
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
        return Bad("DATA06", fmt::format("{} has the label {}", LineOf(label.line, path_), ShownCell(text)),
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
  CsvColumns columns_;
  std::size_t label_ = 0;
  std::vector<bool> is_feature_;
  std::map<std::string, Label> labels_;
  Rows rows_;
};

}  // namespace

Result<DataSet> LoadCsv(const std::string& path, const CsvOptions& options) { return CsvTable(path, options).Load(); }

Result<DataSet> LoadRecords(const std::string& path, std::int64_t width, const TableOptions& options) {
  const auto record_bytes = static_cast<std::uint32_t>(sizeof(std::int32_t) + static_cast<std::size_t>(width) * sizeof(float));
  Rows rows;
  rows.width = width;
  std::int32_t largest = -1;
  auto take = [&](std::span<const std::byte> record, const RecordPlace& place) -> Status {
    std::int32_t label = 0;
    std::memcpy(&label, record.data(), sizeof label);
    const std::int64_t most = options.classes > 0 ? options.classes : kClassesMax;
    if (label < 0 || label >= most)
      return Bad("DATA06", fmt::format("{} has the label {}", place.ToString(), label), fmt::format("labels lie in [0, {})", most),
                 "mend it where the records are made, or say how many features one has");
    largest = std::max(largest, label);
    rows.labels.push_back(label);
    return AddFloats(record.subspan(sizeof label), place, &rows.features);
  };
  RETURN_IF_ERROR(ForEachRecord(path, record_bytes, kBytesMax, take));
  rows.classes = options.classes > 0 ? options.classes : largest + 1;
  return Divide(std::move(rows), path, options);
}

}  // namespace ropewalk::mlrunner
