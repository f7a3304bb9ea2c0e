#include "master/daemon/files.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include <glog/logging.h>

#include "base/escape.h"

namespace ropewalk::master {
namespace {

// The disk's errors: full is for the user to mend, everything else is the disk's.
Status DiskError(const std::string& verb, const std::string& path) {
  const int error = errno;
  const bool full = error == ENOSPC || error == EDQUOT;
  return {full ? Code::kResourceExhausted : Code::kUserError, "MASTER03", "cannot " + verb + " " + EscapeForLog(path), std::strerror(error),
          full ? "make room on that disk and start the master again" : "check the folder's owner, mode and disk"};
}

Status WriteAll(int fd, std::string_view bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t n = write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return DiskError("write", path);
    bytes.remove_prefix(static_cast<std::size_t>(n));
  }
  return {};
}

}  // namespace

Result<std::shared_ptr<LogFile>> LogFile::Open(const std::string& path) {
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return DiskError("open", path);
  struct stat info{};
  if (fstat(fd, &info) != 0) {
    Status status = DiskError("stat", path);
    close(fd);
    return status;
  }
  return std::shared_ptr<LogFile>(new LogFile(path, fd, static_cast<std::uint64_t>(info.st_size)));
}

LogFile::~LogFile() { close(fd_); }

Status LogFile::Append(std::string_view bytes) {
  Status status = WriteAll(fd_, bytes, path_);
  if (status.ok()) {
    size_ += bytes.size();
    return status;
  }
  // Half of it may be there: readers count by size_, and the next start by what the file holds.
  if (ftruncate(fd_, static_cast<off_t>(size_)) != 0) PLOG(ERROR) << "cannot cut " << EscapeForLog(path_) << " back";
  return status;
}

Status LogFile::Sync() const { return fdatasync(fd_) == 0 ? Status() : DiskError("sync", path_); }

Result<std::string> LogFile::Read(std::uint64_t offset, std::uint64_t bytes_max) const {
  if (offset >= size_) return std::string();
  std::string out(std::min(bytes_max, size_ - offset), '\0');
  std::size_t done = 0;
  while (done < out.size()) {
    const ssize_t n = pread(fd_, out.data() + done, out.size() - done, static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return DiskError("read", path_);
    if (n == 0) break;
    done += static_cast<std::size_t>(n);
  }
  out.resize(done);
  return out;
}

Status MakeFolder(const std::string& path) {
  std::error_code error;
  const bool made = std::filesystem::create_directories(path, error);
  if (error) {
    return {Code::kUserError, "MASTER02", "cannot make the folder " + EscapeForLog(path), error.message(),
            "name a folder that you may write to with --dir"};
  }
  if (made && chmod(path.c_str(), 0700) != 0) return DiskError("chmod", path);
  return {};
}

Result<std::string> ReadWholeFile(const std::string& path, std::uint64_t bytes_max) {
  ASSIGN_OR_RETURN(auto file, [&]() -> Result<std::shared_ptr<LogFile>> {
    if (access(path.c_str(), F_OK) != 0) return DiskError("read", path);
    return LogFile::Open(path);
  }());
  if (file->size() > bytes_max) {
    return Status(Code::kDataLoss, "MASTER04", EscapeForLog(path) + " is longer than " + std::to_string(bytes_max) + " bytes",
                  "something else wrote it", "");
  }
  return file->Read(0, bytes_max);
}

Status WriteFileDurably(const std::string& path, std::string_view bytes) {
  const std::string beside = path + ".new";
  const int fd = open(beside.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return DiskError("write", beside);
  Status status = WriteAll(fd, bytes, beside);
  if (status.ok() && fsync(fd) != 0) status = DiskError("sync", beside);
  close(fd);
  if (status.ok() && rename(beside.c_str(), path.c_str()) != 0) status = DiskError("rename", path);
  if (!status.ok()) {
    unlink(beside.c_str());
    return status;
  }
  // Without this the rename itself may vanish with the power.
  const std::string folder = std::filesystem::path(path).parent_path().string();
  const int dir = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (dir < 0) return DiskError("open", folder);
  if (fsync(dir) != 0) status = DiskError("sync", folder);
  close(dir);
  return status;
}

Result<std::unique_ptr<FolderLock>> FolderLock::Take(const std::string& path, const std::string& holder) {
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) {
    return Status(Code::kUserError, "MASTER02", "cannot use the folder of " + EscapeForLog(path), std::strerror(errno),
                  "name a folder that you may write to with --dir");
  }
  if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
    char text[512];
    const ssize_t n = pread(fd, text, sizeof text, 0);
    close(fd);
    return Status(
        Code::kUnavailable, "MASTER01",
        "another master uses this state folder: " + EscapeForLog(std::filesystem::path(path).parent_path().string()),
        n > 0 ? "held by " + EscapeForLog(std::string_view(text, static_cast<std::size_t>(n))) : "held by one that is only starting",
        "stop that one, or give this one a folder of its own with --dir");
  }
  std::unique_ptr<FolderLock> lock(new FolderLock(fd));
  lock->Describe(holder);
  return lock;
}

FolderLock::~FolderLock() { close(fd_); }

void FolderLock::Describe(const std::string& holder) const {
  // Only for people: the lock itself is the kernel's.
  if (ftruncate(fd_, 0) != 0 || pwrite(fd_, holder.data(), holder.size(), 0) < 0) PLOG(WARNING) << "cannot describe the lock";
}

}  // namespace ropewalk::master
