// What a rank says of its steps while it trains: to files that the job names, and to the history that is kept of the job.
//
//   times of the ops ─▶ anatomy ─┬─▶ sums over all steps, for the end
//   figures of the step ─────────┼─▶ train.metrics and TensorBoard                   (rank 0)
//                                ├─▶ GangContext::Measure: "step", "evaluation"      (rank 0), "anatomy" (each rank)
//                                ├─▶ the trace of the eleventh step
//                                └─▶ medians of what the rank did by itself, to all ranks ─▶ GangContext::Notice: stragglers (rank 0)
//
// Owner: the trainer. Thread rule: the step thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "dag/gang.h"
#include "mlrunner/collective/communicator.h"
#include "mlrunner/executor/executor.h"
#include "mlrunner/train/job.h"
#include "mlrunner/train/metrics.h"
#include "mlrunner/train/stragglers.h"
#include "mlrunner/train/summary.h"

namespace ropewalk::mlrunner {

class StepRecorder {
 public:
  struct Options {
    const TrainJob* job = nullptr;
    dag::GangContext* gang = nullptr;
    collective::Communicator* ranks = nullptr;     // null: one rank
    std::vector<std::string> machines;             // by rank
    double step_flops = 0;                         // of this rank's products
    std::function<Result<double>()> peak_flops;    // what they could be in a second; takes a tenth of one
    std::function<void(const std::string&)> warn;  // a line for people
  };
  // Tries whether the job's files can be written. TRAIN07: one cannot.
  static Result<std::unique_ptr<StepRecorder>> Open(Options options);

  // After each step. Every train.straggler_steps steps the ranks bring numbers together: all make the same steps.
  Status Step(const std::vector<OpTime>& times, StepFigures figures);
  Status Skipped(std::int64_t step, const std::string& why);
  Status Evaluated(const Evaluation& evaluation);
  // After the last step: what lies in memory is written.
  Status Finish();
  Status Flush();

  const RankAnatomy& anatomy() const { return anatomy_; }

 private:
  explicit StepRecorder(Options options);
  Status FindPeak();
  void Measure(const StepFigures& figures);
  Status LookForStragglers(const StepFigures& figures);
  Status WriteTrace(const std::string& text) const;

  const Options options_;
  std::unique_ptr<mlrunner::Metrics> files_;  // rank 0's; null: none are written
  RankAnatomy anatomy_;
  bool looked_for_peak_ = false;
  std::string trace_;  // of the last step that was traced
  StragglerWatch stragglers_;
};

}  // namespace ropewalk::mlrunner
