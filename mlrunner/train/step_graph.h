// The graphs that a trainer runs: one step of training, and the counting of what a model gets right.
//
// Both take the fields of the samples (B, ...), in their order, and weights (B). Losses, which are those of the model's family, are summed
// with the weights: those of a step are 1 / (the global batch's labels), so that the sum over all ranks is the mean of the global batch
// whatever each rank has of it; a row that only fills a batch up has weight 0.
//
// Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/status.h"
#include "mlrunner/collective/communicator.h"
#include "mlrunner/data/samples.h"
#include "mlrunner/executor/executor.h"
#include "mlrunner/graph/graph.h"
#include "mlrunner/kernels/kernel.h"
#include "mlrunner/train/family.h"
#include "mlrunner/train/job.h"

namespace ropewalk::mlrunner {

inline constexpr const char* kDataAxis = "data";  // of the mesh: batches are cut over it

// Whether gradients are computed of a scaled loss (loss_scale.h): then the last output is the scale of the step.
bool ScalesLoss(const TrainJob& job);

// Whether the step has an output for each parameter, of its name: the sum of the squares of its gradient, before it is clipped.
bool WatchesGradients(const TrainJob& job);

// What a step begins with besides its graph, and asks for (Learnt).
struct Beginning {
  FirstValues first_values;
  bool needs_whole_batches = false;
  std::size_t num_trained = 0;  // parameters that have gradients: not those that are frozen
};

// Output 0: the loss of the global batch; then, where gradients are watched, the sums of their squares; then what the family counts
// (Learnt::figures), summed like the loss. With several ranks the gradients are summed in buckets, each as soon as backward has filled it;
// with several micro-batches, as soon as the last one's backward has. Both sums come before the norm of all gradients is looked at.
// TRAIN11: job.frozen names no parameter, or leaves none to be trained.
Result<Graph> StepGraph(const TrainJob& job, const Samples& samples, std::int32_t ranks, Beginning* beginning = nullptr);

// What runs once before forward (casts of parameters), forward and backward of each micro-batch, one after the other, what goes once beside
// the last backward, then the updates.
Program StepProgram(const Graph& graph, std::int32_t micro_batches);

// Outputs: the weighted sum of the losses; the weighted number of labels that the model gets right; where it judges, the scores of the
// labels (Learnt::scores).
Result<Graph> CountGraph(const TrainJob& job, const Samples& samples);

// What is exported: the family's own form (ModelFamily::forward), or what the model says of a batch that is not for training, as output
// `said`, with the inputs that it needs. Of f32, whatever the job computes with.
Result<Graph> ForwardGraph(const TrainJob& job, const Samples& samples);

// The sums over ranks, and the rows of tables that they gather, by `ranks`, which must outlive what is compiled with the table. Each is
// submitted by its start half and waited for by its done half.
void AddSumKernels(KernelTable* table, collective::Communicator* ranks, bool deterministic);

}  // namespace ropewalk::mlrunner
