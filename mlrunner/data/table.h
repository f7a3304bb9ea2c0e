// Tables as samples: the rows of a CSV file or of files of records that a batch job has written; each row a label and some features.
//
// Thread rule: functions on files.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "mlrunner/data/samples.h"

namespace ropewalk::mlrunner {

// What is the same for both.
struct TableOptions {
  std::int64_t classes = 0;  // labels lie in [0, classes); 0: one more than the largest
  double held_out = .1;      // part of the rows, drawn alike every time; 0: none
  bool scale = true;         // features to mean 0 and deviation 1 of those that are trained on
};

struct CsvOptions {
  std::string label;  // name of the column, or its number from 1 on; empty: the last one
  char separator = ',';
  bool header = true;                 // the first record is the columns' names
  std::vector<std::string> left_out;  // columns, by name or number
  bool fill_missing = false;          // what is missing is the mean of its column in the rows that are trained on; false: refused
  TableOptions table;
};

// Features are numbers; empty fields, NA, N/A, NaN, null and ? are missing ones. Labels are whole numbers from 0 on; where one is not, all
// are names, and classes are numbered in the order of the names. Plain or compressed.
// kUserError DATA05: rows of different widths, or without features; DATA06: a label that is missing or no class; DATA07: a feature that is
// no number, or missing; DATA08: no rows to learn from; DATA16: what is wrong with a quote; DATA18: there is no such column. They name
// line, column, value and range.
Result<DataSet> LoadCsv(const std::string& path, const CsvOptions& options);

// Records as WriteRecords (dag/dataset.h) writes `struct { std::int32_t label; float features[width]; }`, little-endian, in the file,
// folder or pattern `path`. kUserError DATA06 to DATA08 name file, byte and range; IO04: no whole records.
Result<DataSet> LoadRecords(const std::string& path, std::int64_t width, const TableOptions& options);

}  // namespace ropewalk::mlrunner
