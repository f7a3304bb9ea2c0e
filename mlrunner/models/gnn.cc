#include "mlrunner/models/gnn.h"

#include <functional>

#include "mlrunner/graph/maths.h"

namespace ropewalk::mlrunner {
namespace {

// (nodes, 1): the edges to each node. No function of what is trained.
Value CountEdges(const Value& x, const Edges& edges, const Dim& nodes) {
  Builder& b = *x.builder;
  return ScatterAdd(edges.to, Fill(b, 1, x.dtype(), {edges.to.dim(0), 1}), nodes);
}
Parameter Weights(Layers& m, const std::string& name, const Value& x, std::int64_t out) {
  return m.New(name, {x.dim(-1), out}, XavierUniform(x.dim(-1), out));
}

using Layer = std::function<Value(Layers& m, const std::string& name, const Value& x, std::int64_t out)>;
Model Stack(Builder& b, const GnnShape& s, Value x, const Layer& layer) {
  Layers m(b);
  for (std::size_t k = 0; k <= s.hidden.size(); ++k) {
    auto module = b.Module("layer" + std::to_string(k), static_cast<std::int32_t>(k));
    if (s.dropout > 0) x = Dropout(x, s.dropout);
    const bool is_last = k == s.hidden.size();
    x = layer(m, "sum", x, is_last ? s.classes : s.hidden[k]);
    if (!is_last) x = Relu(x);
  }
  return {x, m.parameters()};
}

}  // namespace

Value GcnLayer(Layers& m, const std::string& name, const Value& x, const Edges& edges, std::int64_t out) {
  if (!x.valid()) return {};
  const Dim nodes = x.dim(0);
  Value scale = Rsqrt(CountEdges(x, edges, nodes) + 1.0);
  Value h = MatMul(x, Weights(m, name + "/w", x, out)) * scale;
  return (SumRows(h, edges.from, edges.to, nodes) + h) * scale + m.New(name + "/b", {out}, Initializer::Zeros());
}

Value SageLayer(Layers& m, const std::string& name, const Value& x, const Edges& edges, const Dim& targets, std::int64_t out) {
  if (!x.valid()) return {};
  Value mean = SumRows(x, edges.from, edges.to, targets) / Maximum(CountEdges(x, edges, targets), 1);
  Value self = SliceAxis(x, 0, 0, targets);
  Value own = MatMul(self, Weights(m, name + "/w_self", x, out)), others = MatMul(mean, Weights(m, name + "/w_neighbours", x, out));
  return own + others + m.New(name + "/b", {out}, Initializer::Zeros());
}

Model Gcn(Builder& b, const GnnShape& shape, const Value& features, const Edges& edges) {
  return Stack(b, shape, features,
               [&](Layers& m, const std::string& name, const Value& x, std::int64_t out) { return GcnLayer(m, name, x, edges, out); });
}

Model Sage(Builder& b, const GnnShape& shape, const Value& features, const Edges& edges) {
  return Stack(b, shape, features, [&](Layers& m, const std::string& name, const Value& x, std::int64_t out) {
    return SageLayer(m, name, x, edges, x.dim(0), out);
  });
}

}  // namespace ropewalk::mlrunner
