#include "mlrunner/data/records.h"

#include <cmath>
#include <cstring>

#include <fmt/format.h>

#include "storage/input.h"
#include "storage/io_error.h"

namespace ropewalk::mlrunner {

using storage::QuotedPath;

std::string RecordPlace::ToString() const { return fmt::format("the record at byte {} of {}", byte, QuotedPath(path)); }

Status ForEachRecord(const std::string& path, std::uint32_t record_bytes, std::uint64_t bytes_max,
                     const std::function<Status(std::span<const std::byte>, const RecordPlace&)>& take) {
  const std::string patterns[] = {path};
  ASSIGN_OR_RETURN(const storage::InputListing listing, storage::ListInputs(patterns, "/"));
  std::uint64_t taken_bytes = 0;
  for (const storage::InputFile& file : listing.files) {
    RETURN_IF_ERROR(storage::CheckFixedRecords(file, record_bytes));
    Status wrong;
    auto each = [&](std::span<const std::byte> records, std::uint64_t offset) {
      for (; !records.empty() && wrong.ok(); offset += record_bytes, taken_bytes += record_bytes) {
        wrong = taken_bytes > bytes_max
                    ? Status(Code::kUserError, "DATA08", QuotedPath(path) + " holds more records than are kept in memory",
                             fmt::format("they may have {} bytes", bytes_max), "train on a part of them")
                    : take(records.first(record_bytes), {file.path, offset});
        records = records.subspan(record_bytes);
      }
      return wrong.ok();
    };
    RETURN_IF_ERROR(storage::ReadFixedRecords(file, {.begin = 0, .end = file.bytes}, record_bytes, each));
    RETURN_IF_ERROR(std::move(wrong));
  }
  return {};
}

Status AddFloats(std::span<const std::byte> bytes, const RecordPlace& place, std::vector<float>* features) {
  const std::size_t first = features->size(), count = bytes.size() / sizeof(float);
  features->resize(first + count);
  if (count > 0) std::memcpy(features->data() + first, bytes.data(), count * sizeof(float));
  for (std::size_t i = 0; i < count; ++i) {
    if (const float feature = (*features)[first + i]; !std::isfinite(feature))
      return Status(Code::kUserError, "DATA07", fmt::format("{}: its feature {} is {}", place.ToString(), i, feature),
                    "what is no number makes every later step none",
                    "mend it where the records are made, or say how many features one has");
  }
  return {};
}

}  // namespace ropewalk::mlrunner
