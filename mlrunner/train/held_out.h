// Counts what a model gets right of samples that it is not trained on: each sample on one rank, sums of all ranks.
//
//   held-out samples ─ share of this rank ─ batches of evaluate_batch ─▶ loss, hits ─ Exchange ─▶ the same on all ranks
//
// Owner: the trainer, once a forming. Thread rule: the step thread.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "dag/gang.h"
#include "mlrunner/collective/communicator.h"
#include "mlrunner/data/samples.h"
#include "mlrunner/executor/executor.h"
#include "mlrunner/train/auc.h"
#include "mlrunner/train/batch_tensors.h"
#include "mlrunner/train/job.h"

namespace ropewalk::mlrunner {

struct HeldOutCount {
  double loss = 0;  // the mean over all labels
  std::int64_t hits = 0, labels = 0;
  double auc = std::numeric_limits<double>::quiet_NaN();  // of models that judge (train/auc.h)
};

class HeldOut {
 public:
  struct Options {
    const TrainJob* job = nullptr;
    Samples* samples = nullptr;
    dag::GangContext* gang = nullptr;
    collective::Communicator* ranks = nullptr;  // null: one rank
    std::int64_t rows = 0;                      // of a batch, where the job does not say
    bool needs_whole_batches = false;           // as Beginning has it
    std::function<Result<std::unique_ptr<Executable>>(const Graph& graph, const Bindings& bindings)> compile;
    std::function<Graph(const Graph&)> lay;  // out as the device's kernels want it
    std::function<Status()> lost;            // asked between batches: an error ends the counting
  };
  // All outlive it.
  static Result<std::unique_ptr<HeldOut>> Make(Options options);

  // With the parameters in `states`. An exchange of all ranks, and of models that judge a sum between them: all call it.
  Result<HeldOutCount> Count(StateStore& states);

 private:
  explicit HeldOut(Options options) : options_(std::move(options)) {}
  struct Sums {
    double loss = 0, hits = 0;
    AucCounts scores;
  };
  Status CountMine(StateStore& states, Sums* sums);
  bool judges() const { return graph_.outputs.size() > 2; }
  void AddScores(const Tensor& scores, std::size_t count, AucCounts* auc) const;
  Status SumCounts(AucCounts* auc);
  const Options options_;
  std::vector<std::int64_t> mine_;
  std::int64_t rows_ = 0;
  Graph graph_;
  std::unique_ptr<Executable> executable_;
  std::unique_ptr<BatchTensors> tensors_;
};

// The averages of the parameters in their places (optimizer.average), and the statistics: what is counted with in the place of `states`.
StateStore Averaged(const Graph& graph, const StateStore& states);

}  // namespace ropewalk::mlrunner
