#include "mlrunner/onnx/operand.h"

#include <cstring>

#include "mlrunner/kernels/elements.h"

namespace ropewalk::mlrunner::onnx {

Operand Operand::Of(const Value& value) {
  Operand operand;
  if (value.valid()) operand.type = value.type();
  operand.value = value;
  return operand;
}
Operand Operand::Of(Known known) {
  Operand operand;
  operand.type = {known.dtype, Shape(known.dims.begin(), known.dims.end())};
  operand.known = std::make_shared<const Known>(std::move(known));
  return operand;
}
Operand Operand::OfWhole(Dtype dtype, std::vector<Dim> elements) {
  const auto count = static_cast<std::int64_t>(elements.size());
  return Of(Known{dtype, {count}, std::move(elements), {}});
}
Operand Operand::Scalar(Dim element) { return Of(Known{Dtype::kI64, {}, {std::move(element)}, {}}); }

std::optional<Known> FromLiteral(const Literal& literal) {
  const std::int64_t count = NumElements(literal.dims);
  if (count > kKnownMax) return std::nullopt;
  Known known{literal.dtype, literal.dims, {}, {}};
  if (literal.dtype == Dtype::kI64) {  // as they are: doubles have 53 bits only, and "to the end" is 2^63 - 1
    for (std::int64_t i = 0; i < count; ++i) {
      std::int64_t value;
      std::memcpy(&value, literal.bytes->data() + i * static_cast<std::int64_t>(sizeof value), sizeof value);
      known.whole.emplace_back(value);
    }
    return known;
  }
  std::vector<double> values(static_cast<std::size_t>(count));
  ToDoubles(literal.dtype, literal.bytes->data(), values);
  if (known.IsReal()) {
    known.real = std::move(values);
  } else {
    for (double value : values) known.whole.emplace_back(static_cast<std::int64_t>(value));
  }
  return known;
}

Literal ToLiteral(const Known& known) {
  if (known.dtype == Dtype::kI64) {
    std::vector<std::int64_t> values;
    for (const Dim& dim : known.whole) values.push_back(dim.Constant().value_or(0));
    return Literal::Of(known.dtype, known.dims, values);
  }
  std::vector<double> values = known.real;
  for (const Dim& dim : known.whole) values.push_back(static_cast<double>(dim.Constant().value_or(0)));
  std::string bytes(values.size() * SizeOf(known.dtype), '\0');
  FromDoubles(known.dtype, values, bytes.data());
  return {known.dtype, known.dims, std::make_shared<const std::string>(std::move(bytes))};
}

std::optional<int> SignOfDifference(const Dim& a, const Dim& b, const std::vector<SymbolInfo>& symbols) {
  const Dim difference = a - b, back = b - a;
  if (auto number = difference.Constant()) return *number > 0 ? 1 : *number < 0 ? -1 : 0;
  if (auto low = difference.LowerBound(symbols); low && *low > 0) return 1;
  if (auto low = back.LowerBound(symbols); low && *low > 0) return -1;
  return std::nullopt;
}

std::int64_t PlaceOf(const Dims& at, const Dims& dims) {
  std::int64_t place = 0;
  for (std::size_t d = 0; d < dims.size(); ++d) place = place * dims[d] + at[d];
  return place;
}

Known Picked(const Known& a, Dims dims, const std::function<std::int64_t(const Dims& at)>& index) {
  Known picked{a.dtype, std::move(dims), {}, {}};
  const std::int64_t count = NumElements(picked.dims);
  Dims at(picked.dims.size());
  for (std::int64_t i = 0; i < count; ++i) {
    const auto from = static_cast<std::size_t>(index(at));
    if (a.IsReal()) {
      picked.real.push_back(a.real.at(from));
    } else {
      picked.whole.push_back(a.whole.at(from));
    }
    for (std::size_t d = at.size(); d-- > 0;) {
      if (++at[d] < picked.dims[d]) break;
      at[d] = 0;
    }
  }
  return picked;
}

}  // namespace ropewalk::mlrunner::onnx
