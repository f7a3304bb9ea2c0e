// Click logs as samples for recommendation models (kClicks): rows of a CSV file or of records, each with dense features, categories, and
// whether it was clicked.
//
//   price,user,item,click      dense (1)   ids (2)            click
//   1.5,ann,rope,1        ▸    -.3         RowOf(ann), ...    1
//
// Thread rule: functions on files.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "mlrunner/data/samples.h"

namespace ropewalk::mlrunner {

// The row of a table of `rows` (2 or more) for a category: 0 where it is missing, else 1 + floor(h (rows - 1) / 2^32), where h are the
// upper 32 bits of KeyHash64 (base/hash.h: XXH3, fixed for ever) of its bytes. Two texts that share a row are one category to the model.
std::int32_t RowOf(std::string_view category, std::int64_t rows);

// What is the same for both.
struct ClickOptions {
  std::int64_t rows = 10'000;  // of the table of each category
  double held_out = .1;        // part of the log, drawn alike every time; 0: none
  bool scale = true;           // dense features to mean 0 and deviation 1 of those that are trained on
};

struct CsvClickOptions {
  std::string label;                    // column of the click, 0 or 1: its name, or its number from 1 on; empty: the last one
  std::vector<std::string> categories;  // columns of categories, in the order of their tables; "15-40" are those from the 15th to the 40th
  std::vector<std::string> left_out;    // the same; all others are dense
  char separator = ',';
  bool header = true;         // the first record is the columns' names
  bool fill_missing = false;  // a dense feature that is missing is the mean of its column in the rows that are trained on; false: refused
  ClickOptions clicks;
};

// A log without dense columns gets one that is 1. kUserError DATA05: rows of different widths, or without categories; DATA06: a click that
// is neither 0 nor 1; DATA07: a dense feature that is no number, or missing; DATA08: no rows to learn from; DATA16: what is wrong with a
// quote; DATA18: there is no such column, or it has two roles. They name line, column and value.
Result<DataSet> LoadCsvClicks(const std::string& path, const CsvClickOptions& options);

// Records as WriteRecords (dag/dataset.h) writes `struct { std::int32_t click; float dense[dense]; std::int32_t ids[ids]; }`, where ids are
// rows of the tables, in [0, rows). kUserError DATA06 to DATA08 name file, byte and range (DATA06 also of an id); IO04: no whole records.
Result<DataSet> LoadClickRecords(const std::string& path, std::int64_t dense, std::int64_t ids, const ClickOptions& options);

}  // namespace ropewalk::mlrunner
