// The segment of a sort's map side: blocks of sorted records, and part 0, which says where what is. Knows no user type.
//
//   part 0       for each run: records, first block's part, {key, index of its first record} of each block, samples {key, index}, last key
//   part 1...    blocks in order, numbered through the runs
//
// Marks of string keys are cut to 4 KiB, so that one line of 100 MB does not become several. A cut key is a lower bound of the true one.
//
// Thread rule: one task.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/huge_pages.h"
#include "base/status.h"
#include "dag/codec.h"
#include "dag/operators/extents.h"
#include "dag/task.h"

namespace ropewalk::dag {

// Parts of a sort's segment: as many as there may ever be blocks. Costs nothing for parts that are not written.
inline constexpr std::uint32_t kSortParts = 1u << 30;

// A record that part 0 knows the key of.
struct SortMark {
  std::string_view key;     // encoded
  std::uint64_t index = 0;  // of the record in its run
  bool cut = false;
};

// One run as part 0 describes it.
struct SortRun {
  std::uint32_t segment = 0, run = 0;
  std::uint64_t records = 0;
  std::uint32_t first_part = 0;
  std::vector<SortMark> blocks;
  std::vector<SortMark> samples;  // at even distances; the first is the run's first record
  SortMark last;
};

class RunWriter {
 public:
  RunWriter(SegmentWriter* out, std::uint64_t block_bytes, std::uint32_t samples, HugePages* pages);
  void Begin(std::uint64_t records);
  // The next record in order; true when Mark() wants its key.
  bool Put(std::string_view record) {
    bool first = block_records_ == 0 || used_ + record.size() > block_bytes_;
    if (first) NewBlock(record.size());
    codec_internal::CopyLine(block_ + used_, record.data(), record.size());
    used_ += record.size();
    first_of_block_ = first;
    ++block_records_;
    bool sample = index_ == next_sample_;
    ++index_;
    return first || sample;
  }
  void Mark(std::string_view key, bool is_string);
  void End(std::string_view last_key, bool is_string);
  Status Finish();  // writes part 0
  const Status& status() const { return status_; }
  std::uint64_t records() const { return records_; }
  std::uint64_t bytes() const { return bytes_; }

 private:
  void NewBlock(std::size_t record_bytes);
  void FlushBlock();

  SegmentWriter* out_;
  HugePages* pages_;
  std::size_t block_bytes_;
  std::uint32_t samples_max_;
  HugeBuffer buffer_;      // where a block is built that the segment has no room for
  char* block_ = nullptr;  // the block that is being built: in the segment, or in buffer_
  std::size_t used_ = 0;
  std::uint64_t block_records_ = 0;
  std::uint32_t next_part_ = 1;
  bool first_of_block_ = false;
  // of the run that is being written
  std::uint64_t run_records_ = 0, index_ = 0, samples_ = 0, sample_ = 0, next_sample_ = 0;
  std::uint32_t run_first_part_ = 0;
  std::uint64_t blocks_marked_ = 0, samples_marked_ = 0;
  std::string block_marks_, sample_marks_;
  // of all runs
  std::uint32_t runs_ = 0;
  std::string part0_;
  Status status_;
  std::uint64_t records_ = 0, bytes_ = 0;
};

// All runs of all segments, by segment and run. Keys are views into `*holders`. kDataLoss when a part 0 does not decode.
Status ReadSortRuns(TaskContext& context, const TaskInput& input, std::vector<SortRun>* runs, std::vector<Extent>* holders);

// The samples at which partitions begin: *sorted is in the whole order, weight[i] is how many records sample i stands for. Partition p of n
// begins at sample Splitter(p, n): 0 for p = 0, sorted.size() when no sample is that far.
std::size_t SplitterIndex(const std::vector<std::uint64_t>& weights, std::uint32_t partition, std::uint32_t partitions);

}  // namespace ropewalk::dag
