#include "dag/operators/sort_runs.h"

#include <algorithm>

#include <fmt/format.h>

namespace ropewalk::dag {
namespace {

constexpr std::size_t kMarkBytesMax = 4096;

void WriteMark(std::string* out, std::string_view key, bool is_string, std::uint64_t index) {
  ByteWriter writer(out);
  writer.Varint(index);
  bool cut = is_string && key.size() > kMarkBytesMax;
  writer.Fixed<std::uint8_t>(cut ? 1 : 0);
  if (cut) {
    ByteReader reader(key);
    writer.Sized(Encode<std::string>(reader.Sized().substr(0, kMarkBytesMax)));
  } else {
    writer.Sized(key);
  }
}

SortMark ReadMark(ByteReader& in) {
  SortMark mark;
  mark.index = in.Varint();
  mark.cut = in.Fixed<std::uint8_t>() != 0;
  mark.key = in.Sized();
  return mark;
}

bool ReadMarks(ByteReader& in, std::uint64_t records, std::vector<SortMark>* marks) {
  std::uint64_t n = in.Varint();
  if (n == 0 || n > records || n > in.remaining()) return false;
  for (; n > 0 && in.ok(); --n) {
    marks->push_back(ReadMark(in));
    std::uint64_t least = marks->size() == 1 ? 0 : (*marks)[marks->size() - 2].index + 1;
    if (marks->back().index < least || marks->back().index >= records) return false;
  }
  return in.ok() && marks->front().index == 0;
}

}  // namespace

RunWriter::RunWriter(SegmentWriter* out, std::uint64_t block_bytes, std::uint32_t samples, HugePages* pages)
    : out_(out), pages_(pages), block_bytes_(std::max<std::uint64_t>(block_bytes, 1)), samples_max_(std::max(samples, 1u)) {}

void RunWriter::Begin(std::uint64_t records) {
  run_records_ = records;
  run_first_part_ = next_part_;
  samples_ = std::min<std::uint64_t>(records, samples_max_);
  index_ = sample_ = next_sample_ = 0;
  blocks_marked_ = samples_marked_ = 0;
  block_marks_.clear();
  sample_marks_.clear();
}

void RunWriter::NewBlock(std::size_t record_bytes) {
  FlushBlock();
  const std::size_t bytes = std::max(record_bytes, block_bytes_);
  if ((block_ = out_->Room(bytes)) != nullptr) return;
  if (bytes > buffer_.bytes()) {
    buffer_ = HugeBuffer();  // first give back, then take
    buffer_ = pages_->Take(bytes);
  }
  block_ = buffer_.data();
}

void RunWriter::FlushBlock() {
  if (block_records_ == 0) return;
  if (status_.ok() && next_part_ >= kSortParts) {
    status_ = Status(Code::kResourceExhausted, "SORT01", "one task's sorted output has too many blocks", "more than 2^30",
                     "use more input splits");
  }
  if (status_.ok()) status_ = out_->Append(next_part_, AsBytes({block_, used_}), block_records_);
  ++next_part_;
  records_ += block_records_;
  bytes_ += used_;
  used_ = 0;
  block_records_ = 0;
}

void RunWriter::Mark(std::string_view key, bool is_string) {
  std::uint64_t index = index_ - 1;
  if (first_of_block_) {
    WriteMark(&block_marks_, key, is_string, index);
    ++blocks_marked_;
  }
  if (index == next_sample_) {
    WriteMark(&sample_marks_, key, is_string, index);
    ++samples_marked_;
    ++sample_;
    // 128 bits: records times samples may not fit 64
    next_sample_ = static_cast<std::uint64_t>(static_cast<unsigned __int128>(sample_) * run_records_ / samples_);
  }
}

void RunWriter::End(std::string_view last_key, bool is_string) {
  FlushBlock();
  ByteWriter writer(&part0_);
  writer.Varint(run_records_);
  writer.Varint(run_first_part_);
  writer.Varint(blocks_marked_);
  writer.Raw(block_marks_);
  writer.Varint(samples_marked_);
  writer.Raw(sample_marks_);
  WriteMark(&part0_, last_key, is_string, run_records_ - 1);
  ++runs_;
}

Status RunWriter::Finish() {
  if (!status_.ok()) return status_;
  std::string part0;
  ByteWriter(&part0).Varint(runs_);
  part0 += part0_;
  part0_ = {};
  buffer_ = HugeBuffer();
  return status_ = out_->Append(0, AsBytes(part0), 0);
}

Status ReadSortRuns(TaskContext& context, const TaskInput& input, std::vector<SortRun>* runs, std::vector<Extent>* holders) {
  ShuffleStream stream(context, input, 0);
  return ForEachExtent(stream, [&](const Extent& extent) -> Status {
    holders->push_back(extent);
    ByteReader in(AsView(extent.bytes));
    std::uint64_t n = in.Varint();
    bool good = in.ok();
    for (std::uint64_t i = 0; i < n && good; ++i) {
      SortRun run;
      run.segment = static_cast<std::uint32_t>(stream.segment());
      run.run = static_cast<std::uint32_t>(i);
      run.records = in.Varint();
      run.first_part = static_cast<std::uint32_t>(in.Varint());
      good = ReadMarks(in, run.records, &run.blocks) && ReadMarks(in, run.records, &run.samples);
      run.last = ReadMark(in);
      good = good && in.ok() && run.first_part > 0 && run.blocks.size() < kSortParts - run.first_part;
      runs->push_back(std::move(run));
    }
    return good && in.empty() ? Status() : DamagedExtent(extent);
  });
}

std::size_t SplitterIndex(const std::vector<std::uint64_t>& weights, std::uint32_t partition, std::uint32_t partitions) {
  if (partition == 0) return 0;
  unsigned __int128 total = 0, before = 0;
  for (std::uint64_t w : weights) total += w;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (before * partitions >= total * partition) return i;
    before += weights[i];
  }
  return weights.size();
}

}  // namespace ropewalk::dag
