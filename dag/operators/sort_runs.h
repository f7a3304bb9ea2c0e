// The segment of a sort's map side: blocks of sorted records, and parts 0 and 1, which say where what is. Knows no user type.
//
//   part 0       for each run: records, first block's part, blocks, samples {key, index}, last key
//   part 1       for each run: {key, index of its first record} of each block
//   part 2...    blocks in order, numbered through the runs
//
// A mark need not be the key of its record: of a string as much is kept as tells it from the record before it, and a little more, so that a
// mark of a long line is short. Such a cut key is a lower bound of the true one. First and last keys of runs are cut to a fixed length, so
// that all keys between them share the bytes that these share.
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

// A record whose key is known before its block is read.
struct SortMark {
  std::string_view key;     // encoded
  std::uint64_t index = 0;  // of the record in its run
  bool cut = false;
};

// One run as parts 0 and 1 describe it.
struct SortRun {
  std::uint32_t segment = 0, run = 0;
  std::uint64_t records = 0;
  std::uint32_t first_part = 0, blocks = 0;
  std::vector<SortMark> samples;  // at even distances; the first is the run's first record
  SortMark last;
  std::uint32_t first_mark = 0;  // the block that marks[0] is of
  std::vector<SortMark> marks;   // of blocks one after another, where they were asked for
};

// The bytes of marks that are kept. Equal ones that follow one another are kept once.
class MarkKeys {
 public:
  std::string_view Keep(std::string_view key);

 private:
  static constexpr std::size_t kChunkBytes = 64u << 10;
  std::vector<std::unique_ptr<char[]>> chunks_;
  std::size_t left_ = 0;
  char* at_ = nullptr;
  std::string_view last_;
};

// How many runs and blocks are described. All of it are plan constants.
struct RunOptions {
  std::uint64_t block_bytes;
  std::uint32_t samples;           // of a run, at most
  std::uint64_t sample_bytes_max;  // of all runs, with what a reader needs for each; one of each run is kept in any case
};

class RunWriter {
 public:
  RunWriter(SegmentWriter* out, const RunOptions& options, HugePages* pages);
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
  // `before`: the key of the record before it in the run; empty: there is none, or it does not matter.
  void Mark(std::string_view key, std::string_view before, bool is_string);
  void End(std::string_view last_key, bool is_string);
  Status Finish();  // writes parts 0 and 1
  const Status& status() const { return status_; }
  std::uint64_t records() const { return records_; }
  std::uint64_t bytes() const { return bytes_; }

 private:
  void NewBlock(std::size_t record_bytes);
  void FlushBlock();
  void ThinSamples();

  // What part 0 will say of one run.
  struct Run {
    std::uint64_t records;
    std::uint32_t first_part, blocks;
    std::vector<std::string> samples;  // encoded marks
    std::string last;
  };

  SegmentWriter* out_;
  HugePages* pages_;
  std::size_t block_bytes_;
  std::uint64_t samples_max_;
  std::uint64_t sample_bytes_max_;
  HugeBuffer buffer_;      // where a block is built that the segment has no room for
  char* block_ = nullptr;  // the block that is being built: in the segment, or in buffer_
  std::size_t used_ = 0;
  std::uint64_t block_records_ = 0;
  std::uint32_t next_part_ = 2;
  bool first_of_block_ = false;
  // of the run that is being written
  std::uint64_t index_ = 0, samples_ = 0, sample_ = 0, next_sample_ = 0;
  // of all runs
  std::vector<Run> runs_;
  std::uint64_t sample_bytes_ = 0;
  std::string part1_;
  Status status_;
  std::uint64_t records_ = 0, bytes_ = 0;
};

// All runs of all segments, by segment and run, with their samples. Keys are kept in `*keys`. kDataLoss when a part 0 does not decode.
Status ReadSortRuns(TaskContext& context, const TaskInput& input, std::vector<SortRun>* runs, MarkKeys* keys);

// Which of a run's blocks somebody wants: is asked for each mark in turn, the marks of one run after those of the one before it.
class BlockFilter {
 public:
  enum class Verdict : std::uint8_t {
    kBegins,   // what is wanted begins in this block or behind it: those before it are not wanted
    kWanted,   // it is wanted
    kBehind,   // neither it nor what follows is wanted
    kDamaged,  // its key does not decode
  };
  virtual ~BlockFilter() = default;
  virtual Verdict Judge(const SortRun& run, std::uint32_t block, const SortMark& mark) = 0;
};
// Reads parts 1 and fills the marks of `*runs`, as ReadSortRuns gave them, with those that `filter` wants.
Status ReadSortBlocks(TaskContext& context, const TaskInput& input, BlockFilter& filter, std::vector<SortRun>* runs, MarkKeys* keys);

// The samples at which partitions begin: *sorted is in the whole order, weight[i] is how many records sample i stands for. Partition p of n
// begins at sample Splitter(p, n): 0 for p = 0, sorted.size() when no sample is that far.
std::size_t SplitterIndex(const std::vector<std::uint64_t>& weights, std::uint32_t partition, std::uint32_t partitions);

}  // namespace ropewalk::dag
