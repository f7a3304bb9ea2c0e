// A content-addressed store of executables and libraries: the SHA-256 is the name, so a second submit sends nothing and a file is
// either whole and right or absent.
//
//   folder/<64 hex digits>        verified, synced, mode 0500
//   folder/<64 hex digits>.part   being received; survives a restart, so an upload goes on where it stopped
//
// The store is bounded: before it grows beyond bytes_max it drops uploads that nobody goes on with, then what was not used for longest.
// What a live job uses is pinned by the job's owner and stays. A file's mtime says when it was used last, so the order survives a restart.
//
// Owner: master and worker daemons, each their own folder.
// Thread rule: all methods may be called from any thread (one mutex; a call may wait for a sync).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"

namespace ropewalk::storage {

struct ArtifactOptions {
  std::string folder;  // made 0700 when missing
  std::uint64_t artifact_bytes_max = 4ull << 30;
  std::uint64_t bytes_max = 16ull << 30;         // of all, unfinished ones too
  std::int64_t upload_idle_ms = 24 * 3'600'000;  // an upload that stood still for so long is dropped at the next start
  std::int64_t upload_grace_ms = 10 * 60'000;    // one that stood still for so long gives way to others
};

class ArtifactStore {
 public:
  static Result<std::unique_ptr<ArtifactStore>> Open(ArtifactOptions options);
  ~ArtifactStore();

  // `sha256` is 32 raw bytes everywhere.
  bool Has(std::string_view sha256) const;  // counts as a use
  // Keeps it, here or still to come, until as many Unpin() have come. Pins end with the process.
  void Pin(std::string_view sha256);
  void Unpin(std::string_view sha256);
  std::uint64_t bytes() const;                        // of all files, unfinished ones too
  std::string PathOf(std::string_view sha256) const;  // whether or not it is there
  // Bytes received so far of one that is not complete: where an upload goes on. 0: none.
  std::uint64_t ReceivedBytes(std::string_view sha256) const;

  // Adds `chunk` at `offset` of an artifact of `size` bytes. True: now complete, verified and durable. Repeats of bytes that are already
  // there are accepted and ignored. kInvalid ART01: a gap, a chunk past `size`, another size, a name that is no SHA-256, or above the
  // limit.
  // kResourceExhausted ART05: no room, all that is here is in use.
  // kDataLoss ART02: the content does not hash to its name (all of it is dropped). ART03: the disk (kResourceExhausted when full).
  Result<bool> Put(std::string_view sha256, std::uint64_t offset, std::uint64_t size, std::string_view chunk);

  // Up to `bytes_max` bytes from `offset`, empty at the end. kNotFound ART04 when not complete.
  Result<std::string> Read(std::string_view sha256, std::uint64_t offset, std::uint64_t bytes_max) const;
  Result<std::uint64_t> Size(std::string_view sha256) const;

  // Copies a file of this machine in and returns its name.
  Result<std::string> Add(const std::string& path);

 private:
  struct Impl;
  explicit ArtifactStore(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// The 32 raw bytes.
std::string Sha256(std::string_view bytes);
Result<std::string> Sha256OfFile(const std::string& path);  // IO01, IO02

}  // namespace ropewalk::storage
