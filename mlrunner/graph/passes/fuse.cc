// Chains of elementwise ops become one op that goes over memory once.
#include <algorithm>
#include <map>
#include <set>

#include "mlrunner/graph/op_def.h"
#include "mlrunner/graph/ops.h"
#include "mlrunner/graph/passes/pass.h"
#include "mlrunner/graph/passes/rewriter.h"

namespace ropewalk::mlrunner {
namespace {

bool Fusible(const Op& op) {
  return op.def->traits.elementwise && op.half == Half::kWhole && op.outputs.size() == 1 && op.def != &kMap && op.bodies.empty();
}

// Kernels hold a group's values in blocks that must fit into the nearest cache.
constexpr int kMembersMax = 16;

bool IsScalarFill(const Graph& graph, ValueId value) {
  const Op& op = graph.op(graph.value(value).producer);
  return op.def == &kFill && op.half == Half::kWhole && graph.value(value).type.shape.empty();
}

// root[op]: the last op of the group that it belongs to; itself where it stands alone.
std::vector<std::uint32_t> Groups(const Graph& graph) {
  std::vector<std::vector<OpId>> users = graph.Users();
  std::set<ValueId> visible;
  for (ValueId value : graph.Roots()) visible.insert(value);
  for (const AliasGroup& group : graph.alias_groups) visible.insert(group.values.begin(), group.values.end());
  std::vector<std::uint32_t> root(graph.ops.size());
  std::vector<int> members(graph.ops.size(), 1);
  for (std::uint32_t i = 0; i < root.size(); ++i) root[i] = i;
  for (std::size_t i = graph.ops.size(); i-- > 0;) {
    const Op& op = graph.ops[i];
    if (!Fusible(op) || visible.contains(op.outputs[0]) || users[op.outputs[0].value].empty()) continue;
    std::uint32_t group = root[users[op.outputs[0].value][0].value];
    const Op& last = graph.ops[group];
    bool joins = Fusible(last) && last.region == op.region && last.clone == op.clone &&
                 graph.value(last.outputs[0]).type.shape == graph.value(op.outputs[0]).type.shape &&
                 graph.value(last.outputs[0]).layout == graph.value(op.outputs[0]).layout;
    for (OpId user : users[op.outputs[0].value]) joins = joins && root[user.value] == group;
    if (!joins || members[group] == kMembersMax) continue;
    root[i] = group;
    ++members[group];
  }
  return root;
}

}  // namespace

Graph FuseElementwise(const Graph& graph) {
  std::vector<std::uint32_t> root = Groups(graph);
  std::vector<std::vector<std::uint32_t>> members(graph.ops.size());
  for (std::uint32_t i = 0; i < root.size(); ++i) members[root[i]].push_back(i);

  Rewriter rewriter(graph);
  for (std::uint32_t i = 0; i < graph.ops.size(); ++i) {
    const Op& op = graph.ops[i];
    if (root[i] != i) continue;  // goes into its group
    if (members[i].size() == 1) {
      rewriter.Copy(op);
      continue;
    }
    Graph body;
    body.symbols = graph.symbols;
    body.mesh = graph.mesh;
    RegionId region = body.RegionOf(RegionKind::kForward);
    std::map<ValueId, ValueId> inside;  // value of the graph -> of the body
    std::vector<ValueId> inputs;        // of the new graph
    auto enter = [&](ValueId value) {
      if (inside.contains(value)) return;
      const Op& producer = graph.op(graph.value(value).producer);
      Op copy;
      if (IsScalarFill(graph, value)) {
        copy = producer;
        copy.inputs.clear();
      } else {
        copy.def = &kInput;
        copy.attrs = {{Attr::kShape, graph.value(value).type.shape},
                      {Attr::kDtype, static_cast<std::int64_t>(graph.value(value).type.dtype)}};
        inputs.push_back(rewriter.At(value));
      }
      copy.region = region;
      bool is_input = copy.def == &kInput;
      ValueId made = body.op(body.Add(std::move(copy), {graph.value(value).type})).outputs[0];
      if (is_input) body.inputs.push_back(made);
      inside[value] = made;
    };
    for (std::uint32_t member : members[i]) {
      for (ValueId in : graph.ops[member].inputs) {
        if (root[graph.value(in).producer.value] != i) enter(in);
      }
    }
    for (std::uint32_t member : members[i]) {
      Op copy = graph.ops[member];
      copy.region = region;
      for (ValueId& in : copy.inputs) in = inside.at(in);
      inside[graph.ops[member].outputs[0]] =
          body.op(body.Add(std::move(copy), {graph.value(graph.ops[member].outputs[0]).type})).outputs[0];
    }
    body.outputs.push_back({"out", inside.at(op.outputs[0])});
    Op map = op;
    map.def = &kMap;
    map.attrs = {};
    map.inputs = inputs;
    map.bodies = {std::make_shared<const Graph>(std::move(body))};
    rewriter.Put(std::move(map), op);
  }
  return rewriter.Finish();
}

}  // namespace ropewalk::mlrunner
