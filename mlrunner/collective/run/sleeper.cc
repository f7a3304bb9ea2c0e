#include "mlrunner/collective/run/sleeper.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>

namespace ropewalk::collective {
namespace {

static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

long Futex(std::atomic<std::uint32_t>* word, int operation, std::uint32_t value, const timespec* timeout) {
  return syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(word), operation, value, timeout, nullptr, 0);
}

std::int64_t NowNs() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1'000'000'000 + now.tv_nsec;
}

// A hand-over between two cores takes a tenth of this.
constexpr std::int64_t kSpinNs = 20'000;
// Together with the spins longer than a woken thread takes to run again: a rank that gives up before its sleeping peer can answer sleeps,
// too, and then each wakes the other for ever (seen: 2.4 µs become 35). Yielding, because a kernel likes to wake a thread on the core of
// the one who wakes it, and a rank that only spins there keeps its peer out.
constexpr std::uint32_t kYields = 200, kYieldsOfMany = 20;

}  // namespace

void Ring(Sleeper* sleeper) {
  // One waker is enough.
  if (sleeper->waits_for.exchange(0, std::memory_order_seq_cst) != 0) Futex(&sleeper->waits_for, FUTEX_WAKE, 1, nullptr);
}

void Announce(Sleeper* sleeper, std::uint32_t for_what) {
  // In one order with the wakers' writes and their look at this word: one of the two sees the other. And an exchange, so that what a waker
  // wrote before a Ring() that came first is seen.
  sleeper->waits_for.exchange(for_what, std::memory_order_seq_cst);
  // The looks that follow need no order of their own.
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

void Withdraw(Sleeper* sleeper) { sleeper->waits_for.exchange(0, std::memory_order_seq_cst); }

void Sleep(Sleeper* sleeper, std::uint32_t for_what, std::uint32_t ms_max) {
  timespec timeout{.tv_sec = ms_max / 1000, .tv_nsec = static_cast<long>(ms_max % 1000) * 1'000'000};
  // Any return is fine: woken, the announcement was gone, a signal, or the time is over; the caller looks for itself.
  Futex(&sleeper->waits_for, FUTEX_WAIT, for_what, &timeout);
  Withdraw(sleeper);
}

Patience CalibratedPatience(std::int32_t ranks_on_machine) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  long usable = sched_getaffinity(0, sizeof(cores), &cores) == 0 ? CPU_COUNT(&cores) : sysconf(_SC_NPROCESSORS_ONLN);
  if (ranks_on_machine > usable) return {.spins = 0, .yields = kYieldsOfMany};
  constexpr std::int64_t kProbes = 256;
  const std::int64_t begin = NowNs();
  for (std::int64_t i = 0; i < kProbes; ++i) Pause();
  const std::int64_t pauses_ns = std::max<std::int64_t>(1, NowNs() - begin);
  // A probe that was interrupted must not make it short.
  return {.spins = static_cast<std::uint32_t>(std::clamp<std::int64_t>(kSpinNs * kProbes / pauses_ns, 100, 10'000)), .yields = kYields};
}

}  // namespace ropewalk::collective
