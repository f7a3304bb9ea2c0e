#include "mlrunner/onnx/node_context.h"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

#include "base/escape.h"
#include "mlrunner/graph/maths.h"
#include "storage/io_error.h"

namespace ropewalk::mlrunner::onnx {

std::string NodeContext::Title() const {
  const std::string& name = !node.name.empty() ? node.name : node.outputs.empty() ? node.name : node.outputs[0];
  return fmt::format("{}: node {} ({})", storage::QuotedPath(s.path), EscapeForLog(name, 500), EscapeForLog(node.op, 100));
}

void NodeContext::Fail(const char* tag, std::string why, std::string fix) {
  b.Fail(Status(Code::kInvalid, tag, Title(), std::move(why), std::move(fix)));
}
Operands NodeContext::Refuse(std::string why, std::string fix) {
  Fail("ONNX05", std::move(why), std::move(fix));
  return {};
}
Operands NodeContext::NotKnown(const char* what) {
  Fail("ONNX06", fmt::format("{} must be known when the model is imported, and here depend on what a run brings", what),
       "give lengths as numbers (ImportOptions::lengths), or rewrite the layer so that its shapes follow from the shapes of inputs");
  return {};
}

const Operand& NodeContext::At(std::size_t i) {
  if (Has(i)) return *in_[i];
  if (ok()) Refuse(fmt::format("input {} is missing", i), "export the model again");
  return nothing_;
}

bool NodeContext::AllKnown() const {
  return !in_.empty() && std::all_of(in_.begin(), in_.end(), [](const Operand* o) { return o == nullptr || o->known != nullptr; });
}

Value MakeKnown(Builder& b, const Known& known) {
  const Shape shape(known.dims.begin(), known.dims.end());
  const bool numbers = std::all_of(known.whole.begin(), known.whole.end(), [](const Dim& dim) { return dim.IsConstant(); });
  if (!numbers) {
    std::vector<Value> elements;
    for (const Dim& dim : known.whole) elements.push_back(Reshape(DimSize(b, dim, known.dtype), {1}));
    return Reshape(elements.size() == 1 ? elements[0] : Concat(elements, 0), shape);
  }
  const auto first = [&] { return known.IsReal() ? known.real[0] : static_cast<double>(*known.whole[0].Constant()); };
  bool equal = known.Size() > 0 && (known.IsReal() || IsModerate(*known.whole[0].Constant()));
  for (std::size_t i = 1; equal && i < known.Size(); ++i) {
    equal = known.IsReal() ? known.real[i] == known.real[0] : known.whole[i] == known.whole[0];
  }
  if (equal) return Fill(b, first(), known.dtype, shape);
  return Constant(b, ToLiteral(known));
}

Value NodeContext::Make(Operand& operand) {
  if (operand.value.valid() || !ok()) return operand.value;
  if (operand.sequence) {
    Refuse("a list of tensors is used as a tensor", "export the model without sequences");
  } else if (operand.literal) {
    operand.value = Constant(b, *operand.literal);
  } else if (operand.known) {
    operand.value = MakeKnown(b, *operand.known);
  } else if (operand.progression) {
    const Progression& p = *operand.progression;
    operand.value = Iota(b, operand.type.dtype, p.count);
    if (!p.step.Is(1)) operand.value = operand.value * DimSize(b, p.step, operand.type.dtype);
    if (!p.start.Is(0)) operand.value = operand.value + DimSize(b, p.start, operand.type.dtype);
  } else {
    Refuse("an input is a result that the import has not", "this output of the node before is not supported");
  }
  return operand.value;
}
Value NodeContext::Val(std::size_t i) {
  if (!Has(i)) {
    At(i);
    return {};
  }
  return Make(*in_[i]);
}

std::vector<Dim> NodeContext::WholeAt(std::size_t i, const char* what) {
  At(i);
  if (!ok()) return {};
  const Known* known = KnownAt(i);
  if (known == nullptr || known->IsReal()) {
    NotKnown(what);
    return {};
  }
  return known->whole;
}
std::vector<Dim> NodeContext::LengthsAt(std::size_t i, const char* what) {
  std::vector<Dim> lengths = WholeAt(i, what);
  for (const Dim& length : lengths) {
    auto number = length.Constant();
    if (!number || (*number >= 0 && *number <= kLengthMax)) continue;
    Refuse(fmt::format("{} are to be 0 to {}, and one of them is {}", what, kLengthMax, *number),
           "export the model again, with inputs of the shapes that it is for");
    return {};
  }
  return lengths;
}
std::vector<std::int64_t> NodeContext::NumbersAt(std::size_t i, const char* what) {
  std::vector<std::int64_t> numbers;
  for (const Dim& dim : WholeAt(i, what)) {
    auto number = dim.Constant();
    if (!number) {
      NotKnown(what);
      return {};
    }
    numbers.push_back(*number);
  }
  return numbers;
}
double NodeContext::RealAt(std::size_t i, const char* what) {
  At(i);
  const Known* known = KnownAt(i);
  if (!ok()) return 0;
  if (known == nullptr || known->Size() != 1 || (!known->IsReal() && !known->whole[0].IsConstant())) {
    NotKnown(what);
    return 0;
  }
  return known->IsReal() ? known->real[0] : static_cast<double>(*known->whole[0].Constant());
}
std::vector<std::int64_t> NodeContext::Numbers(const char* attribute, std::size_t i) {
  if (node.Has(attribute)) return node.Ints(attribute);
  return Has(i) ? NumbersAt(i, attribute) : std::vector<std::int64_t>();
}

std::int64_t NodeContext::Axis(std::int64_t axis, std::size_t rank) {
  const auto count = static_cast<std::int64_t>(rank);
  if (axis < -count || axis >= count) {
    if (ok())
      Refuse(fmt::format("axis {} is none of {} dimensions", axis, rank),
             "export the model again, with inputs of the shapes that it is for");
    return 0;
  }
  return axis < 0 ? axis + count : axis;
}
std::vector<std::int64_t> NodeContext::Axes(std::vector<std::int64_t> axes, std::size_t rank) {
  for (std::int64_t& axis : axes) axis = Axis(axis, rank);
  return axes;
}

Value PadWith(const Value& x, int axis, const Dim& low, const Dim& high, double number) {
  if (!x.valid() || (low.Is(0) && high.Is(0))) return x;
  if (number == 0) return PadAxis(x, axis, low, high);
  std::vector<Value> parts;
  auto some = [&](const Dim& count) {
    Shape shape = x.shape();
    shape[static_cast<std::size_t>(axis)] = count;
    if (!count.Is(0)) parts.push_back(Fill(*x.builder, number, x.dtype(), shape));
  };
  some(low);
  parts.push_back(x);
  some(high);
  return Concat(parts, axis);
}

Value Permuted(const Value& x, const std::vector<std::int64_t>& order) {
  std::vector<std::int64_t> same(order.size());
  std::iota(same.begin(), same.end(), 0);
  return order == same ? x : Transpose(x, order);
}

}  // namespace ropewalk::mlrunner::onnx
