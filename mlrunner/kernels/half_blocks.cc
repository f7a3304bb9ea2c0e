#include "mlrunner/kernels/half_blocks.h"

namespace ropewalk::mlrunner {
namespace {

ROPEWALK_CLONES void WidenBF16(const std::uint16_t* __restrict in, float* __restrict out, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) out[i] = __builtin_bit_cast(float, static_cast<std::uint32_t>(in[i]) << 16);
}
ROPEWALK_CLONES void WidenF16(const std::uint16_t* __restrict in, float* __restrict out, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) out[i] = FloatOfF16(in[i]);
}
ROPEWALK_CLONES void NarrowToBF16(const float* __restrict in, std::uint16_t* __restrict out, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) out[i] = static_cast<std::uint16_t>(RoundedToBF16(in[i]) >> 16);
}
ROPEWALK_CLONES void NarrowToF16(const float* __restrict in, std::uint16_t* __restrict out, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) out[i] = static_cast<std::uint16_t>(BitsOfF16(in[i]));
}

}  // namespace

void WidenHalves(Dtype dtype, const std::uint16_t* in, float* out, std::int64_t n) {
  dtype == Dtype::kBF16 ? WidenBF16(in, out, n) : WidenF16(in, out, n);
}
void NarrowToHalves(Dtype dtype, const float* in, std::uint16_t* out, std::int64_t n) {
  dtype == Dtype::kBF16 ? NarrowToBF16(in, out, n) : NarrowToF16(in, out, n);
}

}  // namespace ropewalk::mlrunner
