// Lines and records of one split.
//
// The hot loop finds newlines 64 bytes at a time as a bit mask, so that short lines cost no call each. Which lines are ours is decided
// outside of it: up to the split's end every newline ends a line of ours, and at most one line goes on beyond it.
#include <cstring>
#include <limits>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include <algorithm>

#include "storage/byte_source.h"
#include "storage/input.h"
#include "storage/io_error.h"
#include "storage/read_buffer.h"

namespace ropewalk::storage {
namespace {

constexpr std::size_t kBatchLines = 4096;
constexpr std::size_t kReadBytes = 512 << 10;    // a chunk stays in the second-level cache between reading and scanning
constexpr std::size_t kPastEndBytes = 64 << 10;  // beyond the split only the rest of one line is wanted
constexpr std::size_t kLineBytesMax = std::size_t{1} << 30;

// Bit i of the result: p[i] is '\n'.
inline std::uint64_t NewlineMask(const char* p) {
#if defined(__SSE2__)
  const __m128i newline = _mm_set1_epi8('\n');
  std::uint64_t mask = 0;
  for (int i = 0; i < 4; ++i) {
    __m128i block = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 16 * i));
    mask |= static_cast<std::uint64_t>(static_cast<unsigned>(_mm_movemask_epi8(_mm_cmpeq_epi8(block, newline)))) << (16 * i);
  }
  return mask;
#else
  std::uint64_t mask = 0;
  for (int i = 0; i < 64; ++i) mask |= static_cast<std::uint64_t>(p[i] == '\n') << i;
  return mask;
#endif
}

// `offset` is in what is read: where that is decompressed, no byte of the file as stored has it.
std::string Where(const InputFile& file, std::uint64_t offset) {
  return "input " + QuotedPath(file.path) + " at byte " + std::to_string(offset) +
         (file.compression == Compression::kNone ? "" : " (decompressed)");
}

class LineReader {
 public:
  LineReader(const InputFile& file, std::uint64_t begin, std::uint64_t end, const std::function<bool(const LineBatch&)>& consume)
      : file_(file), begin_(begin), end_(end), consume_(consume), buffer_(ReadBuffer::Take()) {}

  Status Run(ByteSource* source) {
    if (buffer_->data() == nullptr) return NoMemory();
    // A batch may grow by one mask of lines before it is looked at.
    buffer_->lines.resize(kBatchLines + 64);
    buffer_->offsets.resize(kBatchLines + 64);
    // The byte before the split tells whether its first byte begins a line.
    base_ = begin_ == 0 ? 0 : begin_ - 1;
    bool skipping = begin_ != 0;
    bool at_end = false;
    while (!at_end) {
      auto more = Fill(source, skipping);
      if (!more.ok()) return more.status();
      at_end = !*more;
      if (skipping) {
        const char* from = buffer_->data() + scanned_;
        const void* newline = std::memchr(from, '\n', filled_ - scanned_);
        if (newline == nullptr) {  // a line that began before the split: drop what was read
          base_ += filled_;
          filled_ = scanned_ = 0;
          if (base_ >= end_) return {};
          continue;
        }
        line_ = static_cast<std::size_t>(static_cast<const char*>(newline) - buffer_->data()) + 1;
        scanned_ = line_;
        skipping = false;
        if (base_ + line_ >= end_) return {};
      }
      if (!Scan()) return {};
      if (!at_end) RETURN_IF_ERROR(MakeRoom());
    }
    if (line_ < filled_ && base_ + line_ < end_) {  // a last line without '\n' is a line
      Add(filled_);
      Flush();
    }
    return {};
  }

 private:
  // False at the end of the data.
  Result<bool> Fill(ByteSource* source, bool skipping) {
    std::size_t room = buffer_->capacity() - filled_;
    std::size_t want = std::min(room, std::max(kReadBytes, filled_));  // a long line is read in growing pieces
    std::uint64_t at = base_ + filled_;
    if (end_ != std::numeric_limits<std::uint64_t>::max() && !skipping)
      want = std::min<std::uint64_t>(want, at < end_ ? end_ - at : std::max(kPastEndBytes, filled_));
    auto n = source->Read(std::span(buffer_->data() + filled_, want));
    if (!n.ok()) return n.status();
    filled_ += *n;
    return *n == want;
  }

  // Adds every complete line of ours that is in the buffer. False: done, or the consumer has had enough.
  bool Scan() {
    const char* data = buffer_->data();
    std::size_t ours = static_cast<std::size_t>(std::min<std::uint64_t>(filled_, end_ - base_));  // base_ <= a line of ours < end_
    std::size_t at = scanned_;
    for (; at + 64 <= ours; at += 64) {
      for (std::uint64_t mask = NewlineMask(data + at); mask != 0; mask &= mask - 1)
        Add(at + static_cast<std::size_t>(__builtin_ctzll(mask)));
      if (count_ >= kBatchLines && !Flush()) return false;
    }
    for (; at < ours; ++at)
      if (data[at] == '\n') Add(at);
    if (base_ + filled_ >= end_) {
      if (base_ + line_ >= end_) return Flush(), false;
      if (at < filled_) {  // the one line that goes on beyond the split
        const void* newline = std::memchr(data + at, '\n', filled_ - at);
        if (newline != nullptr) {
          Add(static_cast<std::size_t>(static_cast<const char*>(newline) - data));
          return Flush(), false;
        }
      }
    }
    scanned_ = filled_;
    return Flush();
  }

  // Ends the current line at the newline (or end of data) at `newline`.
  void Add(std::size_t newline) {
    buffer_->lines[count_] = std::string_view(buffer_->data() + line_, newline - line_);
    buffer_->offsets[count_] = base_ + line_;
    ++count_;
    line_ = newline + 1;
  }

  bool Flush() {
    if (count_ == 0) return true;
    bool go_on = consume_(LineBatch{std::span(buffer_->lines.data(), count_), std::span(buffer_->offsets.data(), count_)});
    count_ = 0;
    return go_on;
  }

  // Moves the unfinished line to the front, and grows the buffer when it fills it.
  Status MakeRoom() {
    if (line_ > 0) {
      std::memmove(buffer_->data(), buffer_->data() + line_, filled_ - line_);
      filled_ -= line_;
      scanned_ -= line_;
      base_ += line_;
      line_ = 0;
    }
    if (filled_ > kLineBytesMax) {
      return Status(Code::kUserError, "IO07", Where(file_, base_) + ": a line of more than 1 GiB", "a line has to fit into memory",
                    "break it into lines, or read the file with ReadRecords");
    }
    if (buffer_->capacity() - filled_ < kReadBytes && !buffer_->Grow()) return NoMemory();
    return {};
  }

  Status NoMemory() const {
    return Status(Code::kResourceExhausted, "IO07",
                  Where(file_, base_) + ": no memory for a line of " + std::to_string(filled_) + " bytes or more",
                  "this process may have no more (ulimit -v, or its control group), and a line is held whole",
                  "give it more memory; is this a text file?");
  }

  const InputFile& file_;
  const std::uint64_t begin_, end_;
  const std::function<bool(const LineBatch&)>& consume_;
  ReadBuffer::Lease buffer_;
  std::uint64_t base_ = 0;   // offset in the data of the buffer's first byte
  std::size_t line_ = 0;     // where the current line begins
  std::size_t scanned_ = 0;  // no newline between line_ and here
  std::size_t filled_ = 0;
  std::size_t count_ = 0;  // lines in the batch
};

}  // namespace

Status ReadLines(const InputFile& file, const InputSplit& split, const std::function<bool(const LineBatch&)>& consume) {
  bool plain = file.compression == Compression::kNone;
  if (plain && split.begin >= split.end) return {};
  auto reader = InputFileReader::Open(file);
  if (!reader.ok()) return reader.status();
  std::unique_ptr<ByteSource> source = NewSource(reader->get(), plain && split.begin > 0 ? split.begin - 1 : 0);
  std::uint64_t end = plain ? split.end : std::numeric_limits<std::uint64_t>::max();
  RETURN_IF_ERROR(LineReader(file, plain ? split.begin : 0, end, consume).Run(source.get()));
  return (*reader)->CheckUnchanged();
}

namespace {

Status IncompleteRecord(const InputFile& file, std::uint64_t bytes, std::uint32_t record_bytes) {
  bool plain = file.compression == Compression::kNone;
  return Status(
      Code::kUserError, "IO04", Where(file, bytes / record_bytes * record_bytes) + ": the last record is incomplete",
      "its " + std::to_string(bytes) + (plain ? "" : " decompressed") + " bytes are no multiple of " + std::to_string(record_bytes),
      "check the record size, or mend the file");
}

}  // namespace

Status CheckFixedRecords(const InputFile& file, std::uint32_t record_bytes) {
  if (record_bytes == 0 || record_bytes > kRecordBytesMax) {
    return Status(Code::kInvalid, "IO04", "records of " + std::to_string(record_bytes) + " bytes", "there are none of that size",
                  "give the size of a record in bytes: 1 to " + std::to_string(kRecordBytesMax));
  }
  if (file.compression == Compression::kNone && file.bytes % record_bytes != 0) return IncompleteRecord(file, file.bytes, record_bytes);
  return {};
}

Status ReadFixedRecords(const InputFile& file, const InputSplit& split, std::uint32_t record_bytes,
                        const std::function<bool(std::span<const std::byte>, std::uint64_t offset)>& consume) {
  RETURN_IF_ERROR(CheckFixedRecords(file, record_bytes));
  const bool plain = file.compression == Compression::kNone;
  if (plain && (split.begin % record_bytes != 0 || split.end % record_bytes != 0))
    return Status(Code::kInternal, "IO04", "a split of " + QuotedPath(file.path) + " cuts a record");
  if (plain && split.begin >= split.end) return {};
  auto reader = InputFileReader::Open(file);
  if (!reader.ok()) return reader.status();
  ReadBuffer::Lease buffer = ReadBuffer::Take();
  while (buffer->data() == nullptr || buffer->capacity() < record_bytes) {
    if (buffer->data() == nullptr || !buffer->Grow())
      return Status(Code::kResourceExhausted, "IO07", "no memory for records of " + std::to_string(record_bytes) + " bytes",
                    "this process may have no more (ulimit -v, or its control group), and a record is held whole", "give it more memory");
  }
  std::uint64_t at = plain ? split.begin : 0, end = plain ? split.end : std::numeric_limits<std::uint64_t>::max();
  std::unique_ptr<ByteSource> source = NewSource(reader->get(), at);
  std::size_t piece = std::max<std::size_t>(kReadBytes / record_bytes, 1) * record_bytes, got = piece;
  for (; at < end && got == piece; at += got) {
    std::size_t want = static_cast<std::size_t>(std::min<std::uint64_t>(piece, end - at));
    ASSIGN_OR_RETURN(got, source->Read(std::span(buffer->data(), want)));
    if (plain && got != want) return Status(Code::kInternal, "IO04", "a split of " + QuotedPath(file.path) + " reaches beyond the file");
    std::size_t whole = got / record_bytes * record_bytes;
    if (whole > 0 && !consume(std::as_bytes(std::span<const char>(buffer->data(), whole)), at)) return {};
    if (whole < got) return IncompleteRecord(file, at + got, record_bytes);
  }
  return (*reader)->CheckUnchanged();
}

}  // namespace ropewalk::storage
