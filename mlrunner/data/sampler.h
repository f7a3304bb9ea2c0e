// In which order samples are learned from: a function of (seed, epoch), whatever the ranks. A global batch is cut over the ranks only
// when it has been drawn, so every number of ranks sees the same batches, and a position in the epoch is all that a checkpoint has to
// keep.
//
// Thread rule: a sampler belongs to one thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "base/random.h"

namespace ropewalk::mlrunner {

struct SamplePosition {
  std::int64_t epoch = 0;
  std::int64_t offset = 0;  // samples of this epoch that have been taken
  friend bool operator==(const SamplePosition&, const SamplePosition&) = default;
};

class Sampler {
 public:
  // `count` > 0 samples.
  Sampler(std::uint64_t seed, std::int64_t count) : seed_(seed), order_(static_cast<std::size_t>(count)) {}

  // The next `batch` samples, fewer at the end of an epoch (each sample comes once in each). The numbers are valid until the next call.
  std::span<const std::int64_t> Next(SamplePosition* at, std::int64_t batch) {
    const auto count = static_cast<std::int64_t>(order_.size());
    if (at->offset >= count) *at = {at->epoch + 1, 0};
    Order(at->epoch);
    std::int64_t taken = std::min(batch, count - at->offset);
    std::span<const std::int64_t> ids(order_.data() + at->offset, static_cast<std::size_t>(taken));
    at->offset += taken;
    return ids;
  }
  // All samples in the order of an epoch; valid until another epoch is asked for.
  std::span<const std::int64_t> Order(std::int64_t epoch) {
    if (epoch != shuffled_) Shuffle(epoch);
    return order_;
  }

 private:
  static constexpr std::uint64_t kPurpose = 0x73616d706c657273;  // "samplers"
  // Fisher and Yates.
  void Shuffle(std::int64_t epoch) {
    std::iota(order_.begin(), order_.end(), 0);
    Random random = Random::ForPurpose(HashCombine(seed_, kPurpose), static_cast<std::uint64_t>(epoch));
    for (std::size_t i = order_.size(); i > 1; --i) std::swap(order_[i - 1], order_[random.Below(i)]);
    shuffled_ = epoch;
  }

  std::uint64_t seed_;
  std::int64_t shuffled_ = -1;  // the epoch whose order this is
  std::vector<std::int64_t> order_;
};

// The part of `count` things that `rank` of `ranks` has: side by side, longer ones first, lengths differ by one at most.
struct Share {
  std::int64_t begin = 0, count = 0;
};
inline Share ShareOf(std::int64_t count, std::int32_t rank, std::int32_t ranks) {
  std::int64_t each = count / ranks, more = count % ranks;
  return {rank * each + std::min<std::int64_t>(rank, more), each + (rank < more ? 1 : 0)};
}

}  // namespace ropewalk::mlrunner
