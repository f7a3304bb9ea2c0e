#include "worker/blocks/segment_format.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/bytes.h"
#include "base/hash.h"
#include "base/wide_checksum.h"

namespace ropewalk::blocks {
namespace {

std::uint64_t ContentHash(const SegmentIndex& index) {
  // Offsets are left out: which part was written first is no matter of content.
  std::uint64_t hash = HashCombine(index.parts, index.entries.size());
  for (const ExtentEntry& entry : index.entries) {
    hash = HashCombine(hash, entry.part);
    hash = HashCombine(hash, entry.length);
    hash = HashCombine(hash, entry.records);
    hash = HashCombine(hash, entry.checksum);
  }
  return hash;
}

Status Damaged(const TaskAttempt& producer, std::string why) {
  return Status(Code::kDataLoss, "BLK01", "the segment of " + ToString(producer) + " is damaged", std::move(why),
                "none needed: its task is run again");
}

std::uint64_t FooterChecksum(const SegmentFooter& footer) {
  return Checksum64(std::string_view(reinterpret_cast<const char*>(&footer), offsetof(SegmentFooter, footer_checksum)));
}

bool ByPart(const ExtentEntry& a, const ExtentEntry& b) { return a.part < b.part; }

}  // namespace

std::string ToString(const TaskAttempt& producer) {
  return "stage " + std::to_string(producer.stage.value) + " task " + std::to_string(producer.task) + " attempt " +
         std::to_string(producer.attempt);
}

std::span<const ExtentEntry> SegmentIndex::Range(std::uint32_t first, std::uint32_t count) const {
  std::uint64_t last = std::uint64_t(first) + count;
  auto begin = std::partition_point(entries.begin(), entries.end(), [&](const ExtentEntry& e) { return e.part < first; });
  auto end = std::partition_point(begin, entries.end(), [&](const ExtentEntry& e) { return e.part < last; });
  return {begin, end};
}

std::string SegmentIndex::Tail() const {
  std::string tail;
  tail.reserve(entries.size() * sizeof(ExtentEntry) + sizeof(SegmentFooter));
  tail.append(reinterpret_cast<const char*>(entries.data()), entries.size() * sizeof(ExtentEntry));
  SegmentFooter footer{.magic = kSegmentMagic,
                       .version = 1,
                       .parts = parts,
                       .stage = producer.stage.value,
                       .task = producer.task,
                       .attempt = producer.attempt,
                       .job = job.value,
                       .extents = entries.size(),
                       .data_bytes = data_bytes,
                       .records = records,
                       .content_hash = content_hash,
                       .index_checksum = Checksum64(tail)};
  footer.footer_checksum = FooterChecksum(footer);
  tail.append(reinterpret_cast<const char*>(&footer), sizeof footer);
  return tail;
}

IndexBuilder::IndexBuilder(TaskAttempt producer, JobId job, std::uint32_t parts) {
  index_.producer = producer;
  index_.job = job;
  index_.parts = parts;
}

Status IndexBuilder::Add(std::uint32_t part, std::span<const std::byte> bytes, std::uint64_t records) {
  if (part >= index_.parts)
    return Status(Code::kInternal, "BLK03", "part " + std::to_string(part) + " of " + ToString(index_.producer) + " is out of range",
                  "the segment has " + std::to_string(index_.parts) + " parts");
  if (index_.entries.size() >= kExtentsMax)
    return Status(Code::kResourceExhausted, "BLK04", "the segment of " + ToString(index_.producer) + " has too many extents",
                  "at most " + std::to_string(kExtentsMax), "use fewer partitions or larger operator memory");
  if (!index_.entries.empty() && part < index_.entries.back().part) sorted_ = false;
  index_.entries.push_back(
      {.part = part, .offset = index_.data_bytes, .length = bytes.size(), .records = records, .checksum = WideChecksum64(bytes)});
  index_.data_bytes += bytes.size();
  index_.records += records;
  return {};
}

SegmentIndex IndexBuilder::Finish() && {
  if (!sorted_) std::stable_sort(index_.entries.begin(), index_.entries.end(), ByPart);
  index_.content_hash = ContentHash(index_);
  return std::move(index_);
}

namespace {

Result<SegmentFooter> ReadFooter(int fd, std::uint64_t file_bytes, const TaskAttempt& producer) {
  SegmentFooter footer;
  if (file_bytes < sizeof footer) return Damaged(producer, "it is shorter than its footer");
  RETURN_IF_ERROR(ReadExactly(fd, file_bytes - sizeof footer, std::as_writable_bytes(std::span(&footer, 1)), producer));
  if (footer.magic != kSegmentMagic || footer.footer_checksum != FooterChecksum(footer)) return Damaged(producer, "footer checksum");
  if (footer.version != 1) return Damaged(producer, "unknown layout version " + std::to_string(footer.version));
  return footer;
}

Result<SegmentIndex> ReadIndex(int fd, std::uint64_t file_bytes, const SegmentFooter& footer) {
  const TaskAttempt producer{StageId{footer.stage}, footer.task, footer.attempt};
  const JobId job{footer.job};
  if (footer.extents > kExtentsMax || footer.data_bytes > file_bytes ||
      footer.data_bytes + footer.extents * sizeof(ExtentEntry) + sizeof footer != file_bytes)
    return Damaged(producer, "its size is not what its footer says");

  SegmentIndex index{.producer = producer,
                     .job = job,
                     .parts = footer.parts,
                     .data_bytes = footer.data_bytes,
                     .records = footer.records,
                     .content_hash = footer.content_hash};
  index.entries.resize(footer.extents);
  RETURN_IF_ERROR(ReadExactly(fd, footer.data_bytes, std::as_writable_bytes(std::span(index.entries)), producer));
  if (Checksum64(std::as_bytes(std::span(index.entries))) != footer.index_checksum) return Damaged(producer, "index checksum");

  // A checksum proves that nothing was changed on the way, not that an honest program wrote it: so each number is checked as well.
  std::uint64_t bytes = 0, records = 0;
  std::uint32_t part = 0;
  for (const ExtentEntry& entry : index.entries) {
    if (entry.part < part || entry.part >= index.parts) return Damaged(producer, "an extent's part is out of order or range");
    if (entry.offset > index.data_bytes || entry.length > index.data_bytes - entry.offset)
      return Damaged(producer, "an extent is out of range");
    part = entry.part;
    bytes += entry.length;
    records += entry.records;
  }
  if (bytes != index.data_bytes || records != index.records || ContentHash(index) != index.content_hash)
    return Damaged(producer, "its sums do not agree");
  return index;
}

}  // namespace

Result<SegmentIndex> ParseSegment(int fd, std::uint64_t file_bytes, const TaskAttempt& producer, JobId job) {
  ASSIGN_OR_RETURN(SegmentFooter footer, ReadFooter(fd, file_bytes, producer));
  if (TaskAttempt{StageId{footer.stage}, footer.task, footer.attempt} != producer || footer.job != job.value)
    return Damaged(producer, "it says that another task or job made it");
  return ReadIndex(fd, file_bytes, footer);
}

Result<SegmentIndex> ParseSegment(int fd, std::uint64_t file_bytes) {
  ASSIGN_OR_RETURN(SegmentFooter footer, ReadFooter(fd, file_bytes, TaskAttempt{}));
  return ReadIndex(fd, file_bytes, footer);
}

Status VerifyExtent(const ExtentEntry& entry, std::span<const std::byte> bytes, const TaskAttempt& producer) {
  if (bytes.size() == entry.length && WideChecksum64(bytes) == entry.checksum) return {};
  return Damaged(producer, "checksum of the extent at offset " + std::to_string(entry.offset) + " of part " + std::to_string(entry.part));
}

Status ReadExactly(int fd, std::uint64_t offset, std::span<std::byte> out, const TaskAttempt& producer) {
  while (!out.empty()) {
    ssize_t n = ::pread(fd, out.data(), out.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0)
      return Status(Code::kDataLoss, "BLK02", "cannot read the segment of " + ToString(producer) + " at offset " + std::to_string(offset),
                    std::strerror(errno), "none needed: its task is run again; look at the disk");
    if (n == 0)
      return Status(Code::kDataLoss, "BLK02", "the segment of " + ToString(producer) + " ends before offset " + std::to_string(offset),
                    "it was truncated", "none needed: its task is run again");
    offset += static_cast<std::uint64_t>(n);
    out = out.subspan(static_cast<std::size_t>(n));
  }
  return {};
}

Status WriteExactly(int fd, std::uint64_t offset, std::span<const std::byte> bytes, const std::string& path) {
  while (!bytes.empty()) {
    ssize_t n = ::pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      bool full = errno == ENOSPC || errno == EDQUOT || errno == EFBIG;
      return Status(full ? Code::kResourceExhausted : Code::kUnavailable, full ? "BLK05" : "BLK06",
                    "cannot write " + std::to_string(bytes.size()) + " bytes to " + path, std::strerror(errno),
                    full ? "free space there, or give more memory (--memory)" : "look at the disk");
    }
    offset += static_cast<std::uint64_t>(n);
    bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
  return {};
}

}  // namespace ropewalk::blocks
