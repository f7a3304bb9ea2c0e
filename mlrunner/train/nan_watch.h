// What of a training is no number, and what becomes of a step in which something is none (train.nan).
//
//   loss, squares of gradients ─ what is no number ─▶ stop: the training ends, and names the step and the tensors
//                                                 └─▶ skip: the update was left out (StepGraph guards it); statistics that forward has
//                                                           written are put back; the step is counted, and too many in a row end it
// A dynamic scale of the loss (train.precision = "f16") skips by itself where gradients alone are no numbers.
//
// Losses and gradients are sums over the ranks: all ranks find the same.
//
// Owner: the trainer. Thread rule: the step thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "mlrunner/executor/executor.h"
#include "mlrunner/graph/graph.h"
#include "mlrunner/train/job.h"
#include "mlrunner/train/step_graph.h"

namespace ropewalk::mlrunner {

// Which parameters hold what is no number, in words; empty: none.
std::string SpoiltParameters(const Graph& graph, const StateStore& states);

// kUserError TRAIN01: what is no number in `step`, and why the training ends by it.
Status NoNumber(const TrainJob& job, std::int64_t step, const std::string& what, const std::string& why);

class NanWatch {
 public:
  // `graph` and `beginning` are the step's: all outlive the watch.
  NanWatch(const TrainJob& job, const Graph& graph, const Beginning& beginning) : job_(job), graph_(graph), beginning_(beginning) {}

  // How many of a step's outputs, behind the loss, are squares of gradients.
  std::size_t num_squares() const { return WatchesGradients(job_) ? beginning_.num_trained : 0; }

  // Before a step. Where steps may be left out the statistics are kept as they are.
  Status Begin(const Bindings& bindings, const RunContext& run, StateStore* states);

  struct Found {
    std::string wrong;         // what of the step is no number, in words; empty: nothing
    double gradient_norm = 0;  // of all gradients; no number where the step does not give their squares
  };
  // Behind it, by its loss and its outputs, of which num_squares() are looked at.
  Found Look(double loss, const std::vector<Tensor>& outputs) const;

  // The step is left out: the statistics are put back. TRAIN01: it is the hundredth in a row.
  Status Skip(std::int64_t step, const std::string& why, StateStore* states);
  void Passed() { in_a_row_ = 0; }
  std::int64_t skipped() const { return skipped_; }

 private:
  const TrainJob& job_;
  const Graph& graph_;
  const Beginning& beginning_;
  std::vector<std::pair<std::string, Tensor>> statistics_;  // before the step
  std::int64_t skipped_ = 0, in_a_row_ = 0;
};

}  // namespace ropewalk::mlrunner
