// The one interpreter of collective programs. It knows the order of steps (channels, loops, dependencies) and nothing of what a step does:
// that is the machine's, which proves (check.cc), counts and times (simulate.cc) or moves bytes (run.h).
//
// Owner: whoever holds the machine. Thread rule: one thread. Only the constructor allocates.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "mlrunner/collective/layout.h"
#include "mlrunner/collective/plan.h"

namespace ropewalk::collective {

// kYielded: it stands at a border, and could go on.
enum class Outcome : std::uint8_t { kDone, kBlocked, kFailed, kYielded };

class Interpreter;

class Machine {
 public:
  virtual ~Machine() = default;
  // Does the step at which `at` stands, wholly: kDone; or leaves it for later (a machine may remember how far it came): kBlocked; kFailed
  // ends the run, the machine knows why.
  virtual Outcome Try(const Interpreter& at, const Step& step) = 0;
};

// What all runs of a program with one layout have in common: how often each step is done in a whole run, and of which steps it must be
// known how often they were done, because they wait for others or others for them.
struct Course {
  Course(const Program& program, const Layout& layout);
  std::vector<std::int64_t> total;    // by step
  std::vector<std::int32_t> watched;  // by step: its place among those, or kNone
  std::int32_t watched_count = 0;
};

class Interpreter {
 public:
  // Both must outlive it. The program must be sound (CheckProgram).
  Interpreter(const Program* program, const Layout* layout);
  // The same for one of many ranks that share all three, which must outlive it: it holds where this rank stands and nothing of how long the
  // program is.
  Interpreter(const Program* program, const Layout* layout, const Course* course, std::int32_t rank);

  // To the start, for another instance.
  void Restart();
  // Lets every channel go as far as it can. kDone: all have ended.
  Outcome Advance(Machine& machine);
  // The same, but comes back with kYielded as soon as a channel has ended an iteration of a loop.
  Outcome AdvanceToBorder(Machine& machine) { return Go(machine, true); }
  // One step of one channel, if it can go. kDone: it did.
  Outcome StepOnce(std::int32_t channel, Machine& machine);
  // Whether what the step at which a channel stands depends on has been done.
  bool IsReady(std::int32_t channel) {
    current_ = channel;
    return !ended(channel) && DependenciesHold(program_->steps[program_->channels[channel].first_step + at_[channel].step]);
  }
  // A channel that is not started is never run, and not waited for.
  void SetStarted(std::int32_t channel, bool started) { at_[channel].started = started; }

  bool ended(std::int32_t channel) const { return !at_[channel].started || at_[channel].step == program_->channels[channel].step_count; }
  // Of the step that is being tried:
  const Program& program() const { return *program_; }
  const Layout& layout() const { return *layout_; }
  std::int32_t rank() const { return rank_; }
  std::int32_t channel() const { return current_; }
  std::int32_t step_of(std::int32_t channel) const { return at_[channel].step; }  // within the channel
  Extent At(std::int32_t chunk) const { return layout_->OfChunk(chunk, iterations_.data(), rank_); }
  // How often the target of a dependency must have been done before the current step may start.
  std::int64_t NeededOf(const Dependency& dependency) const;

  // How often a step (of the program) is done in a whole run.
  std::int64_t times_of(std::int32_t step) const { return course_->total[step]; }
  // Steps done since the start of this object, loops' own not counted.
  std::uint64_t steps_done() const { return steps_done_; }

 private:
  struct Position {
    std::int32_t step = 0;
    bool started = true;
  };
  Outcome Go(Machine& machine, bool to_border);
  // How often a watched step (of the program) was done.
  std::int64_t DoneOf(std::int32_t step) const { return done_[course_->watched[step]]; }
  void CountDone(std::int32_t step) {
    if (course_->watched[step] != kNone) ++done_[course_->watched[step]];
  }
  bool DependenciesHold(const Step& step) const;

  const Program* program_;
  const Layout* layout_;
  std::unique_ptr<Course> own_;
  const Course* course_;
  std::int32_t rank_;
  std::vector<Position> at_;              // by channel
  std::vector<std::int64_t> done_;        // by watched step: executions so far
  std::vector<std::int64_t> iterations_;  // by loop
  std::int32_t current_ = 0;
  bool at_border_ = false;
  std::uint64_t steps_done_ = 0;
};

}  // namespace ropewalk::collective
