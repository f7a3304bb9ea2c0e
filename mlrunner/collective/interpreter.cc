#include "mlrunner/collective/interpreter.h"

#include <algorithm>

namespace ropewalk::collective {

Course::Course(const Program& program, const Layout& layout) : total(program.steps.size()), watched(program.steps.size(), kNone) {
  auto watch = [this](std::int32_t step) {
    if (watched[step] == kNone) watched[step] = watched_count++;
  };
  for (const Channel& channel : program.channels) {
    std::int64_t times = 1;
    for (std::int32_t i = channel.first_step; i < channel.first_step + channel.step_count; ++i) {
      const Step& step = program.steps[i];
      if (step.op == Op::kLoop) times *= layout.Trips(step.loop);
      total[i] = times;
      if (step.op == Op::kEndLoop) times /= layout.Trips(step.loop);
      if (step.dependency_count > 0) watch(i);
    }
  }
  for (const Dependency& dependency : program.dependencies) watch(program.channels[dependency.channel].first_step + dependency.step);
}

Interpreter::Interpreter(const Program* program, const Layout* layout)
    : program_(program),
      layout_(layout),
      own_(std::make_unique<Course>(*program, *layout)),
      course_(own_.get()),
      rank_(program->rank),
      at_(program->channels.size()),
      done_(static_cast<std::size_t>(course_->watched_count)),
      iterations_(program->loops.size()) {}

Interpreter::Interpreter(const Program* program, const Layout* layout, const Course* course, std::int32_t rank)
    : program_(program),
      layout_(layout),
      course_(course),
      rank_(rank),
      at_(program->channels.size()),
      done_(static_cast<std::size_t>(course->watched_count)),
      iterations_(program->loops.size()) {}

void Interpreter::Restart() {
  for (Position& at : at_) at.step = 0;
  std::fill(done_.begin(), done_.end(), 0);
  std::fill(iterations_.begin(), iterations_.end(), 0);
}

std::int64_t Interpreter::NeededOf(const Dependency& dependency) const {
  if (dependency.lag == kAllTrips) return course_->total[program_->channels[dependency.channel].first_step + dependency.step];
  std::int64_t mine = DoneOf(program_->channels[current_].first_step + at_[current_].step);
  return mine + 1 - dependency.lag;
}

bool Interpreter::DependenciesHold(const Step& step) const {
  for (std::int32_t i = 0; i < step.dependency_count; ++i) {
    const Dependency& dependency = program_->dependencies[step.first_dependency + i];
    if (DoneOf(program_->channels[dependency.channel].first_step + dependency.step) < NeededOf(dependency)) return false;
  }
  return true;
}

Outcome Interpreter::StepOnce(std::int32_t channel, Machine& machine) {
  at_border_ = false;
  if (ended(channel)) return Outcome::kBlocked;
  current_ = channel;
  Position& at = at_[channel];
  const std::int32_t first = program_->channels[channel].first_step;
  const Step& step = program_->steps[first + at.step];
  if (step.dependency_count > 0 && !DependenciesHold(step)) return Outcome::kBlocked;
  if (step.op == Op::kLoop) {
    iterations_[step.loop] = 0;
    CountDone(first + at.step++);
    return Outcome::kDone;
  }
  if (step.op == Op::kEndLoop) {
    CountDone(first + at.step);
    at_border_ = true;
    at.step = ++iterations_[step.loop] < layout_->Trips(step.loop) ? step.jump + 1 : at.step + 1;
    return Outcome::kDone;
  }
  Outcome outcome = machine.Try(*this, step);
  if (outcome == Outcome::kDone) {
    CountDone(first + at.step++);
    ++steps_done_;
  }
  return outcome;
}

Outcome Interpreter::Advance(Machine& machine) { return Go(machine, false); }

Outcome Interpreter::Go(Machine& machine, bool to_border) {
  const auto channels = static_cast<std::int32_t>(at_.size());
  for (bool moved = true; moved;) {
    moved = false;
    for (std::int32_t channel = 0; channel < channels; ++channel)
      for (;;) {
        Outcome outcome = StepOnce(channel, machine);
        if (outcome == Outcome::kFailed) return outcome;
        if (outcome == Outcome::kBlocked) break;
        moved = true;
        if (to_border && at_border_) return Outcome::kYielded;
      }
    if (channels == 1) break;
  }
  for (std::int32_t channel = 0; channel < channels; ++channel)
    if (!ended(channel)) return Outcome::kBlocked;
  return Outcome::kDone;
}

}  // namespace ropewalk::collective
