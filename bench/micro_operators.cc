// What the operators cost beside a hand-written loop that does the same work without a framework, on one thread, in one run. Prints for
// each the least CPU time of a few rounds of both and their ratio; a ratio is what may be compared between machines.
//
//   word count   map side of CountByKey: words of generated Zipf text into AggregateWriter, 16 partitions | a table with counts
//   merge        MergeAggregates of what four such map tasks wrote, 16 partitions                        | the entries of four tables into
//                one
//   sort         SortWriter and MergeSorted over 4 tasks, 4 partitions, 1 M lines of 100 bytes           | top-byte buckets, std::sort,
//                gather
//
// usage: micro_operators [MIB_OF_TEXT] [ROUNDS] [wc|sort]
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "base/hash.h"
#include "base/huge_pages.h"
#include "dag/operators/hash_aggregate.h"
#include "dag/operators/sort.h"

namespace ropewalk {
namespace {

// CPU time: all work is on this thread, and other load on the machine disturbs it less than wall time.
double Now() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}
bool IsSpace(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

// Segments in pooled memory, as the block store of one process keeps them: a copy and a checksum for each extent.
class Memory final : public dag::BlockReader {
 public:
  struct Piece {
    std::uint32_t part;
    std::uint64_t records;
    char* data;
    std::size_t bytes;
  };
  struct Segment {
    std::vector<Piece> pieces;
    std::vector<std::shared_ptr<HugeBuffer>> buffers;
    std::uint64_t checksum = 0;
  };
  class Writer final : public dag::SegmentWriter {
   public:
    explicit Writer(Segment* segment) : segment_(segment) {}
    Status Append(std::uint32_t part, std::span<const std::byte> bytes, std::uint64_t records) override {
      constexpr std::size_t kChunk = 8 << 20;
      if (left_ < bytes.size()) {
        std::size_t n = std::max(kChunk, bytes.size());
        segment_->buffers.push_back(std::make_shared<HugeBuffer>(ProcessPages().Take(n)));
        at_ = segment_->buffers.back()->data();
        left_ = n;
      }
      if (!bytes.empty()) std::memcpy(at_, bytes.data(), bytes.size());
      segment_->checksum ^= Checksum64(std::span(reinterpret_cast<const std::byte*>(at_), bytes.size()));
      segment_->pieces.push_back({part, records, at_, bytes.size()});
      at_ += bytes.size();
      left_ -= bytes.size();
      return {};
    }
    Result<dag::SegmentInfo> Seal() override { return dag::SegmentInfo(); }

   private:
    Segment* segment_;
    char* at_ = nullptr;
    std::size_t left_ = 0;
  };
  Result<std::unique_ptr<dag::ExtentStream>> Open(const dag::SegmentRef& ref, std::uint32_t first, std::uint32_t count) override {
    auto stream = std::make_unique<Stream>();
    for (const Piece& piece : segments[ref.segment.value].pieces)
      if (piece.part >= first && piece.part - first < count) stream->pieces.push_back(piece);
    std::stable_sort(stream->pieces.begin(), stream->pieces.end(), [](auto& a, auto& b) { return a.part < b.part; });
    return std::unique_ptr<dag::ExtentStream>(std::move(stream));
  }
  std::map<std::uint64_t, Segment> segments;

 private:
  struct Stream final : dag::ExtentStream {
    std::vector<Piece> pieces;
    std::size_t at = 0;
    Result<std::optional<dag::Extent>> Next() override {
      if (at == pieces.size()) return std::optional<dag::Extent>();
      const Piece& p = pieces[at++];
      return std::optional<dag::Extent>(dag::Extent{p.part, p.records, AsBytes({p.data, p.bytes}), nullptr});
    }
  };
};

// Words w<rank> in random spelling, rank by Zipf's law with exponent 1 over `vocabulary` words.
std::string MakeText(std::size_t bytes, std::size_t vocabulary) {
  std::mt19937_64 random(7);
  std::vector<std::string> words(vocabulary);
  std::vector<double> sums(vocabulary);
  double sum = 0;
  for (std::size_t i = 0; i < vocabulary; ++i) {
    std::size_t n = 2 + random() % 9;
    for (std::size_t k = 0; k < n; ++k) words[i] += static_cast<char>('a' + random() % 26);
    sums[i] = sum += 1.0 / static_cast<double>(i + 1);
  }
  std::string text;
  text.reserve(bytes + 64);
  std::uniform_real_distribution<double> uniform(0, sum);
  for (int column = 0; text.size() < bytes; ++column) {
    text += words[std::min<std::size_t>(std::lower_bound(sums.begin(), sums.end(), uniform(random)) - sums.begin(), vocabulary - 1)];
    text += column % 12 == 11 ? '\n' : ' ';
  }
  return text;
}

// The floor: FNV while scanning, batches of 64 with prefetch, 32-byte entries on huge pages, keys copied once.
class FloorTable {
 public:
  struct Entry {
    std::uint64_t hash;
    const char* key;
    std::uint32_t bytes;
    std::uint64_t count;
  };
  FloorTable() { Allocate(1 << 16); }
  void Prefetch(std::uint64_t hash) const { __builtin_prefetch(&entries()[hash & (capacity_ - 1)]); }
  void Add(std::uint64_t hash, const char* key, std::uint32_t bytes, std::uint64_t count = 1) {
    std::size_t mask = capacity_ - 1;
    for (std::size_t i = hash & mask;; i = (i + 1) & mask) {
      Entry& e = entries()[i];
      if (e.count == 0) {
        char* copy = arena_.Take(bytes);
        std::memcpy(copy, key, bytes);
        e = {hash, copy, bytes, count};
        if (++used_ * 2 > capacity_) Grow();
        return;
      }
      if (e.hash == hash && e.bytes == bytes && std::memcmp(e.key, key, bytes) == 0) {
        e.count += count;
        return;
      }
    }
  }
  std::size_t used() const { return used_; }
  std::size_t capacity() const { return capacity_; }
  const Entry* entries() const { return reinterpret_cast<const Entry*>(buffer_.data()); }
  std::uint64_t total() const {
    std::uint64_t n = 0;
    for (std::size_t i = 0; i < capacity_; ++i) n += entries()[i].count;
    return n;
  }

 private:
  struct Chunks {
    std::vector<HugeBuffer> buffers;
    char* at = nullptr;
    std::size_t left = 0;
    char* Take(std::size_t n) {
      if (left < n) {
        buffers.push_back(ProcessPages().Take(std::max<std::size_t>(n, 2 << 20)));
        at = buffers.back().data();
        left = buffers.back().bytes();
      }
      left -= n;
      return std::exchange(at, at + n);
    }
  };
  Entry* entries() { return reinterpret_cast<Entry*>(buffer_.data()); }
  void Allocate(std::size_t capacity) {
    capacity_ = capacity;
    buffer_ = ProcessPages().Take(capacity * sizeof(Entry));
    std::memset(buffer_.data(), 0, capacity * sizeof(Entry));
  }
  void Grow() {
    HugeBuffer old = std::move(buffer_);
    buffer_ = HugeBuffer();
    std::size_t n = capacity_;
    Allocate(n * 2);
    const auto* from = reinterpret_cast<const Entry*>(old.data());
    for (std::size_t k = 0; k < n; ++k) {
      if (from[k].count == 0) continue;
      std::size_t i = from[k].hash & (capacity_ - 1);
      while (entries()[i].count != 0) i = (i + 1) & (capacity_ - 1);
      entries()[i] = from[k];
    }
  }
  HugeBuffer buffer_;
  std::size_t capacity_ = 0, used_ = 0;
  Chunks arena_;
};

FloorTable FloorCount(std::string_view text) {
  FloorTable table;
  struct Word {
    std::uint64_t hash;
    const char* at;
    std::uint32_t bytes;
  } batch[64];
  int n = 0;
  auto flush = [&] {
    for (int i = 0; i < n; ++i) table.Add(batch[i].hash, batch[i].at, batch[i].bytes);
    n = 0;
  };
  const char *a = text.data(), *end = a + text.size();
  while (a < end) {
    while (a < end && IsSpace(*a)) ++a;
    const char* begin = a;
    std::uint64_t hash = 0xcbf29ce484222325;
    while (a < end && !IsSpace(*a)) hash = (hash ^ static_cast<unsigned char>(*a++)) * 0x100000001b3;
    hash ^= hash >> 29;
    if (a > begin) {
      table.Prefetch(hash);
      batch[n++] = {hash, begin, static_cast<std::uint32_t>(a - begin)};
      if (n == 64) flush();
    }
  }
  flush();
  return table;
}
std::pair<std::uint64_t, std::uint64_t> FloorWordCount(std::string_view text) {
  FloorTable table = FloorCount(text);
  return {table.used(), table.total()};
}

struct Plus {
  std::uint64_t operator()(std::uint64_t a, std::uint64_t b) const { return a + b; }
};

std::uint64_t RopewalkCount(std::string_view text, Memory::Segment* segment) {
  Memory::Writer out(segment);
  dag::AggregateWriter<std::string, std::uint64_t, Plus> writer({.partitions = 16}, &out);
  const char *a = text.data(), *end = a + text.size();
  while (a < end) {
    while (a < end && IsSpace(*a)) ++a;
    const char* begin = a;
    while (a < end && !IsSpace(*a)) ++a;
    if (a > begin) writer.Add(std::string_view(begin, static_cast<std::size_t>(a - begin)), 1);
  }
  if (!writer.Finish().ok()) std::abort();
  return writer.records_out();
}
std::pair<std::uint64_t, std::uint64_t> RopewalkWordCount(std::string_view text) {
  Memory::Segment segment;
  std::uint64_t words = RopewalkCount(text, &segment);
  std::uint64_t total = 0;
  for (const auto& piece : segment.pieces) {
    ByteReader reader({piece.data, piece.bytes});
    while (!reader.empty()) {
      reader.Sized();
      total += reader.Fixed<std::uint64_t>();
    }
  }
  return {words, total};
}

// What reducers do: the tables of four map tasks into one. The map sides are made before the clock starts.
constexpr std::size_t kMaps = 4;
std::string_view Share(const std::string& text, std::size_t map) {
  auto border = [&](std::size_t i) { return i == 0 ? 0 : i == kMaps ? text.size() : text.find('\n', text.size() * i / kMaps) + 1; };
  return std::string_view(text).substr(border(map), border(map + 1) - border(map));
}

std::pair<std::uint64_t, std::uint64_t> FloorMerge(const std::vector<FloorTable>& maps) {
  FloorTable table;
  for (const FloorTable& map : maps) {
    const auto* e = map.entries();
    for (std::size_t i = 0; i < map.capacity(); ++i)
      if (e[i].count != 0) table.Add(e[i].hash, e[i].key, e[i].bytes, e[i].count);
  }
  return {table.used(), table.total()};
}

std::pair<std::uint64_t, std::uint64_t> RopewalkMerge(Memory& blocks) {
  dag::TaskInput input;
  for (auto& [id, segment] : blocks.segments) {
    input.segments.emplace_back();
    input.segments.back().segment = SegmentId{id};
  }
  dag::Settings settings;
  dag::TaskContext context;
  context.settings = &settings;
  context.blocks = &blocks;
  std::pair<std::uint64_t, std::uint64_t> out;
  for (std::uint32_t p = 0; p < 16; ++p) {
    Status status = dag::MergeAggregates<std::string, std::uint64_t>(
        context, input, p, Plus(), [&](std::span<const std::pair<std::string_view, std::uint64_t>> batch) -> Status {
          out.first += batch.size();
          for (const auto& [word, count] : batch) out.second += count;
          return {};
        });
    if (!status.ok()) std::abort();
  }
  return out;
}

constexpr std::size_t kLine = 100;

std::string MakeLines(std::size_t n) {
  std::mt19937_64 random(11);
  std::string lines(n * kLine, 'x');
  for (std::size_t i = 0; i < n; ++i) {
    for (int k = 0; k < 12; ++k) lines[i * kLine + k] = static_cast<char>('!' + random() % 90);
    lines[i * kLine + kLine - 1] = '\n';
  }
  return lines;
}

std::uint64_t FloorSort(const std::string& lines) {
  struct Key {
    std::uint64_t high;
    std::uint32_t low, index;
  };
  std::size_t n = lines.size() / kLine;
  HugeBuffer keys_memory = ProcessPages().Take(n * sizeof(Key)), out_memory = ProcessPages().Take(lines.size());
  auto* keys = reinterpret_cast<Key*>(keys_memory.data());
  std::size_t begin[257] = {};
  for (std::size_t i = 0; i < n; ++i) ++begin[static_cast<unsigned char>(lines[i * kLine]) + 1];
  for (int b = 0; b < 256; ++b) begin[b + 1] += begin[b];
  std::size_t at[256];
  std::copy_n(begin, 256, at);
  for (std::size_t i = 0; i < n; ++i) {
    std::uint64_t high;
    std::uint32_t low;
    std::memcpy(&high, &lines[i * kLine], 8);
    std::memcpy(&low, &lines[i * kLine + 8], 4);
    high = __builtin_bswap64(high);
    keys[at[high >> 56]++] = {high, __builtin_bswap32(low), static_cast<std::uint32_t>(i)};
  }
  char* out = out_memory.data();
  for (int b = 0; b < 256; ++b) {
    std::sort(keys + begin[b], keys + begin[b + 1],
              [](const Key& x, const Key& y) { return x.high != y.high ? x.high < y.high : x.low < y.low; });
    for (std::size_t k = begin[b]; k < begin[b + 1]; ++k, out += kLine) std::memcpy(out, &lines[keys[k].index * kLine], kLine);
  }
  return Checksum64(std::string_view(out_memory.data(), lines.size()));
}

std::uint64_t RopewalkSort(const std::string& lines) {
  using Order = dag::NaturalOrder<std::string>;
  constexpr std::size_t kTasks = 4;
  Memory blocks;
  dag::TaskInput input;
  std::size_t n = lines.size() / kLine;
  for (std::size_t task = 0; task < kTasks; ++task) {
    Memory::Writer out(&blocks.segments[task + 1]);
    dag::SortWriter<std::string, dag::Nothing, Order> writer({}, &out);
    for (std::size_t i = n * task / kTasks; i < n * (task + 1) / kTasks; ++i) writer.Add(std::string_view(&lines[i * kLine], kLine - 1));
    if (!writer.Finish().ok()) std::abort();
    dag::SegmentRef ref;
    ref.segment = SegmentId{task + 1};
    input.segments.push_back(ref);
  }
  dag::Settings settings;
  dag::TaskContext context;
  context.settings = &settings;
  context.blocks = &blocks;
  HugeBuffer out_memory = ProcessPages().Take(lines.size());
  char* out = out_memory.data();
  for (std::uint32_t p = 0; p < kTasks; ++p) {
    Status status = dag::MergeSorted<std::string, dag::Nothing>(context, input, p, kTasks, Order(),
                                                                [&](std::span<const std::string_view> batch) -> Status {
                                                                  for (std::string_view line : batch) {
                                                                    std::memcpy(out, line.data(), line.size());
                                                                    out[line.size()] = '\n';
                                                                    out += line.size() + 1;
                                                                  }
                                                                  return {};
                                                                });
    if (!status.ok()) std::abort();
  }
  return Checksum64(std::string_view(out_memory.data(), lines.size()));
}

template <class Result>
void Compare(const char* name, int rounds, const std::function<Result()>& floor, const std::function<Result()>& ours) {
  double floor_s = 1e9, ours_s = 1e9;
  for (int i = 0; i < rounds; ++i) {
    double t0 = Now();
    Result a = floor();
    double t1 = Now();
    Result b = ours();
    double t2 = Now();
    floor_s = std::min(floor_s, t1 - t0);
    ours_s = std::min(ours_s, t2 - t1);
    if (a != b) {
      std::fprintf(stderr, "%s: results differ\n", name);
      std::exit(1);
    }
  }
  std::printf("%-12s floor %7.1f ms   ropewalk %7.1f ms   ratio %.2f\n", name, floor_s * 1e3, ours_s * 1e3, ours_s / floor_s);
}

}  // namespace
}  // namespace ropewalk

int main(int argc, char** argv) {
  using namespace ropewalk;
  std::size_t mib = argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 64;
  int rounds = argc > 2 ? std::atoi(argv[2]) : 3;
  std::string only = argc > 3 ? argv[3] : "";
  if (only != "sort") {
    std::string text = MakeText(mib << 20, 1'000'000);
    using Counts = std::pair<std::uint64_t, std::uint64_t>;
    Compare<Counts>("word count", rounds, [&] { return FloorWordCount(text); }, [&] { return RopewalkWordCount(text); });
    std::vector<FloorTable> tables;
    Memory blocks;
    for (std::size_t map = 0; map < kMaps; ++map) {
      tables.push_back(FloorCount(Share(text, map)));
      RopewalkCount(Share(text, map), &blocks.segments[map + 1]);
    }
    Compare<Counts>("merge", rounds, [&] { return FloorMerge(tables); }, [&] { return RopewalkMerge(blocks); });
  }
  if (only != "wc") {
    std::string lines = MakeLines(1'000'000);
    Compare<std::uint64_t>("sort", rounds, [&] { return FloorSort(lines); }, [&] { return RopewalkSort(lines); });
  }
}
