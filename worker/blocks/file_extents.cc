#include "worker/blocks/file_extents.h"

namespace ropewalk::blocks {
namespace {

class FileExtentStream final : public dag::ExtentStream {
 public:
  FileExtentStream(int fd, std::shared_ptr<const void> holder, std::span<const ExtentEntry> entries, TaskAttempt producer, BufferPool pool,
                   FileExtentOptions options)
      : fd_(fd),
        holder_(std::move(holder)),
        entries_(entries.begin(), entries.end()),
        producer_(producer),
        pool_(std::move(pool)),
        options_(options) {}

  Result<std::optional<dag::Extent>> Next() override {
    if (at_ == entries_.size()) {
      holder_.reset();
      return std::optional<dag::Extent>();
    }
    if (at_ == window_end_) RETURN_IF_ERROR(ReadWindow());
    const ExtentEntry& entry = entries_[at_++];
    std::span<const std::byte> bytes(window_->data() + (entry.offset - window_offset_), entry.length);
    RETURN_IF_ERROR(VerifyExtent(entry, bytes, producer_));
    return std::optional<dag::Extent>({.part = entry.part, .records = entry.records, .bytes = bytes, .holder = window_});
  }

 private:
  Status ReadWindow() {
    window_.reset();  // may be used again at once
    std::size_t count = WindowLength(entries_, at_, options_.window_bytes);
    window_offset_ = entries_[at_].offset;
    const ExtentEntry& last = entries_[at_ + count - 1];
    std::uint64_t bytes = last.offset + last.length - window_offset_;
    window_ = std::make_shared<Buffer>(pool_.Get(bytes));
    RETURN_IF_ERROR(ReadExactly(fd_, window_offset_, {window_->data(), bytes}, producer_));
    window_end_ = at_ + count;
    return {};
  }

  const int fd_;
  std::shared_ptr<const void> holder_;
  const std::vector<ExtentEntry> entries_;
  const TaskAttempt producer_;
  BufferPool pool_;
  const FileExtentOptions options_;
  std::shared_ptr<Buffer> window_;
  std::uint64_t window_offset_ = 0;
  std::size_t at_ = 0, window_end_ = 0;
};

}  // namespace

std::size_t WindowLength(std::span<const ExtentEntry> entries, std::size_t at, std::uint64_t window_bytes) {
  if (at == entries.size()) return 0;
  std::size_t count = 1;
  std::uint64_t bytes = entries[at].length, end = entries[at].offset + entries[at].length;
  while (at + count < entries.size() && entries[at + count].offset == end && bytes + entries[at + count].length <= window_bytes) {
    bytes += entries[at + count].length;
    end += entries[at + count].length;
    ++count;
  }
  return count;
}

std::unique_ptr<dag::ExtentStream> NewFileExtentStream(int fd, std::shared_ptr<const void> holder, std::span<const ExtentEntry> entries,
                                                       TaskAttempt producer, BufferPool pool, FileExtentOptions options) {
  return std::make_unique<FileExtentStream>(fd, std::move(holder), entries, producer, std::move(pool), options);
}

}  // namespace ropewalk::blocks
