// Where a step's time goes on a rank, and how much of what the processor could do it does.
//
//   step ─┬─ data: the batch is made and, before an epoch, fetched
//         ├─ compute: forward and backward
//         ├─ communication that is exposed: sums are handed over and waited for; what goes on beside compute is not in it
//         ├─ optimiser: the updates
//         └─ rest: copies of outputs, saves, evaluation, progress
//
// MFU = floating-point operations of the model's products in a step / (seconds of a step x peak), where the peak is what a product of
// square matrices reaches with the rank's threads. Elementwise work counts in the time and not in the operations.
//
// Thread rule: values and pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "mlrunner/executor/executor.h"
#include "mlrunner/graph/graph.h"
#include "mlrunner/train/summary.h"

namespace ropewalk::mlrunner {

// Adds what the ops of one run took.
void AddTimes(const std::vector<OpTime>& times, StepSeconds* seconds);

// Multiplications of a matrix product or a convolution; 0: the op is none.
double ProductsOf(const Graph& graph, const Op& op, const Bindings& bindings);

// Of the products (matrix products and convolutions) of a program's steps: 2 for each multiplication and addition.
double FlopsOf(const Graph& graph, const Bindings& bindings, const Program& program);

// What a product of square matrices of f32 reaches with these kernels, in operations a second: the best of some.
Result<double> PeakFlops(const KernelTable& kernels, const ExecutorOptions& options);

// One step as the trace viewers of browsers read it (chrome://tracing, Perfetto): ops of `rank`, and each sum between ranks from when
// it was handed over to when it was there.
std::string ChromeTrace(const std::vector<OpTime>& times, std::int32_t rank, std::int64_t step);

}  // namespace ropewalk::mlrunner
