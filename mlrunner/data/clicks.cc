#include "mlrunner/data/clicks.h"

#include <cstring>
#include <memory>
#include <span>
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

Status Bad(const char* tag, std::string what, std::string why, std::string fix) {
  return Status(Code::kUserError, tag, std::move(what), std::move(why), std::move(fix));
}

// A log, or the part of it that `lines` are. A dense feature that is missing is no number.
struct Log {
  std::int64_t dense_width = 0, ids_width = 0;
  std::vector<float> dense;       // (rows, dense_width)
  std::vector<std::int32_t> ids;  // (rows, ids_width)
  std::vector<float> clicks;      // 0 or 1
};

class Clicks final : public Samples {
 public:
  Clicks(Log log, std::int64_t rows)
      : log_(std::move(log)),
        fields_{{"dense", Dtype::kF32, {log_.dense_width}}, {"ids", Dtype::kI32, {log_.ids_width}, rows}, {"click", Dtype::kF32, {}}} {
    for (const std::span<const std::byte> bytes :
         {std::as_bytes(std::span(log_.dense)), std::as_bytes(std::span(log_.ids)), std::as_bytes(std::span(log_.clicks))})
      hash_ = HashCombine(hash_, Checksum64(bytes));
  }
  std::int64_t count() const override { return static_cast<std::int64_t>(log_.clicks.size()); }
  const std::vector<Field>& fields() const override { return fields_; }
  void Fill(const FillCall& call) const override {
    if (call.field == 1) return CopyRows(log_.ids, log_.ids_width, call.ids, static_cast<std::int32_t*>(call.rows));
    const std::vector<float>& from = call.field == 0 ? log_.dense : log_.clicks;
    const std::int64_t width = call.field == 0 ? log_.dense_width : 1;
    if (call.dtype == Dtype::kF64) return CopyRows(from, width, call.ids, static_cast<double*>(call.rows));
    CopyRows(from, width, call.ids, static_cast<float*>(call.rows));
  }
  std::string_view labels_are() const override { return "clicks"; }
  std::uint64_t content_hash() const override { return hash_; }

 private:
  Log log_;
  std::vector<Field> fields_;
  std::uint64_t hash_ = 0;
};

Result<DataSet> Divide(Log log, const std::string& path, const ClickOptions& options) {
  const auto rows = static_cast<std::int64_t>(log.clicks.size());
  ASSIGN_OR_RETURN(const HoldOut drawn, DivideRows(path, rows, options.held_out));
  if (log.dense_width == 0) {
    log.dense_width = 1;
    log.dense.assign(static_cast<std::size_t>(rows), 1);
  } else {
    FillAndScale(&log.dense, log.dense_width, drawn.training, options.scale);
  }
  auto part = [&](const std::vector<std::int64_t>& lines) {
    Log some{.dense_width = log.dense_width,
             .ids_width = log.ids_width,
             .dense = RowsOf(log.dense, log.dense_width, lines),
             .ids = RowsOf(log.ids, log.ids_width, lines),
             .clicks = RowsOf(log.clicks, 1, lines)};
    return std::make_unique<Clicks>(std::move(some), options.rows);
  };
  DataSet data;
  data.training = part(drawn.training);
  if (!drawn.held_out.empty()) data.held_out = part(drawn.held_out);
  return data;
}

// What each column of a CSV file is to the model.
struct Roles {
  CsvColumns columns;
  std::size_t label = 0;
  std::vector<std::size_t> categories, dense;
};

Result<Roles> ChooseRoles(const std::string& path, const CsvClickOptions& options, const std::vector<std::string>& first) {
  Roles roles{.columns = CsvColumns(path, options.header, first), .label = 0, .categories = {}, .dense = {}};
  ASSIGN_OR_RETURN(roles.label, roles.columns.FindLabel(options.label));
  ASSIGN_OR_RETURN(roles.categories, roles.columns.FindAll(options.categories));
  ASSIGN_OR_RETURN(const std::vector<std::size_t> left_out, roles.columns.FindAll(options.left_out));
  std::vector<const char*> role(roles.columns.count(), nullptr);
  auto give = [&](std::size_t column, const char* what) -> Status {
    if (role[column] == nullptr) return role[column] = what, Status();
    return Bad("DATA18", fmt::format("{} of {} is {} and {}", roles.columns.Named(column), QuotedPath(path), role[column], what),
               "a column is one of these", "take it out of one of the two");
  };
  RETURN_IF_ERROR(give(roles.label, "the click"));
  for (std::size_t column : roles.categories) RETURN_IF_ERROR(give(column, "a category"));
  for (std::size_t column : left_out) RETURN_IF_ERROR(give(column, "left out"));
  if (roles.categories.empty())
    return Bad("DATA05", QuotedPath(path) + " has no categories", "none of its columns is named as one",
               "data.categories = \"user, item\"");
  for (std::size_t column = 0; column < role.size(); ++column)
    if (role[column] == nullptr) roles.dense.push_back(column);
  return roles;
}

}  // namespace

std::int32_t RowOf(std::string_view category, std::int64_t rows) {
  if (IsMissing(category)) return 0;
  return 1 + static_cast<std::int32_t>(PartitionOf(KeyHash64(category), static_cast<std::uint32_t>(rows - 1)));
}

Result<DataSet> LoadCsvClicks(const std::string& path, const CsvClickOptions& options) {
  ASSIGN_OR_RETURN(const std::string text, storage::ReadWhole(path, kBytesMax));
  CsvReader reader(text, path, options.separator);
  std::vector<std::string> fields;
  Roles roles;
  Log log;
  for (bool first = true;; first = false) {
    ASSIGN_OR_RETURN(const bool is_there, reader.Next(&fields));
    if (!is_there) break;
    if (first) {
      ASSIGN_OR_RETURN(roles, ChooseRoles(path, options, fields));
      log.dense_width = static_cast<std::int64_t>(roles.dense.size());
      log.ids_width = static_cast<std::int64_t>(roles.categories.size());
      if (options.header) continue;
    }
    RETURN_IF_ERROR(roles.columns.CheckWidth(fields, reader.line()));
    double click = -1;
    if (const std::string_view cell = Trimmed(fields[roles.label]); !ParseWhole(cell, &click) || (click != 0 && click != 1))
      return Bad("DATA06", fmt::format("{}: its {} is {}", LineOf(reader.line(), path), roles.columns.Named(roles.label), ShownCell(cell)),
                 "a click is 1, and none is 0", "mend the value, or name the column of the clicks");
    log.clicks.push_back(static_cast<float>(click));
    for (std::size_t column : roles.dense) {
      ASSIGN_OR_RETURN(const float feature, roles.columns.FeatureOf(Trimmed(fields[column]), column, reader.line(), options.fill_missing));
      log.dense.push_back(feature);
    }
    for (std::size_t column : roles.categories) log.ids.push_back(RowOf(Trimmed(fields[column]), options.clicks.rows));
  }
  return Divide(std::move(log), path, options.clicks);
}

Result<DataSet> LoadClickRecords(const std::string& path, std::int64_t dense, std::int64_t ids, const ClickOptions& options) {
  const std::size_t dense_bytes = static_cast<std::size_t>(dense) * sizeof(float),
                    ids_bytes = static_cast<std::size_t>(ids) * sizeof(std::int32_t);
  const auto record_bytes = static_cast<std::uint32_t>(sizeof(std::int32_t) + dense_bytes + ids_bytes);
  Log log{.dense_width = dense, .ids_width = ids, .dense = {}, .ids = {}, .clicks = {}};
  auto take = [&](std::span<const std::byte> record, const RecordPlace& place) -> Status {
    std::int32_t click = 0;
    std::memcpy(&click, record.data(), sizeof click);
    if (click != 0 && click != 1)
      return Bad("DATA06", fmt::format("{}: its click is {}", place.ToString(), click), "a click is 1, and none is 0",
                 "mend it where the records are made, or say how many features and ids one has");
    log.clicks.push_back(static_cast<float>(click));
    RETURN_IF_ERROR(AddFloats(record.subspan(sizeof click, dense_bytes), place, &log.dense));
    for (std::int64_t i = 0; i < ids; ++i) {
      std::int32_t id = 0;
      std::memcpy(&id, record.data() + sizeof click + dense_bytes + static_cast<std::size_t>(i) * sizeof id, sizeof id);
      if (id < 0 || id >= options.rows)
        return Bad("DATA06", fmt::format("{}: its id {} is {}", place.ToString(), i, id), fmt::format("ids lie in [0, {})", options.rows),
                   "mend it where the records are made, or say in data.rows how many there are");
      log.ids.push_back(id);
    }
    return {};
  };
  RETURN_IF_ERROR(ForEachRecord(path, record_bytes, kBytesMax, take));
  return Divide(std::move(log), path, options);
}

}  // namespace ropewalk::mlrunner
