#include "dag/plan/sources.h"

#include <algorithm>
#include <utility>

#include "base/monotonic.h"

namespace ropewalk::dag {
namespace {

void Point(TaskContext& context, std::uint32_t partition, std::uint64_t offset) {
  if (context.cursor == nullptr) return;
  context.cursor->split.store(partition, std::memory_order_relaxed);
  context.cursor->offset.store(offset, std::memory_order_relaxed);
}

// A batch goes on in portions where the code behind it is slow, each of about a tenth of a second: how far the task is, whether it was
// cancelled and where it crashed is then known as finely. What is made of the records does not depend on it: no operator looks at where a
// batch ends.
class Portions {
 public:
  // Calls `hand_on(begin, number)` until `records` are through, or it fails. A retry goes record by record.
  template <class HandOn>
  Status Of(const TaskContext& context, std::size_t records, HandOn hand_on) {
    for (std::size_t at = 0; at < records;) {
      RETURN_IF_ERROR(BeforeBatch(context));
      const std::size_t number = context.precise_cursor ? 1 : std::min(records - at, most_);
      const std::int64_t begin_ms = MonotonicMs();
      RETURN_IF_ERROR(hand_on(at, number));
      Learn(number, MonotonicMs() - begin_ms);
      at += number;
    }
    return {};
  }

 private:
  static constexpr std::int64_t kPortionMs = 100;
  void Learn(std::size_t number, std::int64_t took_ms) {
    if (took_ms > 2 * kPortionMs)
      most_ = std::max<std::size_t>(1, number * static_cast<std::size_t>(kPortionMs) / static_cast<std::size_t>(took_ms));
    else if (took_ms < kPortionMs / 2 && number == most_)
      most_ *= 2;
  }
  std::size_t most_ = 64;  // nothing is known yet; of fast code a batch is soon one portion
};

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
    Portions portions;
    return ForEachSplit(*files_, context, partition, [&](const storage::InputFile& file, const storage::InputSplit& split) -> Status {
      Status stopped;
      RETURN_IF_ERROR(storage::ReadLines(file, split, [&](const storage::LineBatch& batch) {
        stopped = portions.Of(context, batch.lines.size(), [&](std::size_t at, std::size_t number) {
          Point(context, partition, batch.offsets[at]);
          Status status = sink(batch.lines.subspan(at, number));
          const std::size_t last = at + number - 1;
          CountRead(context, number, batch.offsets[last] - batch.offsets[at] + batch.lines[last].size() + 1);
          return status;
        });
        return stopped.ok();
      }));
      return stopped;
    });
  }

 private:
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
  Portions portions;
  return ForEachSplit(files, context, partition, [&](const storage::InputFile& file, const storage::InputSplit& split) -> Status {
    Status stopped;
    RETURN_IF_ERROR(storage::ReadFixedRecords(file, split, record_bytes, [&](std::span<const std::byte> bytes, std::uint64_t offset) {
      stopped = portions.Of(context, bytes.size() / record_bytes, [&](std::size_t at, std::size_t number) {
        Point(context, partition, offset + at * record_bytes);
        Status status = consume(bytes.subspan(at * record_bytes, number * record_bytes));
        CountRead(context, number, number * record_bytes);
        return status;
      });
      return stopped.ok();
    }));
    return stopped;
  });
}

}  // namespace ropewalk::dag
