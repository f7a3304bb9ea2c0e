// The operations by which durable files are made: the seam under which faults are injected (a file system that fails, or "crashes", at the
// n-th operation) and where other stores can stand.
//
// Every method returns 0 or an errno value: only the caller knows whose fault that is, and IoError() turns it into a Status.
//
// Thread rule: a FileSystem may be used from any thread; a WritableFile belongs to one.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace ropewalk::storage {

class WritableFile {
 public:
  virtual ~WritableFile() = default;                                       // closes; what was not synced may be lost
  [[nodiscard]] virtual int Append(std::span<const std::byte> bytes) = 0;  // all of it, or an error
  [[nodiscard]] virtual int Sync() = 0;  // a failed sync is never retried: the kernel may have dropped the pages
  [[nodiscard]] virtual int Close() = 0;
};

enum class RenameMode : std::uint8_t {
  kReplace,    // as rename(2)
  kNoReplace,  // EEXIST when the target exists
  kExchange,   // both must exist and change places in one step
};

enum class FileKind : std::uint8_t { kFile, kFolder, kOther };
struct FileFacts {
  FileKind kind = FileKind::kOther;  // of a link: of the link itself (kOther)
  std::uint64_t bytes = 0;
  // Since 1970, by the file system's own clock: to be compared with that of another file, not with this machine's.
  std::int64_t modified_us = 0;
};

class FileSystem {
 public:
  virtual ~FileSystem() = default;
  [[nodiscard]] virtual int Create(const std::string& path, std::unique_ptr<WritableFile>* file) = 0;           // empties one that is there
  [[nodiscard]] virtual int ReadSmall(const std::string& path, std::size_t bytes_max, std::string* bytes) = 0;  // EFBIG when larger
  // Fills `into` from `offset` on; `read` is less than its size only where the file ends.
  [[nodiscard]] virtual int ReadAt(const std::string& path, std::uint64_t offset, std::span<std::byte> into, std::size_t* read) = 0;
  [[nodiscard]] virtual int MakeFolder(const std::string& path) = 0;  // EEXIST when something is there
  [[nodiscard]] virtual int SyncFolder(const std::string& path) = 0;  // or a new name in it may vanish
  [[nodiscard]] virtual int Look(const std::string& path, FileFacts* facts) = 0;
  [[nodiscard]] virtual int List(const std::string& path, std::vector<std::string>* names) = 0;  // in byte order
  [[nodiscard]] virtual int Rename(const std::string& from, const std::string& to,
                                   RenameMode mode) = 0;  // EINVAL/ENOSYS: mode unknown here
  [[nodiscard]] virtual int RemoveFile(const std::string& path) = 0;
  [[nodiscard]] virtual int RemoveFolder(const std::string& path) = 0;  // an empty one
};

class LocalFileSystem final : public FileSystem {
 public:
  int Create(const std::string& path, std::unique_ptr<WritableFile>* file) override;
  int ReadSmall(const std::string& path, std::size_t bytes_max, std::string* bytes) override;
  int ReadAt(const std::string& path, std::uint64_t offset, std::span<std::byte> into, std::size_t* read) override;
  int MakeFolder(const std::string& path) override;
  int SyncFolder(const std::string& path) override;
  int Look(const std::string& path, FileFacts* facts) override;
  int List(const std::string& path, std::vector<std::string>* names) override;
  int Rename(const std::string& from, const std::string& to, RenameMode mode) override;
  int RemoveFile(const std::string& path) override;
  int RemoveFolder(const std::string& path) override;
};

// Removes a file, a link (not what it leads to) or a folder with all in it. Something that is not there is no error.
[[nodiscard]] int RemoveTree(FileSystem& files, const std::string& path);

}  // namespace ropewalk::storage
