#include "mlrunner/train/batch_tensors.h"

#include <algorithm>

namespace ropewalk::mlrunner {

BatchTensors::BatchTensors(Samples& samples, std::int64_t rows, Dtype dtype) : samples_(samples), rows_(rows) {
  auto add = [&](Dtype of, const std::vector<std::int64_t>& dims) {
    Tensor tensor{of, {rows}, {}};
    tensor.dims.insert(tensor.dims.end(), dims.begin(), dims.end());
    tensor.bytes.resize(static_cast<std::size_t>(NumElements(tensor.dims)) * SizeOf(of));
    tensors_.push_back(std::move(tensor));
  };
  for (const Field& field : samples.fields()) add(field.dtype == Dtype::kF32 ? dtype : field.dtype, field.dims);
  add(dtype, {});
}

Status BatchTensors::Fill(std::span<const std::int64_t> ids, std::int64_t epoch, double weight) {
  RETURN_IF_ERROR(samples_.Fetch(ids));
  for (std::size_t field = 0; field + 1 < tensors_.size(); ++field) {
    Tensor& tensor = tensors_[field];
    samples_.Fill({.field = field, .ids = ids, .epoch = epoch, .dtype = tensor.dtype, .rows = tensor.bytes.data()});
    const std::size_t filled = tensor.bytes.size() / static_cast<std::size_t>(rows_) * ids.size();
    std::fill(tensor.bytes.begin() + static_cast<std::ptrdiff_t>(filled), tensor.bytes.end(), std::byte{0});
  }
  Tensor& weights = tensors_.back();
  for (std::int64_t row = 0; row < rows_; ++row) {
    const double value = row < static_cast<std::int64_t>(ids.size()) ? weight : 0;
    if (weights.dtype == Dtype::kF64) {
      reinterpret_cast<double*>(weights.bytes.data())[row] = value;
    } else {
      reinterpret_cast<float*>(weights.bytes.data())[row] = static_cast<float>(value);
    }
  }
  return {};
}

std::vector<const Tensor*> BatchTensors::inputs() const {
  std::vector<const Tensor*> inputs;
  for (const Tensor& tensor : tensors_) inputs.push_back(&tensor);
  return inputs;
}

}  // namespace ropewalk::mlrunner
