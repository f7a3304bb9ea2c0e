// Fused ops to primitive ones, and graphs to other element types.
#include <fmt/format.h>

#include "base/hash.h"
#include "mlrunner/graph/builder.h"
#include "mlrunner/graph/ops.h"
#include "mlrunner/graph/passes/pass.h"
#include "mlrunner/graph/passes/rewriter.h"

namespace ropewalk::mlrunner {

Result<Graph> Expand(const Graph& graph, const std::set<std::string>& only) {
  Rewriter rewriter(graph);
  for (const Op& op : graph.ops) {
    bool wanted = op.def->expand != nullptr && op.half == Half::kWhole && (only.empty() || only.contains(std::string(op.def->name)));
    if (!wanted) {
      rewriter.Copy(op);
      continue;
    }
    // The primitive form is built as a body, and its ops are put here one by one.
    Builder scratch;
    scratch.mutable_graph().symbols = graph.symbols;
    std::vector<TensorType> types;
    for (ValueId in : op.inputs) types.push_back(graph.value(in).type);
    Builder::Body body = scratch.BuildBody(types, [&](Builder& b, const std::vector<Value>& in) { return op.def->expand(b, op, in); });
    RETURN_IF_ERROR(scratch.status());
    std::vector<ValueId> map(body.graph->values.size());
    for (std::size_t i = 0; i < op.inputs.size(); ++i) map[body.graph->inputs[i].value] = rewriter.At(op.inputs[i]);
    for (const Op& part : body.graph->ops) {
      if (part.def == &kInput) continue;
      Op copy = part;
      for (ValueId& in : copy.inputs) in = map[in.value];
      copy.region = op.region;
      copy.clone = op.clone;
      copy.provenance = op.provenance;
      // An op that draws another op's numbers says so, and its primitive form names that one.
      const bool draws_for_other = part.def->traits.random && op.attrs.Has(Attr::kKey);
      if (!draws_for_other) copy.stable_id = HashCombine(op.stable_id, part.stable_id);
      std::vector<TensorType> outputs;
      for (ValueId out : part.outputs) outputs.push_back(body.graph->value(out).type);
      OpId id = rewriter.Add(std::move(copy), std::move(outputs));
      for (std::size_t i = 0; i < part.outputs.size(); ++i) map[part.outputs[i].value] = rewriter.graph().op(id).outputs[i];
    }
    for (std::size_t i = 0; i < op.outputs.size(); ++i) rewriter.Map(op.outputs[i], map[body.graph->outputs.at(i).value.value]);
  }
  return rewriter.Finish();
}

Result<Graph> ChangeFloats(const Graph& graph, Dtype from, Dtype to) {
  Graph changed = graph;
  for (ValueInfo& value : changed.values) {
    if (value.type.dtype == from) value.type.dtype = to;
  }
  for (StateInfo& state : changed.states) {
    if (state.type.dtype == from) state.type.dtype = to;
  }
  for (Op& op : changed.ops) {
    if (op.attrs.Has(Attr::kDtype) && op.attrs.Int(Attr::kDtype) == static_cast<std::int64_t>(from)) {
      op.attrs.Set(Attr::kDtype, static_cast<std::int64_t>(to));
    }
    if (const Literal* literal = op.attrs.LiteralOf(Attr::kLiteral); literal != nullptr && literal->dtype == from) {
      if (from != Dtype::kF32 || to != Dtype::kF64) {
        return Status(Code::kInvalid, "GRAPH08", fmt::format("constants of {} do not become {}", Name(from), Name(to)),
                      "only f32 to f64 is built: gradients are checked in it",
                      "make the constant of another type, and Cast it in the graph");
      }
      std::vector<double> wide;
      for (std::size_t i = 0; i < literal->bytes->size(); i += sizeof(float)) {
        float value;
        std::memcpy(&value, literal->bytes->data() + i, sizeof value);
        wide.push_back(value);
      }
      op.attrs.Set(Attr::kLiteral, Literal::Of(Dtype::kF64, literal->dims, wide));
    }
    for (auto& body : op.bodies) {
      ASSIGN_OR_RETURN(Graph inner, ChangeFloats(*body, from, to));
      body = std::make_shared<const Graph>(std::move(inner));
    }
  }
  return changed;
}

}  // namespace ropewalk::mlrunner
