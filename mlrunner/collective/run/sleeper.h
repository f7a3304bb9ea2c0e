// Waiting for another core: spin for a while, then let others run and look again, then sleep. The one who waits raises a flag before it
// sleeps, and a waker makes a system call only if the flag is up.
//
// Lives in memory that processes share. Thread rule: one thread waits, any may wake.
#pragma once

#include <atomic>
#include <cstdint>

namespace ropewalk::collective {

struct alignas(64) Sleeper {
  std::atomic<std::uint32_t> bell{0};  // counts wakings; the futex
  std::atomic<std::uint32_t> sleeping{0};
};

// After what the waiter waits for has been written.
void Wake(Sleeper* sleeper);

// How often to look before sleeping: between pauses of the processor, then between turns of whoever else wants this core.
struct Patience {
  std::uint32_t spins = 0, yields = 0;
};

// Returns when the bell has rung since it stood at `seen`, or now and then without a reason. Sleeps at most `sleep_ms_max`.
void WaitForBell(Sleeper* sleeper, std::uint32_t seen, Patience patience, std::uint32_t sleep_ms_max);

// What is worth it. No spins when the ranks of this machine outnumber its cores, for then a spinning rank keeps the one it waits for from
// running.
Patience CalibratedPatience(std::int32_t ranks_on_machine);

}  // namespace ropewalk::collective
