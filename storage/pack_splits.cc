// How input is cut into tasks: large files into even pieces, small files together, so that every slot has several tasks of like size (a
// slow one is then made up for by the others) and no task is only overhead.
#include <algorithm>

#include "storage/input.h"

namespace ropewalk::storage {
namespace {

constexpr std::uint64_t kTasksPerSlot = 4;
constexpr std::uint64_t kTaskBytesMin = 4 << 20;
constexpr std::uint64_t kOpenBytes = 32 << 10;  // what opening a file costs, in bytes that could have been read meanwhile
constexpr std::uint64_t kCompressedFactor = 4;  // decompressing takes longer than reading as many plain bytes

std::uint64_t Weight(const InputFile& file) {
  return file.bytes * (file.compression == Compression::kNone ? 1 : kCompressedFactor) + kOpenBytes;
}

// An empty plain file holds nothing; an empty compressed one is damaged, which its reader says.
bool Skipped(const InputFile& file) { return file.bytes == 0 && file.compression == Compression::kNone; }

}  // namespace

std::vector<std::vector<InputSplit>> PackSplits(const InputListing& listing, std::uint64_t split_bytes_max, std::uint32_t slots,
                                                std::uint64_t record_bytes) {
  split_bytes_max = std::max<std::uint64_t>(split_bytes_max, 1);
  std::uint64_t total = 0;
  for (const InputFile& file : listing.files)
    if (!Skipped(file)) total += Weight(file);
  std::uint64_t wanted = total / (kTasksPerSlot * std::max(slots, 1u)) + 1;
  const std::uint64_t target = std::min(std::max(wanted, kTaskBytesMin), split_bytes_max);

  std::vector<std::vector<InputSplit>> tasks;
  std::vector<InputSplit> task;
  std::uint64_t task_weight = 0;
  auto add = [&](InputSplit split, std::uint64_t weight) {
    if (!task.empty() && task_weight + weight > target) {
      tasks.push_back(std::move(task));
      task.clear();
      task_weight = 0;
    }
    task.push_back(split);
    task_weight += weight;
  };
  for (std::size_t i = 0; i < listing.files.size(); ++i) {
    const InputFile& file = listing.files[i];
    if (Skipped(file)) continue;
    auto index = static_cast<std::uint32_t>(i);
    if (file.compression != Compression::kNone) {
      add({index, 0, file.bytes}, Weight(file));
      continue;
    }
    // A tenth above the target is not worth a task of its own, as long as the maximum is kept.
    std::uint64_t pieces = std::max((file.bytes - 1) / split_bytes_max + 1, (file.bytes - 1) / (target + target / 10) + 1);
    std::uint64_t unit = record_bytes == 0 ? 1 : record_bytes;
    std::uint64_t units = file.bytes / unit;
    pieces = std::min(pieces, std::max<std::uint64_t>(units, 1));
    for (std::uint64_t piece = 0, begin = 0; piece < pieces; ++piece) {
      // units * (piece + 1) / pieces without overflow; the last piece also has the bytes of an incomplete record, so that its reader
      // complains
      std::uint64_t border = units / pieces * (piece + 1) + units % pieces * (piece + 1) / pieces;
      std::uint64_t end = piece + 1 == pieces ? file.bytes : border * unit;
      add({index, begin, end}, end - begin + kOpenBytes);
      begin = end;
    }
  }
  if (!task.empty()) tasks.push_back(std::move(task));
  return tasks;
}

}  // namespace ropewalk::storage
