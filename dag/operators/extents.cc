#include "dag/operators/extents.h"

#include <algorithm>

#include <fmt/format.h>

namespace ropewalk::dag {
namespace {

// Before each extent in a spill file.
struct FrameHead {
  std::uint64_t bytes;
  std::uint64_t records;
};

class SpillStream final : public ExtentStream {
 public:
  SpillStream(SpillFile* file, std::uint32_t part) : file_(file), part_(part) {}

  Result<std::optional<Extent>> Next() override {
    if (file_ == nullptr || offset_ >= file_->bytes()) return std::optional<Extent>();
    FrameHead head;
    RETURN_IF_ERROR(Read(std::as_writable_bytes(std::span(&head, 1))));
    if (head.bytes > file_->bytes() - offset_) return Short();
    // The last buffer serves again unless the reader still holds its extent.
    if (buffer_ == nullptr || buffer_.use_count() > 1 || buffer_->bytes() < head.bytes) {
      buffer_.reset();
      buffer_ = std::make_shared<HugeBuffer>(ProcessPages().Take(head.bytes));
    }
    std::span<std::byte> bytes(reinterpret_cast<std::byte*>(buffer_->data()), head.bytes);
    RETURN_IF_ERROR(Read(bytes));
    return std::optional<Extent>(Extent{part_, head.records, bytes, buffer_});
  }

 private:
  static Status Short() {
    return Status(Code::kDataLoss, "SPILL01", "a spill file of this task ends too early", "the scratch disk lost bytes",
                  "the task is run again; look at the disk if this repeats");
  }
  Status Read(std::span<std::byte> out) {
    while (!out.empty()) {
      ASSIGN_OR_RETURN(std::size_t n, file_->ReadAt(offset_, out));
      if (n == 0) return Short();
      offset_ += n;
      out = out.subspan(n);
    }
    return {};
  }
  SpillFile* file_;
  std::uint32_t part_;
  std::uint64_t offset_ = 0;
  std::shared_ptr<HugeBuffer> buffer_;
};

}  // namespace

PartitionBuffers::PartitionBuffers(SegmentWriter* out, std::uint32_t parts, std::uint64_t memory_bytes_max, std::uint64_t extent_bytes_max,
                                   HugePages* pages)
    : out_(out), pages_(pages), parts_(parts) {
  extent_bytes_ = std::clamp<std::uint64_t>(memory_bytes_max / std::max(parts, 1u), 1024, std::max<std::uint64_t>(extent_bytes_max, 1024));
  extent_bytes_ &= ~std::size_t(63);
  buffer_ = pages->Take(extent_bytes_ * parts);
}

void PartitionBuffers::FlushPart(std::uint32_t part) {
  Part& p = parts_[part];
  if (p.used == 0 && p.records == 0) return;
  if (status_.ok()) {
    status_ = out_->Append(part, AsBytes({buffer_.data() + part * extent_bytes_, p.used}), p.records);
    records_ += p.records;
    bytes_ += p.used;
  }
  p = Part();
}

char* PartitionBuffers::Oversize(std::size_t bytes) {
  if (oversize_.bytes() < bytes) oversize_ = pages_->Take(bytes);
  return oversize_.data();
}

void PartitionBuffers::PutOversize(std::uint32_t part, std::size_t bytes) {
  if (!status_.ok()) return;
  status_ = out_->Append(part, AsBytes({oversize_.data(), bytes}), 1);
  ++records_;
  bytes_ += bytes;
}

Status PartitionBuffers::Flush() {
  for (std::uint32_t part = 0; part < parts_.size(); ++part) FlushPart(part);
  return status_;
}

SpillParts::SpillParts(SpillSpace* space, TaskProgress* progress, std::uint32_t parts)
    : space_(space), progress_(progress), files_(parts) {}

Status SpillParts::Append(std::uint32_t part, std::span<const std::byte> bytes, std::uint64_t records) {
  File& f = files_[part];
  if (f.file == nullptr) {
    if (space_ == nullptr) {
      return Status(Code::kInternal, "SPILL02", "an operator outgrew its memory and its task has no scratch space");
    }
    ASSIGN_OR_RETURN(f.file, space_->Create());
  }
  FrameHead head{bytes.size(), records};
  RETURN_IF_ERROR(f.file->Append(std::as_bytes(std::span(&head, 1))));
  RETURN_IF_ERROR(f.file->Append(bytes));
  f.records += records;
  if (progress_ != nullptr) progress_->bytes_spilled.fetch_add(sizeof(head) + bytes.size(), std::memory_order_relaxed);
  return {};
}

Result<SegmentInfo> SpillParts::Seal() {
  SegmentInfo info;
  for (File& f : files_) {
    if (f.file == nullptr) continue;
    RETURN_IF_ERROR(f.file->FinishWriting());
    info.bytes += f.file->bytes();
    info.records += f.records;
  }
  return info;
}

std::uint64_t SpillParts::part_bytes(std::uint32_t part) const { return files_[part].file == nullptr ? 0 : files_[part].file->bytes(); }

std::unique_ptr<ExtentStream> SpillParts::Open(std::uint32_t part) { return std::make_unique<SpillStream>(files_[part].file.get(), part); }

ShuffleStream::ShuffleStream(TaskContext& context, const TaskInput& input, std::uint32_t part)
    : context_(context), input_(input), part_(part) {}

Result<std::optional<Extent>> ShuffleStream::Next() {
  if (context_.Cancelled()) return CancelledStatus(context_);
  while (true) {
    for (; opened_ < input_.segments.size() && open_.size() < kOpenAhead; ++opened_) {
      ASSIGN_OR_RETURN(std::unique_ptr<ExtentStream> stream, context_.blocks->Open(input_.segments[opened_], part_, 1));
      open_.push_back(std::move(stream));
    }
    if (open_.empty()) return std::optional<Extent>();
    at_ = opened_ - open_.size();
    ASSIGN_OR_RETURN(std::optional<Extent> extent, open_.front()->Next());
    if (!extent) {
      open_.pop_front();
      continue;
    }
    if (context_.progress != nullptr) {
      context_.progress->records_in.fetch_add(extent->records, std::memory_order_relaxed);
      context_.progress->bytes_in.fetch_add(extent->bytes.size(), std::memory_order_relaxed);
    }
    return extent;
  }
}

Status DamagedExtent(const Extent& extent) {
  return Status(Code::kDataLoss, "SHUF01",
                fmt::format("an extent of {} bytes in part {} does not decode", extent.bytes.size(), extent.part),
                "the bytes that its producer wrote are not records of this type", "the producer is run again");
}

Status CancelledStatus(const TaskContext& context) {
  return Status(Code::kCancelled, "TASK01", fmt::format("task {} of stage {} was cancelled", context.id.task, context.id.stage.value));
}

}  // namespace ropewalk::dag
