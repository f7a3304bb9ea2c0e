#include "mlrunner/kernels/attention.h"

#include "mlrunner/graph/attention.h"
#include "mlrunner/kernels/philox.h"

namespace ropewalk::mlrunner {

AttentionForm AttentionFormOf(const Op& op, const Dims& q, const Dims& v, const Dims* mask) {
  const std::size_t rank = q.size();
  AttentionForm form;
  form.places = q[rank - 2];
  form.width = q[rank - 1];
  form.keys = v[rank - 2];
  form.out_width = v[rank - 1];
  form.transposed_keys = op.attrs.Int(Attr::kTransposeB) != 0;
  form.causal = IsCausal(*op.def);
  form.scale = op.attrs.Double(Attr::kValue);
  form.rate = op.attrs.Double(Attr::kLow);
  form.draws = static_cast<std::uint64_t>(op.attrs.Int(Attr::kKey));
  for (std::size_t d = 0; d + 2 < rank; ++d) {
    form.heads *= q[d];
    if (d > 0) form.heads_of_a_sample *= q[d];
  }
  if (mask == nullptr) return form;
  // From the last dimension: S, then T or 1, then those of the heads or 1.
  std::vector<std::int64_t> strides(rank);
  std::int64_t stride = 1;
  for (std::size_t i = 0; i < mask->size(); ++i) {
    const std::int64_t length = (*mask)[mask->size() - 1 - i];
    strides[rank - 1 - i] = length == 1 ? 0 : stride;
    stride *= length;
  }
  form.mask_row = strides[rank - 2];
  for (std::int64_t head = 0; head < form.heads; ++head) {
    std::int64_t at = 0, rest = head;
    for (std::size_t d = rank - 2; d-- > 0; rest /= q[d]) at += rest % q[d] * strides[d];
    form.mask_of_head.push_back(at);
  }
  return form;
}

AttentionForm::Draws AttentionForm::DrawsOf(const RunContext& run, std::int64_t head, std::int64_t place) const {
  const std::int64_t row = head % heads_of_a_sample * places + place;
  return {RandomKey(run.seed, run.step, draws, 0), static_cast<std::uint64_t>(head / heads_of_a_sample + run.sample_offset),
          static_cast<std::uint64_t>(row * keys)};
}

}  // namespace ropewalk::mlrunner
