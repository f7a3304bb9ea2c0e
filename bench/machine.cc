// What this machine can do, so that figures of two machines can be compared.   machine [THREADS]
// Prints JSON: memory copied a second (bytes read plus bytes written) by one thread and by THREADS; first touch of memory by small pages
// and by huge ones.
#include <algorithm>
#include <chrono>

#include "bench/floors/floor.h"

namespace {

double Seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

double CopyGigabytesPerSecond(int threads) {
  constexpr std::size_t kBytes = std::size_t{256} << 20;
  char *from = floors::HugeArray<char>(kBytes), *to = floors::HugeArray<char>(kBytes);
  std::memset(from, 1, kBytes);
  std::memset(to, 1, kBytes);
  std::vector<double> seconds;
  for (int i = 0; i < 7; ++i) {
    double start = Seconds();
    floors::Parallel(threads, [&](int t) {
      std::size_t piece = kBytes / static_cast<std::size_t>(threads);
      std::memcpy(to + static_cast<std::size_t>(t) * piece, from + static_cast<std::size_t>(t) * piece, piece);
    });
    seconds.push_back(Seconds() - start);
  }
  std::nth_element(seconds.begin(), seconds.begin() + 3, seconds.end());
  munmap(from, kBytes);
  munmap(to, kBytes);
  return 2 * static_cast<double>(kBytes) / seconds[3] * 1e-9;
}

// The best of three: a virtual machine's first use of a page is its host's cost, not the kernel's.
double FirstTouchGigabytesPerSecond(bool huge) {
  constexpr std::size_t kBytes = std::size_t{256} << 20;
  double best = 1e9;
  for (int i = 0; i < 3; ++i) {
    char* memory = nullptr;
    if (huge) {
      memory = floors::HugeArray<char>(kBytes);
    } else {
      memory = static_cast<char*>(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
      madvise(memory, kBytes, MADV_NOHUGEPAGE);
    }
    double start = Seconds();
    for (std::size_t at = 0; at < kBytes; at += 4096) memory[at] = 1;
    best = std::min(best, Seconds() - start);
    munmap(memory, kBytes);
  }
  return static_cast<double>(kBytes) / best * 1e-9;
}

}  // namespace

int main(int argc, char** argv) {
  int threads = argc > 1 ? std::atoi(argv[1]) : floors::ThreadCount();
  std::printf("{\"threads\": %d, \"copy_gb_s_one_thread\": %.1f, \"copy_gb_s\": %.1f, ", threads, CopyGigabytesPerSecond(1),
              CopyGigabytesPerSecond(threads));
  std::printf("\"first_touch_small_gb_s\": %.2f, \"first_touch_huge_gb_s\": %.2f}\n", FirstTouchGigabytesPerSecond(false),
              FirstTouchGigabytesPerSecond(true));
}
