// Dead code, common subexpressions, constants, small algebra.
#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <tuple>

#include "mlrunner/graph/op_def.h"
#include "mlrunner/graph/ops.h"
#include "mlrunner/graph/passes/pass.h"
#include "mlrunner/graph/passes/rewriter.h"

namespace ropewalk::mlrunner {
namespace {

bool TouchesTokens(const Graph& graph, const Op& op) {
  auto is_token = [&](ValueId v) { return graph.value(v).type.dtype == Dtype::kToken; };
  return std::any_of(op.outputs.begin(), op.outputs.end(), is_token);
}

// Inputs and first versions are the graph's signature.
bool IsSignature(const Op& op) { return op.def->traits.source; }

// What must not be mixed: the stage, or a region that runs once a step (an update, what runs beside the last micro-batch): an op that was
// merged into it would not be there for the other micro-batches.
std::int32_t PlaceOf(const Graph& graph, const Op& op) {
  const RegionInfo& region = graph.region(op.region);
  const bool runs_once = region.kind == RegionKind::kUpdate || region.parameter.valid();
  return runs_once ? -1 - static_cast<std::int32_t>(op.region.value) : region.stage;
}

std::optional<double> ScalarFill(const Graph& graph, ValueId id) {
  const Op& op = graph.op(graph.value(id).producer);
  if (op.def != &kFill || op.half != Half::kWhole) return std::nullopt;
  return op.attrs.Double(Attr::kValue);
}

}  // namespace

Graph RemoveDeadCode(const Graph& graph) {
  std::vector<bool> live(graph.ops.size());
  auto keep = [&](ValueId value) { live[graph.value(value).producer.value] = true; };
  for (ValueId root : graph.Roots()) keep(root);
  for (const AliasGroup& group : graph.alias_groups) {
    for (ValueId value : group.values) keep(value);
  }
  for (std::size_t i = graph.ops.size(); i-- > 0;) {
    if (IsSignature(graph.ops[i])) live[i] = true;
    if (!live[i]) continue;
    for (ValueId in : graph.ops[i].inputs) keep(in);
  }
  Rewriter rewriter(graph);
  for (std::size_t i = 0; i < graph.ops.size(); ++i) {
    if (live[i]) rewriter.Copy(graph.ops[i]);
  }
  return rewriter.Finish();
}

Graph MergeEqual(const Graph& graph) {
  // Of one pipeline stage only, and updates of one parameter only: a merge across them would make one wait for the other.
  using Key = std::tuple<const OpDef*, std::vector<ValueId>, std::uint32_t, std::int32_t, std::uint64_t>;
  std::map<Key, std::vector<OpId>> seen;  // ops of the new graph; attributes are compared after
  Rewriter rewriter(graph);
  for (const Op& op : graph.ops) {
    bool mergeable =
        !IsSignature(op) && !op.def->traits.collective && !TouchesTokens(graph, op) && op.bodies.empty() && op.half == Half::kWhole;
    if (!mergeable) {
      rewriter.Copy(op);
      continue;
    }
    std::vector<ValueId> inputs;
    for (ValueId in : op.inputs) inputs.push_back(rewriter.At(in));
    if (op.def->traits.commutative) std::sort(inputs.begin(), inputs.end());
    Key key{op.def, inputs, op.clone, PlaceOf(graph, op), op.def->traits.random ? op.stable_id : 0};
    auto equal = [&](OpId other) {
      const Op& o = rewriter.graph().op(other);
      return o.attrs == op.attrs && std::equal(op.outputs.begin(), op.outputs.end(), o.outputs.begin(), [&](ValueId a, ValueId b) {
               const ValueInfo &x = graph.value(a), &y = rewriter.graph().value(b);
               return x.type == y.type && x.layout == y.layout && x.sharding == y.sharding && x.logical == y.logical;
             });
    };
    std::vector<OpId>& same = seen[key];
    auto found = std::find_if(same.begin(), same.end(), equal);
    if (found == same.end()) {
      same.push_back(rewriter.Copy(op));
      continue;
    }
    for (std::size_t i = 0; i < op.outputs.size(); ++i) rewriter.Map(op.outputs[i], rewriter.graph().op(*found).outputs[i]);
  }
  return rewriter.Finish();
}

Graph FoldConstants(const Graph& graph, const EvaluateOp& evaluate, std::int64_t bytes_max) {
  std::map<ValueId, Literal> known;
  Rewriter rewriter(graph);
  for (const Op& op : graph.ops) {
    bool foldable = !IsSignature(op) && !op.def->traits.random && !op.def->traits.collective && op.half == Half::kWhole &&
                    op.bodies.empty() && op.def != &kDimSize;
    for (ValueId in : op.inputs) foldable = foldable && known.contains(in);
    for (ValueId out : op.outputs) {
      const TensorType& type = graph.value(out).type;
      auto count = NumElements(type.shape).Constant();
      foldable = foldable && count && SizeOf(type.dtype) > 0 && *count * static_cast<std::int64_t>(SizeOf(type.dtype)) <= bytes_max;
    }
    std::vector<Literal> results;
    if (foldable) {
      std::vector<Literal> inputs;
      for (ValueId in : op.inputs) inputs.push_back(known.at(in));
      results = evaluate(graph, op, inputs);
    }
    // Ops that make a constant from nothing stay as they are: a Fill is smaller than its bytes.
    bool made_from_nothing = op.inputs.empty();
    if (results.size() != op.outputs.size() || made_from_nothing) {
      rewriter.Copy(op);
    } else {
      for (std::size_t i = 0; i < op.outputs.size(); ++i) {
        Op constant = op;
        constant.def = &kConstant;
        constant.inputs.clear();
        constant.attrs = Attributes{{Attr::kLiteral, results[i]}};
        Op like = op;
        like.outputs = {op.outputs[i]};
        rewriter.Put(std::move(constant), like);
      }
    }
    for (std::size_t i = 0; i < results.size(); ++i) known[op.outputs[i]] = results[i];
  }
  return rewriter.Finish();
}

Graph Simplify(const Graph& graph) {
  Rewriter rewriter(graph);
  for (const Op& op : graph.ops) {
    // The value of the new graph that replaces the only output, if there is one.
    std::optional<ValueId> same;
    auto keeps_type = [&](std::size_t i) { return graph.value(op.inputs[i]).type == graph.value(op.outputs[0]).type; };
    if (op.half != Half::kWhole) {
      rewriter.Copy(op);
      continue;
    }
    if (op.def == &kCustomGradient) {
      auto inputs = static_cast<std::size_t>(op.attrs.Int(Attr::kCount));
      for (std::size_t i = 0; i < op.outputs.size(); ++i) rewriter.Map(op.outputs[i], rewriter.At(op.inputs[inputs + i]));
      continue;
    }
    if (op.def == &kIdentity || op.def == &kStopGradient) same = rewriter.At(op.inputs[0]);
    if ((op.def == &kMul || op.def == &kDiv) && keeps_type(0) && ScalarFill(graph, op.inputs[1]) == 1.0) same = rewriter.At(op.inputs[0]);
    if (op.def == &kMul && keeps_type(1) && ScalarFill(graph, op.inputs[0]) == 1.0) same = rewriter.At(op.inputs[1]);
    if (op.def == &kSub && keeps_type(0)) {  // x - (-0) is x + 0
      std::optional<double> number = ScalarFill(graph, op.inputs[1]);
      if (number == 0.0 && !std::signbit(*number)) same = rewriter.At(op.inputs[0]);
    }
    if (op.def == &kNeg) {
      const Op& inner = graph.op(graph.value(op.inputs[0]).producer);
      if (inner.def == &kNeg && inner.half == Half::kWhole && inner.clone == op.clone) same = rewriter.At(inner.inputs[0]);
    }
    if (op.def == &kReshape) {
      const Op& inner = graph.op(graph.value(op.inputs[0]).producer);
      if (keeps_type(0)) {
        same = rewriter.At(op.inputs[0]);
      } else if (inner.def == &kReshape && inner.half == Half::kWhole) {
        if (graph.value(inner.inputs[0]).type == graph.value(op.outputs[0]).type) {
          same = rewriter.At(inner.inputs[0]);
        } else {
          Op direct = op;
          direct.inputs = {rewriter.At(inner.inputs[0])};
          rewriter.Put(std::move(direct), op);
          continue;
        }
      }
    }
    if (same) {
      rewriter.Map(op.outputs[0], *same);
    } else {
      rewriter.Copy(op);
    }
  }
  return rewriter.Finish();
}

}  // namespace ropewalk::mlrunner
