// Waiting for another core: look for a while, then let others run between two looks, then sleep. The one who waits announces that before
// its last look, and a waker makes a system call only if it sees the announcement.
//
//   waiter                                          waker
//   Announce(sleeper, for_what)                     write (sequentially consistent)
//   look once more; nothing there                   WakeFor(sleeper, what)
//   Sleep(sleeper, for_what, ...)
//
// The announcement is itself what the sleep waits on: a waker who takes it away, however late, ends the sleep that it announced. (With a
// counter of wakings beside it, a slow waker could take away a newer announcement than its count, and nobody rang for that one.)
//
// Lives in memory that processes share. Thread rule: one thread waits, any may wake.
#pragma once

#include <atomic>
#include <cstdint>

namespace ropewalk::collective {

struct alignas(64) Sleeper {
  std::atomic<std::uint32_t> waits_for{0};  // the futex; 0: it is awake
};

// What a waiter may wait for.
inline constexpr std::uint32_t kForMessage = 1, kForRoom = 2;

// Whatever it waits for; it finds out why by looking.
void Ring(Sleeper* sleeper);
// After `what` has been written by an operation that is sequentially consistent. Almost free while nobody sleeps.
inline void WakeFor(Sleeper* sleeper, std::uint32_t what) {
  if ((sleeper->waits_for.load(std::memory_order_seq_cst) & what) != 0) Ring(sleeper);
}

// What is written from now on wakes; what was written before is found by the look that must follow.
void Announce(Sleeper* sleeper, std::uint32_t for_what);
// It goes on without a sleep.
void Withdraw(Sleeper* sleeper);
// Until somebody has taken the announcement away, which may have happened already, or now and then without a reason; `ms_max` at most.
void Sleep(Sleeper* sleeper, std::uint32_t for_what, std::uint32_t ms_max);

// For a loop that looks at what another core writes.
inline void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// How often to look before sleeping: between pauses of the processor, then between turns of whoever else wants this core.
struct Patience {
  std::uint32_t spins = 0, yields = 0;
};

// What is worth it. No spins when the ranks of this machine outnumber its cores, for then a spinning rank keeps the one it waits for from
// running.
Patience CalibratedPatience(std::int32_t ranks_on_machine);

}  // namespace ropewalk::collective
