// References of ops that send rows to experts.
#include "mlrunner/graph/ops.h"
#include "mlrunner/kernels/reference.h"
#include "mlrunner/kernels/routing.h"

namespace ropewalk::mlrunner {
namespace {

Status TopK(RefCall& c) {
  const std::int64_t n = c.in[0]->dims.back(), count = c.out[0].dims.back();
  std::vector<std::int64_t> places(static_cast<std::size_t>(count));
  for (std::size_t row = 0; row * static_cast<std::size_t>(count) < c.out[0].data.size(); ++row) {
    const double* x = &c.in[0]->data[row * static_cast<std::size_t>(n)];
    LargestPlaces(x, n, count, places.data());
    for (std::size_t k = 0; k < places.size(); ++k) {
      c.out[0].data[row * places.size() + k] = x[places[k]];
      c.out[1].data[row * places.size() + k] = static_cast<double>(places[k]);
    }
  }
  return {};
}
Status TopKGrad(RefCall& c) {
  const std::int64_t n = c.out[0].dims.back(), count = c.in[0]->dims.back();
  for (std::size_t i = 0; i < c.in[0]->data.size(); ++i) {
    const auto place = static_cast<std::int64_t>(c.in[0]->data[i]);
    if (place < 0 || place >= n) return NoSuchRow("place", static_cast<std::int64_t>(i), place, n);
    c.out[0].data[static_cast<std::int64_t>(i) / count * n + place] += c.in[1]->data[i];
  }
  return {};
}
Status ExpertSlots(RefCall& c) {
  std::vector<std::int64_t> experts(c.in[0]->data.begin(), c.in[0]->data.end()), slots(experts.size());
  RETURN_IF_ERROR(FindSlots(experts.data(), c.in[0]->dims, c.op.attrs.Int(Attr::kCount), c.op.attrs.DimOf(Attr::kDim).Evaluate(c.bindings),
                            slots.data()));
  c.out[0].data.assign(slots.begin(), slots.end());
  return {};
}

}  // namespace

void AddRoutingReferences(RefTable& table) {
  table[&kTopK] = TopK;
  table[&kTopKGrad] = TopKGrad;
  table[&kExpertSlots] = ExpertSlots;
}

}  // namespace ropewalk::mlrunner
