// An output folder that appears whole and once.
//
// Attempts write below a hidden sibling of the final folder; the scheduler journals which attempt of each part wins; Commit() moves the
// winners to their part names, writes the manifest _SUCCESS, syncs, and publishes everything by one rename (no-replace, or an
// exchange when overwriting). Every step may be repeated after a crash.
//
//   out                                   the final name; exists only complete
//   .out.ropewalk-<key>/a/<part>.<attempt>   what attempts write
//   .out.ropewalk-<key>/commit/              what will be published (storage/commit_output.h)
//
// Thread rule: one writer a thread; any number of commits at once, where each is an attempt of its own (storage/commit_output.h).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"

namespace ropewalk::storage {

class FileSystem;

struct OutputSpec {
  std::string folder;  // absolute final path
  std::string key;     // unique for job and action: names the hidden sibling and proves a repeated commit to be ours
  bool overwrite = false;
  std::string suffix;           // part-00000<suffix>
  FileSystem* files = nullptr;  // null: this machine's; tests inject faults here. Outlives every use of the spec
  std::string writer = "";      // who writes it, for people: "job j-012". The manifest says it
};

// Refuses at once, before any work: exists and not `overwrite` (kUserError OUT01), parent missing or not writable (OUT02), the folder is,
// holds or lies in one of `input_paths` (OUT03; checked first: nothing of the input may be in danger), a file stands where the folder
// should be (OUT04). With `overwrite` also what nobody means to delete: the root, the home or the working folder and those above it
// (OUT03).
Status CheckOutput(const OutputSpec& spec, std::span<const std::string> input_paths);

// One attempt's file. Errors: kUserError OUT05 (cannot be made, disk full, write or sync failed), each naming the path.
class PartWriter {
 public:
  static Result<std::unique_ptr<PartWriter>> Open(const OutputSpec& spec, std::uint32_t part, std::uint32_t attempt);
  ~PartWriter();                                    // without Finish: the file is removed, unless by a forked child
  Status Append(std::span<const std::byte> bytes);  // buffered
  // Memory to write the next bytes into, so that they are copied once: room for at least `bytes` (kRoomBytesMax at most). What lies in it
  // is part of the file only after Commit(); no Append may come between the two.
  static constexpr std::size_t kRoomBytesMax = 1 << 20;
  Result<std::span<char>> Room(std::size_t bytes);
  Status Commit(std::size_t bytes);
  // Flushes, syncs, closes; returns what the manifest needs as bytes (records, bytes, checksum, part, attempt).
  Result<std::string> Finish(std::uint64_t records);
  std::uint64_t content_hash() const;  // valid after Finish

 private:
  struct Impl;
  explicit PartWriter(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Publishes the winners (the Finish() values, in part order). Idempotent for the same key and winners: after an error or crash at any
// step the same call goes on. kUserError OUT01 when somebody else's folder appeared meanwhile; kUserError OUT05 when the disk is full or
// a write fails; kDataLoss OUT07 when a winner's file is gone or has another size.
Status CommitOutput(const OutputSpec& spec, std::span<const std::string> winners);

// What CommitOutput publishes of these winners in all. kDataLoss OUT07 as there.
struct OutputTotals {
  std::uint64_t records = 0, bytes = 0;
};
Result<OutputTotals> TotalsOf(std::span<const std::string> winners);

// Removes the hidden sibling of a job that failed or was cancelled. It is renamed first, so that nothing partial can be published from it.
// Best effort.
void DiscardOutput(const OutputSpec& spec);

// The same while tasks may still be writing: once more where one that opens its part just then has made the sibling anew. The process must
// end right after it.
void AbandonOutput(const OutputSpec& spec);

}  // namespace ropewalk::storage
