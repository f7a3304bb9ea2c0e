// Images from which a model can learn.
//
// Thread rule: as that of samples.
#pragma once

#include <cstdint>
#include <vector>

#include "base/hash.h"
#include "mlrunner/data/samples.h"

namespace ropewalk::mlrunner::testing {

// Of 12 x 12 pixels a band is bright, which says the class, one of four.
class Bands final : public Samples {
 public:
  explicit Bands(std::int64_t count) : count_(count) {}
  std::int64_t count() const override { return count_; }
  const std::vector<Field>& fields() const override { return fields_; }
  void Fill(const FillCall& call) const override {
    std::size_t at = 0;
    for (std::int64_t id : call.ids) {
      const std::uint64_t drawn = HashCombine(7, static_cast<std::uint64_t>(id));
      if (call.field == 1) {
        static_cast<std::int32_t*>(call.rows)[at++] = static_cast<std::int32_t>(drawn % kClasses);
        continue;
      }
      for (std::int64_t pixel = 0; pixel < kSize * kSize; ++pixel, ++at) {
        const bool bright = static_cast<std::uint64_t>(pixel / kSize / 3) == drawn % kClasses;
        const double value = static_cast<double>(HashCombine(drawn, static_cast<std::uint64_t>(pixel)) % 1000) / 1000 + (bright ? 1 : 0);
        if (call.dtype == Dtype::kF64) {
          static_cast<double*>(call.rows)[at] = value;
        } else {
          static_cast<float*>(call.rows)[at] = static_cast<float>(value);
        }
      }
    }
  }
  std::uint64_t content_hash() const override { return static_cast<std::uint64_t>(count_); }

 private:
  static constexpr std::int64_t kSize = 12;
  static constexpr std::uint64_t kClasses = 4;
  std::int64_t count_;
  std::vector<Field> fields_ = {{"image", Dtype::kF32, {1, kSize, kSize}}, {"label", Dtype::kI32, {}, kClasses}};
};

}  // namespace ropewalk::mlrunner::testing
