#include "mlrunner/onnx/export.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include <fmt/format.h>

#include "mlrunner/graph/ops.h"
#include "mlrunner/graph/passes/pass.h"
#include "mlrunner/onnx/file.h"

namespace ropewalk::mlrunner::onnx {
namespace {

constexpr std::int64_t kOpset = 17;

// Ops with one counterpart, which takes the same inputs and no attributes.
const std::map<const OpDef*, const char*>& SameOps() {
  static const std::map<const OpDef*, const char*> table = {
      {&kAdd, "Add"},
      {&kSub, "Sub"},
      {&kMul, "Mul"},
      {&kDiv, "Div"},
      {&kPow, "Pow"},
      {&kLess, "Less"},
      {&kGreater, "Greater"},
      {&kEqual, "Equal"},
      {&kSelect, "Where"},
      {&kNeg, "Neg"},
      {&kExp, "Exp"},
      {&kLog, "Log"},
      {&kSqrt, "Sqrt"},
      {&kTanh, "Tanh"},
      {&kSigmoid, "Sigmoid"},
      {&kErf, "Erf"},
      {&kSin, "Sin"},
      {&kCos, "Cos"},
      {&kAbs, "Abs"},
      {&kSign, "Sign"},
      {&kRelu, "Relu"},
      {&kIdentity, "Identity"},
      {&kStopGradient, "Identity"},
      {&kRelayout, "Identity"},
  };
  return table;
}
// Fused ops that have one, too; all others are written as their primitive forms.
bool StaysFused(const OpDef* def) { return def == &kSoftmax || def == &kLogSoftmax || def == &kLayerNorm || def == &kBatchNormInference; }

std::int64_t CodeOf(Dtype dtype) {
  switch (dtype) {
    case Dtype::kF32:
      return 1;
    case Dtype::kU8:
      return 2;
    case Dtype::kI32:
      return 6;
    case Dtype::kI64:
      return 7;
    case Dtype::kBool:
      return 9;
    case Dtype::kF16:
      return 10;
    case Dtype::kF64:
      return 11;
    default:
      return 16;  // bf16: tokens and handles are no values of the file
  }
}

class Writer {
 public:
  Writer(const Graph& graph, const ExportOptions& options) : graph_(graph), options_(options) {}

  Result<ModelDef> Write() {
    std::vector<bool> needed(graph_.ops.size());
    for (const NamedValue& value : graph_.outputs) needed[graph_.value(value.value).producer.value] = true;
    for (std::size_t i = graph_.ops.size(); i-- > 0;) {
      if (!needed[i]) continue;
      for (ValueId in : graph_.ops[i].inputs) needed[graph_.value(in).producer.value] = true;
    }
    for (ValueId input : graph_.inputs) {
      const ValueInfo& info = graph_.value(input);
      if (!needed[info.producer.value]) continue;
      ValueDef made{info.name, info.type.dtype, true, {}};
      for (std::size_t i = 0; i < info.type.shape.size(); ++i) {
        const Dim& dim = info.type.shape[i];
        made.dims.push_back({dim.Constant().value_or(-1), dim.IsConstant() ? "" : dim.ToString(graph_.symbols)});
        std::vector<Symbol> symbols = dim.Symbols();
        if (symbols.size() == 1 && dim == Dim(symbols[0]))
          lengths_.emplace(symbols[0].id, std::pair(info.name, static_cast<std::int64_t>(i)));
      }
      model_.graph.inputs.push_back(std::move(made));
      names_[input] = info.name;
    }
    for (std::size_t i = 0; i < graph_.ops.size(); ++i) {
      if (needed[i]) RETURN_IF_ERROR(Op(graph_.ops[i]));
    }
    for (const NamedValue& value : graph_.outputs) {
      const TensorType& type = graph_.value(value.value).type;
      model_.graph.nodes.push_back({value.name, "Identity", "", {names_.at(value.value)}, {value.name}, {}});
      ValueDef made{value.name, type.dtype, true, {}};
      for (const Dim& dim : type.shape)
        made.dims.push_back({dim.Constant().value_or(-1), dim.IsConstant() ? "" : dim.ToString(graph_.symbols)});
      model_.graph.outputs.push_back(std::move(made));
    }
    model_.opset = kOpset;
    model_.producer = "ropewalk";
    model_.graph.name = "graph";
    return std::move(model_);
  }

 private:
  std::string NewName(const char* what) { return fmt::format("{}_{}", what, ++made_); }
  std::string Node(const char* op, std::vector<std::string> inputs, std::map<std::string, Attribute> attributes = {}) {
    std::string name = NewName(op);
    model_.graph.nodes.push_back({name, op, "", std::move(inputs), {name}, std::move(attributes)});
    return name;
  }
  // As a node: initializers are what is trained, to readers as to us.
  std::string ConstantOf(Literal literal) { return Node("Constant", {}, {{"value", std::move(literal)}}); }
  // Numbers of lengths and axes are few, and written once each.
  std::string Numbers(const std::vector<std::int64_t>& numbers, bool scalar = false) {
    auto [found, fresh] = numbers_.emplace(std::pair(numbers, scalar), "");
    if (fresh) {
      found->second = ConstantOf(Literal::Of(Dtype::kI64, scalar ? Dims{} : Dims{static_cast<std::int64_t>(numbers.size())}, numbers));
    }
    return found->second;
  }

  // The name of a vector of one number, which a run knows.
  Result<std::string> Length(const Dim& dim) {
    if (auto number = dim.Constant()) return Numbers({*number});
    const std::string key = dim.ToString(graph_.symbols);
    if (auto found = known_.find(key); found != known_.end()) return found->second;
    std::string sum;
    for (const auto& [symbols, coefficient] : dim.Terms()) {
      std::string product = coefficient == 1 && !symbols.empty() ? "" : Numbers({coefficient});
      for (Symbol symbol : symbols) {
        auto input = lengths_.find(symbol.id);
        if (input == lengths_.end()) {
          return Status(Code::kInvalid, "ONNX09", fmt::format("the length {} cannot be written", key),
                        fmt::format("no input that is needed has {} as a length", graph_.symbols.at(symbol.id).name),
                        "give an input that length, or build the graph with a number");
        }
        const auto& [name, axis] = input->second;
        std::string length = Node("Shape", {name}, {{"start", axis}, {"end", axis + 1}});
        product = product.empty() ? length : Node("Mul", {product, length});
      }
      sum = sum.empty() ? product : Node("Add", {sum, product});
    }
    return known_[key] = sum;
  }
  Result<std::string> Lengths(const Shape& shape) {
    std::vector<std::int64_t> numbers;
    for (const Dim& dim : shape) numbers.push_back(dim.Constant().value_or(-1));
    if (std::all_of(shape.begin(), shape.end(), [](const Dim& dim) { return dim.IsConstant(); })) return Numbers(numbers);
    std::vector<std::string> parts;
    for (const Dim& dim : shape) {
      ASSIGN_OR_RETURN(std::string part, Length(dim));
      parts.push_back(std::move(part));
    }
    return parts.size() == 1 ? parts[0] : Node("Concat", parts, {{"axis", std::int64_t{0}}});
  }
  std::string Scalar(double value, Dtype dtype) {
    std::string bytes(SizeOf(dtype), '\0');
    RefTensor number = RefTensor::Scalar(value);
    Tensor tensor = ToTensor(dtype, number);
    std::memcpy(bytes.data(), tensor.bytes.data(), bytes.size());
    return ConstantOf({dtype, {}, std::make_shared<const std::string>(std::move(bytes))});
  }

  Status Refuse(const mlrunner::Op& op, std::string why, std::string fix) {
    return Status(Code::kInvalid, "ONNX09", fmt::format("{} of module [{}] cannot be written", op.def->name, op.provenance.module),
                  std::move(why), std::move(fix));
  }

  Status Read(const mlrunner::Op& op) {
    if (auto assigned = assigned_.find(op.inputs[0]); assigned != assigned_.end()) {
      names_[op.outputs[0]] = names_.at(assigned->second);
      return {};
    }
    const StateInfo& state = graph_.state(graph_.value(op.inputs[0]).state);
    if (written_.insert(state.name).second) {
      if (!state.sharding.IsReplicated())
        return Refuse(op, "state " + state.name + " is cut over ranks", "build the graph for one rank, and load the checkpoint into it");
      Tensor tensor;
      if (options_.state) {
        ASSIGN_OR_RETURN(tensor, options_.state(state));
      }
      const auto count = NumElements(state.type.shape).Constant();
      if (!count || tensor.dtype != state.type.dtype || tensor.bytes.size() != static_cast<std::size_t>(*count) * SizeOf(tensor.dtype)) {
        return Status(Code::kInvalid, "ONNX10", fmt::format("state {} has no value", state.name),
                      fmt::format("{} {} is needed", ToString(state.type.shape, graph_.symbols), Name(state.type.dtype)),
                      "run the graph once, or load a checkpoint, and give its states (ExportOptions::state)");
      }
      const auto* bytes = reinterpret_cast<const char*>(tensor.bytes.data());
      model_.graph.initializers.emplace_back(
          state.name, Literal{tensor.dtype, tensor.dims, std::make_shared<const std::string>(bytes, tensor.bytes.size())});
    }
    names_[op.outputs[0]] = state.name;
    return {};
  }

  std::string Transposed(const std::string& name, std::size_t rank) {
    std::vector<std::int64_t> order(rank);
    for (std::size_t i = 0; i < rank; ++i) order[i] = static_cast<std::int64_t>(i);
    std::swap(order[rank - 1], order[rank - 2]);
    return Node("Transpose", {name}, {{"perm", order}});
  }

  Status Op(const mlrunner::Op& op) {
    if (op.def == &kInput || op.def == &kFirstVersion) return {};
    if (op.half != Half::kWhole) return Refuse(op, "it is split in halves", "export the graph before passes that split ops");
    if (op.def == &kAssign) {
      assigned_[op.outputs[0]] = op.inputs[1];
      return {};
    }
    if (op.def == &kRead) return Read(op);
    std::vector<std::string> in;
    for (ValueId value : op.inputs) in.push_back(names_.at(value));
    std::string out;
    RETURN_IF_ERROR(Emit(op, in, &out));
    names_[op.outputs[0]] = out;
    return {};
  }

  const TensorType& In(const mlrunner::Op& op, std::size_t i) const { return graph_.value(op.inputs[i]).type; }

  Status Emit(const mlrunner::Op& op, const std::vector<std::string>& in, std::string* out) {
    const TensorType& type = graph_.value(op.outputs[0]).type;
    const std::int64_t rank = op.inputs.empty() ? 0 : static_cast<std::int64_t>(In(op, 0).shape.size()), axis = op.attrs.Int(Attr::kAxis);
    auto same = SameOps().find(op.def);
    if (same != SameOps().end()) {
      *out = Node(same->second, in);
    } else if (op.def == &kMaximum || op.def == &kMinimum) {
      const bool flags = type.dtype == Dtype::kBool, most = op.def == &kMaximum;
      *out = Node(flags ? (most ? "Or" : "And") : (most ? "Max" : "Min"), in);
    } else if (op.def == &kRsqrt) {
      *out = Node("Reciprocal", {Node("Sqrt", in)});
    } else if (op.def == &kIsFinite) {
      *out = IsFloat(In(op, 0).dtype) ? Node("Not", {Node("Or", {Node("IsInf", in), Node("IsNaN", in)})}) : Node("Equal", {in[0], in[0]});
    } else if (op.def == &kCast) {
      *out = Node("Cast", in, {{"to", CodeOf(type.dtype)}});
    } else if (op.def == &kReshape) {
      ASSIGN_OR_RETURN(std::string shape, Lengths(type.shape));
      *out = Node("Reshape", {in[0], shape}, {{"allowzero", std::int64_t{1}}});
    } else if (op.def == &kTranspose) {
      *out = Node("Transpose", in, {{"perm", op.attrs.Ints(Attr::kPermutation)}});
    } else if (op.def == &kBroadcastTo) {
      ASSIGN_OR_RETURN(std::string shape, Lengths(type.shape));
      *out = Node("Expand", {in[0], shape});
    } else if (op.def == &kSlice) {
      ASSIGN_OR_RETURN(std::string begin, Length(op.attrs.DimOf(Attr::kBegin)));
      ASSIGN_OR_RETURN(std::string end, Length(op.attrs.DimOf(Attr::kEnd)));
      *out = Node("Slice", {in[0], begin, end, Numbers({axis})});
    } else if (op.def == &kPad) {
      std::vector<Dim> pads(static_cast<std::size_t>(2 * rank));
      pads[static_cast<std::size_t>(axis)] = op.attrs.DimOf(Attr::kLow);
      pads[static_cast<std::size_t>(rank + axis)] = op.attrs.DimOf(Attr::kHigh);
      ASSIGN_OR_RETURN(std::string lengths, Lengths(pads));
      *out = Node("Pad", {in[0], lengths, Scalar(0, type.dtype)});
    } else if (op.def == &kConcat) {
      *out = Node("Concat", in, {{"axis", axis}});
    } else if (op.def == &kAt || op.def == &kGather) {
      *out = Node("Gather", in, {{"axis", std::int64_t{0}}});
    } else if (op.def == &kConstant) {
      *out = ConstantOf(*op.attrs.LiteralOf(Attr::kLiteral));
    } else if (op.def == &kFill) {
      *out = Scalar(op.attrs.Double(Attr::kValue), type.dtype);
      if (!type.shape.empty()) {
        ASSIGN_OR_RETURN(std::string shape, Lengths(type.shape));
        *out = Node("Expand", {*out, shape});
      }
    } else if (op.def == &kIota) {
      ASSIGN_OR_RETURN(std::string count, Length(type.shape[0]));
      *out = Node("Range", {Numbers({0}, true), Node("Squeeze", {count}), Numbers({1}, true)});
      if (type.dtype != Dtype::kI64) *out = Node("Cast", {*out}, {{"to", CodeOf(type.dtype)}});
    } else if (op.def == &kDimSize) {
      ASSIGN_OR_RETURN(std::string length, Length(op.attrs.DimOf(Attr::kDim)));
      *out = Node("Squeeze", {length});
      if (type.dtype != Dtype::kI64) *out = Node("Cast", {*out}, {{"to", CodeOf(type.dtype)}});
    } else if (op.def == &kReduceSum || op.def == &kReduceMax) {
      std::vector<std::int64_t> axes = op.attrs.Ints(Attr::kAxes);
      for (std::int64_t& each : axes) each += each < 0 ? rank : 0;
      if (axes.empty()) {
        for (std::int64_t each = 0; each < rank; ++each) axes.push_back(each);
      }
      const std::int64_t keep = op.attrs.Int(Attr::kKeepDims);
      if (axes.empty()) {
        *out = Node("Identity", in);
      } else if (op.def == &kReduceSum) {
        *out = Node("ReduceSum", {in[0], Numbers(axes)}, {{"keepdims", keep}});
      } else {
        *out = Node("ReduceMax", in, {{"axes", axes}, {"keepdims", keep}});
      }
    } else if (op.def == &kArgMax) {
      *out = Node("ArgMax", in, {{"axis", axis}, {"keepdims", std::int64_t{0}}});
    } else if (op.def == &kMatMul) {
      const bool a = op.attrs.Int(Attr::kTransposeA) != 0, b = op.attrs.Int(Attr::kTransposeB) != 0;
      *out = Node("MatMul", {a ? Transposed(in[0], In(op, 0).shape.size()) : in[0], b ? Transposed(in[1], In(op, 1).shape.size()) : in[1]});
    } else if (op.def == &kConv2D) {
      return Convolution(op, in, out);
    } else if (op.def == &kMaxPool2D || op.def == &kAvgPool2D) {
      return Pooling(op, in, out);
    } else if (op.def == &kScatterAdd) {
      ASSIGN_OR_RETURN(std::string shape, Lengths(type.shape));
      std::string rows = Node("Cast", {Node("Unsqueeze", {in[0], Numbers({1})})}, {{"to", CodeOf(Dtype::kI64)}});
      *out = Node("ScatterND", {Node("Expand", {Scalar(0, type.dtype), shape}), rows, in[1]}, {{"reduction", std::string("add")}});
    } else if (op.def == &kOneHot) {
      ASSIGN_OR_RETURN(std::string depth, Length(op.attrs.DimOf(Attr::kDim)));
      Tensor ends = ToTensor(type.dtype, RefTensor{{2}, {0, 1}});
      const auto* bytes = reinterpret_cast<const char*>(ends.bytes.data());
      std::string values = ConstantOf({type.dtype, {2}, std::make_shared<const std::string>(bytes, ends.bytes.size())});
      *out = Node("OneHot", {in[0], depth, values}, {{"axis", std::int64_t{-1}}});
    } else if (op.def == &kSoftmax || op.def == &kLogSoftmax) {
      *out = Node(op.def == &kSoftmax ? "Softmax" : "LogSoftmax", in, {{"axis", std::int64_t{-1}}});
    } else if (op.def == &kLayerNorm) {
      *out = Node("LayerNormalization", in, {{"axis", std::int64_t{-1}}, {"epsilon", op.attrs.Double(Attr::kEpsilon)}});
    } else if (op.def == &kBatchNormInference) {  // by which mean and variance are known to be statistics, and no parameters
      *out = Node("BatchNormalization", in, {{"epsilon", op.attrs.Double(Attr::kEpsilon)}});
      if (op.attrs.Int(Attr::kRelu, 0) != 0) *out = Node("Relu", {*out});
    } else if (op.def->traits.random) {
      return Refuse(op, "its random numbers hang on seed and step, which an ONNX file has not",
                    "build the graph without dropout, as it is run");
    } else {
      return Refuse(op, "ONNX has no op like it", "name outputs that do not need it (ExportOptions::outputs)");
    }
    return {};
  }

  // One number for each of two axes, or one for both.
  static std::vector<std::int64_t> OfAxes(const mlrunner::Op& op, Attr attr, std::int64_t otherwise) {
    auto found = op.attrs.All().find(attr);
    if (found == op.attrs.All().end()) return {otherwise, otherwise};
    if (const auto* each = std::get_if<std::vector<std::int64_t>>(&found->second)) return *each;
    const std::int64_t both = op.attrs.Int(attr);
    return {both, both};
  }
  // An attribute that came later must not be left out unseen.
  Status KnowsAll(const mlrunner::Op& op, const std::set<Attr>& known) {
    for (const auto& [attr, value] : op.attrs.All()) {
      if (!known.contains(attr)) return Refuse(op, fmt::format("its {} is not known to the export", Name(attr)), "use the op without it");
    }
    return {};
  }
  Status Convolution(const mlrunner::Op& op, const std::vector<std::string>& in, std::string* out) {
    RETURN_IF_ERROR(KnowsAll(op, {Attr::kStrides, Attr::kPadding, Attr::kGroups, Attr::kDilations}));
    *out = Node("Conv", in,
                {{"strides", OfAxes(op, Attr::kStrides, 1)},
                 {"pads", Both(OfAxes(op, Attr::kPadding, 0))},
                 {"dilations", OfAxes(op, Attr::kDilations, 1)},
                 {"group", op.attrs.Int(Attr::kGroups, 1)}});
    return {};
  }
  Status Pooling(const mlrunner::Op& op, const std::vector<std::string>& in, std::string* out) {
    RETURN_IF_ERROR(KnowsAll(op, {Attr::kKernel, Attr::kStep, Attr::kStrides, Attr::kPadding}));
    std::map<std::string, Attribute> attributes{{"kernel_shape", OfAxes(op, Attr::kKernel, 1)},
                                                {"strides", OfAxes(op, op.attrs.Has(Attr::kStep) ? Attr::kStep : Attr::kStrides, 1)},
                                                {"pads", Both(OfAxes(op, Attr::kPadding, 0))}};
    if (op.def == &kAvgPool2D) attributes["count_include_pad"] = std::int64_t{1};
    *out = Node(op.def == &kMaxPool2D ? "MaxPool" : "AveragePool", in, std::move(attributes));
    return {};
  }
  static std::vector<std::int64_t> Both(std::vector<std::int64_t> padding) {
    padding.insert(padding.end(), padding.begin(), padding.end());
    return padding;
  }

  const Graph& graph_;
  const ExportOptions& options_;
  ModelDef model_;
  std::map<ValueId, std::string> names_;
  std::map<ValueId, ValueId> assigned_;                                    // a version -> its value
  std::map<std::uint32_t, std::pair<std::string, std::int64_t>> lengths_;  // a symbol -> an input and its axis
  std::map<std::string, std::string> known_;
  std::map<std::pair<std::vector<std::int64_t>, bool>, std::string> numbers_;
  std::set<std::string> written_;
  int made_ = 0;
};

// What the outputs that are asked for need, and nothing else.
Result<Graph> Forward(const Graph& graph, const ExportOptions& options) {
  Graph forward = graph;
  forward.taps.clear();
  forward.alias_groups.clear();
  for (StateInfo& state : forward.states) state.last = state.first;
  if (!options.outputs.empty()) forward.outputs.clear();
  for (const std::string& name : options.outputs) {
    bool found = false;
    for (const auto* list : {&graph.outputs, &graph.taps}) {
      for (const NamedValue& value : *list) {
        if (value.name != name || found) continue;
        forward.outputs.push_back(value);
        found = true;
      }
    }
    if (found) continue;
    std::vector<std::string> there;
    for (const NamedValue& value : graph.outputs) there.push_back(value.name);
    return Status(Code::kInvalid, "ONNX09", "the graph has no output or tap " + name,
                  fmt::format("its outputs are {}", fmt::join(there, ", ")),
                  "name one of them, or make it one (Builder::Output, Builder::Tap)");
  }
  if (forward.outputs.empty()) {
    return Status(Code::kInvalid, "ONNX09", "the graph has no output", "there is nothing to be written", "make one (Builder::Output)");
  }
  return RemoveDeadCode(forward);
}

}  // namespace

Result<ModelDef> ToOnnx(const Graph& graph, const ExportOptions& options) {
  ASSIGN_OR_RETURN(Graph primitive, Forward(graph, options));
  for (int depth = 0; depth < 8; ++depth) {  // primitive forms may have fused ops, too
    std::set<std::string> fused;
    for (const Op& op : primitive.ops) {
      if (op.def->expand != nullptr && !StaysFused(op.def) && op.half == Half::kWhole) fused.emplace(op.def->name);
      // Its other outputs, which only gradients read, have other shapes in ONNX.
      if (op.def == &kLayerNorm) {
        const auto users = primitive.Users();
        if (!users[op.outputs[1].value].empty() || !users[op.outputs[2].value].empty()) fused.emplace(op.def->name);
      }
    }
    if (fused.empty()) break;
    ASSIGN_OR_RETURN(primitive, Expand(primitive, fused));
  }
  return Writer(primitive, options).Write();
}

Status ExportOnnx(const Graph& graph, const ExportOptions& options, storage::FileSystem& files, const std::string& path) {
  ASSIGN_OR_RETURN(const ModelDef model, ToOnnx(graph, options));
  return WriteModel(files, path, model);
}

}  // namespace ropewalk::mlrunner::onnx
