// Where records come from: lines and fixed-length records of files, and small vectors of main.
//
// The partitions of a file source are a function of the journalled listing and of Settings, never of the machine that happens to run.
//
// Thread rule: as Stream.
#pragma once

#include <array>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "dag/plan/records.h"
#include "dag/plan/stream.h"
#include "storage/input.h"

namespace ropewalk::dag {

// A listing and how its files are divided among tasks.
struct FilePartitions {
  storage::InputListing listing;
  std::vector<std::vector<storage::InputSplit>> splits;  // one element a partition
  std::vector<std::uint64_t> bytes;                      // of each partition, as stored
};
std::shared_ptr<const FilePartitions> Partition(storage::InputListing listing, const Settings& settings, std::uint64_t record_bytes);

StreamPtr<std::string_view> LinesOf(std::shared_ptr<const FilePartitions> files);
// Records of `record_bytes` bytes as views of those bytes.
StreamPtr<std::string_view> RecordsOf(std::shared_ptr<const FilePartitions> files, std::uint32_t record_bytes);

// Records of `record_bytes` bytes each as they lie in the file; `consume` gets whole records.
Status StreamFixed(const FilePartitions& files, TaskContext& context, std::uint32_t partition, std::uint32_t record_bytes,
                   const std::function<Status(std::span<const std::byte>)>& consume);

template <class T>
class FixedRecordStream final : public Stream<T> {
 public:
  static_assert(std::is_trivially_copyable_v<T>, "ReadRecords<T>: T must be trivially copyable, for example std::array<char, 100>");
  explicit FixedRecordStream(std::shared_ptr<const FilePartitions> files) : files_(std::move(files)) {}
  Status Run(TaskContext& context, std::uint32_t partition, BatchSink<T> sink) const override {
    std::vector<T> aligned;
    return StreamFixed(*files_, context, partition, sizeof(T), [&](std::span<const std::byte> bytes) -> Status {
      std::size_t n = bytes.size() / sizeof(T);
      if constexpr (alignof(T) == 1) {
        return sink(std::span<const T>(reinterpret_cast<const T*>(bytes.data()), n));
      } else {
        aligned.resize(n);
        std::memcpy(static_cast<void*>(aligned.data()), bytes.data(), n * sizeof(T));
        return sink(std::span<const T>(aligned.data(), n));
      }
    });
  }

 private:
  std::shared_ptr<const FilePartitions> files_;
};

// Elements of a vector that every replica holds. T is owned.
template <class T>
class VectorStream final : public Stream<View<T>> {
 public:
  VectorStream(std::shared_ptr<const std::vector<T>> data, std::uint32_t partitions) : data_(std::move(data)), partitions_(partitions) {}
  Status Run(TaskContext& context, std::uint32_t partition, BatchSink<View<T>> sink) const override {
    std::size_t begin = data_->size() * partition / partitions_, end = data_->size() * (partition + 1) / partitions_;
    auto views = std::make_unique<View<T>[]>(std::min(kStreamBatchRecords, end - begin));
    std::uint64_t index = begin;
    LeaveFiles(context, "the vector");
    while (begin < end) {
      std::size_t n = std::min(kStreamBatchRecords, end - begin);
      for (std::size_t i = 0; i < n; ++i) views[i] = View<T>((*data_)[begin + i]);
      CountRead(context, n, 0);
      RETURN_IF_ERROR(HandOn<View<T>>(context, {views.get(), n}, &index, sink));
      begin += n;
    }
    return {};
  }

 private:
  std::shared_ptr<const std::vector<T>> data_;
  std::uint32_t partitions_;
};

// Partitions of several streams, one after another.
template <class F>
class UnionStream final : public Stream<F> {
 public:
  struct Member {
    StreamPtr<F> stream;
    std::uint32_t first_partition;
  };
  explicit UnionStream(std::vector<Member> members) : members_(std::move(members)) {}
  Status Run(TaskContext& context, std::uint32_t partition, BatchSink<F> sink) const override {
    std::size_t i = members_.size();
    while (i > 1 && members_[i - 1].first_partition > partition) --i;
    const Member& member = members_[i - 1];
    return member.stream->Run(context, partition - member.first_partition, sink);
  }

 private:
  std::vector<Member> members_;
};

}  // namespace ropewalk::dag
