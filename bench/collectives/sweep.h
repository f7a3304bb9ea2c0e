// What all contestants of the allreduce bench share: sizes, how often, how times are taken and said. A contestant gives three things (meet,
// reduce, where the result is) and is measured in one way.
//
// Each iteration: all meet, each rank takes its own time of one allreduce; an iteration took as long as its slowest rank. Said is the
// median, one line of JSON for each size, with the interpreter's steps where there is one. The result of each size is verified once.
//
// Thread rule: one thread of each rank's process.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

namespace sweep {

constexpr std::size_t kBytesMin = 4 << 10, kBytesMax = 64 << 20;
// The largest size of this run, for who only wants to see that it runs.
inline std::size_t BytesMax() {
  const char* given = std::getenv("SWEEP_BYTES_MAX");
  return given == nullptr ? kBytesMax : std::clamp(static_cast<std::size_t>(std::atoll(given)), kBytesMin, kBytesMax);
}
constexpr int kIterationsMin = 8, kIterationsMax = 2000;

// Memory that ranks which are forked after this all see.
struct Shared {
  int iterations = 0;
  double times_us[16][kIterationsMax];
};
inline Shared* MakeShared() {
  void* memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) std::abort();
  return static_cast<Shared*>(memory);
}

struct Contestant {
  int rank = 0, ranks = 1;
  float *in = nullptr, *out = nullptr;  // kBytesMax each
  std::function<void()> meet;
  std::function<void(std::size_t count)> reduce;  // out = sum of all ranks' in
  // Of a contestant that interprets programs: the steps that this rank has done, and those that one reduce() must take. The sweep ends
  // where they differ, so that nothing beside the interpreter is measured; what meet() takes is not counted.
  std::function<std::uint64_t()> steps{};
  std::function<std::uint64_t(std::size_t count)> steps_of{};
};

inline double NowUs() { return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

inline void Run(const Contestant& contestant, Shared* shared, double seconds_of_size) {
  const int rank = contestant.rank, ranks = contestant.ranks;
  for (std::size_t i = 0; i < BytesMax() / 4; ++i) {
    contestant.in[i] = static_cast<float>(rank + 1) + static_cast<float>(i % 7);
    contestant.out[i] = 0;
  }
  for (std::size_t bytes = kBytesMin; bytes <= BytesMax(); bytes *= 4) {
    const std::size_t count = bytes / 4;
    double one_us = 0;
    for (int warm = 0; warm < 5; ++warm) {
      contestant.meet();
      const double begin = NowUs();
      contestant.reduce(count);
      one_us = NowUs() - begin;
    }
    for (std::size_t i = 0; i < count; ++i)
      if (contestant.out[i] != static_cast<float>(ranks * (ranks + 1) / 2) + static_cast<float>(ranks) * static_cast<float>(i % 7)) {
        std::fprintf(stderr, "error[BENCH03] rank %d: element %zu of %zu bytes is %g\n", rank, i, bytes,
                     static_cast<double>(contestant.out[i]));
        std::_Exit(1);
      }
    if (rank == 0) shared->iterations = std::clamp(static_cast<int>(seconds_of_size * 1e6 / (one_us + 1)), kIterationsMin, kIterationsMax);
    contestant.meet();
    const int iterations = shared->iterations;
    std::uint64_t steps = 0;
    for (int i = 0; i < iterations; ++i) {
      contestant.meet();
      const std::uint64_t steps_before = contestant.steps ? contestant.steps() : 0;
      const double begin = NowUs();
      contestant.reduce(count);
      shared->times_us[rank][i] = NowUs() - begin;
      if (contestant.steps) steps += contestant.steps() - steps_before;
    }
    contestant.meet();
    const std::uint64_t steps_of_one = contestant.steps_of ? contestant.steps_of(count) : 0;
    if (contestant.steps && (steps == 0 || steps != static_cast<std::uint64_t>(iterations) * steps_of_one)) {
      std::fprintf(stderr, "error[BENCH04] rank %d: %d sums of %zu bytes took %llu steps, and their programs have %llu each\n", rank,
                   iterations, bytes, static_cast<unsigned long long>(steps), static_cast<unsigned long long>(steps_of_one));
      std::_Exit(1);
    }
    if (rank == 0) {
      std::vector<double> slowest(iterations);
      for (int i = 0; i < iterations; ++i)
        for (int r = 0; r < ranks; ++r) slowest[i] = std::max(slowest[i], shared->times_us[r][i]);
      std::nth_element(slowest.begin(), slowest.begin() + iterations / 2, slowest.end());
      std::printf("{\"bytes\": %zu, \"us\": %.3f, \"iterations\": %d, \"steps\": %llu, \"steps_of_one\": %llu}\n", bytes,
                  slowest[iterations / 2], iterations, static_cast<unsigned long long>(steps),
                  static_cast<unsigned long long>(steps_of_one));
      std::fflush(stdout);
    }
  }
}

}  // namespace sweep
