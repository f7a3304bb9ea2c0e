// How a training went.
//
// Thread rule: values.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "base/status.h"

namespace ropewalk::mlrunner {

struct StepSeconds {
  double all = 0, data = 0, compute = 0, communication = 0, optimizer = 0;
};

// Where the time of one rank's steps went (train/anatomy.h).
struct RankAnatomy {
  std::int64_t steps = 0;
  StepSeconds seconds;  // of all of them
  double step_flops = 0;
  double peak_flops = 0;  // 0: not measured
};
std::string Encode(const RankAnatomy& anatomy);
Result<RankAnatomy> DecodeRankAnatomy(const std::string& bytes);
// "12.31 ms a step: compute 10.20, exposed communication 0.80, data 0.10, optimiser 0.90; MFU 41% = 1.23 GFLOP / (12.31 ms x 244 GFLOP/s)"
std::string ToString(const RankAnatomy& anatomy);

struct TrainSummary {
  std::int64_t steps = 0;          // of the whole training, those before a resumption included
  std::int64_t resumed_from = -1;  // the step of the checkpoint that it went on from; -1: it began anew
  double loss = 0;                 // of the last step, also one before a resumption; not a number where none was made
  double seconds = 0;              // of the steps since the gang was formed
  double samples_per_s = 0;        // in them; 0 where no step was left to make
  double held_out_loss = 0;        // the mean over all labels
  std::int64_t held_out_hits = 0, held_out_labels = 0;
  double held_out_auc = std::numeric_limits<double>::quiet_NaN();  // area under the ROC curve (train/auc.h), of models that judge
  std::string labels_are = "labels";                               // in words
  std::int64_t skipped = 0;          // steps since the gang was formed that changed nothing: what came out were no numbers
  std::int64_t best_step = -1;       // after which the held-out loss was smallest; -1: nothing was evaluated on the way
  double best_loss = 0;              // then
  bool stopped_early = false;        // by train.patience
  std::vector<RankAnatomy> anatomy;  // by rank; empty where train.anatomy is false
};
std::string Encode(const TrainSummary& summary);
Result<TrainSummary> DecodeTrainSummary(const std::string& bytes);

}  // namespace ropewalk::mlrunner
