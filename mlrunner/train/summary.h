// How a training went.
//
// Thread rule: values.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"

namespace ropewalk::mlrunner {

struct TrainSummary {
  std::int64_t steps = 0;          // of the whole training, those before a resumption included
  std::int64_t resumed_from = -1;  // the step of the checkpoint that it went on from; -1: it began anew
  double loss = 0;                 // of the last step, also one before a resumption; not a number where none was made
  double seconds = 0;              // of the steps since the gang was formed
  double samples_per_s = 0;        // in them; 0 where no step was left to make
  double held_out_loss = 0;        // the mean over all labels
  std::int64_t held_out_hits = 0, held_out_labels = 0;
  std::string labels_are = "labels";  // in words
};
std::string Encode(const TrainSummary& summary);
Result<TrainSummary> DecodeTrainSummary(const std::string& bytes);

}  // namespace ropewalk::mlrunner
