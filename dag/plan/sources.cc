#include "dag/plan/sources.h"

#include <utility>

namespace ropewalk::dag {
namespace {

void Point(TaskContext& context, std::uint32_t partition, std::uint64_t offset) {
  if (context.cursor == nullptr) return;
  context.cursor->split.store(partition, std::memory_order_relaxed);
  context.cursor->offset.store(offset, std::memory_order_relaxed);
}

// Calls `read(file, split)` for the splits of a partition.
template <class Read>
Status ForEachSplit(const FilePartitions& files, TaskContext& context, std::uint32_t partition, Read read) {
  if (partition >= files.splits.size()) return Status(Code::kInternal, "PLAN03", "the input has no partition " + std::to_string(partition));
  for (const storage::InputSplit& split : files.splits[partition]) {
    const storage::InputFile& file = files.listing.files[split.file];
    if (context.cursor != nullptr) context.cursor->SetSource(file.path);
    Point(context, partition, split.begin);
    RETURN_IF_ERROR(read(file, split));
  }
  return {};
}

class LineStream final : public Stream<std::string_view> {
 public:
  explicit LineStream(std::shared_ptr<const FilePartitions> files) : files_(std::move(files)) {}

  Status Run(TaskContext& context, std::uint32_t partition, BatchSink<std::string_view> sink) const override {
    return ForEachSplit(*files_, context, partition, [&](const storage::InputFile& file, const storage::InputSplit& split) -> Status {
      Status stopped;
      RETURN_IF_ERROR(storage::ReadLines(file, split, [&](const storage::LineBatch& batch) {
        stopped = HandOn(context, partition, batch, sink);
        return stopped.ok();
      }));
      return stopped;
    });
  }

 private:
  static Status HandOn(TaskContext& context, std::uint32_t partition, const storage::LineBatch& batch,
                       const BatchSink<std::string_view>& sink) {
    if (batch.lines.empty()) return {};
    std::uint64_t bytes = batch.offsets.back() - batch.offsets.front() + batch.lines.back().size() + 1;
    CountRead(context, batch.lines.size(), bytes);
    RETURN_IF_ERROR(BeforeBatch(context));
    if (!context.precise_cursor) {
      Point(context, partition, batch.offsets.front());
      return sink(batch.lines);
    }
    for (std::size_t i = 0; i < batch.lines.size(); ++i) {
      Point(context, partition, batch.offsets[i]);
      RETURN_IF_ERROR(sink(batch.lines.subspan(i, 1)));
    }
    return {};
  }

  std::shared_ptr<const FilePartitions> files_;
};

class RecordViewStream final : public Stream<std::string_view> {
 public:
  RecordViewStream(std::shared_ptr<const FilePartitions> files, std::uint32_t record_bytes)
      : files_(std::move(files)), record_bytes_(record_bytes) {}

  Status Run(TaskContext& context, std::uint32_t partition, BatchSink<std::string_view> sink) const override {
    std::vector<std::string_view> views;
    return StreamFixed(*files_, context, partition, record_bytes_, [&](std::span<const std::byte> bytes) -> Status {
      views.clear();
      const char* at = reinterpret_cast<const char*>(bytes.data());
      for (const char* end = at + bytes.size(); at < end; at += record_bytes_) views.emplace_back(at, record_bytes_);
      return sink(views);
    });
  }

 private:
  std::shared_ptr<const FilePartitions> files_;
  std::uint32_t record_bytes_;
};

}  // namespace

std::shared_ptr<const FilePartitions> Partition(storage::InputListing listing, const Settings& settings, std::uint64_t record_bytes) {
  auto files = std::make_shared<FilePartitions>();
  files->splits = storage::PackSplits(listing, settings.split_bytes_max, settings.slots, record_bytes);
  for (const auto& partition : files->splits) {
    std::uint64_t bytes = 0;
    for (const storage::InputSplit& split : partition) bytes += split.end - split.begin;
    files->bytes.push_back(bytes);
  }
  files->listing = std::move(listing);
  return files;
}

StreamPtr<std::string_view> LinesOf(std::shared_ptr<const FilePartitions> files) { return std::make_shared<LineStream>(std::move(files)); }

StreamPtr<std::string_view> RecordsOf(std::shared_ptr<const FilePartitions> files, std::uint32_t record_bytes) {
  return std::make_shared<RecordViewStream>(std::move(files), record_bytes);
}

Status StreamFixed(const FilePartitions& files, TaskContext& context, std::uint32_t partition, std::uint32_t record_bytes,
                   const std::function<Status(std::span<const std::byte>)>& consume) {
  return ForEachSplit(files, context, partition, [&](const storage::InputFile& file, const storage::InputSplit& split) -> Status {
    Status stopped;
    auto hand_on = [&](std::span<const std::byte> bytes, std::uint64_t offset) {
      Point(context, partition, offset);
      CountRead(context, bytes.size() / record_bytes, bytes.size());
      stopped = BeforeBatch(context);
      if (stopped.ok()) stopped = consume(bytes);
      return stopped.ok();
    };
    RETURN_IF_ERROR(storage::ReadFixedRecords(file, split, record_bytes, [&](std::span<const std::byte> bytes, std::uint64_t offset) {
      if (!context.precise_cursor) return hand_on(bytes, offset);
      for (std::size_t at = 0; at < bytes.size(); at += record_bytes)
        if (!hand_on(bytes.subspan(at, record_bytes), offset + at)) return false;
      return true;
    }));
    return stopped;
  });
}

}  // namespace ropewalk::dag
