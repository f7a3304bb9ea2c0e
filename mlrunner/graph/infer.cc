#include "mlrunner/graph/infer.h"

#include <algorithm>

#include <fmt/format.h>

#include "mlrunner/graph/maths.h"

namespace ropewalk::mlrunner {

Status Misfit(const InferContext& c, std::string why, std::string fix) {
  std::string what = fmt::format("{} of ", c.op.def->name);
  for (std::size_t i = 0; i < c.in.size(); ++i) {
    what += fmt::format("{}{} {}", i == 0 ? "" : i + 1 == c.in.size() ? " and " : ", ", c.Show(i), Name(c.in[i].dtype));
  }
  return Status(Code::kInvalid, "GRAPH01", std::move(what), std::move(why), std::move(fix));
}

Status NoSuchAxis(const InferContext& c, const TensorType& input) {
  const std::size_t rank = input.shape.size();
  const std::int64_t axis = c.op.attrs.Int(Attr::kAxis);
  if (Axis(axis, rank) >= 0) {
    return Misfit(c, fmt::format("axis {} is counted from the end", axis),
                  fmt::format("an op made with Emit counts from the front: {}", Axis(axis, rank)));
  }
  return Misfit(
      c, fmt::format("there is no axis {} in {} dimensions", axis, rank),
      rank == 0 ? "Reshape the scalar first" : fmt::format("name one of 0 to {}, or count from the end: -1 to -{}", rank - 1, rank));
}

Status NoBroadcast(const InferContext& c) {
  return Misfit(c, "the shapes do not broadcast: from the right, dimensions must be equal or 1",
                "Reshape one, so that a 1 stands where it is to be repeated");
}

Status TypesDiffer(const InferContext& c) { return Misfit(c, "element types differ", "Cast one of them"); }

Status HoldsNoNumbers(const InferContext& c) {
  return Misfit(c, "tokens and handles hold no numbers", "use the value that was read at that version");
}

Result<Types> InferLikeFirst(const InferContext& c) { return Types{c.in.at(0)}; }

Result<Types> InferFloatUnary(const InferContext& c) {
  if (!IsFloat(c.in.at(0).dtype)) return Misfit(c, "it takes a floating-point tensor", "Cast it first");
  return Types{c.in[0]};
}

Result<Types> InferBroadcast(const InferContext& c) {
  TensorType result = c.in.at(0);
  for (const TensorType& in : c.in) {
    if (in.dtype != result.dtype) return TypesDiffer(c);
    auto shape = Broadcast(result.shape, in.shape);
    if (!shape) return NoBroadcast(c);
    result.shape = *std::move(shape);
  }
  if (SizeOf(result.dtype) == 0) return HoldsNoNumbers(c);
  return Types{result};
}

Result<Types> InferCompare(const InferContext& c) {
  ASSIGN_OR_RETURN(Types types, InferBroadcast(c));
  types[0].dtype = Dtype::kBool;
  return types;
}

Result<Types> InferFromAttributes(const InferContext& c) {
  return Types{{static_cast<Dtype>(c.op.attrs.Int(Attr::kDtype)), c.op.attrs.ShapeOf(Attr::kShape)}};
}

Value AsColumn(const Value& rows) {
  Shape shape = rows.shape();
  shape.emplace_back(1);
  return Reshape(rows, shape);
}

int Axis(std::int64_t axis, std::size_t rank) {
  std::int64_t from_front = axis < 0 ? axis + static_cast<std::int64_t>(rank) : axis;
  return from_front < 0 || from_front >= static_cast<std::int64_t>(rank) ? -1 : static_cast<int>(from_front);
}

int AxisOf(const InferContext& c, const TensorType& input) {
  const std::int64_t axis = c.op.attrs.Int(Attr::kAxis);
  return axis < 0 ? -1 : Axis(axis, input.shape.size());
}

std::vector<int> Axes(const Op& op, std::size_t rank) {
  std::vector<int> axes;
  for (std::int64_t axis : op.attrs.Ints(Attr::kAxes)) axes.push_back(Axis(axis, rank));
  if (axes.empty()) {
    for (std::size_t i = 0; i < rank; ++i) axes.push_back(static_cast<int>(i));
  }
  std::sort(axes.begin(), axes.end());
  return axes;
}

ConvWindow ConvWindowOf(const Op& op) {
  ConvWindow window{op.attrs.Ints(Attr::kStrides), op.attrs.Ints(Attr::kPadding)};
  if (op.attrs.Has(Attr::kDilations)) window.dilation = op.attrs.Ints(Attr::kDilations);
  window.groups = op.attrs.Int(Attr::kGroups, 1);
  return window;
}
PoolWindow PoolWindowOf(const Op& op) {
  PoolWindow window{op.attrs.Ints(Attr::kKernel), op.attrs.Ints(Attr::kStrides)};
  if (op.attrs.Has(Attr::kPadding)) window.padding = op.attrs.Ints(Attr::kPadding);
  return window;
}

}  // namespace ropewalk::mlrunner
