// Files of the state folder: an append-only log file, whole files written durably, and the lock of the folder.
//
// Thread rule: LogFile: Append and Read on one thread, Sync may run on another. The functions may be called from any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"

namespace ropewalk::master {

class LogFile {
 public:
  static Result<std::shared_ptr<LogFile>> Open(const std::string& path);  // appends to what is there
  ~LogFile();
  LogFile(const LogFile&) = delete;
  LogFile& operator=(const LogFile&) = delete;
  Status Append(std::string_view bytes);
  Status Sync() const;
  // Up to `bytes_max` bytes; fewer only at the end.
  Result<std::string> Read(std::uint64_t offset, std::uint64_t bytes_max) const;
  std::uint64_t size() const { return size_; }

 private:
  LogFile(std::string path, int fd, std::uint64_t size) : path_(std::move(path)), fd_(fd), size_(size) {}
  std::string path_;
  int fd_;
  std::uint64_t size_;
};

Status MakeFolder(const std::string& path);  // 0700, parents too
Result<std::string> ReadWholeFile(const std::string& path, std::uint64_t bytes_max);
// Appears whole and lasting, or not at all. Mode 0600.
Status WriteFileDurably(const std::string& path, std::string_view bytes);

// Held until it is destroyed or the process dies.
class FolderLock {
 public:
  // kUnavailable MASTER01: held; `why` is what the holder wrote.
  static Result<std::unique_ptr<FolderLock>> Take(const std::string& path, const std::string& holder);
  ~FolderLock();
  void Describe(const std::string& holder) const;  // what others read who find it held

 private:
  explicit FolderLock(int fd) : fd_(fd) {}
  int fd_;
};

}  // namespace ropewalk::master
