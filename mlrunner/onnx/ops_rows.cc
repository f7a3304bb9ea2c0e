// Ops that pick elements by number, put them back, and go along axes.
#include <algorithm>
#include <limits>
#include <numeric>

#include <fmt/format.h>

#include "mlrunner/graph/maths.h"
#include "mlrunner/onnx/ops.h"

namespace ropewalk::mlrunner::onnx {
namespace {

// The order of axes that brings `axis` to the front or to the end, and the one that brings it back.
struct Orders {
  std::vector<std::int64_t> there, back;
};
Orders Moved(std::size_t rank, std::int64_t axis, bool to_front) {
  Orders orders{std::vector<std::int64_t>(rank), std::vector<std::int64_t>(rank)};
  std::iota(orders.there.begin(), orders.there.end(), 0);
  orders.there.erase(orders.there.begin() + axis);
  orders.there.insert(to_front ? orders.there.begin() : orders.there.end(), axis);
  for (std::size_t i = 0; i < rank; ++i) orders.back[static_cast<std::size_t>(orders.there[i])] = static_cast<std::int64_t>(i);
  return orders;
}
// A function along the last axis, along any axis.
Value Along(const Value& x, std::int64_t axis, const std::function<Value(const Value&)>& along_last) {
  if (!x.valid()) return x;
  const Orders orders = Moved(x.rank(), axis, false);
  Value y = along_last(Permuted(x, orders.there));
  return y.valid() && y.rank() == x.rank() ? Permuted(y, orders.back) : y;
}

Operands GatherOp(NodeContext& c) {
  const Operand &a = c.At(0), &which = c.At(1);
  const std::int64_t axis = c.Axis(c.node.Int("axis", 0), a.type.shape.size());
  if (!c.ok()) return {};
  if (!IsIndexType(which.type.dtype)) return c.Refuse(fmt::format("its row numbers are {}", Name(which.type.dtype)), "Cast them to int64");
  const auto at = static_cast<std::size_t>(axis);
  const Dim length = a.type.shape[at];
  const Known* numbers = which.known.get();
  const bool constant =
      numbers != nullptr && std::all_of(numbers->whole.begin(), numbers->whole.end(), [](const Dim& dim) { return dim.IsConstant(); });
  if (a.progression && numbers != nullptr && numbers->dims.empty()) {
    const Progression& p = *a.progression;
    const bool from_end = numbers->whole[0].Constant().value_or(0) < 0;
    return {Operand::Scalar(p.start + p.step * (from_end ? p.count + numbers->whole[0] : numbers->whole[0]))};
  }
  std::optional<Operand> from_front;  // the indices, where they are known
  if (constant && length.IsConstant()) {
    std::vector<std::int64_t> rows;
    for (const Dim& dim : numbers->whole) {
      std::int64_t row = *dim.Constant();
      if (row < -*length.Constant() || row >= *length.Constant()) {
        return c.Refuse(fmt::format("it takes row {} of {}", row, *length.Constant()),
                        "export the model again, with inputs of the shapes that it is for");
      }
      rows.push_back(row < 0 ? row + *length.Constant() : row);
    }
    if (a.known) {
      Dims dims(a.known->dims.begin(), a.known->dims.begin() + axis);
      dims.insert(dims.end(), numbers->dims.begin(), numbers->dims.end());
      dims.insert(dims.end(), a.known->dims.begin() + axis + 1, a.known->dims.end());
      if (NumElements(dims) <= kKnownMax) {
        return {Operand::Of(Picked(*a.known, dims, [&](const Dims& to) {
          Dims from(to.begin(), to.begin() + axis);
          const Dims row(to.begin() + axis, to.begin() + axis + static_cast<std::ptrdiff_t>(numbers->dims.size()));
          from.push_back(rows[static_cast<std::size_t>(PlaceOf(row, numbers->dims))]);
          from.insert(from.end(), to.begin() + axis + static_cast<std::ptrdiff_t>(numbers->dims.size()), to.end());
          return PlaceOf(from, a.known->dims);
        }))};
      }
    }
    if (numbers->dims.empty()) {
      Value x = c.Val(0);
      Shape left = a.type.shape;
      left.erase(left.begin() + axis);
      return {Operand::Of(Reshape(SliceAxis(x, static_cast<int>(axis), rows[0], rows[0] + 1), left))};
    }
    from_front = Operand::Of(Known{Dtype::kI64, numbers->dims, {rows.begin(), rows.end()}, {}});
  }
  Value x = c.Val(0), indices = from_front ? c.Make(*from_front) : c.Val(1);
  if (!x.valid() || !indices.valid()) return {};
  const Orders orders = Moved(x.rank(), axis, true);
  Value picked = Gather(Permuted(x, orders.there), indices);
  if (!picked.valid()) return {};
  // (indices..., axes before, axes behind) -> (axes before, indices..., axes behind)
  std::vector<std::int64_t> order;
  const auto many = static_cast<std::int64_t>(indices.rank());
  for (std::int64_t i = 0; i < axis; ++i) order.push_back(many + i);
  for (std::int64_t i = 0; i < many; ++i) order.push_back(i);
  for (std::int64_t i = axis + many; i < static_cast<std::int64_t>(picked.rank()); ++i) order.push_back(i);
  return {Operand::Of(Permuted(picked, order))};
}

Dim Product(const Shape& shape, std::size_t from, std::size_t to) {
  return NumElements(Shape(shape.begin() + static_cast<std::ptrdiff_t>(from), shape.begin() + static_cast<std::ptrdiff_t>(to)));
}
Value Times(const Value& x, const Dim& factor) { return factor.Is(1) || !x.valid() ? x : x * DimSize(*x.builder, factor, x.dtype()); }

// Numbers of rows of x seen as (rows, rest) from tuples (..., k) of places in its first k axes. `shape` is a copy: that of a value moves
// when the graph gets more of them.
Value RowNumbers(const Value& tuples, Shape shape, std::size_t k) {
  Value number;
  for (std::size_t d = 0; d < k; ++d) {
    Shape flat = tuples.shape();
    flat.pop_back();
    Value part = Times(Reshape(SliceAxis(tuples, -1, static_cast<std::int64_t>(d), static_cast<std::int64_t>(d) + 1), flat),
                       Product(shape, d + 1, k));
    number = number.valid() ? number + part : part;
  }
  return number;
}
Shape RowsOf(const Shape& shape, std::size_t k) {
  Shape rows{Product(shape, 0, k)};
  rows.insert(rows.end(), shape.begin() + static_cast<std::ptrdiff_t>(k), shape.end());
  return rows;
}

Operands GatherNd(NodeContext& c) {
  if (c.node.Int("batch_dims", 0) != 0) return c.Refuse("batch_dims is not 0", "index with all axes");
  Value x = c.Val(0), tuples = c.Val(1);
  if (!x.valid() || !tuples.valid()) return {};
  auto k = tuples.dim(-1).Constant();
  if (tuples.rank() == 0 || !k || *k < 1 || *k > static_cast<std::int64_t>(x.rank()))
    return c.Refuse("its tuples do not fit the axes", "export the model again");
  const auto axes = static_cast<std::size_t>(*k);
  return {Operand::Of(Gather(Reshape(x, RowsOf(x.shape(), axes)), RowNumbers(tuples, x.shape(), axes)))};
}
Operands ScatterNd(NodeContext& c) {
  const std::string reduction = c.node.String("reduction", "none");
  if (reduction != "none" && reduction != "add")
    return c.Refuse("it combines what it writes with what is there by " + reduction, "write over it, or add");
  Value x = c.Val(0), tuples = c.Val(1), updates = c.Val(2);
  if (!x.valid() || !tuples.valid() || !updates.valid()) return {};
  auto k = tuples.dim(-1).Constant();
  if (tuples.rank() == 0 || !k || *k < 1 || *k > static_cast<std::int64_t>(x.rank()) || !IsNumber(x.dtype()))
    return c.Refuse("its tuples do not fit the axes, or it writes flags", "Cast flags, or export the model again");
  const auto axes = static_cast<std::size_t>(*k);
  const Dim count = NumElements(Shape(tuples.shape().begin(), tuples.shape().end() - 1));
  const Shape rows = RowsOf(x.shape(), axes);
  Value numbers = Reshape(RowNumbers(tuples, x.shape(), axes), {count});
  Shape written = rows, one(rows.size(), Dim(1));
  written[0] = count;
  one[0] = count;
  Value put = ScatterAdd(numbers, Reshape(updates, written), rows[0]);
  if (reduction == "add") return {Operand::Of(x + Reshape(put, x.shape()))};
  Value hit = ScatterAdd(numbers, Fill(c.b, 1, Dtype::kF32, one), rows[0]);
  return {Operand::Of(Reshape(Select(Greater(hit, 0), put, Reshape(x, rows)), x.shape()))};
}
Operands GatherElements(NodeContext& c) {
  const Operand &a = c.At(0), &which = c.At(1);
  const auto axis = static_cast<std::size_t>(c.Axis(c.node.Int("axis", 0), a.type.shape.size()));
  if (!c.ok()) return {};
  if (!IsIndexType(which.type.dtype) || which.type.shape.size() != a.type.shape.size()) {
    return c.Refuse(fmt::format("it takes elements of {} at {} {}", c.Show(a.type.shape), Name(which.type.dtype), c.Show(which.type.shape)),
                    "their places are int64, with as many axes");
  }
  if (a.known && which.known &&
      std::all_of(which.known->whole.begin(), which.known->whole.end(), [](const Dim& dim) { return dim.IsConstant(); })) {
    bool inside = true;
    const std::int64_t length = a.known->dims[axis];
    for (const Dim& dim : which.known->whole) inside = inside && *dim.Constant() >= -length && *dim.Constant() < length;
    if (!inside) return c.Refuse("it takes elements that are not there", "export the model again");
    return {Operand::Of(Picked(*a.known, which.known->dims, [&](Dims at) {
      const std::int64_t row = *which.known->whole[static_cast<std::size_t>(PlaceOf(at, which.known->dims))].Constant();
      at[axis] = row < 0 ? row + length : row;
      return PlaceOf(at, a.known->dims);
    }))};
  }
  Value x = c.Val(0), indices = c.Val(1);
  if (!x.valid() || !indices.valid()) return {};
  // The place of each element in x, as one number: of its own place, with the index in `axis`.
  Value place;
  for (std::size_t d = 0; d < x.rank(); ++d) {
    Shape alone(x.rank(), Dim(1));
    alone[d] = indices.shape()[d];
    Value part = d == axis ? Cast(indices, Dtype::kI64) : Reshape(Iota(c.b, Dtype::kI64, indices.shape()[d]), alone);
    part = Times(part, Product(x.shape(), d + 1, x.rank()));
    place = place.valid() ? place + part : part;
  }
  return {Operand::Of(Gather(Reshape(x, {NumElements(x.shape())}), place))};
}

// --- reductions ---

Operands Reduced(NodeContext& c, const std::function<Value(const Value&, std::vector<std::int64_t>, bool)>& reduce) {
  std::vector<std::int64_t> axes = c.Axes(c.Numbers("axes", 1), c.At(0).type.shape.size());
  if (!c.ok()) return {};
  if (axes.empty() && c.node.Int("noop_with_empty_axes", 0) != 0) return {c.At(0)};
  Value x = c.Val(0);
  if (!x.valid()) return {};
  if (x.rank() == 0) return {Operand::Of(x)};
  return {Operand::Of(reduce(x, axes, c.node.Int("keepdims", 1) != 0))};
}
Operands ReduceSumOp(NodeContext& c) {
  return Reduced(c, [](const Value& x, std::vector<std::int64_t> axes, bool keep) { return ReduceSum(x, axes, keep); });
}
Operands ReduceMeanOp(NodeContext& c) {
  return Reduced(c, [](const Value& x, std::vector<std::int64_t> axes, bool keep) { return Mean(x, axes, keep); });
}
Operands ReduceMaxOp(NodeContext& c) {
  return Reduced(c, [](const Value& x, std::vector<std::int64_t> axes, bool keep) { return ReduceMax(x, axes, keep); });
}
Operands ReduceMinOp(NodeContext& c) {
  return Reduced(c, [](const Value& x, std::vector<std::int64_t> axes, bool keep) { return -Arg(ReduceMax(-Arg(x), axes, keep)); });
}
Operands ReduceSquares(NodeContext& c) {
  return Reduced(c, [](const Value& x, std::vector<std::int64_t> axes, bool keep) { return ReduceSum(Square(x), axes, keep); });
}
Operands ReduceL2(NodeContext& c) {
  return Reduced(c, [](const Value& x, std::vector<std::int64_t> axes, bool keep) { return Sqrt(ReduceSum(Square(x), axes, keep)); });
}
Operands ReduceL1(NodeContext& c) {
  return Reduced(c, [](const Value& x, std::vector<std::int64_t> axes, bool keep) { return ReduceSum(Abs(x), axes, keep); });
}
// Of lengths: how many elements a tensor has.
Operands ReduceProd(NodeContext& c) {
  std::vector<std::int64_t> axes = c.Axes(c.Numbers("axes", 1), c.At(0).type.shape.size());
  const Known* a = c.KnownAt(0);
  if (!c.ok()) return {};
  if (a == nullptr || a->IsReal() || a->dims.size() > 1) return c.NotKnown("the factors of a product along an axis");
  Dim product = 1;
  for (const Dim& factor : a->whole) product = product * factor;
  Dims dims = a->dims.empty() || c.node.Int("keepdims", 1) == 0 ? Dims{} : Dims{1};
  return {Operand::Of(Known{a->dtype, dims, {product}, {}})};
}
Operands ArgMaxOp(NodeContext& c) {
  const std::int64_t axis = c.Axis(c.node.Int("axis", 0), c.At(0).type.shape.size());
  if (!c.ok()) return {};
  if (c.node.Int("select_last_index", 0) != 0) return c.Refuse("it gives the last of equals", "take the first (select_last_index = 0)");
  Value x = c.Val(0);
  if (!x.valid()) return {};
  Value found = ArgMax(x, static_cast<int>(axis));
  if (!found.valid() || c.node.Int("keepdims", 1) == 0) return {Operand::Of(found)};
  Shape kept = x.shape();
  kept[static_cast<std::size_t>(axis)] = 1;
  return {Operand::Of(Reshape(found, kept))};
}

Operands TopKOp(NodeContext& c) {
  std::vector<std::int64_t> count = c.NumbersAt(1, "the number of the largest");
  Value x = c.Val(0);
  if (!x.valid() || !c.ok()) return {};
  if (count.size() != 1 || count[0] < 0 || count[0] > std::numeric_limits<int>::max())
    return c.Refuse("it takes one number of the largest, from 0 on", "export the model again");
  if (c.Axis(c.node.Int("axis", -1), x.rank()) + 1 != static_cast<std::int64_t>(x.rank()) || c.node.Int("largest", 1) == 0) {
    return c.Refuse("it takes the smallest, or goes along another axis than the last", "negate, or transpose");
  }
  TopKResult found = TopK(x, static_cast<int>(count[0]));
  return {Operand::Of(found.values), Operand::Of(found.places)};
}

Operands SoftmaxOp(NodeContext& c) {
  const std::int64_t axis = c.Axis(c.node.Int("axis", -1), c.At(0).type.shape.size());
  if (!c.ok()) return {};
  const bool log = c.node.op == "LogSoftmax";
  return {Operand::Of(Along(c.Val(0), axis, [&](const Value& x) { return log ? LogSoftmax(x) : Softmax(x); }))};
}

// Sums of all elements up to each, by a mask over pairs of places: axes that it goes along are short.
Operands CumSum(NodeContext& c) {
  std::vector<std::int64_t> axes = c.NumbersAt(1, "the axis of a running sum");
  if (!c.ok()) return {};
  if (axes.size() != 1) return c.Refuse("it goes along one axis", "export the model again");
  const std::int64_t axis = c.Axis(axes[0], c.At(0).type.shape.size());
  if (!c.ok()) return {};
  const bool exclusive = c.node.Int("exclusive", 0) != 0, reverse = c.node.Int("reverse", 0) != 0;
  return {Operand::Of(Along(c.Val(0), axis, [&](const Value& x) {
    const Dim n = x.dim(-1);
    Value to = Reshape(Iota(c.b, Dtype::kI64, n), {n, 1}), from = Iota(c.b, Dtype::kI64, n);
    Value later = reverse ? Less(from, to) : Greater(from, to);
    if (exclusive) later = Maximum(later, Equal(from, to));
    Shape beside = x.shape();
    beside.insert(beside.end() - 1, Dim(1));
    return ReduceSum(Select(later, c.b.Number(0, x.dtype()), Reshape(x, beside)), {-1});
  }))};
}

Operands OneHotOp(NodeContext& c) {
  std::vector<Dim> depth = c.LengthsAt(1, "the classes of a one-hot");
  const std::int64_t axis = c.node.Int("axis", -1);
  Value indices = c.Val(0), values = c.Val(2);
  if (!indices.valid() || !values.valid()) return {};
  if (depth.size() != 1 || (axis != -1 && axis != static_cast<std::int64_t>(indices.rank())))
    return c.Refuse("classes are to lie along another axis than the last", "use axis = -1, and transpose");
  Value off = Reshape(SliceAxis(values, 0, 0, 1), {}), on = Reshape(SliceAxis(values, 0, 1, 2), {});
  return {Operand::Of(Select(Equal(OneHot(indices, depth[0], Dtype::kF32), 1), on, off))};
}

}  // namespace

void AddRows(Importers* table) {
  table->insert({
      {"ArgMax", ArgMaxOp},
      {"CumSum", CumSum},
      {"Gather", GatherOp},
      {"GatherElements", GatherElements},
      {"GatherND", GatherNd},
      {"LogSoftmax", SoftmaxOp},
      {"OneHot", OneHotOp},
      {"ReduceL1", ReduceL1},
      {"ReduceL2", ReduceL2},
      {"ReduceMax", ReduceMaxOp},
      {"ReduceMean", ReduceMeanOp},
      {"ReduceMin", ReduceMinOp},
      {"ReduceProd", ReduceProd},
      {"ReduceSum", ReduceSumOp},
      {"ReduceSumSquare", ReduceSquares},
      {"ScatterND", ScatterNd},
      {"Softmax", SoftmaxOp},
      {"TopK", TopKOp},
  });
}

}  // namespace ropewalk::mlrunner::onnx
