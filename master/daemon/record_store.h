// The scheduler's records on disk: small ones in the journal, large ones (results, broadcast values) as files of their own that are synced
// before the journal names them. A snapshot replaces the records and frees the files that it no longer names.
//
//   journal entry = 0 | record                       or        1 | SHA-256 | size u64
//   snapshot      = count, then sized entries
//
// Thread rule: one thread at a time (the committer's, after the start).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace ropewalk::storage {
class Journal;
}

namespace ropewalk::master {

inline constexpr std::size_t kLargeRecordBytes = 64 << 10;

class RecordStore {
 public:
  // `folder` gets journal/ and large/.
  static Result<std::unique_ptr<RecordStore>> Open(const std::string& folder);
  ~RecordStore();

  // Everything so far, in order.
  Status Replay(const std::function<Status(std::string record)>& record) const;
  // Durable when it returns. After an error nothing more may be written.
  Status Append(std::span<const std::string> records);
  // The state that all records so far have led to.
  Status Snapshot(std::span<const std::string> records);

  // Counts the starts of masters on this folder; the new number is durable.
  Result<std::uint64_t> NextEpoch();
  std::uint64_t large_files() const;

 private:
  struct Impl;
  explicit RecordStore(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace ropewalk::master
