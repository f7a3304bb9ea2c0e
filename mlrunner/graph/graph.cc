#include "mlrunner/graph/graph.h"

#include <algorithm>
#include <bit>

#include <fmt/format.h>

#include "base/hash.h"
#include "mlrunner/graph/op_def.h"

namespace ropewalk::mlrunner {

std::string_view Name(Attr attr) {
  constexpr std::string_view kNames[] = {"name",        "shape",   "value",    "literal", "axes",      "axis",  "keep_dims",
                                         "permutation", "begin",   "end",      "step",    "low",       "high",  "transpose_a",
                                         "transpose_b", "strides", "padding",  "kernel",  "groups",    "dtype", "dim",
                                         "sample_dim",  "count",   "captures", "bound",   "stacked",   "group", "peer",
                                         "reduce",      "epsilon", "key",      "extra",   "dilations", "relu"};
  return kNames[static_cast<std::size_t>(attr)];
}

std::string_view Name(StateKind kind) {
  constexpr std::string_view kNames[] = {"parameter", "optimizer", "accumulator", "statistic", "scalar", "channel"};
  return kNames[static_cast<std::size_t>(kind)];
}

std::string_view Name(RegionKind kind) {
  constexpr std::string_view kNames[] = {"forward", "backward", "update"};
  return kNames[static_cast<std::size_t>(kind)];
}

bool operator==(const Attributes& a, const Attributes& b) {
  return std::equal(a.values_.begin(), a.values_.end(), b.values_.begin(), b.values_.end(), [](const auto& x, const auto& y) {
    const auto *p = std::get_if<double>(&x.second), *q = std::get_if<double>(&y.second);
    if (p == nullptr || q == nullptr) return x == y;
    return x.first == y.first && std::bit_cast<std::uint64_t>(*p) == std::bit_cast<std::uint64_t>(*q);
  });
}

OpId Graph::Add(Op op, std::vector<TensorType> types) {
  OpId id{static_cast<std::uint32_t>(ops.size())};
  op.outputs.clear();
  for (TensorType& type : types) {
    op.outputs.push_back({static_cast<std::uint32_t>(values.size())});
    ValueInfo info;
    info.logical = type.shape;
    info.type = std::move(type);
    info.producer = id;
    info.output = static_cast<std::uint32_t>(op.outputs.size() - 1);
    values.push_back(std::move(info));
  }
  // A new version belongs to the state of the version that went in.
  std::vector<StateId> states_in;
  for (ValueId in : op.inputs) {
    if (value(in).type.dtype == Dtype::kToken) states_in.push_back(value(in).state);
  }
  std::size_t token = 0;
  for (ValueId out : op.outputs) {
    if (value(out).type.dtype == Dtype::kToken && token < states_in.size()) value(out).state = states_in[token++];
  }
  ops.push_back(std::move(op));
  return id;
}

RegionId Graph::RegionOf(RegionKind kind, std::int32_t stage, StateId parameter) {
  for (std::uint32_t i = 0; i < regions.size(); ++i) {
    if (regions[i].kind == kind && regions[i].stage == stage && regions[i].parameter == parameter) return {i};
  }
  regions.push_back({kind, stage, parameter});
  return {static_cast<std::uint32_t>(regions.size() - 1)};
}

std::vector<std::vector<OpId>> Graph::Users() const {
  std::vector<std::vector<OpId>> users(values.size());
  for (std::uint32_t i = 0; i < ops.size(); ++i) {
    for (ValueId in : ops[i].inputs) {
      std::vector<OpId>& of = users[in.value];
      if (of.empty() || of.back() != OpId{i}) of.push_back({i});
    }
  }
  return users;
}

std::string Graph::Describe(ValueId id) const {
  const ValueInfo& info = value(id);
  std::string_view op = info.producer.valid() ? ops[info.producer.value].def->name : "?";
  if (info.type.dtype == Dtype::kToken) {
    return fmt::format("%{} version of {}", id.value, info.state.valid() ? state(info.state).name : "?");
  }
  return fmt::format("%{} {} {} {}", id.value, info.name.empty() ? op : info.name, ToString(info.type.shape, symbols),
                     Name(info.type.dtype));
}

std::vector<ValueId> Graph::Roots() const {
  std::vector<ValueId> roots;
  for (const NamedValue& output : outputs) roots.push_back(output.value);
  for (const NamedValue& tap : taps) roots.push_back(tap.value);
  for (const StateInfo& state : states) {
    if (state.last.valid()) roots.push_back(state.last);
  }
  return roots;
}

namespace {

Status Illegal(const char* tag, std::string what, std::string why) {
  return Status(Code::kInternal, tag, std::move(what), std::move(why), "this is a bug of the pass that made the graph");
}

Status CheckOp(const Graph& graph, std::uint32_t i) {
  const Op& op = graph.ops[i];
  std::string name = fmt::format("op {} {}", i, op.def->name);
  InferContext context{op, {}, graph.symbols};
  for (ValueId in : op.inputs) {
    if (in.value >= graph.values.size()) return Illegal("GRAPH10", name, fmt::format("its input %{} does not exist", in.value));
    const ValueInfo& info = graph.value(in);
    if (info.producer.value >= i) return Illegal("GRAPH11", name, fmt::format("its input {} is made later", graph.Describe(in)));
    context.in.push_back(info.type);
  }
  if (op.region.value >= graph.regions.size()) return Illegal("GRAPH12", name, "it lies in no region");
  for (std::uint32_t out = 0; out < op.outputs.size(); ++out) {
    const ValueInfo& info = graph.value(op.outputs[out]);
    if (info.producer != OpId{i} || info.output != out) return Illegal("GRAPH13", name, "an output names another op as its maker");
    if (info.type.dtype == Dtype::kToken && !info.state.valid()) return Illegal("GRAPH14", name, "a token of no state");
    for (std::uint8_t position : info.layout.order) {
      if (position >= info.type.shape.size()) return Illegal("GRAPH15", name, "a layout of more dimensions than the value has");
    }
  }
  for (const auto& body : op.bodies) {
    if (Status status = Check(*body); !status.ok()) return status.WithContext(name);
  }
  if (op.half == Half::kDone) {
    if (op.inputs.size() != 1 || context.in[0].dtype != Dtype::kHandle) return Illegal("GRAPH16", name, "a done half takes one handle");
    return {};
  }
  auto types = op.def->infer(context);
  if (!types.ok()) return types.status().WithContext(name);
  if (op.half == Half::kStart) {
    if (op.outputs.empty() || graph.value(op.outputs[0]).type.dtype != Dtype::kHandle) {
      return Illegal("GRAPH16", name, "a start half gives a handle");
    }
    return {};
  }
  if (types->size() != op.outputs.size()) return Illegal("GRAPH17", name, "the number of its outputs is not what its definition infers");
  for (std::size_t out = 0; out < types->size(); ++out) {
    if (graph.value(op.outputs[out]).type != (*types)[out]) {
      return Illegal("GRAPH17", name,
                     fmt::format("output {} is {} where its definition infers {} {}", out, graph.Describe(op.outputs[out]),
                                 ToString((*types)[out].shape, graph.symbols), Name((*types)[out].dtype)));
    }
  }
  return {};
}

}  // namespace

Status Check(const Graph& graph) {
  for (std::uint32_t i = 0; i < graph.ops.size(); ++i) RETURN_IF_ERROR(CheckOp(graph, i));
  // Each version is replaced once: two ops that both write over version 3 would be two histories.
  std::vector<OpId> replaced(graph.values.size());
  for (std::uint32_t i = 0; i < graph.ops.size(); ++i) {
    bool writes = std::any_of(graph.ops[i].outputs.begin(), graph.ops[i].outputs.end(),
                              [&](ValueId v) { return graph.value(v).type.dtype == Dtype::kToken; });
    if (!writes) continue;
    for (ValueId in : graph.ops[i].inputs) {
      if (graph.value(in).type.dtype != Dtype::kToken) continue;
      if (replaced[in.value].valid()) {
        return Illegal("GRAPH18", fmt::format("op {} {}", i, graph.ops[i].def->name),
                       fmt::format("it writes over {}, as op {} does already", graph.Describe(in), replaced[in.value].value));
      }
      replaced[in.value] = {i};
    }
  }
  for (ValueId root : graph.Roots()) {
    if (root.value >= graph.values.size()) return Illegal("GRAPH19", "the graph", "an output, tap or last version does not exist");
  }
  for (const StateInfo& state : graph.states) {
    if (!state.last.valid()) continue;
    if (graph.value(state.last).type.dtype != Dtype::kToken || replaced[state.last.value].valid()) {
      return Illegal("GRAPH19", "state " + state.name, "its last version is not the last");
    }
  }
  return {};
}

namespace {

std::uint64_t HashText(std::string_view text) { return Checksum64(text); }

std::uint64_t HashShape(const Shape& shape, const std::vector<SymbolInfo>& symbols) { return HashText(ToString(shape, symbols)); }

std::uint64_t HashAttr(const AttrValue& value, const std::vector<SymbolInfo>& symbols) {
  struct Visitor {
    const std::vector<SymbolInfo>& symbols;
    std::uint64_t operator()(std::int64_t v) const { return Mix64(static_cast<std::uint64_t>(v) + 1); }
    std::uint64_t operator()(double v) const { return HashText({reinterpret_cast<const char*>(&v), sizeof v}); }
    std::uint64_t operator()(const std::string& v) const { return HashText(v); }
    std::uint64_t operator()(const std::vector<std::int64_t>& v) const {
      return HashText({reinterpret_cast<const char*>(v.data()), v.size() * sizeof(std::int64_t)});
    }
    std::uint64_t operator()(const Shape& v) const { return HashShape(v, symbols); }
    std::uint64_t operator()(const Literal& v) const {
      return HashCombine(HashText(ToString(v.dims)), HashCombine(static_cast<std::uint64_t>(v.dtype), HashText(*v.bytes)));
    }
  };
  return std::visit(Visitor{symbols}, value);
}

}  // namespace

std::uint64_t Fingerprint(const Graph& graph) {
  std::uint64_t hash = 0;
  auto add = [&hash](std::uint64_t word) { hash = HashCombine(hash, word); };
  for (const SymbolInfo& symbol : graph.symbols) add(HashText(fmt::format("{} {} {}", symbol.name, symbol.min, symbol.max)));
  for (const StateInfo& state : graph.states) {
    add(HashText(fmt::format("{} {} {} {} {} {}", state.name, Name(state.kind), Name(state.type.dtype), static_cast<int>(state.init.kind),
                             state.init.a, state.init.b)));
    add(HashShape(state.logical, graph.symbols));
  }
  for (const Op& op : graph.ops) {
    add(HashText(op.def->name));
    add(op.stable_id);
    add(op.clone);
    for (ValueId in : op.inputs) add(in.value);
    for (ValueId out : op.outputs) {
      add(static_cast<std::uint64_t>(graph.value(out).type.dtype));
      add(HashShape(graph.value(out).type.shape, graph.symbols));
    }
    for (const auto& [attr, value] : op.attrs.All()) {
      add(static_cast<std::uint64_t>(attr));
      add(HashAttr(value, graph.symbols));
    }
    for (const auto& body : op.bodies) add(Fingerprint(*body));
  }
  for (const NamedValue& output : graph.outputs) add(HashCombine(HashText(output.name), output.value.value));
  return hash;
}

}  // namespace ropewalk::mlrunner
