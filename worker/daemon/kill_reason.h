// Why an executor ended by SIGKILL that its worker did not send: for lack of memory, or because somebody killed it. Nothing is claimed that
// the kernel's counts do not show, because the answer decides how often its tasks are tried again, and what the user is told to mend.
//
// Thread rule: values.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "base/status.h"

namespace ropewalk::worker {

// How far a count of the kernel that only grows has grown lately. A process that was killed takes a while to be gone (all its memory is
// given back first), so "lately" is a window; all of its life would be too long, because then any old event would explain its end.
class RecentGrowth {
 public:
  static constexpr std::size_t kNotesKept = 32;
  explicit RecentGrowth(std::uint64_t start = 0) { notes_.fill(start); }
  void Note(std::uint64_t count) { notes_[next_++ % kNotesKept] = count; }  // once a heartbeat
  // Since the note before kNotesKept notes, or since the start.
  std::uint64_t Until(std::uint64_t count) const {
    const std::uint64_t oldest = notes_[next_ % kNotesKept];
    return count > oldest ? count - oldest : 0;
  }

 private:
  std::array<std::uint64_t, kNotesKept> notes_;
  std::size_t next_ = 0;
};

struct KillEvidence {
  // Processes of the executor's own control group that were ended for lack of memory lately, be it the group's or the machine's. Not set:
  // it has no group that counts them, and then nobody knows.
  std::optional<std::uint64_t> group_kills;
  bool group_was_full = false;      // the group reached its own limit
  std::uint64_t machine_kills = 0;  // processes of the whole machine that were ended for lack of memory lately
  std::uint64_t memory_bytes_max = 0;
};

// `who`: "an executor on w1 ended by signal 9 (Killed)". kResourceExhausted WORKER35: beyond its own limit; kResourceExhausted WORKER29:
// the machine had no memory left; kUnavailable WORKER30: somebody killed it; kResourceExhausted dag::kPerhapsOutOfMemoryTag: one of the
// last two.
Status ReasonOfKill(const std::string& who, const KillEvidence& evidence);

}  // namespace ropewalk::worker
