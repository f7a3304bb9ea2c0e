#include "mlrunner/kernels/fold.h"

#include <algorithm>

#include "mlrunner/kernels/bound_lengths.h"
#include "mlrunner/types/half.h"
#include "mlrunner/types/saturate.h"

namespace ropewalk::mlrunner {
namespace {

template <class T, class F>
Literal Narrow(Dtype dtype, const RefTensor& tensor, F narrow) {
  std::vector<T> values;
  for (double value : tensor.data) values.push_back(narrow(value));
  return Literal::Of(dtype, tensor.dims, values);
}

template <class T>
RefTensor Widen(const Literal& literal) {
  RefTensor tensor{literal.dims, {}};
  for (std::size_t i = 0; i < literal.bytes->size(); i += sizeof(T)) {
    T value;
    std::memcpy(&value, literal.bytes->data() + i, sizeof value);
    tensor.data.push_back(static_cast<double>(value));
  }
  return tensor;
}

// Of outputs whose sizes are numbers, too: two elements from n on.
bool HasSymbols(const Op& op) {
  for (const auto& [name, attribute] : op.attrs.All()) {
    const auto* shape = std::get_if<Shape>(&attribute);
    if (shape != nullptr && !std::all_of(shape->begin(), shape->end(), [](const Dim& dim) { return dim.IsConstant(); })) return true;
  }
  return false;
}

}  // namespace

Literal ToLiteral(Dtype dtype, const RefTensor& tensor) {
  switch (dtype) {
    case Dtype::kF32:
      return Narrow<float>(dtype, tensor, [](double value) { return static_cast<float>(value); });
    case Dtype::kI32:
      return Narrow<std::int32_t>(dtype, tensor, Saturate<std::int32_t>);
    case Dtype::kI64:
      return Narrow<std::int64_t>(dtype, tensor, Saturate<std::int64_t>);
    case Dtype::kU8:
      return Narrow<std::uint8_t>(dtype, tensor, Saturate<std::uint8_t>);
    case Dtype::kBool:
      return Narrow<std::uint8_t>(dtype, tensor, [](double value) -> std::uint8_t { return value != 0; });
    case Dtype::kF16:
    case Dtype::kBF16:
      return Narrow<std::uint16_t>(dtype, tensor, [&](double value) { return FloatToHalf(dtype, static_cast<float>(value)); });
    default:
      return Narrow<double>(Dtype::kF64, tensor, [](double value) { return value; });
  }
}

RefTensor FromLiteral(const Literal& literal) {
  switch (literal.dtype) {
    case Dtype::kF32:
      return Widen<float>(literal);
    case Dtype::kI32:
      return Widen<std::int32_t>(literal);
    case Dtype::kI64:
      return Widen<std::int64_t>(literal);
    case Dtype::kU8:
    case Dtype::kBool:
      return Widen<std::uint8_t>(literal);
    case Dtype::kF16:
    case Dtype::kBF16: {
      RefTensor tensor = Widen<std::uint16_t>(literal);
      for (double& value : tensor.data) value = HalfToFloat(literal.dtype, static_cast<std::uint16_t>(value));
      return tensor;
    }
    default:
      return Widen<double>(literal);
  }
}

EvaluateOp FoldWith(const RefTable& table) {
  return [&table](const Graph& graph, const Op& op, const std::vector<Literal>& inputs) -> std::vector<Literal> {
    auto kernel = table.find(op.def);
    if (kernel == table.end() || HasSymbols(op)) return {};
    std::vector<RefTensor> in;
    for (const Literal& literal : inputs) in.push_back(FromLiteral(literal));
    Bindings bindings(graph.symbols.size(), 1);  // no symbol occurs: sizes of all outputs are numbers
    for (ValueId out : op.outputs) {
      if (!CheckLengths(graph, out, bindings).ok()) return {};  // the run will say what is wrong
    }
    RunContext run;
    RefCall call{graph, op, bindings, run, {}, {}};
    for (const RefTensor& tensor : in) call.in.push_back(&tensor);
    for (ValueId out : op.outputs) {
      call.out.push_back({Evaluate(graph.value(out).type.shape, bindings), {}});
      call.out.back().data.resize(NumElements(call.out.back().dims));
    }
    if (!kernel->second(call).ok()) return {};  // the run will say what is wrong
    std::vector<Literal> results;
    for (std::size_t i = 0; i < op.outputs.size(); ++i) {
      RefTensor& tensor = call.out[i];
      for (double& value : tensor.data) value = RoundTo(graph.value(op.outputs[i]).type.dtype, value);
      results.push_back(ToLiteral(graph.value(op.outputs[i]).type.dtype, tensor));
    }
    return results;
  };
}

}  // namespace ropewalk::mlrunner
