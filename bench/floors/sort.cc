// The floor of sorting lines of exactly 100 bytes (99 and the line end) whose first 10 bytes decide.   floor_sort INPUT OUTPUT [sync]
//
// With `sync` the output is on the disk before the program ends, as the engine promises of its own; the disk then works while the program
// does.
#include <algorithm>
#include <atomic>
#include <utility>

#include "bench/floors/floor.h"

namespace {

constexpr std::size_t kLine = 100;
constexpr std::size_t kBuckets = 1 << 14;  // by the first two bytes, 7 bits each: the keys are printable

struct Entry {
  std::uint64_t head;  // bytes 0..7, big-endian
  std::uint32_t tail;  // bytes 8, 9
  std::uint32_t index;
};

std::size_t Bucket(const char* line) { return static_cast<std::size_t>(line[0] & 0x7f) << 7 | static_cast<std::size_t>(line[1] & 0x7f); }

Entry Load(const char* data, std::size_t i) {
  std::uint64_t head;
  std::uint16_t tail;
  std::memcpy(&head, data + i * kLine, 8);
  std::memcpy(&tail, data + i * kLine + 8, 2);
  return {__builtin_bswap64(head), __builtin_bswap16(tail), static_cast<std::uint32_t>(i)};
}

}  // namespace

int main(int argc, char** argv) {
  const bool sync = argc == 4 && std::strcmp(argv[3], "sync") == 0;
  if (argc != 3 && !sync) return std::fprintf(stderr, "usage: %s INPUT OUTPUT [sync]\n", argv[0]), 2;
  floors::Input input(argv[1]);
  const std::size_t lines = input.size() / kLine, threads = static_cast<std::size_t>(floors::ThreadCount());
  auto* entries = floors::HugeArray<Entry>(lines);

  // A counting sort into buckets: histogram by thread, then each thread knows where its lines of a bucket go.
  std::vector<std::vector<std::size_t>> place(threads, std::vector<std::size_t>(kBuckets));
  auto begin_of = [&](std::size_t t) { return lines * t / threads; };
  floors::Parallel(static_cast<int>(threads), [&](int t) {
    for (std::size_t i = begin_of(t); i < begin_of(t + 1); ++i) ++place[t][Bucket(input.data() + i * kLine)];
  });
  std::vector<std::size_t> start(kBuckets + 1);
  std::size_t sum = 0;
  for (std::size_t b = 0; b < kBuckets; ++b) {
    start[b] = sum;
    for (std::size_t t = 0; t < threads; ++t) sum += std::exchange(place[t][b], sum);
  }
  start[kBuckets] = sum;
  floors::Parallel(static_cast<int>(threads), [&](int t) {
    for (std::size_t i = begin_of(t); i < begin_of(t + 1); ++i)
      entries[place[t][Bucket(input.data() + i * kLine)]++] = Load(input.data(), i);
  });

  int fd = open(argv[2], O_RDWR | O_CREAT | O_TRUNC, 0644);
  if (fd < 0) floors::Die(argv[2]);
  // Groups of buckets with about 4 MiB of lines: sort, gather, write at the place that the counts give.
  std::atomic<std::size_t> next{0};
  constexpr std::size_t kGroup = kBuckets / 256;
  floors::Parallel(static_cast<int>(threads), [&](int) {
    std::vector<char> buffer;
    for (std::size_t group; (group = next++) < kBuckets / kGroup;) {
      for (std::size_t b = group * kGroup; b < (group + 1) * kGroup; ++b)
        std::sort(entries + start[b], entries + start[b + 1], [](const Entry& x, const Entry& y) {
          return x.head != y.head ? x.head < y.head : x.tail != y.tail ? x.tail < y.tail : x.index < y.index;
        });
      std::size_t first = start[group * kGroup], last = start[(group + 1) * kGroup];
      buffer.resize((last - first) * kLine);
      for (std::size_t i = first; i < last; ++i) {
        if (i + 16 < last) __builtin_prefetch(input.data() + entries[i + 16].index * kLine);
        std::memcpy(buffer.data() + (i - first) * kLine, input.data() + entries[i].index * kLine, kLine);
      }
      for (std::size_t done = 0; done < buffer.size();) {
        ssize_t n = pwrite(fd, buffer.data() + done, buffer.size() - done, static_cast<off_t>(first * kLine + done));
        if (n <= 0) floors::Die(argv[2]);
        done += static_cast<std::size_t>(n);
      }
      if (sync) sync_file_range(fd, static_cast<off_t>(first * kLine), static_cast<off_t>(buffer.size()), SYNC_FILE_RANGE_WRITE);
    }
  });
  if (sync && fdatasync(fd) != 0) floors::Die(argv[2]);
  if (close(fd) != 0) floors::Die(argv[2]);
}
