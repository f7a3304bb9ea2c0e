#include "mlrunner/collective/run/sleeper.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <ctime>

namespace ropewalk::collective {
namespace {

static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

long Futex(std::atomic<std::uint32_t>* word, int operation, std::uint32_t value, const timespec* timeout) {
  return syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(word), operation, value, timeout, nullptr, 0);
}

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

std::int64_t NowNs() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1'000'000'000 + now.tv_nsec;
}

// Longer than a woken thread takes to run again: a rank that gives up before its sleeping peer can answer sleeps, too, and then both wake
// each other for ever. A wake-up costs both sides system calls and changes of context, and on virtual machines some ten times as much.
constexpr std::int64_t kCallsOfASleep = 64;

}  // namespace

void Wake(Sleeper* sleeper) {
  // In one order with the waiter's raise of the flag and its look at the bell: one of the two sees the other.
  sleeper->bell.fetch_add(1, std::memory_order_seq_cst);
  if (sleeper->sleeping.load(std::memory_order_seq_cst) != 0) Futex(&sleeper->bell, FUTEX_WAKE, 1, nullptr);
}

void WaitForBell(Sleeper* sleeper, std::uint32_t seen, std::uint32_t spins, std::uint32_t sleep_ms_max) {
  for (std::uint32_t i = 0; i < spins; ++i) {
    if (sleeper->bell.load(std::memory_order_acquire) != seen) return;
    Pause();
  }
  sleeper->sleeping.store(1, std::memory_order_seq_cst);
  if (sleeper->bell.load(std::memory_order_seq_cst) == seen) {
    timespec timeout{.tv_sec = sleep_ms_max / 1000, .tv_nsec = static_cast<long>(sleep_ms_max % 1000) * 1'000'000};
    // Any return is fine: woken, the bell had rung, a signal, or the time is over; the caller looks for itself.
    Futex(&sleeper->bell, FUTEX_WAIT, seen, &timeout);
  }
  sleeper->sleeping.store(0, std::memory_order_seq_cst);
}

std::uint32_t CalibratedSpins(std::int32_t ranks_on_machine) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  long usable = sched_getaffinity(0, sizeof(cores), &cores) == 0 ? CPU_COUNT(&cores) : sysconf(_SC_NPROCESSORS_ONLN);
  if (ranks_on_machine > usable) return 0;
  // About as long as a sleep would cost: then spinning costs at most twice the best choice.
  constexpr std::int64_t kProbes = 256;
  std::atomic<std::uint32_t> word{0};
  std::int64_t begin = NowNs();
  for (std::int64_t i = 0; i < kProbes; ++i) Futex(&word, FUTEX_WAKE, 1, nullptr);
  std::int64_t calls_ns = NowNs() - begin;
  begin = NowNs();
  for (std::int64_t i = 0; i < kProbes; ++i) Pause();
  std::int64_t pauses_ns = NowNs() - begin;
  return static_cast<std::uint32_t>(calls_ns * kCallsOfASleep / (pauses_ns > 0 ? pauses_ns : 1));
}

}  // namespace ropewalk::collective
