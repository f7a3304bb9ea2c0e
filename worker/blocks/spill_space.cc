// Scratch files of operators: frames of 256 KiB, each checksummed; the file has no name, so it is gone with the process.
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "base/home_process.h"
#include "base/unique_fd.h"
#include "base/wide_checksum.h"
#include "worker/blocks/block_store.h"
#include "worker/blocks/segment_format.h"

namespace ropewalk::blocks {
namespace {

constexpr std::uint64_t kFrameBytes = 256u << 10;

Status BadFrame(const std::string& path, std::uint64_t offset, const std::string& why) {
  return Status(Code::kDataLoss, "BLK11", "spill file in " + path + " is damaged at offset " + std::to_string(offset), why,
                "none needed: the task is run again; look at the disk");
}

class File final : public dag::SpillFile {
 public:
  File(UniqueFd fd, std::string dir) : fd_(std::move(fd)), dir_(std::move(dir)) {}

  Status Append(std::span<const std::byte> bytes) override {
    if (finished_) return Status(Code::kInternal, "BLK10", "append to a finished spill file");
    while (!bytes.empty()) {
      // Whole frames go to the file straight from the caller's memory.
      if (pending_.empty() && bytes.size() >= kFrameBytes) {
        RETURN_IF_ERROR(WriteFrame(bytes.first(kFrameBytes)));
        bytes = bytes.subspan(kFrameBytes);
        continue;
      }
      std::size_t take = std::min<std::size_t>(bytes.size(), kFrameBytes - pending_.size());
      pending_.insert(pending_.end(), bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(take));
      bytes = bytes.subspan(take);
      if (pending_.size() == kFrameBytes) {
        RETURN_IF_ERROR(WriteFrame(pending_));
        pending_.clear();
      }
    }
    return {};
  }

  Status FinishWriting() override {
    if (!finished_ && !pending_.empty()) RETURN_IF_ERROR(WriteFrame(pending_));
    pending_ = {};
    finished_ = true;
    return {};
  }

  Result<std::size_t> ReadAt(std::uint64_t offset, std::span<std::byte> out) override {
    if (!finished_) return Status(Code::kInternal, "BLK10", "read of a spill file that is still written");
    std::size_t done = 0;
    while (done < out.size() && offset < bytes_) {
      std::uint64_t frame = offset / kFrameBytes, in_frame = offset % kFrameBytes;
      std::uint64_t length = std::min(kFrameBytes, bytes_ - frame * kFrameBytes);
      std::span<std::byte> rest = out.subspan(done);
      if (in_frame == 0 && rest.size() >= length) {
        RETURN_IF_ERROR(ReadFrame(frame, rest.first(length)));
        done += length;
        offset += length;
        continue;
      }
      if (cached_ != frame) {
        cached_ = kNone;
        cache_.resize(kFrameBytes);
        RETURN_IF_ERROR(ReadFrame(frame, std::span(cache_).first(length)));
        cached_ = frame;
      }
      std::size_t take = std::min<std::uint64_t>(rest.size(), length - in_frame);
      std::memcpy(rest.data(), cache_.data() + in_frame, take);
      done += take;
      offset += take;
    }
    return done;
  }

  std::uint64_t bytes() const override { return bytes_ + pending_.size(); }

 private:
  static constexpr std::uint64_t kNone = ~0ull;

  Status WriteFrame(std::span<const std::byte> frame) {
    // A forked child has its parent's file: what it wrote would stand where its parent's next frame belongs.
    if (!home_.here()) return Status(Code::kInternal, "BLK44", "a forked child writes its parent's spill file in " + dir_);
    RETURN_IF_ERROR(WriteExactly(fd_.get(), bytes_, frame, dir_));
    checksums_.push_back(WideChecksum64(frame));
    bytes_ += frame.size();
    return {};
  }
  Status ReadFrame(std::uint64_t frame, std::span<std::byte> out) {
    std::uint64_t offset = frame * kFrameBytes;
    std::size_t done = 0;
    while (done < out.size()) {
      ssize_t n = ::pread(fd_.get(), out.data() + done, out.size() - done, static_cast<off_t>(offset + done));
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return BadFrame(dir_, offset + done, n == 0 ? "it ends too early" : std::strerror(errno));
      done += static_cast<std::size_t>(n);
    }
    if (WideChecksum64(out) != checksums_[frame]) return BadFrame(dir_, offset, "checksum");
    return {};
  }

  UniqueFd fd_;
  const std::string dir_;
  const HomeProcess home_;
  std::vector<std::byte> pending_;
  std::vector<std::uint64_t> checksums_;  // of the frames: in memory, so that the file cannot lie about itself
  std::uint64_t bytes_ = 0;               // written to the file
  bool finished_ = false;
  std::vector<std::byte> cache_;
  std::uint64_t cached_ = kNone;
};

class Space final : public dag::SpillSpace {
 public:
  explicit Space(std::string dir) : dir_(std::move(dir)) {}

  Result<std::unique_ptr<dag::SpillFile>> Create() override {
    std::error_code error;
    std::filesystem::create_directories(dir_, error);
    UniqueFd fd(error ? -1 : ::open(dir_.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
    if (!fd && !error && (errno == EOPNOTSUPP || errno == EISDIR)) {  // file systems without nameless files
      std::string path = dir_ + "/spill-XXXXXX";
      fd = UniqueFd(::mkostemp(path.data(), O_CLOEXEC));
      if (fd) ::unlink(path.c_str());
    }
    if (!fd)
      return Status(Code::kResourceExhausted, "BLK12", "cannot create a spill file in " + dir_,
                    error ? error.message() : std::strerror(errno), "name a writable folder with free space");
    return std::unique_ptr<dag::SpillFile>(std::make_unique<File>(std::move(fd), dir_));
  }

 private:
  const std::string dir_;
};

}  // namespace

std::unique_ptr<dag::SpillSpace> NewSpillSpace(std::string dir) { return std::make_unique<Space>(std::move(dir)); }

}  // namespace ropewalk::blocks
