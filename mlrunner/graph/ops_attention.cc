// Definitions of attention. With the weights p = softmax(scale q k' + mask), of which dropout makes w:
//
//   forward    out = w v                                            log_sum = log of the sum of exponentials, of each row
//   backward   p = exp(scale q k' + mask - log_sum)                 dv = w' g
//              ds = p (dropout(g v') - sum(g out)) scale            dq = ds k    dk = ds' q
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "mlrunner/graph/attention.h"
#include "mlrunner/graph/infer.h"
#include "mlrunner/graph/maths.h"
#include "mlrunner/graph/ops.h"

namespace ropewalk::mlrunner {
namespace {

using Gradients = std::vector<Gradient>;
using Values = std::vector<Value>;

bool HasTransposedKeys(const Op& op) { return op.attrs.Int(Attr::kTransposeB) != 0; }

struct AttentionShapes {
  Shape weights, mixed, rows;  // (..., T, S), (..., T, E), (..., T)
};
// Nothing where the three do not fit.
std::optional<AttentionShapes> ShapesOf(const Op& op, const Shape& q, Shape k, const Shape& v) {
  const std::size_t rank = q.size();
  if (rank < 2 || k.size() != rank || v.size() != rank) return std::nullopt;
  if (!HasTransposedKeys(op)) std::swap(k[rank - 1], k[rank - 2]);
  if (k[rank - 1] != q[rank - 1] || k[rank - 2] != v[rank - 2]) return std::nullopt;
  const Shape lead(q.begin(), q.end() - 2);
  if (Shape(k.begin(), k.end() - 2) != lead || Shape(v.begin(), v.end() - 2) != lead) return std::nullopt;
  AttentionShapes shapes{lead, lead, lead};
  for (Shape* shape : {&shapes.weights, &shapes.mixed, &shapes.rows}) shape->push_back(q[rank - 2]);
  shapes.weights.push_back(v[rank - 2]);
  shapes.mixed.push_back(v[rank - 1]);
  return shapes;
}

Result<AttentionShapes> InferShapes(const InferContext& c, std::size_t mask_at) {
  if (c.in.size() < mask_at || c.in.size() > mask_at + 1) {
    return Misfit(c, fmt::format("it takes {} tensors, or {} with a mask", mask_at, mask_at + 1),
                  "give the queries, keys and values first");
  }
  bool fits = IsFloat(c.in[0].dtype);
  for (const TensorType& in : c.in) fits = fits && in.dtype == c.in[0].dtype;
  const auto shapes = ShapesOf(c.op, c.in[0].shape, c.in[1].shape, c.in[2].shape);
  if (!fits || !shapes) {
    return Misfit(c, "it takes queries (..., T, D), keys (..., S, D) and values (..., S, E) of one floating-point type",
                  "make the leading dimensions the same, and Cast all to one type");
  }
  const Shape& weights = shapes->weights;
  if (IsCausal(*c.op.def) && weights[weights.size() - 2] != weights.back()) {
    return Misfit(c, "place t looks at places up to t, of as many", "give as many queries as keys, or a mask");
  }
  if (c.in.size() > mask_at) {
    const Shape& mask = c.in[mask_at].shape;
    const auto broadcast = Broadcast(mask, weights);
    if (mask.empty() || mask.back() != weights.back() || !broadcast || *broadcast != weights) {
      return Misfit(c, fmt::format("the mask is added to {}", ToString(weights, c.symbols)),
                    "give it the last dimension of that, and before it the same lengths or 1");
    }
  }
  return *shapes;
}

Result<Types> InferAttention(const InferContext& c) {
  ASSIGN_OR_RETURN(const AttentionShapes shapes, InferShapes(c, 3));
  return Types{{c.in[0].dtype, shapes.mixed}, {c.in[0].dtype, shapes.rows}};
}
Result<Types> InferAttentionGrad(const InferContext& c) {
  ASSIGN_OR_RETURN(const AttentionShapes shapes, InferShapes(c, 6));
  if (c.in[3].shape != shapes.mixed || c.in[4].shape != shapes.rows || c.in[5].shape != shapes.mixed) {
    return Misfit(c, "beside its inputs it takes what the forward op gives, and a gradient of the first of these", "let Grad make the op");
  }
  return Types{c.in[0], c.in[1], c.in[2]};
}

// scale q k' + mask; `mask` may be null.
Value Scores(Builder& b, const Op& op, const Value& q, const Value& k, const Value* mask) {
  Value scores = MatMul(q, k, false, HasTransposedKeys(op)) * op.attrs.Double(Attr::kValue);
  if (mask != nullptr) scores = scores + *mask;
  if (!IsCausal(*op.def)) return scores;
  const Dim length = scores.dim(-1);
  Value from = Reshape(Iota(b, scores.dtype(), length), {length, 1}), to = Iota(b, scores.dtype(), length);
  return Select(Less(from, to), -1e9, scores);
}

// What dropout multiplies the weights by; not valid() where there is none.
Value Kept(Builder& b, const Op& op, const Value& weights) {
  const double rate = op.attrs.Double(Attr::kLow);
  if (rate == 0) return {};
  Value u = RandomUniform(b, Dtype::kF32, weights.shape());
  if (!u.valid()) return {};
  b.mutable_graph().op(b.graph().value(u.id).producer).stable_id = static_cast<std::uint64_t>(op.attrs.Int(Attr::kKey));
  return Select(Less(u, rate), b.Number(0, weights.dtype()), b.Number(1 / (1 - rate), weights.dtype()));
}
Value Times(const Value& x, const Value& kept) { return kept.valid() ? x * kept : x; }

Values AttentionExpand(Builder& b, const Op& op, const Values& in) {  // (q, k, v[, mask])
  Value scores = Scores(b, op, in[0], in[1], in.size() > 3 ? &in[3] : nullptr), top = ReduceMax(scores, {-1}, true);
  Value log_sum = Log(ReduceSum(Exp(scores - top), {-1}, true)) + top, weights = Exp(scores - log_sum);
  if (!weights.valid()) return Values(2);
  const Shape rows(weights.shape().begin(), weights.shape().end() - 1);
  return {MatMul(Times(weights, Kept(b, op, weights)), in[2]), Reshape(log_sum, rows)};
}

// The weights, what dropout multiplies them by, and the gradient of the scores; of (q, k, v, out, log_sum, g[, mask]).
struct Back {
  Value weights, kept, scores;
};
Back BackOf(Builder& b, const Op& op, const Values& in) {
  Back back;
  back.weights = Exp(Scores(b, op, in[0], in[1], in.size() > 6 ? &in[6] : nullptr) - AsColumn(in[4]));
  if (!back.weights.valid()) return back;
  back.kept = Kept(b, op, back.weights);
  Value by_weights = Times(MatMul(in[5], in[2], false, true), back.kept);
  back.scores = back.weights * (by_weights - ReduceSum(in[5] * in[3], {-1}, true));
  return back;
}
Values AttentionGradExpand(Builder& b, const Op& op, const Values& in) {
  const Back back = BackOf(b, op, in);
  if (!back.scores.valid()) return Values(3);
  Value products = back.scores * op.attrs.Double(Attr::kValue);
  const bool transposed = HasTransposedKeys(op);
  return {MatMul(products, in[1], false, !transposed),
          transposed ? MatMul(products, in[0], true, false) : MatMul(in[0], products, true, false),
          MatMul(Times(back.weights, back.kept), in[5], true, false)};
}

Gradients AttentionGradient(const GradientContext& c) {
  Values in{c.in[0], c.in[1], c.in[2], c.out[0], c.out[1], c.grads[0].Dense()};
  const bool masked = c.in.size() > 3;
  if (masked) in.push_back(c.in[3]);
  Values by = c.b.Emit(IsCausal(*c.op.def) ? kCausalAttentionGrad : kAttentionGrad, in, c.op.attrs, c.op.provenance.where);
  Gradients gradients(by.begin(), by.end());
  // Rarely asked for (a mask that is learnt), and dead code otherwise.
  if (masked) gradients.emplace_back(SumTo(BackOf(c.b, c.op, in).scores, c.in[3].shape()));
  return gradients;
}

}  // namespace

const OpDef kAttention{"Attention", -1, 2, InferAttention, AttentionGradient, AttentionExpand, {}};
const OpDef kCausalAttention{"CausalAttention", -1, 2, InferAttention, AttentionGradient, AttentionExpand, {}};
const OpDef kAttentionGrad{"AttentionGrad", -1, 3, InferAttentionGrad, nullptr, AttentionGradExpand, {}};
const OpDef kCausalAttentionGrad{"CausalAttentionGrad", -1, 3, InferAttentionGrad, nullptr, AttentionGradExpand, {}};

Value Attention(const Value& q, const Value& k, const Value& v, const AttentionOptions& options, Location where) {
  if (!q.valid()) return {};
  Values in{q, k, v};
  if (options.mask.valid()) in.push_back(options.mask);
  return q.builder->Living().Emit(options.causal ? kCausalAttention : kAttention, in,
                                  {{Attr::kValue, options.scale}, {Attr::kTransposeB, std::int64_t{options.transpose_k}}}, where)[0];
}

}  // namespace ropewalk::mlrunner
