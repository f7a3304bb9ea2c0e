// How far a job is, on stderr: on a terminal one line that is drawn over itself and gone when the job is done; elsewhere (a script, a CI
// log) whole lines, few of them.
//
// Thread rule: one thread.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

namespace ropewalk::job {

struct ProgressState {
  std::string name;  // of the action
  std::uint32_t tasks = 0, done = 0, running = 0;
  std::uint64_t bytes_in = 0;          // 0: not shown
  std::string note;                    // "waiting for a worker"
  std::uint32_t running_permille = 0;  // how far the running tasks are, added up: a bar of one long task moves too
};

class ProgressLine {
 public:
  ProgressLine();   // enabled when stderr is a terminal that can draw (TERM is set and not "dumb")
  ~ProgressLine();  // erases
  bool enabled() const { return enabled_; }
  // Draws, at most ten times a second and not in the first 300 ms: short jobs do not flicker.
  void Show(const ProgressState& state);
  void Erase();  // before other text goes to the terminal

 private:
  bool enabled_ = false;
  bool drawn_ = false;
  std::int64_t started_ms_ = 0, drawn_ms_ = 0;
};

// When a line of its own is due where no line can be drawn over: not in the first seconds (short jobs say their end only), then when
// another action runs, at most once in two seconds, and at least twice a minute.
class ProgressPace {
 public:
  bool IsDue(const std::string& action, std::int64_t now_ms);

 private:
  std::int64_t began_ms_ = -1, told_ms_ = -1;
  std::string told_;
};

// Such lines, for the life of a job; nothing on a terminal.
class ProgressLines {
 public:
  explicit ProgressLines(std::string prefix) : prefix_(std::move(prefix)) {}
  void Show(const ProgressState& state);

 private:
  std::string prefix_;  // "job j-713: "
  ProgressPace pace_;
};

// The line's text for a terminal of `columns`: `[=====>    ] 12/40 ReadLines (x.cc:3)  1.2 GiB  340 MiB/s`.
std::string ProgressText(const ProgressState& state, std::int64_t elapsed_ms, int columns);
// The same for a log: `12/40 tasks, ReadLines (x.cc:3)  1.2 GiB  waiting for a worker`.
std::string ProgressLogText(const ProgressState& state);
// "1.2 GiB", "340 MiB", "12 B": powers of 1024, as flags count (--memory 2G).
std::string HumanBytes(double bytes);

}  // namespace ropewalk::job
