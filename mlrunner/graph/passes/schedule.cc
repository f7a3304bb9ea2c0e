// Passes that prepare a graph for a strategy: halves of ops, recomputation, layouts.
#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include <fmt/format.h>

#include "mlrunner/graph/op_def.h"
#include "mlrunner/graph/ops.h"
#include "mlrunner/graph/passes/pass.h"
#include "mlrunner/graph/passes/rewriter.h"

namespace ropewalk::mlrunner {

Result<Graph> SplitStartDone(const Graph& graph, OpId which, std::size_t delay) {
  const Op& op = graph.op(which);
  if (op.half != Half::kWhole || op.def->traits.source) {
    return Status(Code::kInvalid, "GRAPH09", fmt::format("op {} {} cannot be split", which.value, op.def->name),
                  op.half != Half::kWhole ? "it is a half already" : "it is a source: there is no work to wait for",
                  "name an op that is whole and does work");
  }
  Rewriter rewriter(graph);
  ValueId handle;
  auto finish = [&]() {
    Op done = op;
    done.half = Half::kDone;
    done.inputs = {handle};
    rewriter.Put(std::move(done), op);
    handle = {};
  };
  std::size_t between = 0;
  for (std::uint32_t i = 0; i < graph.ops.size(); ++i) {
    const Op& next = graph.ops[i];
    if (handle.valid()) {
      bool needs = std::any_of(next.inputs.begin(), next.inputs.end(), [&](ValueId in) { return graph.value(in).producer == which; });
      if (needs || between++ == delay) finish();
    }
    if (i != which.value) {
      rewriter.Copy(next);
      continue;
    }
    Op start = op;
    start.half = Half::kStart;
    for (ValueId& in : start.inputs) in = rewriter.At(in);
    handle = rewriter.graph().op(rewriter.Add(std::move(start), {{Dtype::kHandle, {}}})).outputs[0];
  }
  if (handle.valid()) finish();
  return rewriter.Finish();
}

Graph OverlapCollectives(const Graph& graph) {
  // Places in the new order. What stays has its old place; a bucket, a start half, and what is computed for one member of a bucket alone
  // (the gradient of a parameter, its sum over micro-batches) come right behind the last op that they wait for, a done half right before
  // the first that waits for it.
  struct Place {
    std::uint32_t at = 0;
    int side = 0;  // -1: before that op, 0: it, 1: behind it
    std::uint32_t op = 0;
    Half half = Half::kWhole;
    bool operator<(const Place& other) const { return std::tie(at, side, op) < std::tie(other.at, other.side, other.op); }
  };
  const auto count = static_cast<std::uint32_t>(graph.ops.size());
  auto splits = [](const Op& op) { return op.half == Half::kWhole && op.def->traits.collective; };
  std::vector<std::vector<OpId>> users = graph.Users();
  auto is_of_sum = [&](const Op& op) {
    if (op.def != &kRead && op.def != &kAssign) return false;
    const StateId state = graph.value(op.inputs[0]).state;
    return state.valid() && graph.state(state).kind == StateKind::kAccumulator;
  };
  // For which member of a bucket alone an op is computed, if it is: a gradient, or the state that sums it. All of backward is for some.
  constexpr std::int64_t kNone = -1;
  std::vector<std::int64_t> member(count, kNone);
  for (std::uint32_t i = count; i-- > 0;) {
    const Op& op = graph.ops[i];
    if (is_of_sum(op)) member[i] = std::int64_t{count} + graph.value(op.inputs[0]).state.value;
    // What needs nothing would go to the front, and hold its memory until it is used.
    // What is computed again stays where it is needed: further ahead it would be kept as long as if it had never been left out.
    if (op.inputs.empty() || op.clone != 0 || op.half != Half::kWhole || op.def->traits.source || op.def->traits.collective ||
        op.def == &kBucket || op.def == &kRead || op.def == &kAssign || graph.region(op.region).kind != RegionKind::kBackward)
      continue;
    std::set<std::int64_t> of;
    for (ValueId out : op.outputs)
      for (OpId user : users[out.value]) of.insert(graph.op(user).def == &kBucket ? i : member[user.value]);
    if (of.size() == 1) member[i] = *of.begin();
  }
  auto goes_early = [&](std::uint32_t i) { return graph.ops[i].def == &kBucket || member[i] != kNone; };
  std::vector<std::uint32_t> early(count);  // behind which op the outputs are there
  std::vector<Place> places;
  for (std::uint32_t i = 0; i < count; ++i) {
    const Op& op = graph.ops[i];
    early[i] = i;
    if (op.def->traits.source) {  // there before everything: a channel's first version, wherever the channel was made
      early[i] = 0;
      places.push_back({0, -1, i, op.half});
      continue;
    }
    if (!splits(op) && !goes_early(i)) {
      places.push_back({i, 0, i, op.half});
      continue;
    }
    std::uint32_t ready = 0;
    for (ValueId in : op.inputs) ready = std::max(ready, early[graph.value(in).producer.value]);
    places.push_back({ready, 1, i, splits(op) ? Half::kStart : op.half});
    if (!splits(op)) early[i] = ready;
  }
  std::map<std::uint32_t, std::uint32_t> first_user;  // of what is split
  std::map<std::uint32_t, Place> of;
  for (const Place& place : places) of[place.op] = place;
  for (std::uint32_t i = 0; i < count; ++i) {
    if (!splits(graph.ops[i])) continue;
    Place done{count, 0, i, Half::kDone};
    for (ValueId out : graph.ops[i].outputs) {
      for (OpId user : users[out.value]) {
        Place before{of[user.value].at, of[user.value].side == 0 ? -1 : 1, i, Half::kDone};
        if (before < done) {
          done = before;
          first_user[i] = user.value;
        }
      }
    }
    places.push_back(done);
  }
  std::stable_sort(places.begin(), places.end());

  Rewriter rewriter(graph);
  std::map<std::uint32_t, ValueId> handles;
  for (const Place& place : places) {
    const Op& op = graph.ops[place.op];
    if (!splits(op)) {
      rewriter.Copy(op);
    } else if (place.half == Half::kStart) {
      Op start = op;
      start.half = Half::kStart;
      for (ValueId& in : start.inputs) in = rewriter.At(in);
      handles[place.op] = rewriter.graph().op(rewriter.Add(std::move(start), {{Dtype::kHandle, {}}})).outputs[0];
    } else {
      Op done = op;
      done.half = Half::kDone;
      done.inputs = {handles.at(place.op)};
      // It is waited for where it is needed first: before that, the program may go on with other regions.
      if (auto user = first_user.find(place.op); user != first_user.end()) done.region = graph.ops[user->second].region;
      rewriter.Put(std::move(done), op);
    }
  }
  return rewriter.Finish();
}

Graph Recompute(const Graph& graph, const std::function<bool(const Op&)>& recomputed, std::uint32_t clone) {
  Rewriter rewriter(graph);
  std::map<ValueId, ValueId> clones;  // forward value of `graph` -> its copy in the new graph
  auto cloneable = [&](const Op& op) {
    if (op.half != Half::kWhole || op.def->traits.source || op.def->traits.collective || op.def == &kRead || op.def == &kAssign)
      return false;
    for (ValueId out : op.outputs) {
      if (graph.value(out).type.dtype == Dtype::kToken) return false;  // no state is updated twice
    }
    const RegionInfo& region = graph.region(op.region);
    return region.kind == RegionKind::kForward && !region.parameter.valid() && recomputed(op);
  };
  std::function<ValueId(ValueId, RegionId)> again = [&](ValueId value, RegionId region) -> ValueId {
    const Op& op = graph.op(graph.value(value).producer);
    if (!cloneable(op)) return rewriter.At(value);
    if (auto found = clones.find(value); found != clones.end()) return found->second;
    Op copy = op;
    for (ValueId& in : copy.inputs) in = again(in, region);
    copy.region = region;
    copy.clone = clone;
    copy.provenance.phase = Phase::kRecompute;
    std::vector<TensorType> types;
    for (ValueId out : op.outputs) types.push_back(graph.value(out).type);
    OpId id = rewriter.Add(std::move(copy), std::move(types));
    for (std::size_t i = 0; i < op.outputs.size(); ++i) {
      ValueId made = rewriter.graph().op(id).outputs[i];
      ValueInfo& info = rewriter.graph().value(made);
      info.sharding = graph.value(op.outputs[i]).sharding;
      info.logical = graph.value(op.outputs[i]).logical;
      info.layout = graph.value(op.outputs[i]).layout;
      clones[op.outputs[i]] = made;
    }
    return clones.at(value);
  };
  for (const Op& op : graph.ops) {
    if (graph.region(op.region).kind != RegionKind::kBackward) {
      rewriter.Copy(op);
      continue;
    }
    Op copy = op;
    for (ValueId& in : copy.inputs) in = again(in, op.region);
    rewriter.Put(std::move(copy), op);
  }
  return rewriter.Finish();
}

Graph AssignLayouts(const Graph& graph, const PreferredLayout& preferred) {
  Rewriter rewriter(graph);
  std::map<std::pair<ValueId, std::string>, ValueId> converted;  // (value of the new graph, layout)
  auto as = [&](ValueId value, const Layout& layout, const Op& near) {
    if (rewriter.graph().value(value).layout == layout || SizeOf(rewriter.graph().value(value).type.dtype) == 0) return value;
    ValueId& made = converted[{value, layout.ToString()}];
    if (!made.valid()) {
      Op relayout;
      relayout.def = &kRelayout;
      relayout.inputs = {value};
      relayout.region = near.region;
      relayout.clone = near.clone;
      relayout.provenance = near.provenance;
      ValueInfo info = rewriter.graph().value(value);
      OpId id = rewriter.Add(std::move(relayout), {info.type});
      made = rewriter.graph().op(id).outputs[0];
      ValueInfo& copy = rewriter.graph().value(made);
      copy.logical = info.logical;
      copy.sharding = info.sharding;
      copy.layout = layout;
    }
    return made;
  };
  for (const Op& op : graph.ops) {
    std::vector<Layout> have;
    for (ValueId value : op.inputs) have.push_back(rewriter.graph().value(rewriter.At(value)).layout);
    std::vector<Layout> wish = preferred(graph, op, have);
    std::vector<Layout> in(op.inputs.size()), out(op.outputs.size());
    if (!wish.empty()) {
      for (std::size_t i = 0; i < in.size(); ++i) in[i] = wish.at(i);
      for (std::size_t i = 0; i < out.size(); ++i) out[i] = wish.at(in.size() + i);
    } else if (op.def->traits.elementwise && op.half == Half::kWhole) {
      // Elements are met in memory order, so all tensors of the output's shape must agree; scalars fit everything.
      const Shape& shape = graph.value(op.outputs[0]).type.shape;
      Layout common;
      bool simple = true;
      for (ValueId value : op.inputs) {
        if (graph.value(value).type.shape == shape) {
          if (common.IsRowMajor()) common = rewriter.graph().value(rewriter.At(value)).layout;
        } else {
          simple = simple && graph.value(value).type.shape.empty();
        }
      }
      if (!simple) common = {};
      for (std::size_t i = 0; i < in.size(); ++i) {
        if (graph.value(op.inputs[i]).type.shape == shape) in[i] = common;
      }
      for (Layout& layout : out) layout = common;
    }
    Op copy = op;
    for (std::size_t i = 0; i < in.size(); ++i) copy.inputs[i] = as(rewriter.At(op.inputs[i]), in[i], op);
    OpId id = rewriter.Put(std::move(copy), op);
    for (std::size_t i = 0; i < out.size(); ++i) rewriter.graph().value(rewriter.graph().op(id).outputs[i]).layout = out[i];
  }
  // What is seen from outside is row-major.
  for (const auto* list : {&graph.outputs, &graph.taps}) {
    for (const NamedValue& named : *list) {
      rewriter.Map(named.value, as(rewriter.At(named.value), Layout{}, graph.op(graph.value(named.value).producer)));
    }
  }
  return rewriter.Finish();
}

}  // namespace ropewalk::mlrunner
