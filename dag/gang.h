// A gang: a fixed number of ranks that run one program at the same time and talk to each other. All are started or none; when one dies the
// others are told, and the gang is formed anew. The master places and watches it; it takes no part in what the ranks do.
//
//   Gang stage (data) ─▶ scheduler: n free slots or wait ─▶ one task a rank ─▶ GangProgram(GangContext&) on each
//
// Thread rule: any thread, one at a time in Exchange, and none when the program has returned; OnLost's function is called from another one.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace ropewalk::dag {

struct GangFigure {
  std::string_view name;  // "loss", "seconds/compute"; 64 bytes at most
  double value = 0;       // what is no number is left out
};

// Something that people should know of a gang while it runs, and find later.
struct GangNotice {
  std::string kind;        // "straggler"
  std::int32_t rank = 0;   // whom it is about
  std::string machine;     // of that rank
  std::uint64_t step = 0;  // when
  double value = 0;        // how much: what it means goes with the kind
  std::string text;        // one line for people
};

class GangContext {
 public:
  virtual ~GangContext() = default;
  virtual std::int32_t rank() const = 0;
  virtual std::int32_t ranks() const = 0;
  // Which forming of the gang this is: 0, 1, 2... over the life of the job; never reused. It travels in the ranks' own messages, so that
  // those of a gang that is gone are dropped.
  virtual std::uint32_t epoch() const = 0;
  // The numeric address under which the other ranks' machines reach this one; two ranks with the same `machine` share memory.
  virtual const std::string& address() const = 0;
  virtual const std::string& machine() const = 0;
  // Gives every rank the bytes of all, by rank: a barrier. For what is small (64 KiB at most, kInvalid otherwise), addresses say: it goes
  // through the master. All ranks call it equally often. kUnavailable when the gang is lost, kCancelled when the job is.
  virtual Result<std::vector<std::string>> Exchange(std::string mine) = 0;
  // `lost` is called at most once, from another thread, as soon as a rank is known to be dead or the job to be cancelled; at once if it is
  // known already. The status names the rank and its machine. What waits for that rank has to be freed there. An empty function takes it
  // back: after the call none runs.
  virtual void OnLost(std::function<void(const Status&)> lost) = 0;
  // One line for the progress bar ("step 120, loss 1.234, 5,120 samples/s"); only rank 0's is shown. Cheap; may be called every step.
  virtual void Report(std::string line) = 0;
  // What the gang has got to and a later forming goes on from, in a measure of the program that grows: the step of a checkpoint that is
  // written, say. Any rank may say it; it travels at once. A gang that gets farther than ever before may be lost, and fail, as often
  // as GangOptions say from there on; one that never says it, as often over its whole life.
  virtual void Reached(std::uint64_t milestone) = 0;
  // What this rank has measured in step `step`, for the history that is kept of the job (`ropewalk job metrics`). `series` says of what
  // kind the figures are ("step", "evaluation"). Told once a second, as means over the steps since; cheap, may be called every step. At
  // most 8 series of 64 figures; what is beyond is left out. A step at or before the last one says it again (the gang went on from a
  // checkpoint). Nothing is decided by it, and who keeps no history does nothing.
  virtual void Measure([[maybe_unused]] std::string_view series, [[maybe_unused]] std::uint64_t step,
                       [[maybe_unused]] std::span<const GangFigure> figures) {}
  // Into that history and the job's event log. For what is rare: 16 within a second, the rest is left out.
  virtual void Notice([[maybe_unused]] GangNotice notice) {}
};

// Run once by every rank of each forming. Rank 0's bytes are the action's result. kUnavailable and what OnLost gave mean "a peer was lost":
// the gang is formed anew. Any other error is the program's own and counts as a failed attempt of the whole gang; so does kUnavailable
// where no peer was lost, and then five attempts are made at least.
using GangProgram = std::function<Result<std::string>(GangContext&)>;

}  // namespace ropewalk::dag
