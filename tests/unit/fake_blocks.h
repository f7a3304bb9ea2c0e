// Blocks, segments and spill space in plain memory, for tests of operators: what the embedded backend and the cluster supply, without
// either.
//
// Thread rule: one thread.
#pragma once

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "dag/task.h"

namespace ropewalk::testing {

struct FakeExtent {
  std::uint32_t part;
  std::uint64_t records;
  std::string bytes;
};
using FakeSegment = std::vector<FakeExtent>;

class FakeBlocks final : public dag::BlockReader, public dag::BlockWriter {
 public:
  // Segment ids are given in the order of sealing, from 1.
  std::map<std::uint64_t, FakeSegment> segments;

  Result<std::unique_ptr<dag::SegmentWriter>> NewSegment(TaskAttempt, std::uint32_t parts) override {
    return std::unique_ptr<dag::SegmentWriter>(new Writer(this, parts));
  }
  Result<std::unique_ptr<dag::SegmentWriter>> NewDurableSegment(TaskAttempt producer, std::uint32_t parts) override {
    return NewSegment(producer, parts);
  }
  Result<std::unique_ptr<dag::ExtentStream>> Open(const dag::SegmentRef& ref, std::uint32_t first, std::uint32_t count) override {
    auto it = segments.find(ref.segment.value);
    if (it == segments.end()) return Status(Code::kDataLoss, "FAKE01", "segment is gone");
    return std::unique_ptr<dag::ExtentStream>(new Stream(it->second, first, count));
  }
  // All segments, as the input of an all-to-all stage.
  dag::TaskInput Input() const {
    dag::TaskInput input;
    input.stage = StageId{1};
    for (const auto& [id, segment] : segments) {
      dag::SegmentRef ref;
      ref.producer = {StageId{1}, static_cast<std::uint32_t>(input.segments.size()), 1};
      ref.segment = SegmentId{id};
      for (const FakeExtent& extent : segment) ref.bytes += extent.bytes.size();
      input.segments.push_back(ref);
    }
    return input;
  }

 private:
  std::uint64_t last_id_ = 0;

  class Writer final : public dag::SegmentWriter {
   public:
    Writer(FakeBlocks* blocks, std::uint32_t parts) : blocks_(blocks), parts_(parts) {}
    Status Append(std::uint32_t part, std::span<const std::byte> bytes, std::uint64_t records) override {
      if (part >= parts_) return Status(Code::kInternal, "FAKE02", "part " + std::to_string(part) + " of " + std::to_string(parts_));
      segment_.push_back({part, records, std::string(AsView(bytes))});
      room_.reset();
      return {};
    }
    // Every second time, of exactly the size asked for, so that ASan sees who writes beyond it or uses it too late.
    char* Room(std::size_t bytes) override {
      has_room_ = !has_room_;
      room_.reset(has_room_ ? new char[bytes] : nullptr);
      return room_.get();
    }
    Result<dag::SegmentInfo> Seal() override {
      dag::SegmentInfo info;
      info.segment = SegmentId{++blocks_->last_id_};  // never used twice, also when segments were freed
      for (const FakeExtent& extent : segment_) {
        info.bytes += extent.bytes.size();
        info.records += extent.records;
        info.content_hash = HashCombine(HashCombine(info.content_hash, extent.part), Checksum64(std::string_view(extent.bytes)));
      }
      blocks_->segments[info.segment.value] = std::move(segment_);
      return info;
    }

   private:
    FakeBlocks* blocks_;
    std::uint32_t parts_;
    FakeSegment segment_;
    std::unique_ptr<char[]> room_;
    bool has_room_ = false;
  };
  // Each extent is copied and dies with its holder, so that a view that outlives its extent is found by ASan.
  class Stream final : public dag::ExtentStream {
   public:
    Stream(const FakeSegment& segment, std::uint64_t first, std::uint64_t count) {
      for (const FakeExtent& extent : segment)
        if (extent.part >= first && extent.part < first + count) extents_.push_back(&extent);
      std::stable_sort(extents_.begin(), extents_.end(), [](auto* a, auto* b) { return a->part < b->part; });
    }
    Result<std::optional<dag::Extent>> Next() override {
      if (at_ == extents_.size()) return std::optional<dag::Extent>();
      const FakeExtent& extent = *extents_[at_++];
      std::shared_ptr<char[]> copy(new char[extent.bytes.size()]);
      std::memcpy(copy.get(), extent.bytes.data(), extent.bytes.size());
      return std::optional<dag::Extent>(dag::Extent{extent.part, extent.records, AsBytes({copy.get(), extent.bytes.size()}), copy});
    }

   private:
    std::vector<const FakeExtent*> extents_;
    std::size_t at_ = 0;
  };
};

class FakeSpill final : public dag::SpillSpace {
 public:
  std::uint64_t files = 0, bytes = 0;   // made, written so far
  std::int64_t bytes_left = INT64_MAX;  // then the disk is full
  Result<std::unique_ptr<dag::SpillFile>> Create() override {
    ++files;
    return std::unique_ptr<dag::SpillFile>(new File(this));
  }

 private:
  class File final : public dag::SpillFile {
   public:
    explicit File(FakeSpill* space) : space_(space) {}
    Status Append(std::span<const std::byte> bytes) override {
      if ((space_->bytes_left -= static_cast<std::int64_t>(bytes.size())) < 0) {
        return Status(Code::kResourceExhausted, "FAKE03", "scratch disk is full");
      }
      space_->bytes += bytes.size();
      bytes_.append(AsView(bytes));
      return {};
    }
    Status FinishWriting() override { return {}; }
    Result<std::size_t> ReadAt(std::uint64_t offset, std::span<std::byte> out) override {
      if (offset >= bytes_.size()) return std::size_t(0);
      std::size_t n = std::min<std::size_t>({out.size(), bytes_.size() - offset, 7777});  // short reads are legal
      std::memcpy(out.data(), bytes_.data() + offset, n);
      return n;
    }
    std::uint64_t bytes() const override { return bytes_.size(); }

   private:
    FakeSpill* space_;
    std::string bytes_;
  };
};

// A task around the fakes.
struct FakeTask {
  FakeBlocks blocks;
  FakeSpill spill;
  dag::Settings settings;
  dag::TaskProgress progress;
  dag::TaskContext context;
  FakeTask() {
    context.id = {StageId{2}, 0, 1};
    context.settings = &settings;
    context.blocks = &blocks;
    context.segments = &blocks;
    context.spill = &spill;
    context.progress = &progress;
  }
};

}  // namespace ropewalk::testing
