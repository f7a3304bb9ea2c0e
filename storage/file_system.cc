#include "storage/file_system.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string_view>

namespace ropewalk::storage {
namespace {

class LocalFile final : public WritableFile {
 public:
  explicit LocalFile(int fd) : fd_(fd) {}
  ~LocalFile() override {
    if (fd_ >= 0) close(fd_);
  }
  int Append(std::span<const std::byte> bytes) override {
    while (!bytes.empty()) {
      ssize_t n = write(fd_, bytes.data(), bytes.size());
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return errno;
      bytes = bytes.subspan(static_cast<std::size_t>(n));
      written_ += static_cast<std::uint64_t>(n);
    }
    StartWriteback();
    return 0;
  }
  int Sync() override { return fdatasync(fd_) == 0 ? 0 : errno; }  // the size is part of it
  int Close() override {
    int fd = fd_;
    fd_ = -1;
    return close(fd) == 0 || errno == EINTR ? 0 : errno;  // network file systems report lost writes here
  }

 private:
  // Lets the disk work while the next bytes are being made, so that the sync at the end finds little left to do. Only a hint: Sync() is
  // what counts.
  void StartWriteback() {
    constexpr std::uint64_t kPieceBytes = 8 << 20;
    if (written_ - handed_over_ < kPieceBytes) return;
    sync_file_range(fd_, static_cast<off_t>(handed_over_), static_cast<off_t>(written_ - handed_over_), SYNC_FILE_RANGE_WRITE);
    handed_over_ = written_;
  }

  int fd_;
  std::uint64_t written_ = 0;
  std::uint64_t handed_over_ = 0;
};

int OpenRetry(const char* path, int flags, mode_t mode = 0) {
  int fd;
  do {
    fd = open(path, flags | O_CLOEXEC, mode);
  } while (fd < 0 && errno == EINTR);
  return fd;
}

}  // namespace

int LocalFileSystem::Create(const std::string& path, std::unique_ptr<WritableFile>* file) {
  int fd = OpenRetry(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW, 0666);
  if (fd < 0) return errno;
  *file = std::make_unique<LocalFile>(fd);
  return 0;
}

int LocalFileSystem::ReadSmall(const std::string& path, std::size_t bytes_max, std::string* bytes) {
  bytes->clear();
  int fd = OpenRetry(path.c_str(), O_RDONLY | O_NONBLOCK);
  if (fd < 0) return errno;
  int error = 0;
  char buffer[16 << 10];
  while (true) {
    ssize_t n = read(fd, buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) error = errno;
    if (n <= 0) break;
    if (bytes->size() + static_cast<std::size_t>(n) > bytes_max) {
      error = EFBIG;
      break;
    }
    bytes->append(buffer, static_cast<std::size_t>(n));
  }
  close(fd);
  return error;
}

int LocalFileSystem::ReadAt(const std::string& path, std::uint64_t offset, std::span<std::byte> into, std::size_t* read) {
  *read = 0;
  int fd = OpenRetry(path.c_str(), O_RDONLY | O_NONBLOCK);
  if (fd < 0) return errno;
  int error = 0;
  while (!into.empty()) {
    ssize_t n = pread(fd, into.data(), into.size(), static_cast<off_t>(offset + *read));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) error = errno;
    if (n <= 0) break;
    *read += static_cast<std::size_t>(n);
    into = into.subspan(static_cast<std::size_t>(n));
  }
  close(fd);
  return error;
}

int LocalFileSystem::MakeFolder(const std::string& path) { return mkdir(path.c_str(), 0777) == 0 ? 0 : errno; }

int LocalFileSystem::SyncFolder(const std::string& path) {
  int fd = OpenRetry(path.c_str(), O_RDONLY | O_DIRECTORY);
  if (fd < 0) return errno;
  int error = fsync(fd) == 0 ? 0 : errno;
  close(fd);
  return error == EINVAL ? 0 : error;  // file systems without such a sync make names durable at once (some FUSE and network ones)
}

int LocalFileSystem::Look(const std::string& path, FileFacts* facts) {
  struct stat info;
  if (lstat(path.c_str(), &info) != 0) return errno;
  facts->kind = S_ISREG(info.st_mode) ? FileKind::kFile : S_ISDIR(info.st_mode) ? FileKind::kFolder : FileKind::kOther;
  facts->bytes = static_cast<std::uint64_t>(info.st_size);
  facts->modified_us = std::int64_t{info.st_mtim.tv_sec} * 1'000'000 + info.st_mtim.tv_nsec / 1000;
  return 0;
}

int LocalFileSystem::List(const std::string& path, std::vector<std::string>* names) {
  names->clear();
  std::unique_ptr<DIR, int (*)(DIR*)> stream(opendir(path.c_str()), closedir);
  if (stream == nullptr) return errno;
  while (true) {
    errno = 0;
    const dirent* entry = readdir(stream.get());
    if (entry == nullptr) break;
    std::string_view name = entry->d_name;
    if (name != "." && name != "..") names->emplace_back(name);
  }
  if (errno != 0) return errno;
  std::sort(names->begin(), names->end());
  return 0;
}

int LocalFileSystem::Rename(const std::string& from, const std::string& to, RenameMode mode) {
  unsigned flags = mode == RenameMode::kNoReplace ? RENAME_NOREPLACE : mode == RenameMode::kExchange ? RENAME_EXCHANGE : 0;
  return renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), flags) == 0 ? 0 : errno;
}

int LocalFileSystem::RemoveFile(const std::string& path) { return unlink(path.c_str()) == 0 ? 0 : errno; }
int LocalFileSystem::RemoveFolder(const std::string& path) { return rmdir(path.c_str()) == 0 ? 0 : errno; }

int RemoveTree(FileSystem& files, const std::string& path) {
  FileFacts facts;
  if (int error = files.Look(path, &facts); error != 0) return error == ENOENT ? 0 : error;
  if (facts.kind != FileKind::kFolder) return files.RemoveFile(path);
  std::vector<std::string> names;
  if (int error = files.List(path, &names); error != 0) return error;
  for (const std::string& name : names)
    if (int error = RemoveTree(files, path + "/" + name); error != 0) return error;
  return files.RemoveFolder(path);
}

}  // namespace ropewalk::storage
