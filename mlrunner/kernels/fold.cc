#include "mlrunner/kernels/fold.h"

#include <algorithm>

#include "mlrunner/kernels/bound_lengths.h"
#include "mlrunner/kernels/elements.h"

namespace ropewalk::mlrunner {
namespace {

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
  std::string bytes(tensor.data.size() * SizeOf(dtype), '\0');
  FromDoubles(dtype, tensor.data, bytes.data());
  return {dtype, tensor.dims, std::make_shared<const std::string>(std::move(bytes))};
}

RefTensor FromLiteral(const Literal& literal) {
  RefTensor tensor{literal.dims, std::vector<double>(literal.bytes->empty() ? 0 : literal.bytes->size() / SizeOf(literal.dtype))};
  ToDoubles(literal.dtype, literal.bytes->data(), tensor.data);
  return tensor;
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
