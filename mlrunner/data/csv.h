// CSV (RFC 4180, and what spreadsheets make of it): fields in quotes with doubled quotes, separators and line ends in them; lines that end
// in LF, CRLF or CR; a byte order mark; empty lines, which are nothing. A quote in the middle of a field is a character.
//
// Thread rule: a reader belongs to one thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace ropewalk::mlrunner {

class CsvReader {
 public:
  static constexpr std::size_t kFieldsMax = std::size_t{1} << 20;  // of one record

  // `text` must outlive it; `path` is for errors.
  CsvReader(std::string_view text, std::string path, char separator = ',');

  // The next record into `fields`; false: there is none. kUserError DATA16: a quote that is not closed, something behind one that is, too
  // many fields, a text of UTF-16; names path and line.
  Result<bool> Next(std::vector<std::string>* fields);
  // Where the record that Next gave begins, from 1 on.
  std::int64_t line() const { return line_; }

 private:
  Status Bad(std::int64_t line, const std::string& what, const std::string& fix) const;
  Status Quoted(std::string* field);
  bool AtLineEnd() const { return text_[at_] == '\n' || text_[at_] == '\r'; }
  void SkipLineEnd();

  std::string_view text_;
  std::string path_;
  char separator_;
  std::size_t at_ = 0;
  std::int64_t line_ = 0, next_line_ = 1;
};

}  // namespace ropewalk::mlrunner
