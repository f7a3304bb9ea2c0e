#include "mlrunner/graph/passes/rewriter.h"

#include <algorithm>

namespace ropewalk::mlrunner {

Rewriter::Rewriter(const Graph& from) : from_(from), map_(from.values.size()) {
  to_.states = from.states;
  to_.regions = from.regions;
  to_.symbols = from.symbols;
  to_.alias_groups = from.alias_groups;
  to_.mesh = from.mesh;
}

OpId Rewriter::Copy(const Op& op) {
  Op copy = op;
  for (ValueId& in : copy.inputs) in = At(in);
  return Put(std::move(copy), op);
}

OpId Rewriter::Put(Op op, const Op& like) {
  std::vector<TensorType> types;
  for (ValueId out : like.outputs) types.push_back(from_.value(out).type);
  OpId id = to_.Add(std::move(op), std::move(types));
  for (std::size_t i = 0; i < like.outputs.size(); ++i) {
    ValueId made = to_.op(id).outputs[i];
    ValueInfo info = from_.value(like.outputs[i]);
    info.producer = id;
    info.output = static_cast<std::uint32_t>(i);
    to_.value(made) = std::move(info);
    Map(like.outputs[i], made);
  }
  return id;
}

Graph Rewriter::Finish() {
  auto mapped = [&](const std::vector<NamedValue>& list) {
    std::vector<NamedValue> result;
    for (const NamedValue& named : list) result.push_back({named.name, At(named.value)});
    return result;
  };
  to_.outputs = mapped(from_.outputs);
  to_.taps = mapped(from_.taps);
  for (ValueId input : from_.inputs) to_.inputs.push_back(At(input));
  for (StateInfo& state : to_.states) {
    if (state.first.valid()) state.first = At(state.first);
    if (state.last.valid()) state.last = At(state.last);
  }
  for (AliasGroup& group : to_.alias_groups) {
    for (ValueId& value : group.values) value = At(value);
    std::erase_if(group.values, [](ValueId v) { return !v.valid(); });
  }
  return std::move(to_);
}

}  // namespace ropewalk::mlrunner
