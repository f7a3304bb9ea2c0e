// The journal: an append-only sequence of records that survives kill -9 and power loss, with snapshots that replace old records.
//
//   Append(records)  → all of them or none, synced before it returns. Calls from several threads share one sync (group commit).
//   Snapshot(state, upto) → from now on replay starts with `state`; records up to `upto` are dropped in the same atomic write.
//   Replay           → the snapshot, if there is one, then the records after it, in order and without gaps.
//
// Each record carries its own checksum besides RocksDB's (kXXH3), so a flipped bit is an error and never a decision. How far writes were
// acknowledged stands in a small file of its own, synced before a write returns: RocksDB takes damage at the end of its log for a write
// that a crash tore, and drops it without a word; what was acknowledged and is not there any more is an error here.
//
// Owner: the master. One process at a time: a second Open() is refused (STATE01).
// Thread rule: all methods may be called from any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"

namespace ropewalk::storage {

struct JournalOptions {
  std::string folder;                        // made 0700 when missing; its parent must exist
  std::string format = "ropewalk-master-1";  // what the records are; a journal of another format is refused (STATE03)
};

struct JournalSnapshot {
  std::uint64_t upto = 0;  // the state holds the effect of all records up to this sequence number
  std::string state;
};

class Journal {
 public:
  // kUnavailable STATE01: another process has it open. kDataLoss STATE02: damaged. kVersionSkew STATE03: another format.
  // kUserError STATE04: folder cannot be made, read or written.
  static Result<std::unique_ptr<Journal>> Open(JournalOptions options);
  ~Journal();
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;

  // Makes `records` durable, in this order and atomically. Returns the sequence number of the last one (the first record ever is 1; an
  // empty list returns the number of the last record so far). After an error nothing is known about the records: the caller must stop and
  // open again, since a failed sync is never retried.
  Result<std::uint64_t> Append(std::span<const std::string> records);
  Result<std::uint64_t> Append(const std::string& record) { return Append(std::span(&record, 1)); }

  // The newest snapshot, then every record after it. `record` gets sequence numbers without gaps; its error ends the replay.
  Result<std::optional<JournalSnapshot>> LoadSnapshot() const;
  Status Replay(std::uint64_t after, const std::function<Status(std::uint64_t sequence, std::string_view record)>& record) const;

  // kInvalid when `upto` is beyond the last record or before the snapshot that stands.
  Status Snapshot(std::string_view state, std::uint64_t upto);

  std::uint64_t last_sequence() const;

  // Small named values beside the sequence (epoch, counters), synced as well. nullopt: never written.
  Status Put(const std::string& name, std::string_view value);
  Result<std::optional<std::string>> Get(const std::string& name) const;

 private:
  struct Impl;
  explicit Journal(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace ropewalk::storage
