#include "mlrunner/train/nan_watch.h"

#include <cmath>
#include <cstddef>
#include <limits>

#include <fmt/format.h>

namespace ropewalk::mlrunner {

std::string SpoiltParameters(const Graph& graph, const StateStore& states) {
  std::size_t parameters = 0, bad = 0;
  std::string first;
  for (const StateInfo& state : graph.states) {
    if (state.kind != StateKind::kParameter) continue;
    ++parameters;
    if (IsFinite(states.Get(state.name))) continue;
    if (bad++ == 0) first = state.name;
  }
  return bad == 0 ? "" : fmt::format("{} of {} parameters hold what is no number, the first is {}", bad, parameters, first);
}

Status NoNumber(const TrainJob& job, std::int64_t step, const std::string& what, const std::string& why) {
  return Status(Code::kUserError, "TRAIN01", fmt::format("step {}: {}", step, what), why,
                std::string("take a smaller optimizer.learning_rate, or optimizer.warmup_steps") +
                    (job.checkpoint.folder.empty() ? "" : "; the newest checkpoint is from before this step"));
}

Status NanWatch::Begin(const Bindings& bindings, const RunContext& run, StateStore* states) {
  if (job_.nan != NanPolicy::kSkip && !ScalesLoss(job_)) return {};
  statistics_.clear();
  for (const StateInfo& state : graph_.states) {
    if (state.kind != StateKind::kStatistic) continue;
    RETURN_IF_ERROR(states->Find(graph_, state, bindings, run).status());  // made, where this is the first step
    statistics_.emplace_back(state.name, states->Get(state.name));
  }
  return {};
}

NanWatch::Found NanWatch::Look(double loss, const std::vector<Tensor>& outputs) const {
  Found found{std::isfinite(loss) ? "" : fmt::format("the loss is {}", loss), std::numeric_limits<double>::quiet_NaN()};
  const std::size_t gradients = num_squares();
  if (gradients == 0) return found;
  double sum = 0;
  std::size_t bad = 0;
  std::string first;
  for (std::size_t i = 1; i <= gradients; ++i) {
    const double squares = ToRef(outputs[i]).data.at(0);
    sum += squares;
    if (!std::isfinite(squares) && bad++ == 0) first = graph_.outputs[i].name;
  }
  found.gradient_norm = std::sqrt(sum);
  if (bad > 0)
    found.wrong += fmt::format("{}{} of {} gradients hold what is no number or too large, the first is that of {}",
                               found.wrong.empty() ? "" : "; ", bad, gradients, first);
  return found;
}

Status NanWatch::Skip(std::int64_t step, const std::string& why, StateStore* states) {
  constexpr std::int64_t kInARowMax = 100;
  for (auto& [name, before] : statistics_) states->Set(name, std::move(before));
  statistics_.clear();
  ++skipped_;
  if (++in_a_row_ < kInARowMax) return {};
  return NoNumber(job_, step, why,
                  fmt::format("it is the {}th step in a row that {} has left out", kInARowMax,
                              ScalesLoss(job_) ? "the search for a loss scale" : "train.nan = \"skip\""));
}

}  // namespace ropewalk::mlrunner
