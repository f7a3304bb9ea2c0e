// The inputs of one step on one rank, or of one micro-batch of it, filled again and again: the fields of the samples in their order, and
// behind them the weights of the rows.
//
// Owner: it must not outlive the samples. Thread rule: one thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "mlrunner/data/samples.h"
#include "mlrunner/executor/executor.h"

namespace ropewalk::mlrunner {

class BatchTensors {
 public:
  BatchTensors(Samples& samples, std::int64_t rows, Dtype dtype);

  // `ids` are this rank's, as many as there are rows at most; what is left is filled with zeros and counts nothing. Errors: what
  // Samples::Fetch says.
  Status Fill(std::span<const std::int64_t> ids, std::int64_t epoch, double weight);
  std::vector<const Tensor*> inputs() const;

 private:
  Samples& samples_;
  std::int64_t rows_;
  std::vector<Tensor> tensors_;  // the last one holds the weights
};

}  // namespace ropewalk::mlrunner
