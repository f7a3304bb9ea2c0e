#include "mlrunner/train/rows.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/hash.h"
#include "dag/gang_on_data.h"

namespace ropewalk::mlrunner {
namespace {

constexpr std::int64_t kClassesMax = 1 << 20;

std::int64_t LabelOf(std::string_view row) {
  std::int64_t label = 0;
  std::memcpy(&label, row.data(), sizeof label);
  return label;
}

Status Bad(const char* tag, std::string what, std::string why, std::string fix) {
  return Status(Code::kUserError, tag, std::move(what), std::move(why), std::move(fix));
}

class Rows final : public Samples {
 public:
  Rows(dag::TaskContext& context, StageId stage, RowsOptions options) : context_(context), stage_(stage), options_(std::move(options)) {}

  Status Survey() {
    width_ = options_.width;
    std::int64_t largest = -1, in_partition = 0;
    std::size_t partition = 0;
    RETURN_IF_ERROR(dag::ForEachRecord<std::string>(context_, stage_, [&](std::string_view row, std::size_t from) -> Status {
      if (from != std::exchange(partition, from)) in_partition = 0;
      if (Status status = Look(row); !status.ok())
        return status.WithContext(fmt::format("row {} in partition {} of {}", in_partition, partition, options_.name));
      largest = std::max(largest, LabelOf(row));
      hash_ = HashCombine(hash_, Checksum64(row));
      ++in_partition;
      ++count_;
      return {};
    }));
    if (count_ == 0)
      return Bad("DATA08", options_.name + " is empty", "there is nothing to learn from", "look at what the batch job keeps (Count())");
    fields_ = {{"features", Dtype::kF32, {width_}}, {"label", Dtype::kI32, {}, options_.classes > 0 ? options_.classes : largest + 1}};
    return {};
  }

  std::int64_t count() const override { return count_; }
  const std::vector<Field>& fields() const override { return fields_; }
  std::uint64_t content_hash() const override { return hash_; }

  Status Prepare(std::span<const std::int64_t> ids) override {
    if (!places_.empty() && std::all_of(ids.begin(), ids.end(), [&](std::int64_t id) { return PlaceOf(id) >= 0; })) return {};
    const auto all = static_cast<std::size_t>(count_), width = static_cast<std::size_t>(width_);
    places_.assign(all, -1);
    std::int64_t kept = 0;
    if (all * (width * sizeof(float) + sizeof(std::int32_t)) <= options_.whole_bytes_max) {
      for (std::int64_t& place : places_) place = kept++;
    } else {
      for (std::int64_t id : ids) {
        if (PlaceOf(id) < 0) places_[static_cast<std::size_t>(id)] = kept++;
      }
    }
    labels_.resize(static_cast<std::size_t>(kept));
    features_.resize(static_cast<std::size_t>(kept) * width);
    std::size_t id = 0;
    RETURN_IF_ERROR(dag::ForEachRecord<std::string>(context_, stage_, [&](std::string_view row) -> Status {
      if (id >= all || row.size() != sizeof(std::int64_t) + width * sizeof(float)) return Changed();
      if (std::int64_t place = places_[id++]; place >= 0) {
        labels_[static_cast<std::size_t>(place)] = static_cast<std::int32_t>(LabelOf(row));
        std::memcpy(features_.data() + static_cast<std::size_t>(place) * width, row.data() + sizeof(std::int64_t), width * sizeof(float));
      }
      return {};
    }));
    return id == all ? Status() : Changed();
  }
  void Fill(const FillCall& call) const override {
    if (call.field == 1) {
      auto* label = static_cast<std::int32_t*>(call.rows);
      for (std::int64_t id : call.ids) *label++ = labels_[static_cast<std::size_t>(PlaceOf(id))];
    } else if (call.dtype == Dtype::kF64) {
      Copy(call.ids, static_cast<double*>(call.rows));
    } else {
      Copy(call.ids, static_cast<float*>(call.rows));
    }
  }

 private:
  Status Look(std::string_view row) {
    const auto width = static_cast<std::int64_t>((row.size() - sizeof(std::int64_t)) / sizeof(float));
    if (width == 0) return Bad("DATA05", "it has no features", "a model learns from at least one", "give each sample its features");
    if (width_ == 0) width_ = width;
    if (width != width_)
      return Bad("DATA05", fmt::format("it has {} features, and others have {}", width, width_), "all samples have equally many",
                 "fill up what is missing (with 0), or leave such samples out with Filter");
    const std::int64_t label = LabelOf(row), classes = options_.classes > 0 ? options_.classes : kClassesMax;
    if (label < 0 || label >= classes)
      return Bad("DATA06", fmt::format("its label is {}", label), fmt::format("labels lie in [0, {})", classes),
                 options_.classes > 0 ? "mend the label, or say how many classes there are" : "number the classes from 0 on");
    for (std::int64_t i = 0; i < width; ++i) {
      float feature = 0;
      std::memcpy(&feature, row.data() + sizeof(std::int64_t) + static_cast<std::size_t>(i) * sizeof(float), sizeof feature);
      if (!std::isfinite(feature))
        return Bad("DATA07", fmt::format("its feature {} is {}", i, feature), "what is no number makes every later step none",
                   "mend it where the features are made, or leave such samples out with Filter");
    }
    return {};
  }
  // The master compares contents: a block that was made again is the same block.
  Status Changed() const {
    return Status(Code::kInternal, "DATA09", options_.name + " has other rows than when it was looked at", "its blocks have changed");
  }
  std::int64_t PlaceOf(std::int64_t id) const { return places_[static_cast<std::size_t>(id)]; }
  template <class T>
  void Copy(std::span<const std::int64_t> ids, T* row) const {
    for (std::int64_t id : ids) {
      const float* features = features_.data() + PlaceOf(id) * width_;
      row = std::copy(features, features + width_, row);
    }
  }

  dag::TaskContext& context_;
  StageId stage_;
  RowsOptions options_;
  std::vector<Field> fields_;
  std::int64_t count_ = 0, width_ = 0;
  std::uint64_t hash_ = 0;
  std::vector<std::int64_t> places_;  // by id: which of the rows that are kept it is; -1: it is not kept
  std::vector<std::int32_t> labels_;
  std::vector<float> features_;
};

}  // namespace

std::string EncodeRow(std::int64_t label, std::span<const float> features) {
  std::string row(sizeof label + features.size_bytes(), '\0');
  std::memcpy(row.data(), &label, sizeof label);
  if (!features.empty()) std::memcpy(row.data() + sizeof label, features.data(), features.size_bytes());
  return row;
}

Result<std::unique_ptr<Samples>> SurveyRows(dag::TaskContext& context, StageId stage, RowsOptions options) {
  auto rows = std::make_unique<Rows>(context, stage, std::move(options));
  RETURN_IF_ERROR(rows->Survey());
  return std::unique_ptr<Samples>(std::move(rows));
}

}  // namespace ropewalk::mlrunner
