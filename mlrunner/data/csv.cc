#include "mlrunner/data/csv.h"

#include <utility>

#include <fmt/format.h>

#include "base/escape.h"
#include "storage/io_error.h"

namespace ropewalk::mlrunner {

CsvReader::CsvReader(std::string_view text, std::string path, char separator) : text_(text), path_(std::move(path)), separator_(separator) {
  if (text_.starts_with("\xef\xbb\xbf")) at_ = 3;
}

Status CsvReader::Bad(std::int64_t line, const std::string& what, const std::string& fix) const {
  return Status(Code::kUserError, "DATA16", fmt::format("line {} of {} is no record", line, storage::QuotedPath(path_)), what, fix);
}

// CR, LF, or both.
void CsvReader::SkipLineEnd() {
  if (text_[at_++] == '\r' && at_ < text_.size() && text_[at_] == '\n') ++at_;
  ++next_line_;
}

Result<bool> CsvReader::Next(std::vector<std::string>* fields) {
  fields->clear();
  if (at_ == 0 && (text_.starts_with("\xff\xfe") || text_.starts_with("\xfe\xff")))
    return Bad(1, "the file is UTF-16, as its byte order mark says", "save it as UTF-8");
  while (at_ < text_.size() && AtLineEnd()) SkipLineEnd();
  if (at_ == text_.size()) return false;
  line_ = next_line_;
  for (;;) {
    if (fields->size() == kFieldsMax) return Bad(line_, fmt::format("it has more than {} fields", kFieldsMax), "mend the file");
    std::string& field = fields->emplace_back();
    if (at_ < text_.size() && text_[at_] == '"') {
      RETURN_IF_ERROR(Quoted(&field));
    } else {
      const std::size_t begin = at_;
      while (at_ < text_.size() && text_[at_] != separator_ && !AtLineEnd()) ++at_;
      field = text_.substr(begin, at_ - begin);
    }
    if (at_ == text_.size()) return true;
    if (text_[at_] != separator_) {
      SkipLineEnd();
      return true;
    }
    ++at_;
  }
}

Status CsvReader::Quoted(std::string* field) {
  const std::int64_t opened = next_line_;
  for (++at_; at_ < text_.size();) {
    const char c = text_[at_];
    if (c == '"') {
      if (++at_ == text_.size() || text_[at_] == separator_ || AtLineEnd()) return {};
      if (text_[at_] != '"')
        return Bad(next_line_, fmt::format("\"{}\" comes behind a closing quote", EscapeForLog(text_.substr(at_, 1))),
                   "double the quotes that are part of a field");
    } else if (c == '\n' || (c == '\r' && (at_ + 1 == text_.size() || text_[at_ + 1] != '\n'))) {
      ++next_line_;
    }
    *field += text_[at_++];
  }
  return Bad(opened, "a quote is opened in it and not closed", "close it, or double the quotes that are part of a field");
}

}  // namespace ropewalk::mlrunner
