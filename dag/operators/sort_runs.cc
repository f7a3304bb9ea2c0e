#include "dag/operators/sort_runs.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

namespace ropewalk::dag {
namespace {

constexpr std::size_t kMarkBytesMax = 4096;
constexpr std::size_t kEndBytesMax = 512;   // of a run's first and last keys
constexpr std::size_t kMarkBytesMore = 16;  // behind the byte that tells a key from the one before it
constexpr std::size_t kSampleBytes = 160;   // what a reducer needs for one, besides its key

std::string_view TextOf(std::string_view key) {
  ByteReader reader(key);
  return reader.Sized();
}

// How many bytes of the string `key` a mark keeps.
std::size_t MarkBytes(std::string_view key, std::string_view before) {
  std::size_t shared = 0;
  while (shared < key.size() && shared < before.size() && key[shared] == before[shared]) ++shared;
  return std::min(shared + 1 + kMarkBytesMore, kMarkBytesMax);
}

void WriteMark(std::string* out, std::string_view key, bool is_string, std::size_t bytes_max, std::uint64_t index) {
  ByteWriter writer(out);
  writer.Varint(index);
  const std::string_view text = is_string ? TextOf(key) : std::string_view();
  const bool cut = text.size() > bytes_max;
  writer.Fixed<std::uint8_t>(cut ? 1 : 0);
  if (cut) {
    writer.Sized(Encode<std::string>(text.substr(0, bytes_max)));
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

// The marks of a run in turn: whether the next one may follow the one of `*least` - 1.
bool MayFollow(const SortMark& mark, std::uint64_t records, std::uint64_t* least) {
  if (mark.index < *least || mark.index >= records || (*least == 0 && mark.index != 0)) return false;
  *least = mark.index + 1;
  return true;
}

std::uint64_t BytesOf(const std::string& sample) { return sample.size() + kSampleBytes; }

}  // namespace

std::string_view MarkKeys::Keep(std::string_view key) {
  if (key == last_) return last_;
  if (key.size() > left_) {
    left_ = std::max(kChunkBytes, key.size());
    chunks_.push_back(std::make_unique<char[]>(left_));
    at_ = chunks_.back().get();
  }
  if (!key.empty()) std::memcpy(at_, key.data(), key.size());
  last_ = {at_, key.size()};
  at_ += key.size();
  left_ -= key.size();
  return last_;
}

RunWriter::RunWriter(SegmentWriter* out, const RunOptions& options, HugePages* pages)
    : out_(out),
      pages_(pages),
      block_bytes_(std::max<std::uint64_t>(options.block_bytes, 1)),
      samples_max_(std::max(options.samples, 1u)),
      sample_bytes_max_(options.sample_bytes_max) {}

void RunWriter::Begin(std::uint64_t records) {
  runs_.push_back({records, next_part_, 0, {}, {}});
  samples_ = std::min(records, samples_max_);
  index_ = sample_ = next_sample_ = 0;
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

void RunWriter::Mark(std::string_view key, std::string_view before, bool is_string) {
  const std::uint64_t index = index_ - 1;
  const std::size_t bytes_max = !is_string ? 0 : index == 0 ? kEndBytesMax : MarkBytes(TextOf(key), TextOf(before));
  Run& run = runs_.back();
  if (first_of_block_) {
    WriteMark(&part1_, key, is_string, bytes_max, index);
    ++run.blocks;
  }
  if (index == next_sample_) {
    WriteMark(&run.samples.emplace_back(), key, is_string, bytes_max, index);
    sample_bytes_ += BytesOf(run.samples.back());
    ++sample_;
    // 128 bits: records times samples may not fit 64
    next_sample_ = static_cast<std::uint64_t>(static_cast<unsigned __int128>(sample_) * run.records / samples_);
  }
}

void RunWriter::End(std::string_view last_key, bool is_string) {
  FlushBlock();
  Run& run = runs_.back();
  WriteMark(&run.last, last_key, is_string, kEndBytesMax, run.records - 1);
  while (sample_bytes_ > sample_bytes_max_ && samples_max_ > 1) ThinSamples();
}

// Half of them, of every run alike.
void RunWriter::ThinSamples() {
  samples_max_ = (samples_max_ + 1) / 2;
  sample_bytes_ = 0;
  for (Run& run : runs_) {
    std::size_t kept = 0;
    for (std::size_t i = 0; i < run.samples.size(); i += 2) {
      if (kept != i) run.samples[kept] = std::move(run.samples[i]);
      sample_bytes_ += BytesOf(run.samples[kept++]);
    }
    run.samples.resize(kept);
  }
}

Status RunWriter::Finish() {
  if (!status_.ok()) return status_;
  std::string part0;
  ByteWriter writer(&part0);
  writer.Varint(runs_.size());
  for (const Run& run : runs_) {
    writer.Varint(run.records);
    writer.Varint(run.first_part);
    writer.Varint(run.blocks);
    writer.Varint(run.samples.size());
    for (const std::string& sample : run.samples) writer.Raw(sample);
    writer.Raw(run.last);
  }
  runs_ = {};
  buffer_ = HugeBuffer();
  status_ = out_->Append(0, AsBytes(part0), 0);
  if (status_.ok()) status_ = out_->Append(1, AsBytes(part1_), 0);
  part1_ = {};
  return status_;
}

Status ReadSortRuns(TaskContext& context, const TaskInput& input, std::vector<SortRun>* runs, MarkKeys* keys) {
  ShuffleStream stream(context, input, 0);
  return ForEachExtent(stream, [&](const Extent& extent) -> Status {
    ByteReader in(AsView(extent.bytes));
    std::uint64_t n = in.Varint();
    bool good = in.ok();
    for (std::uint64_t i = 0; i < n && good; ++i) {
      SortRun run;
      run.segment = static_cast<std::uint32_t>(stream.segment());
      run.run = static_cast<std::uint32_t>(i);
      run.records = in.Varint();
      const std::uint64_t first_part = in.Varint(), blocks = in.Varint(), samples = in.Varint();
      run.first_part = static_cast<std::uint32_t>(first_part);
      run.blocks = static_cast<std::uint32_t>(blocks);
      good = in.ok() && first_part > 1 && first_part < kSortParts && blocks > 0 && blocks < kSortParts - first_part && samples > 0 &&
             samples <= in.remaining();
      std::uint64_t least = 0;
      for (std::uint64_t k = 0; k < samples && good; ++k) {
        SortMark mark = ReadMark(in);
        good = in.ok() && MayFollow(mark, run.records, &least);
        mark.key = keys->Keep(mark.key);
        run.samples.push_back(mark);
      }
      run.last = ReadMark(in);
      run.last.key = keys->Keep(run.last.key);
      good = good && in.ok();
      runs->push_back(std::move(run));
    }
    return good && in.empty() ? Status() : DamagedExtent(extent);
  });
}

Status ReadSortBlocks(TaskContext& context, const TaskInput& input, BlockFilter& filter, std::vector<SortRun>* runs, MarkKeys* keys) {
  ShuffleStream stream(context, input, 1);
  std::size_t next = 0;
  RETURN_IF_ERROR(ForEachExtent(stream, [&](const Extent& extent) -> Status {
    ByteReader in(AsView(extent.bytes));
    for (; next < runs->size() && (*runs)[next].segment == stream.segment(); ++next) {
      SortRun& run = (*runs)[next];
      std::uint64_t least = 0;
      SortMark begins;  // the last one that something wanted may begin in; not kept yet
      bool wanted = false, behind = false;
      for (std::uint32_t b = 0; b < run.blocks; ++b) {
        const SortMark mark = ReadMark(in);
        if (!in.ok() || !MayFollow(mark, run.records, &least)) return DamagedExtent(extent);
        if (behind) continue;
        switch (filter.Judge(run, b, mark)) {
          case BlockFilter::Verdict::kBegins:
            begins = mark;
            run.first_mark = b;
            wanted = true;
            continue;
          case BlockFilter::Verdict::kWanted:
            break;
          case BlockFilter::Verdict::kBehind:
            behind = true;
            continue;
          case BlockFilter::Verdict::kDamaged:
            return DamagedExtent(extent);
        }
        if (wanted && run.marks.empty()) {
          begins.key = keys->Keep(begins.key);
          run.marks.push_back(begins);
        }
        run.marks.push_back(mark);
        run.marks.back().key = keys->Keep(mark.key);
      }
      if (wanted && run.marks.empty()) {
        begins.key = keys->Keep(begins.key);
        run.marks.push_back(begins);
      }
    }
    return in.empty() ? Status() : DamagedExtent(extent);
  }));
  if (next == runs->size()) return {};
  return Status(Code::kDataLoss, "SORT02", fmt::format("sorted segment {} has no index of its blocks", (*runs)[next].segment),
                "its producer's part 1 is missing", "the producer is run again");
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
