#include "mlrunner/data/masked.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "base/random.h"

namespace ropewalk::mlrunner {
namespace {

constexpr std::size_t kTokensField = 0, kMaskField = 1;

class Masked final : public Samples {
 public:
  Masked(std::unique_ptr<Samples> tokens, const MaskOptions& options) : tokens_(std::move(tokens)), options_(options) {
    const Field& field = tokens_->fields()[0];
    length_ = field.dims[0];
    kinds_ = field.classes;
    masked_ = std::clamp<std::int64_t>(std::llround(options.part * static_cast<double>(length_)), 1, length_);
    fields_ = {
        {"tokens", Dtype::kI32, {length_}, kinds_ + 1}, {"mask", Dtype::kF32, {length_}}, {"original", Dtype::kI32, {length_}, kinds_ + 1}};
    labels_are_ = "masked " + std::string(tokens_->labels_are());
  }
  std::int64_t count() const override { return tokens_->count(); }
  const std::vector<Field>& fields() const override { return fields_; }
  Status Prepare(std::span<const std::int64_t> ids) override { return tokens_->Prepare(ids); }
  Status Fetch(std::span<const std::int64_t> ids) override { return tokens_->Fetch(ids); }
  void Fill(const FillCall& call) const override {
    if (call.field == kMaskField) {
      if (call.dtype == Dtype::kF64) return FillMask(call, static_cast<double*>(call.rows));
      return FillMask(call, static_cast<float*>(call.rows));
    }
    FillCall original = call;
    original.field = kTokensField;
    tokens_->Fill(original);
    if (call.field != kTokensField) return;
    auto* row = static_cast<std::int32_t*>(call.rows);
    for (std::int64_t id : call.ids) {
      for (const Hidden& hidden : Draw(id, call.epoch))
        if (hidden.token >= 0) row[hidden.place] = hidden.token;
      row += length_;
    }
  }
  std::int64_t NumLabels(std::span<const std::int64_t> ids) const override { return static_cast<std::int64_t>(ids.size()) * masked_; }
  std::string_view labels_are() const override { return labels_are_; }
  std::uint64_t content_hash() const override { return HashCombine(tokens_->content_hash(), static_cast<std::uint64_t>(masked_)); }
  std::uint64_t vocabulary_hash() const override { return tokens_->vocabulary_hash(); }
  Status SaveVocabulary(storage::FileSystem& files, const std::string& folder) const override {
    return tokens_->SaveVocabulary(files, folder);
  }

 private:
  struct Hidden {
    std::int64_t place = 0;
    std::int32_t token = -1;  // what stands there instead; -1: what was there
  };
  std::vector<Hidden> Draw(std::int64_t sample, std::int64_t epoch) const {
    constexpr std::uint64_t kTraining = 0x6d61736b6564, kHeldOut = 0x6d61736b6568;
    const std::uint64_t seed = HashCombine(options_.seed, options_.is_held_out ? kHeldOut : kTraining);
    const std::int64_t anew = options_.is_held_out ? 0 : epoch;
    Random random = Random::ForPurpose(HashCombine(seed, static_cast<std::uint64_t>(anew)), static_cast<std::uint64_t>(sample));
    std::vector<std::int64_t> places(static_cast<std::size_t>(length_));
    std::iota(places.begin(), places.end(), 0);
    std::vector<Hidden> all(static_cast<std::size_t>(masked_));
    for (std::size_t i = 0; i < all.size(); ++i) {  // the beginning of a shuffle
      std::swap(places[i], places[i + random.Below(places.size() - i)]);
      const std::uint64_t tenth = random.Below(10);
      all[i].place = places[i];
      all[i].token = static_cast<std::int32_t>(tenth < 8   ? kinds_
                                               : tenth < 9 ? static_cast<std::int64_t>(random.Below(static_cast<std::uint64_t>(kinds_)))
                                                           : -1);
    }
    return all;
  }
  template <class T>
  void FillMask(const FillCall& call, T* row) const {
    for (std::int64_t id : call.ids) {
      std::fill_n(row, length_, T{0});
      for (const Hidden& hidden : Draw(id, call.epoch)) row[hidden.place] = 1;
      row += length_;
    }
  }

  std::unique_ptr<Samples> tokens_;
  const MaskOptions options_;
  std::int64_t length_ = 0, kinds_ = 0, masked_ = 0;
  std::vector<Field> fields_;
  std::string labels_are_;
};

}  // namespace

std::unique_ptr<Samples> MaskTokens(std::unique_ptr<Samples> tokens, const MaskOptions& options) {
  return std::make_unique<Masked>(std::move(tokens), options);
}

DataSet MaskTokens(DataSet tokens, MaskOptions options) {
  DataSet masked;
  options.is_held_out = false;
  masked.training = MaskTokens(std::move(tokens.training), options);
  options.is_held_out = true;
  if (tokens.held_out != nullptr) masked.held_out = MaskTokens(std::move(tokens.held_out), options);
  return masked;
}

}  // namespace ropewalk::mlrunner
