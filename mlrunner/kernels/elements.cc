#include "mlrunner/kernels/elements.h"

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "mlrunner/types/half.h"
#include "mlrunner/types/saturate.h"

namespace ropewalk::mlrunner {
namespace {

// Buffers need not be aligned: those of literals and files are not.
template <class T, class F>
void Widen(const void* in, std::span<double> values, F widen) {
  const auto* at = static_cast<const std::byte*>(in);
  for (double& value : values) {
    T element;
    std::memcpy(&element, at, sizeof element);
    value = widen(element);
    at += sizeof element;
  }
}

template <class T, class F>
void Narrow(std::span<const double> values, void* out, F narrow) {
  auto* at = static_cast<std::byte*>(out);
  for (double value : values) {
    const T element = narrow(value);
    std::memcpy(at, &element, sizeof element);
    at += sizeof element;
  }
}

}  // namespace

void ToDoubles(Dtype dtype, const void* in, std::span<double> values) {
  auto as_it_is = [](auto element) { return static_cast<double>(element); };
  switch (dtype) {
    case Dtype::kF32:
      return Widen<float>(in, values, as_it_is);
    case Dtype::kI32:
      return Widen<std::int32_t>(in, values, as_it_is);
    case Dtype::kI64:
      return Widen<std::int64_t>(in, values, as_it_is);
    case Dtype::kU8:
    case Dtype::kBool:
      return Widen<std::uint8_t>(in, values, as_it_is);
    case Dtype::kF16:
    case Dtype::kBF16:
      return Widen<std::uint16_t>(in, values, [&](std::uint16_t element) { return HalfToFloat(dtype, element); });
    default:
      return Widen<double>(in, values, as_it_is);
  }
}

void FromDoubles(Dtype dtype, std::span<const double> values, void* out) {
  switch (dtype) {
    case Dtype::kF32:
      return Narrow<float>(values, out, [](double value) { return static_cast<float>(value); });
    case Dtype::kI32:
      return Narrow<std::int32_t>(values, out, Saturate<std::int32_t>);
    case Dtype::kI64:
      return Narrow<std::int64_t>(values, out, Saturate<std::int64_t>);
    case Dtype::kU8:
      return Narrow<std::uint8_t>(values, out, Saturate<std::uint8_t>);
    case Dtype::kBool:
      return Narrow<std::uint8_t>(values, out, [](double value) -> std::uint8_t { return value != 0; });
    case Dtype::kF16:
    case Dtype::kBF16:
      return Narrow<std::uint16_t>(values, out, [&](double value) { return FloatToHalf(dtype, static_cast<float>(value)); });
    default:
      return Narrow<double>(values, out, [](double value) { return value; });
  }
}

}  // namespace ropewalk::mlrunner
