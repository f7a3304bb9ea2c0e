#include "mlrunner/graph/builder.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/hash.h"
#include "mlrunner/graph/maths.h"
#include "mlrunner/graph/ops.h"

namespace ropewalk::mlrunner {
namespace {

// "train.cc:12: ", where that is known.
std::string Place(Location where) { return where.line > 0 ? fmt::format("{}:{}: ", where.file, where.line) : ""; }

}  // namespace

const TensorType& Value::type() const {
  static const TensorType kNothing;
  return valid() ? builder->graph().value(id).type : kNothing;
}

Value Gradient::Dense() const {
  if (!IsRows()) return dense_;
  return ScatterAdd(sparse_.indices, sparse_.rows, sparse_.num_rows);
}

Builder::Builder() : custom_gradients_(std::make_shared<std::map<std::int64_t, GradientFn>>()) {}

Builder::Builder(Graph graph) : Builder() {
  graph_ = std::move(graph);
  // Names of ops go on counting where the finished graph stopped, so that no stable id is given twice.
  for (const Op& op : graph_.ops) {
    if (op.clone == 0) ++occurrences_[fmt::format("{}|{}|{}", op.provenance.module, Name(op.provenance.phase), op.def->name)];
  }
}

void Builder::Fail(Status status) {
  if (parent_ != nullptr) {
    parent_->Fail(std::move(status));
    status = parent_->failure_;
  }
  if (failure_.ok()) failure_ = std::move(status);
}

Dim Builder::NewSymbol(std::string name, std::int64_t min, std::int64_t max) {
  graph_.symbols.push_back({std::move(name), min, max});
  return Symbol{static_cast<std::uint32_t>(graph_.symbols.size() - 1)};
}

Value Builder::Input(std::string name, Dtype dtype, Shape shape, const char* file, int line) {
  Value value =
      EmitOne(kInput, {}, {{Attr::kName, name}, {Attr::kShape, shape}, {Attr::kDtype, static_cast<std::int64_t>(dtype)}}, {file, line});
  if (!value.valid()) return value;
  graph_.value(value.id).name = std::move(name);
  graph_.inputs.push_back(value.id);
  return value;
}

StateId Builder::NewState(std::string name, StateKind kind, TensorType type, Initializer init, StateId of, ShardingSpec sharding,
                          Location where) {
  for (const StateInfo& state : graph_.states) {
    if (state.name == name) {
      Fail(Status(Code::kInvalid, "GRAPH02", fmt::format("{}two states are called {}", Place(where), name),
                  "checkpoints find states by name", "give one of them another name"));
    }
  }
  Shape logical = type.shape;
  for (std::size_t d = 0; d < sharding.dims.size(); ++d) {
    if (sharding.dims[d] == ShardingSpec::kReplicated) continue;
    auto axis = static_cast<std::size_t>(sharding.dims[d]);
    auto part =
        axis < graph_.mesh.axes.size() && d < logical.size() ? logical[d].DividedBy(Dim(graph_.mesh.axes[axis].size)) : std::nullopt;
    if (part) {
      type.shape[d] = *part;
    } else {
      Fail(Status(Code::kInvalid, "GRAPH07",
                  fmt::format("{}state {} {} cannot be cut as {}", Place(where), name, ToString(logical, graph_.symbols),
                              sharding.ToString(graph_.mesh)),
                  "a length that is cut must divide by the ranks of a mesh axis that there is", "set the graph's mesh first, or pad"));
    }
  }
  StateId id{static_cast<std::uint32_t>(graph_.states.size())};
  graph_.states.push_back({std::move(name), kind, type, std::move(logical), std::move(sharding), init, of, {}, {}});
  ScopeGuard guard = With(Scope{scope_.module, Role::kCompute, Phase::kForward, -1, RegionKind::kForward, 0, {}, 0});
  Value token = EmitOne(kFirstVersion, {}, {{Attr::kKey, static_cast<std::int64_t>(id.value)}});
  if (token.valid()) {
    graph_.value(token.id).state = id;
    graph_.state(id).first = graph_.state(id).last = token.id;
  }
  return id;
}

StateId Builder::NewChannel(std::string name, Location where) {
  return NewState(std::move(name), StateKind::kChannel, {Dtype::kToken, {}}, {}, {}, {}, where);
}

Parameter Builder::NewParameter(std::string name, Shape shape, Initializer init, Dtype dtype, ShardingSpec sharding, Location where) {
  std::string full = scope_.module.empty() ? std::move(name) : scope_.module + "/" + name;
  Parameter parameter;
  parameter.state = NewState(std::move(full), StateKind::kParameter, {dtype, std::move(shape)}, init, {}, std::move(sharding), where);
  static_cast<Value&>(parameter) = Read(parameter.state, where);
  return parameter;
}

Value Builder::Token(StateId state, Location where) {
  if (parent_ != nullptr) {
    Fail(Status(Code::kInvalid, "GRAPH03", Place(where) + "a state is used inside a body", "bodies of while and cond are functional",
                "read it before and assign it after"));
    return {};
  }
  return {this, graph_.state(state).last};
}

void Builder::SetToken(StateId state, Value token) {
  if (token.valid()) graph_.state(state).last = token.id;
}

Value Builder::Read(StateId state, Location where) {
  Value token = Token(state, where);
  if (!token.valid()) return {};
  const StateInfo& info = graph_.state(state);
  Value value =
      EmitOne(kRead, {token}, {{Attr::kShape, info.type.shape}, {Attr::kDtype, static_cast<std::int64_t>(info.type.dtype)}}, where);
  if (value.valid()) {
    ValueInfo& made = graph_.value(value.id);
    made.name = graph_.state(state).name;
    made.logical = graph_.state(state).logical;
    made.sharding = graph_.state(state).sharding;
  }
  return value;
}

void Builder::Assign(StateId state, Arg value) {
  Value token = Token(state, value.where);
  if (!token.valid() || !value.value.valid()) return;
  const StateInfo& info = graph_.state(state);
  if (value.value.type() != info.type) {
    Fail(Status(Code::kInvalid, "GRAPH01",
                fmt::format("{}:{}: state {} is {} {}, and {} {} is assigned", value.where.file, value.where.line, info.name,
                            ToString(info.type.shape, graph_.symbols), Name(info.type.dtype), ToString(value.value.shape(), graph_.symbols),
                            Name(value.value.dtype())),
                "a state keeps its type and shape", "Cast or Reshape the value first"));
    return;
  }
  Value next = value.value;
  if (assign_if_.valid()) next = EmitOne(kSelect, {assign_if_, next, Read(state, value.where)}, {}, value.where);
  if (next.valid()) SetToken(state, EmitOne(kAssign, {token, next}, {}, value.where));
}

void Builder::Output(std::string name, const Value& value, Location where) {
  Value own = Own(value, where);
  if (own.valid()) graph_.outputs.push_back({std::move(name), own.id});
}

void Builder::Tap(std::string name, const Value& value, Location where) {
  Value own = Own(value, where);
  if (own.valid()) graph_.taps.push_back({std::move(name), own.id});
}

Value Builder::Own(const Value& value, Location where) {
  if (!value.valid() || value.builder == this) return value;
  Value own = Capture(value);
  if (!own.valid()) {
    Fail(Status(Code::kInvalid, "GRAPH04", Place(where) + "a value of another graph is used",
                "each builder has its own values; only a body may use those of the graph around it",
                "make the value with this builder, or pass it in as an input"));
  }
  return own;
}

Value Builder::Capture(const Value& value) {
  if (parent_ == nullptr) return {};
  // As our parent's value, step by step: ids of other graphs are other values.
  Value outer = value.builder == parent_ ? value : parent_->Capture(value);
  if (!outer.valid()) return {};
  for (const auto& [known, inner] : captured_) {
    if (known == outer.id) return inner;
  }
  Value inner = Input(fmt::format("capture{}", captured_.size()), outer.dtype(), outer.shape());
  captured_.emplace_back(outer.id, inner);
  return inner;
}

bool Builder::Usable(const OpDef& def, const std::vector<Value>& inputs, Location where) {
  for (const Value& input : inputs) {
    if (!input.valid()) {
      Fail(Status(Code::kInvalid, "GRAPH05", fmt::format("{}{} of a value that is not valid", Place(where), def.name),
                  "it was never given one, or an op that made it has failed",
                  "give it a value before; where an earlier op failed, that is the first error"));
      return false;
    }
  }
  if (def.inputs >= 0 && static_cast<std::size_t>(def.inputs) != inputs.size()) {
    Fail(Status(Code::kInvalid, "GRAPH05", fmt::format("{}{} takes {} values, not {}", Place(where), def.name, def.inputs, inputs.size()),
                "each op has its number of inputs (ops.h)", "give it that many"));
    return false;
  }
  return true;
}

RegionId Builder::RegionFor(const Op& op) {
  RegionId region = graph_.RegionOf(scope_.region, scope_.stage, scope_.parameter);
  if (scope_.region != RegionKind::kForward) return region;
  for (ValueId in : op.inputs) {
    const Op& maker = graph_.op(graph_.value(in).producer);
    if (!maker.def->traits.source && graph_.region(maker.region).kind > graph_.region(region).kind) region = maker.region;
  }
  return region;
}

std::vector<Value> Builder::Emit(const OpDef& def, const std::vector<Value>& inputs, Attributes attrs, Location where,
                                 std::vector<std::shared_ptr<const Graph>> bodies) {
  std::vector<Value> results(std::max(def.outputs, 1));
  if (!failure_.ok() || !Usable(def, inputs, where)) return results;
  Op op;
  op.def = &def;
  op.attrs = std::move(attrs);
  op.bodies = std::move(bodies);
  InferContext context{op, {}, graph_.symbols};
  for (const Value& input : inputs) {
    Value own = Own(input, where);
    if (!own.valid()) return results;
    op.inputs.push_back(own.id);
    context.in.push_back(own.type());
  }
  auto types = def.infer(context);
  if (!types.ok()) {
    const Status& s = types.status();
    Fail(Status(s.code(), s.tag(), Place(where) + s.what(), s.why(), s.fix()));
    return results;
  }
  op.region = RegionFor(op);
  op.clone = scope_.clone;
  op.provenance = {scope_.module, scope_.role, scope_.phase, scope_.layer, -1, where};
  if (RegionKind kind = graph_.region(op.region).kind; kind != scope_.region) {
    op.provenance.phase = kind == RegionKind::kBackward ? Phase::kBackward : Phase::kUpdate;
  }
  std::string key = fmt::format("{}|{}|{}", scope_.module, Name(scope_.phase), def.name);
  op.stable_id = HashCombine(Checksum64(key), ++occurrences_[key]);
  OpId id = graph_.Add(std::move(op), *std::move(types));
  results.clear();
  for (ValueId out : graph_.op(id).outputs) results.push_back({this, out});
  if (results.empty()) results.emplace_back();
  return results;
}

Value Builder::Number(double value, Dtype dtype, Location where) {
  return EmitOne(kFill, {}, {{Attr::kValue, value}, {Attr::kShape, Shape{}}, {Attr::kDtype, static_cast<std::int64_t>(dtype)}}, where);
}

Builder::Body Builder::BuildBody(const std::vector<TensorType>& types,
                                 const std::function<std::vector<Value>(Builder&, const std::vector<Value>&)>& write, Location where) {
  Builder& inner = *bodies_.emplace_back(std::make_unique<Builder>());
  inner.parent_ = this;
  inner.custom_gradients_ = custom_gradients_;
  inner.graph_.symbols = graph_.symbols;
  inner.graph_.mesh = graph_.mesh;
  inner.scope_ = scope_;
  inner.scope_.module += fmt::format("#{}", ++occurrences_["#" + scope_.module]);
  std::vector<Value> parameters;
  for (std::size_t i = 0; i < types.size(); ++i) {
    parameters.push_back(inner.Input(fmt::format("in{}", i), types[i].dtype, types[i].shape));
  }
  // A body of ours may be written while another one is: a gradient rule does that.
  Builder* around = std::exchange(open_body_, &inner);
  std::vector<Value> outputs = write(inner, parameters);
  open_body_ = around;
  inner.is_written_ = true;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    // A body may give back what it was given, or a value from around it.
    outputs[i] = inner.Own(outputs[i], where);
    if (!outputs[i].valid()) {
      inner.Fail(Status(Code::kInvalid, "GRAPH05", fmt::format("{}output {} of a body is not valid", Place(where), i),
                        "the body returns a value that it never gave one, or that an op failed to make",
                        "return values of the body, of its inputs or of the graph around it"));
      return {};
    }
    inner.Output(fmt::format("out{}", i), outputs[i]);
  }
  if (!inner.failure_.ok()) return {};
  Body body;
  for (const auto& [outer, value] : inner.captured_) body.captures.push_back({this, outer});
  body.graph = std::make_shared<const Graph>(inner.graph_);  // a copy: who still holds a value of it may ask for its type
  return body;
}

std::vector<Value> Builder::Inline(const Graph& body, const std::vector<Value>& arguments) {
  std::vector<Value> map(body.values.size());
  for (std::size_t i = 0; i < body.inputs.size(); ++i) map[body.inputs[i].value] = arguments.at(i);
  for (const Op& op : body.ops) {
    if (op.def == &kInput) continue;
    std::vector<Value> inputs;
    for (ValueId in : op.inputs) inputs.push_back(map[in.value]);
    std::vector<Value> outputs = Emit(*op.def, inputs, op.attrs, op.provenance.where, op.bodies);
    if (!failure_.ok()) return std::vector<Value>(body.outputs.size());
    // The copy computes the same numbers, random ones too.
    graph_.op(graph_.value(outputs[0].id).producer).stable_id = op.stable_id;
    for (std::size_t i = 0; i < op.outputs.size(); ++i) map[op.outputs[i].value] = outputs[i];
  }
  std::vector<Value> results;
  for (const NamedValue& output : body.outputs) results.push_back(map[output.value.value]);
  return results;
}

std::vector<Value> Builder::CustomGradient(const std::vector<Value>& inputs, const std::vector<Value>& outputs, GradientFn fn,
                                           Location where) {
  auto key = static_cast<std::int64_t>(custom_gradients_->size());
  std::vector<Value> all = inputs;
  all.insert(all.end(), outputs.begin(), outputs.end());
  std::vector<Value> results =
      Emit(kCustomGradient, all, {{Attr::kKey, key}, {Attr::kCount, static_cast<std::int64_t>(inputs.size())}}, where);
  custom_gradients_->emplace(key, std::move(fn));
  results.resize(outputs.size());
  return results;
}

const Builder::GradientFn* Builder::CustomGradientOf(std::int64_t key) const {
  auto found = custom_gradients_->find(key);
  return found == custom_gradients_->end() ? nullptr : &found->second;
}

Builder::ScopeGuard Builder::Module(std::string_view name, std::int32_t layer) {
  Scope scope = scope_;
  scope.module = scope.module.empty() ? std::string(name) : fmt::format("{}/{}", scope.module, name);
  if (layer >= 0) scope.layer = layer;
  return ScopeGuard(*this, std::move(scope));
}

Result<Graph> Builder::Finish() {
  RETURN_IF_ERROR(failure_);
  RETURN_IF_ERROR(Check(graph_));
  return std::move(graph_);
}

}  // namespace ropewalk::mlrunner
