#include "mlrunner/train/batches.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <new>
#include <string>

#include <fmt/format.h>

namespace ropewalk::mlrunner {

Batches::Batches(Samples& samples, const BatchesOptions& options, SamplePosition at)
    : samples_(samples), options_(options), sampler_(options.seed, options.samples), at_(at) {
  slots_.resize(static_cast<std::size_t>(options.ahead + 1));
  for (StepBatch& slot : slots_) {
    for (std::int32_t i = 0; i < options.micro_batches; ++i) slot.tensors.emplace_back(samples, options.rows, options.dtype);
  }
  if (options.ahead > 0) thread_ = std::thread([this] { Work(); });
}

Batches::~Batches() {
  if (!thread_.joinable()) return;
  {
    std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

Result<const StepBatch*> Batches::Next() {
  {
    std::lock_guard lock(mutex_);
    released_ = taken_;
  }
  if (taken_ == planned_) RETURN_IF_ERROR(BeginEpoch());
  StepBatch& slot = slots_[static_cast<std::size_t>(taken_) % slots_.size()];
  if (options_.ahead == 0) {
    Make(taken_, &slot);
  } else {
    changed_.notify_all();
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return made_ > taken_; });
  }
  ++taken_;
  if (!slot.status.ok()) return slot.status;
  return &slot;
}

// All that was planned is taken, so that the thread waits.
Status Batches::BeginEpoch() {
  if (at_.offset >= options_.samples) at_ = {at_.epoch + 1, 0};
  order_ = sampler_.Order(at_.epoch);
  first_ = taken_;
  first_offset_ = at_.offset;
  std::vector<std::int64_t> mine;
  std::int64_t batches = 0;
  for (std::int64_t offset = at_.offset; offset < options_.samples; offset += options_.batch, ++batches) {
    const Share share = ShareOf(std::min(options_.batch, options_.samples - offset), options_.rank, options_.ranks);
    const auto first = order_.begin() + offset + share.begin;
    mine.insert(mine.end(), first, first + share.count);
  }
  RETURN_IF_ERROR(samples_.Prepare(mine));
  at_.offset = options_.samples;
  std::lock_guard lock(mutex_);
  planned_ += batches;
  return {};
}

void Batches::Work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return ends_ || (made_ < planned_ && made_ - released_ < static_cast<std::int64_t>(slots_.size())); });
    if (ends_) return;
    const std::int64_t number = made_;
    lock.unlock();
    StepBatch& slot = slots_[static_cast<std::size_t>(number) % slots_.size()];
    // The border of a thread: an exception of the samples, or of memory that is not there, is the batch's error.
    try {
      Make(number, &slot);
    } catch (const std::bad_alloc&) {
      slot.status = Status(Code::kResourceExhausted, "DATA15", "there is no memory for the samples of a batch",
                           fmt::format("it has {} rows, and {} wait for their step", options_.rows, options_.ahead),
                           "take a smaller train.batch or train.prefetch, or give more memory");
    } catch (const std::exception& error) {
      slot.status = Status(Code::kUserError, "DATA15", "the samples of a batch were not to be had: an exception", error.what(),
                           "mend what reads them");
    }
    const bool failed = !slot.status.ok();
    lock.lock();
    ++made_;
    changed_.notify_all();
    if (failed) return;  // the step that asks for it is the last one
  }
}

void Batches::Make(std::int64_t number, StepBatch* batch) {
  const auto begun = std::chrono::steady_clock::now();
  const std::int64_t offset = first_offset_ + (number - first_) * options_.batch;
  batch->count = std::min(options_.batch, options_.samples - offset);
  batch->behind = {at_.epoch, offset + batch->count};
  batch->status = Fill(order_.subspan(static_cast<std::size_t>(offset), static_cast<std::size_t>(batch->count)), batch);
  batch->seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
}

Status Batches::Fill(std::span<const std::int64_t> ids, StepBatch* batch) {
  const double weight = 1 / static_cast<double>(std::max<std::int64_t>(1, samples_.NumLabels(ids)));
  batch->share = ShareOf(batch->count, options_.rank, options_.ranks);
  batch->cuts.clear();
  for (std::int32_t i = 0; i < options_.micro_batches; ++i) {
    const Share cut = ShareOf(batch->share.count, i, options_.micro_batches);
    batch->cuts.push_back(cut);
    const auto begin = static_cast<std::size_t>(batch->share.begin + cut.begin);
    RETURN_IF_ERROR(batch->tensors[static_cast<std::size_t>(i)].Fill(ids.subspan(begin, static_cast<std::size_t>(cut.count)),
                                                                     batch->behind.epoch, weight));
  }
  return {};
}

}  // namespace ropewalk::mlrunner
