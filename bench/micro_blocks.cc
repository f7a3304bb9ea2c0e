// How fast segments are written and read: in this process, through a daemon of this machine (memfd), over TCP, and from run files. Prints
// GB/s.
//
//   micro_blocks [MIB a segment, default 256] [extent KIB, default 256]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <span>
#include <string>

#include "base/bytes.h"
#include "worker/blocks/block_service.h"
#include "worker/blocks/block_store.h"

namespace {

using namespace ropewalk;          // NOLINT: a bench, not a header
using namespace ropewalk::blocks;  // NOLINT

constexpr JobId kJob{1};
constexpr int kRounds = 5;

template <class T>
T OrDie(Result<T> result) {
  if (result.ok()) return *std::move(result);
  std::fprintf(stderr, "%s\n", result.status().ToString().c_str());
  std::exit(1);
}

struct Timer {
  std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();
  double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(); }
};

void Report(const char* what, double bytes, double seconds) { std::printf("%-34s %6.2f GB/s\n", what, bytes / seconds / 1e9); }

// The best of some rounds: the first ones touch fresh memory.
template <class Work>
void Measure(const char* what, double bytes, Work work) {
  double best = 1e9;
  for (int round = 0; round < kRounds; ++round) {
    Timer timer;
    work();
    best = std::min(best, timer.seconds());
  }
  Report(what, bytes, best);
}

dag::SegmentRef Write(dag::BlockWriter& writer, const std::string& extent, std::uint64_t extents, const std::string& location) {
  static std::uint32_t task = 0;
  TaskAttempt producer{StageId{1}, task++, 1};
  auto segment = OrDie(writer.NewSegment(producer, 1));
  for (std::uint64_t i = 0; i < extents; ++i)
    if (!segment->Append(0, AsBytes(extent), 1).ok()) std::exit(1);
  auto info = OrDie(segment->Seal());
  return {.producer = producer, .segment = info.segment, .location = location, .bytes = info.bytes};
}

void Read(dag::BlockReader& reader, const dag::SegmentRef& ref) {
  auto stream = OrDie(reader.Open(ref, 0, 1));
  while (OrDie(stream->Next())) {
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::uint64_t mib = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 256, kib = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 256;
  std::string folder = (std::filesystem::temp_directory_path() / "micro-blocks-XXXXXX").string();
  if (::mkdtemp(folder.data()) == nullptr) return 1;
  const std::string extent(kib << 10, 'x');
  const std::uint64_t extents = (mib << 20) / extent.size();
  const double bytes = static_cast<double>(extents) * static_cast<double>(extent.size());
  std::printf("segments of %llu MiB, extents of %llu KiB; every read verifies checksums\n", static_cast<unsigned long long>(mib),
              static_cast<unsigned long long>(kib));
  {
    auto store = OrDie(BlockStore::Open({.memory_bytes_max = 8ull << 30, .spill_dir = folder + "/memory", .job = kJob}));
    dag::SegmentRef ref;
    Measure("write in process", bytes, [&] {
      (void)store->Free(std::span(&ref.segment, 1));
      ref = Write(*store, extent, extents, "");
    });
    Measure("read in process (views)", bytes, [&] { Read(*store, ref); });
  }
  {
    auto store = OrDie(BlockStore::Open({.memory_bytes_max = 0, .spill_dir = folder + "/spill", .job = kJob}));
    dag::SegmentRef ref;
    Measure("write to a run file", bytes, [&] {
      (void)store->Free(std::span(&ref.segment, 1));
      ref = Write(*store, extent, extents, "");
    });
    Measure("read from a run file (cached)", bytes, [&] { Read(*store, ref); });
  }
  {
    auto store = OrDie(BlockStore::Open({.memory_bytes_max = 8ull << 30, .spill_dir = folder + "/daemon", .job = kJob}));
    auto service = OrDie(BlockService::Start({.unix_path = folder + "/a.sock"}, store.get()));
    service->AllowJob(kJob, "token");
    RemoteOptions options{.unix_path = folder + "/a.sock", .data_address = service->data_address(), .job = kJob, .token = "token"};
    auto local = OrDie(RemoteBlocks::Connect(options));
    options.data_address = "elsewhere";
    auto remote = OrDie(RemoteBlocks::Connect(options));
    dag::SegmentRef ref;
    Measure("write through the daemon (memfd)", bytes, [&] {
      (void)store->Free(std::span(&ref.segment, 1));
      ref = Write(*local, extent, extents, service->data_address());
    });
    Measure("read through the daemon (pread)", bytes, [&] { Read(*local, ref); });
    Measure("read over TCP (sendfile)", bytes, [&] { Read(*remote, ref); });
    dag::SegmentRef small = Write(*local, "0123456789", 1, service->data_address());
    constexpr int kOpens = 2000;
    for (auto* reader : {local.get(), remote.get()}) {
      Timer timer;
      for (int i = 0; i < kOpens; ++i) Read(*reader, small);
      std::printf("%-34s %6.1f us\n", reader == local.get() ? "open and read 10 bytes, local" : "open and read 10 bytes, TCP",
                  timer.seconds() / kOpens * 1e6);
    }
  }
  std::filesystem::remove_all(folder);
}
