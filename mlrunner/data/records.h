// Records of one size, little-endian, as a batch job's WriteRecords writes them (dag/dataset.h): every one of a file, folder or pattern.
//
// Thread rule: functions on files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"

namespace ropewalk::mlrunner {

// Where a record lies. It must not outlive the call that gave it.
struct RecordPlace {
  const std::string& path;
  std::uint64_t byte = 0;
  std::string ToString() const;  // "the record at byte 16 of "part-0""
};

// `take` gets each record; its first failure ends the reading. kUserError DATA08: more than `bytes_max` of them; IO04: no whole records;
// what ListInputs says.
Status ForEachRecord(const std::string& path, std::uint32_t record_bytes, std::uint64_t bytes_max,
                     const std::function<Status(std::span<const std::byte>, const RecordPlace&)>& take);

// The f32 that `bytes` hold, behind those of `features`. kUserError DATA07: one is no finite number.
Status AddFloats(std::span<const std::byte> bytes, const RecordPlace& place, std::vector<float>* features);

}  // namespace ropewalk::mlrunner
