// Definitions of ops on rows of tables: sums of rows, bags, updates that touch only the rows that they name, and what recommendation models
// make of rows.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "mlrunner/graph/infer.h"
#include "mlrunner/graph/maths.h"
#include "mlrunner/graph/ops.h"

namespace ropewalk::mlrunner {
namespace {

using Gradients = std::vector<Gradient>;
using Values = std::vector<Value>;
Value G(const GradientContext& c) { return c.grads[0].Dense(); }

bool IsVectorOfIndices(const TensorType& type) { return IsIndexType(type.dtype) && type.shape.size() == 1; }
// Whether `rows` are rows of `table`, one for each of `indices`.
bool AreRowsOf(const TensorType& table, const TensorType& indices, const TensorType& rows) {
  if (!IsFloat(table.dtype) || table.shape.empty() || !IsVectorOfIndices(indices)) return false;
  Shape want = table.shape;
  want[0] = indices.shape[0];
  return rows == TensorType{table.dtype, want};
}

// (x, from, to) -> y: y[to[i]] += x[from[i]]. kDim: the rows of y. kExtra: the gradient of x stays rows.
Result<Types> InferSumRows(const InferContext& c) {
  if (!IsFloat(c.in[0].dtype) || c.in[0].shape.empty() || !IsVectorOfIndices(c.in[1]) || !IsVectorOfIndices(c.in[2]) ||
      c.in[1].shape != c.in[2].shape) {
    return Misfit(c, "it takes floating-point rows and two vectors of as many integer indices",
                  "give for each sum which row of the first goes into which row of the result, as i32 or i64");
  }
  Types types{c.in[0]};
  types[0].shape[0] = c.op.attrs.DimOf(Attr::kDim);
  return types;
}
Values SumRowsExpand(Builder&, const Op& op, const Values& in) {
  return {ScatterAdd(in[2], Gather(in[0], in[1]), op.attrs.DimOf(Attr::kDim))};
}
Gradients SumRowsGradient(const GradientContext& c) {
  const Dim rows = c.in[0].shape()[0];
  if (c.op.attrs.Int(Attr::kExtra) != 0) return {IndexedRows{c.in[1], Gather(G(c), c.in[2]), rows}, Gradient(), Gradient()};
  return {SumRows(G(c), c.in[2], c.in[1], rows), Gradient(), Gradient()};
}

// (offsets (B)) -> (n): the bag of each place, where bag b begins at offsets[b]. kDim: n.
Result<Types> InferBagsOf(const InferContext& c) {
  if (!IsVectorOfIndices(c.in[0])) return Misfit(c, "it takes the place where each bag begins", "give a vector of i32 or i64");
  return Types{{c.in[0].dtype, {c.op.attrs.DimOf(Attr::kDim)}}};
}

// (ids (..., F, ...)) -> rows of F tables that lie one after the other. kAxis: of the tables; kStrides: the rows of each.
Result<Types> InferStackedRows(const InferContext& c) {
  if (!IsIndexType(c.in[0].dtype)) return Misfit(c, "it takes integers", "Cast to i32 or i64");
  const int axis = AxisOf(c, c.in[0]);
  if (axis < 0) return NoSuchAxis(c, c.in[0]);
  const std::vector<std::int64_t> sizes = c.op.attrs.Ints(Attr::kStrides);
  if (!c.in[0].shape[axis].Is(static_cast<std::int64_t>(sizes.size()))) {
    return Misfit(c, fmt::format("axis {} does not have the length {}, of one table each", axis, sizes.size()),
                  "give an id for each table, or a size for each id");
  }
  return Types{c.in[0]};
}
Gradients NoGradient(const GradientContext& c) { return Gradients(c.in.size()); }

// (table, indices, rows) -> the table with the rows added to those that are named. It may lie where the table lay: then nothing else moves.
Result<Types> InferAddRows(const InferContext& c) {
  if (!AreRowsOf(c.in[0], c.in[1], c.in[2])) {
    return Misfit(c, "it takes a floating-point table, n integer indices and n rows as the table has them",
                  "give a vector of i32 or i64, and Reshape the rows to (n, ...)");
  }
  return Types{c.in[0]};
}
Values AddRowsExpand(Builder&, const Op&, const Values& in) { return {in[0] + ScatterAdd(in[1], in[2], in[0].shape()[0])}; }
Gradients AddRowsGradient(const GradientContext& c) { return {G(c), Gradient(), Gather(G(c), c.in[1])}; }

// (table, sums of squares, indices, gradient rows, learning rate ()) -> both anew. Of the rows that are named, with equal ones added up
// first (Duchi et al. 2011): s += g^2; p -= rate g / (sqrt(s) + epsilon). For the others g is 0, which changes nothing.
Result<Types> InferAdagradRows(const InferContext& c) {
  if (!AreRowsOf(c.in[0], c.in[2], c.in[3]) || c.in[1] != c.in[0] || c.in[4] != TensorType{c.in[0].dtype, {}}) {
    return Misfit(c, "it takes a floating-point table, another like it, n integer indices, n rows as the tables have them, and a rate ()",
                  "give a vector of i32 or i64, and Reshape the rows to (n, ...); Cast the rate to the table's type");
  }
  return Types{c.in[0], c.in[0]};
}
Values AdagradRowsExpand(Builder&, const Op& op, const Values& in) {
  Value g = ScatterAdd(in[2], in[3], in[0].shape()[0]);
  Value squares = in[1] + g * g;
  return {in[0] - in[4] * g / (Sqrt(squares) + op.attrs.Double(Attr::kEpsilon)), squares};
}

// (x (B, D), rows (B, F, D)) -> (B, D + (F + 1) F / 2): x, then the products of each pair of the F + 1 vectors, x the first of them:
// (1, 0), (2, 0), (2, 1), ... (Naumov et al. 2019)
struct Pairs {
  Dim vectors, width, pairs;
  bool valid = false;
};
Pairs PairsOf(const TensorType& x, const TensorType& rows) {
  Pairs p;
  if (!IsFloat(x.dtype) || rows.dtype != x.dtype || x.shape.size() != 2 || rows.shape.size() != 3) return p;
  const auto count = rows.shape[1].Constant();
  if (x.shape[0] != rows.shape[0] || x.shape[1] != rows.shape[2] || !count) return p;
  return {Dim(*count + 1), x.shape[1], Dim(*count * (*count + 1) / 2), true};
}
Status NoPairs(const InferContext& c) {
  return Misfit(c, "it takes (B, D) and (B, F, D) of one floating-point type, F a number",
                "Reshape the rows to one vector for each table, as wide as the first");
}
Result<Types> InferPairDots(const InferContext& c) {
  const Pairs p = PairsOf(c.in[0], c.in[1]);
  if (!p.valid) return NoPairs(c);
  return Types{{c.in[0].dtype, {c.in[0].shape[0], p.width + p.pairs}}};
}
// The places of the pairs in a row of all products, (F + 1)^2 of them.
Value PairPlaces(Builder& b, std::int64_t vectors) {
  std::vector<std::int32_t> places;
  for (std::int64_t i = 1; i < vectors; ++i) {
    for (std::int64_t j = 0; j < i; ++j) places.push_back(static_cast<std::int32_t>(i * vectors + j));
  }
  return Constant(b, Literal::Of(Dtype::kI32, {static_cast<std::int64_t>(places.size())}, places));
}
Value AllVectors(const Value& x, const Value& rows) { return Concat({Reshape(x, {x.dim(0), 1, x.dim(1)}), rows}, 1); }
Values PairDotsExpand(Builder& b, const Op&, const Values& in) {
  const std::int64_t n = in[1].dim(1).Constant().value_or(0) + 1;
  Value all = AllVectors(in[0], in[1]);
  Value products = Reshape(MatMul(all, all, false, true), {in[0].dim(0), n * n});
  return {Concat({in[0], Transpose(Gather(Transpose(products), PairPlaces(b, n)))}, 1)};
}
Gradients PairDotsGradient(const GradientContext& c) {
  Values grads = c.b.Emit(kPairDotsGrad, {c.in[0], c.in[1], G(c)}, {}, c.op.provenance.where);
  return {grads.begin(), grads.end()};
}
// (x, rows, g) -> dx, drows
Result<Types> InferPairDotsGrad(const InferContext& c) {
  const Pairs p = PairsOf(c.in[0], c.in[1]);
  if (!p.valid) return NoPairs(c);
  if (c.in[2] != TensorType{c.in[0].dtype, {c.in[0].shape[0], p.width + p.pairs}}) {
    return Misfit(c, "the gradient has another shape than what it is of", "let Grad make the op");
  }
  return Types{c.in[0], c.in[1]};
}
Values PairDotsGradExpand(Builder& b, const Op&, const Values& in) {
  const Value &x = in[0], &g = in[2];
  const std::int64_t n = in[1].dim(1).Constant().value_or(0) + 1;
  const Dim width = x.dim(1);
  // Products by both vectors: the gradient of the pairs, put at their places, and that transposed.
  Value of_pairs = Transpose(ScatterAdd(PairPlaces(b, n), Transpose(SliceAxis(g, 1, width, g.dim(1))), n * n));
  Value half = Reshape(of_pairs, {x.dim(0), n, n});
  Value all = MatMul(half + Transpose(half), AllVectors(x, in[1]));
  Value to_x = Reshape(SliceAxis(all, 1, 0, 1), x.shape());
  return {SliceAxis(g, 1, 0, width) + to_x, SliceAxis(all, 1, 1, n)};
}

// (logits, targets in [0, 1]) -> -(t log p + (1 - t) log(1 - p)), p = sigmoid(logits), in a form without large exponentials.
Values BinaryCrossEntropyExpand(Builder&, const Op&, const Values& in) {
  const Value &x = in[0], &t = in[1];
  return {Maximum(x, 0) - x * t + Log(Exp(-Abs(x)) + 1.0)};
}
Gradients BinaryCrossEntropyGradient(const GradientContext& c) {
  Value dx = c.b.EmitOne(kBinaryCrossEntropyGrad, {c.in[0], c.in[1], G(c)}, {}, c.op.provenance.where);
  return {SumTo(dx, c.in[0].shape()), SumTo(-(c.in[0] * G(c)), c.in[1].shape())};
}
Values BinaryCrossEntropyGradExpand(Builder&, const Op&, const Values& in) { return {(Sigmoid(in[0]) - in[1]) * in[2]}; }
Result<Types> InferFloats(const InferContext& c) {
  if (!IsFloat(c.in[0].dtype)) return Misfit(c, "it takes floating-point tensors", "Cast them first");
  return InferBroadcast(c);
}

}  // namespace

const OpDef kSumRows{"SumRows", 3, 1, InferSumRows, SumRowsGradient, SumRowsExpand, {}};
const OpDef kBagsOf{"BagsOf", 1, 1, InferBagsOf, NoGradient, nullptr, {}};
const OpDef kStackedRows{"StackedRows", 1, 1, InferStackedRows, NoGradient, nullptr, {}};
const OpDef kAddRows{"AddRows", 3, 1, InferAddRows, AddRowsGradient, AddRowsExpand, {.updates = 1}};
const OpDef kAdagradRows{"AdagradRows", 5, 2, InferAdagradRows, nullptr, AdagradRowsExpand, {.updates = 2}};
const OpDef kPairDots{"PairDots", 2, 1, InferPairDots, PairDotsGradient, PairDotsExpand, {}};
const OpDef kPairDotsGrad{"PairDotsGrad", 3, 2, InferPairDotsGrad, nullptr, PairDotsGradExpand, {}};
const OpDef kBinaryCrossEntropy{"BinaryCrossEntropy", 2, 1, InferFloats, BinaryCrossEntropyGradient, BinaryCrossEntropyExpand,
                                {.elementwise = true}};
const OpDef kBinaryCrossEntropyGrad{"BinaryCrossEntropyGrad", 3, 1, InferFloats, nullptr, BinaryCrossEntropyGradExpand,
                                    {.elementwise = true}};

}  // namespace ropewalk::mlrunner
