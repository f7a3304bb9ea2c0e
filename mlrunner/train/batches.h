// The batches of one rank's training, made by a thread of their own while the step before computes.
//
//   epoch's order ─▶ cut into batches ─▶ this rank's share ─▶ fetched, filled in ─┐ slot ─┐
//                       by the thread, so many ahead                             ├ slot ─┼─▶ Next(): one step
//                                                                                └ slot ─┘
//
// What is made ahead changes nothing: which samples a step has, and when an error is told, is as if each batch were made when it is asked
// for. Samples are prepared for an epoch by the thread that calls Next(), between two epochs, when nothing is being made.
//
// Owner: the rank; the samples must outlive it. Thread rule: one thread calls; the samples are its own until this object is gone.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "base/status.h"
#include "mlrunner/data/sampler.h"
#include "mlrunner/data/samples.h"
#include "mlrunner/train/batch_tensors.h"

namespace ropewalk::mlrunner {

struct BatchesOptions {
  std::uint64_t seed = 0;
  std::int64_t samples = 0;  // the first so many are learnt from
  std::int64_t batch = 0;    // of all ranks together
  std::int64_t rows = 0;     // of one micro-batch on each rank, what is left of them counts nothing
  std::int32_t micro_batches = 1, rank = 0, ranks = 1;
  Dtype dtype = Dtype::kF32;
  std::int64_t ahead = 0;  // batches that wait for their step at most; 0: each is made when it is asked for, by who asks
};

struct StepBatch {
  SamplePosition behind;    // where the next one begins
  std::int64_t count = 0;   // of all ranks
  Share share;              // this rank's part of it
  std::vector<Share> cuts;  // of the share, one for each micro-batch
  std::vector<BatchTensors> tensors;
  double seconds = 0;  // that it took to be made, whoever waited for it meanwhile
  Status status;       // what went wrong as it was made
};

class Batches {
 public:
  // Begins at `at`.
  Batches(Samples& samples, const BatchesOptions& options, SamplePosition at);
  ~Batches();  // waits until what is being made is made
  Batches(const Batches&) = delete;
  Batches& operator=(const Batches&) = delete;

  // The next one, valid until the next call. Errors: what Prepare and Fetch say of the samples; DATA15: what they throw.
  Result<const StepBatch*> Next();

 private:
  Status BeginEpoch();
  void Make(std::int64_t number, StepBatch* batch);
  Status Fill(std::span<const std::int64_t> ids, StepBatch* batch);
  void Work();

  Samples& samples_;
  const BatchesOptions options_;
  Sampler sampler_;
  SamplePosition at_;  // of what was planned
  // Of the epoch that is planned: its order, and the number and the offset of the first batch of it that is made here.
  std::span<const std::int64_t> order_;
  std::int64_t first_ = 0, first_offset_ = 0;
  std::vector<StepBatch> slots_;
  std::int64_t taken_ = 0;  // batches that Next() gave

  std::mutex mutex_;  // of what follows; the thread reads the members above only where planned_ says that there is something to make
  std::condition_variable changed_;
  std::int64_t planned_ = 0, made_ = 0, released_ = 0;  // numbers of batches
  bool ends_ = false;
  std::thread thread_;  // the last one: it begins when all else is there
};

}  // namespace ropewalk::mlrunner
