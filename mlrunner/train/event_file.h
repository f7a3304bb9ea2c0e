// Scalars in a file that TensorBoard shows: TFRecords, each an Event (proto/event_file.proto).
//
//   length u64 │ masked CRC32C of the length u32 │ an Event, `length` bytes │ masked CRC32C of these u32      ... and the next record
//
// All numbers are little-endian. A folder may hold the files of several trainings; each writes one of its own.
//
// Owner: the caller. Thread rule: one thread.
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"

namespace ropewalk::mlrunner {

// Castagnoli's polynomial, reflected; of "123456789" it is e3069283.
std::uint32_t Crc32c(std::string_view bytes);
// As TFRecords have it: so that the checksum of what holds checksums is no special case.
std::uint32_t MaskedCrc32c(std::string_view bytes);

class EventFile {
 public:
  // Makes FOLDER where it is missing, and in it events.out.tfevents.SECONDS.HOST.PROCESS. TRAIN07: it cannot be written.
  static Result<std::unique_ptr<EventFile>> Open(const std::string& folder);
  ~EventFile();
  EventFile(const EventFile&) = delete;
  EventFile& operator=(const EventFile&) = delete;

  // Each by its tag. TRAIN07.
  Status Add(std::int64_t step, const std::vector<std::pair<std::string_view, double>>& scalars);
  Status Flush();
  const std::string& path() const { return path_; }

 private:
  EventFile(std::string path, std::FILE* file) : path_(std::move(path)), file_(file) {}
  Status Record(const std::string& event);
  std::string path_;
  std::FILE* file_;
};

}  // namespace ropewalk::mlrunner
