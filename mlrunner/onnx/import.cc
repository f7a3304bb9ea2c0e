#include "mlrunner/onnx/import.h"

#include <algorithm>
#include <set>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>

#include "base/escape.h"
#include "mlrunner/graph/maths.h"
#include "mlrunner/onnx/control.h"
#include "mlrunner/onnx/file.h"
#include "mlrunner/onnx/ops.h"
#include "mlrunner/onnx/recognise.h"
#include "storage/io_error.h"

namespace ropewalk::mlrunner::onnx {
namespace {

const Importers& Table() {
  static const Importers table = [] {
    Importers made;
    AddElementwise(&made);
    AddShapes(&made);
    AddRows(&made);
    AddLayers(&made);
    AddRecurrent(&made);
    AddControl(&made);
    return made;
  }();
  return table;
}

// What to do about an op that is not known.
std::string Suggestion(const Node& node) {
  static const std::map<std::string_view, const char*> kAdvice = {
      {"Einsum", "write it as matmul and transpose"},
      {"Scan", "write the loop as tensor operations, or unroll it"},
      {"NonZero", "its shape depends on values: multiply with a mask, or use where"},
      {"Unique", "its shape depends on values: compute it before the model"},
      {"NonMaxSuppression", "its shape depends on values: compute it behind the model"},
      {"Resize", "use a transposed convolution or repeat, or scale images before the model"},
      {"ConvTranspose", "repeat the image, and use a convolution"},
      {"InstanceNormalization", "use a layer norm or a batch norm"},
      {"GroupNormalization", "use a layer norm or a batch norm"},
      {"ScatterElements", "use index_put, which becomes ScatterND"},
      {"QuantizeLinear", "export the model before it is quantised"},
      {"DequantizeLinear", "export the model before it is quantised"},
      {"RandomNormalLike", "make random numbers an input of the model, or use dropout"},
      {"RandomUniformLike", "make random numbers an input of the model, or use dropout"},
      {"Mod", "compute it before the model"},
  };
  if (!node.domain.empty())
    return fmt::format("export without the domain {}: its ops are one program's own", EscapeForLog(node.domain, 500));
  auto found = kAdvice.find(node.op);
  return found != kAdvice.end() ? found->second : "use layers of other ops (docs/mlrunner.md lists those that are known)";
}

// All names that nodes use, those of bodies too.
void Uses(const GraphDef& graph, std::set<std::string>* names) {
  for (const ValueDef& output : graph.outputs) names->insert(output.name);
  for (const Node& node : graph.nodes) {
    names->insert(node.inputs.begin(), node.inputs.end());
    for (const auto& [key, value] : node.attributes) {
      if (const auto* body = std::get_if<std::shared_ptr<const GraphDef>>(&value)) Uses(**body, names);
    }
  }
}
bool GivesOneOf(const Node& node, const std::set<std::string>& names) {
  return std::any_of(node.outputs.begin(), node.outputs.end(), [&](const std::string& name) { return names.contains(name); });
}
void Statistics(const GraphDef& graph, std::set<std::string>* names) {
  for (const Node& node : graph.nodes) {
    if (node.op == "BatchNormalization" && node.inputs.size() >= 5) names->insert(node.inputs.begin() + 3, node.inputs.begin() + 5);
    for (const auto& [key, value] : node.attributes) {
      if (const auto* body = std::get_if<std::shared_ptr<const GraphDef>>(&value)) Statistics(**body, names);
    }
  }
}

// Numbers at places where no layer has a parameter: bounds, fillings, rates, the two values of one-hot rows.
void Settings(const GraphDef& graph, std::set<std::string>* names) {
  static const std::map<std::string_view, std::vector<std::size_t>> kPlaces = {
      {"Clip", {1, 2}}, {"Dropout", {1, 2}}, {"OneHot", {1, 2}}, {"Pad", {2}}, {"Range", {0, 1, 2}}};
  for (const Node& node : graph.nodes) {
    if (const auto places = kPlaces.find(node.op); places != kPlaces.end()) {
      for (std::size_t place : places->second)
        if (place < node.inputs.size()) names->insert(node.inputs[place]);
    }
    for (const auto& [key, value] : node.attributes) {
      if (const auto* body = std::get_if<std::shared_ptr<const GraphDef>>(&value)) Settings(**body, names);
    }
  }
}

// "ops_rows.cc:12: Gather of ..." without the line of ours.
std::string WithoutPlace(const std::string& what) {
  const std::size_t colon = what.find(".cc:"), end = colon == std::string::npos ? colon : what.find(": ", colon + 4);
  return end == std::string::npos ? what : what.substr(end + 2);
}

class Import {
 public:
  Import(Builder& b, std::string path, const ImportOptions& options)
      : b_(b), options_(options), session_{b, std::move(path), 0, options, nullptr, nullptr, nullptr, std::nullopt} {
    session_.statistic = [this](const std::string& name) {
      auto found = statistics_.find(name);
      return found == statistics_.end() ? StateId() : found->second;
    };
    session_.run_body = [this](const GraphDef& body, const Operands& inputs, const std::vector<std::string>& outputs) {
      return RunBody(body, inputs, outputs);
    };
    session_.find = [this](const std::string& name) { return Find(name); };
  }

  Result<ImportedModel> Run(const ModelDef& model) {
    session_.opset = model.opset;
    const GraphDef graph = options_.recognise ? Recognise(model.graph) : model.graph;
    Initializers(graph);
    RETURN_IF_ERROR(Inputs(graph));
    std::vector<std::string> names;
    for (const ValueDef& output : graph.outputs) names.push_back(output.name);
    RunNodes(graph, names);
    if (!b_.status().ok()) return b_.status();
    for (const std::string& name : names) {
      Operand* operand = Find(name);
      Node end{"", "output", "", {}, {name}, {}};
      NodeContext context(session_, end, {operand});
      Value value = operand == nullptr ? Value() : context.Make(*operand);
      if (!value.valid() && b_.status().ok()) {
        b_.Fail(Status(Code::kInvalid, "ONNX05", fmt::format("{}: output {}", storage::QuotedPath(session_.path), EscapeForLog(name, 500)),
                       "no node gives it", "export the model again"));
      }
      if (!b_.status().ok()) return b_.status();
      model_.outputs.push_back({name, value});
    }
    return std::move(model_);
  }

 private:
  void Initializers(const GraphDef& graph) {
    std::set<std::string> used, statistics, settings;
    Uses(graph, &used);
    Statistics(graph, &statistics);
    Settings(graph, &settings);
    for (const auto& [name, literal] : graph.initializers) {
      if (!used.contains(name)) continue;
      const Shape shape(literal.dims.begin(), literal.dims.end());
      auto weight = [&](StateId state) {
        const auto* bytes = reinterpret_cast<const std::byte*>(literal.bytes->data());
        model_.weights[b_.graph().state(state).name] = {literal.dtype, literal.dims, {bytes, bytes + literal.bytes->size()}};
      };
      if (statistics.contains(name)) {
        const std::string& module = b_.scope().module;
        StateId state =
            b_.NewState(module.empty() ? name : module + "/" + name, StateKind::kStatistic, {literal.dtype, shape}, Initializer::Zeros());
        statistics_[name] = state;
        weight(state);
        names_[name] = Operand::Of(b_.Read(state));
      } else if (IsFloat(literal.dtype) && !settings.contains(name) && (!options_.trainable || options_.trainable(name))) {
        Parameter parameter = b_.NewParameter(name, shape, Initializer::Zeros(), literal.dtype);
        model_.parameters.push_back(parameter);
        weight(parameter.state);
        names_[name] = Operand::Of(parameter);
      } else {
        Operand operand;
        if (auto known = FromLiteral(literal)) operand = Operand::Of(*std::move(known));
        operand.type = {literal.dtype, shape};
        operand.literal = std::make_shared<const Literal>(literal);
        names_[name] = std::move(operand);
      }
    }
  }

  Status BadInput(const ValueDef& input, std::string why, std::string fix) {
    b_.Fail(Status(Code::kInvalid, "ONNX05", fmt::format("{}: input {}", storage::QuotedPath(session_.path), EscapeForLog(input.name, 500)),
                   std::move(why), std::move(fix)));
    return b_.status();
  }
  Status Inputs(const GraphDef& graph) {
    std::map<std::string, Dim> lengths = options_.lengths;
    // First those that are given: their lengths are what the file's names stand for.
    for (const ValueDef& input : graph.inputs) {
      auto given = options_.inputs.find(input.name);
      if (given == options_.inputs.end()) continue;
      const Value& value = given->second;
      if (!value.valid())
        return BadInput(input, "the value given for it is not valid", "make it first; where an op failed, that is the first error");
      bool fits = value.dtype() == input.dtype && (!input.has_shape || value.rank() == input.dims.size());
      for (std::size_t i = 0; fits && input.has_shape && i < input.dims.size(); ++i) {
        const DimDef& dim = input.dims[i];
        if (dim.value >= 0) fits = value.shape()[i].Is(dim.value);
        if (!dim.symbol.empty()) fits = lengths.emplace(dim.symbol, value.shape()[i]).first->second == value.shape()[i];
      }
      if (!fits) {
        return BadInput(input,
                        fmt::format("the value given for it is {} {}, and the file has {}", ToString(value.shape(), b_.graph().symbols),
                                    Name(value.dtype()), Described(input)),
                        "Cast or Reshape it to that");
      }
    }
    for (const auto& [name, value] : options_.inputs) {
      if (std::none_of(graph.inputs.begin(), graph.inputs.end(), [&](const ValueDef& input) { return input.name == name; })) {
        std::vector<std::string> there;
        for (const ValueDef& input : graph.inputs) there.push_back(EscapeForLog(input.name, 500));
        b_.Fail(Status(Code::kInvalid, "ONNX05", fmt::format("{} has no input {}", storage::QuotedPath(session_.path), name),
                       fmt::format("its inputs are {}", fmt::join(there, ", ")), "give the value under one of these names"));
        return b_.status();
      }
    }
    for (const ValueDef& input : graph.inputs) {
      if (auto given = options_.inputs.find(input.name); given != options_.inputs.end()) {
        names_[input.name] = Operand::Of(given->second);
        model_.inputs.push_back({input.name, given->second});
        continue;
      }
      if (!input.has_shape)
        return BadInput(input, "the file does not say its shape",
                        "export the model with the shapes of its inputs, or give a value (ImportOptions::inputs)");
      Shape shape;
      for (std::size_t i = 0; i < input.dims.size(); ++i) {
        const DimDef& dim = input.dims[i];
        if (dim.value > kLengthMax)
          return BadInput(input, fmt::format("length {} is {}, and {} is the most", i, dim.value, kLengthMax), "export the model again");
        if (dim.value >= 0) {
          shape.emplace_back(dim.value);
        } else {
          const std::string symbol = dim.symbol.empty() ? fmt::format("{}_{}", input.name, i) : dim.symbol;
          auto found = lengths.find(symbol);
          if (found == lengths.end()) found = lengths.emplace(symbol, b_.NewSymbol(symbol)).first;
          shape.push_back(found->second);
        }
      }
      Value value = b_.Input(input.name, input.dtype, shape);
      names_[input.name] = Operand::Of(value);
      model_.inputs.push_back({input.name, value});
    }
    return b_.status();
  }
  static std::string Described(const ValueDef& input) {
    std::vector<std::string> dims;
    for (const DimDef& dim : input.dims)
      dims.push_back(dim.value >= 0 ? std::to_string(dim.value) : dim.symbol.empty() ? "?" : EscapeForLog(dim.symbol, 100));
    return fmt::format("({}) {}", fmt::join(dims, ", "), Name(input.dtype));
  }

  Operand* Find(const std::string& name) {
    auto found = names_.find(name);
    return found == names_.end() ? nullptr : &found->second;
  }

  Operands RunBody(const GraphDef& body, const Operands& inputs, const std::vector<std::string>& outputs) {
    for (std::size_t i = 0; i < inputs.size() && i < body.inputs.size(); ++i) names_[body.inputs[i].name] = inputs[i];
    for (const auto& [name, literal] : body.initializers) {
      Operand operand;
      if (auto known = FromLiteral(literal)) operand = Operand::Of(*std::move(known));
      operand.type = {literal.dtype, Shape(literal.dims.begin(), literal.dims.end())};
      operand.literal = std::make_shared<const Literal>(literal);
      names_[name] = std::move(operand);
    }
    RunNodes(body, outputs);
    Operands made;
    for (const std::string& name : outputs) {
      Operand* operand = Find(name);
      if (operand != nullptr) made.push_back(*operand);
    }
    return made;
  }

  // Those nodes that the values need, in the file's order.
  void RunNodes(const GraphDef& graph, const std::vector<std::string>& outputs) {
    const std::set<std::string> needed = NamesNeeded(graph, outputs);
    for (const Node& node : graph.nodes) {
      if (!b_.status().ok()) return;
      if (GivesOneOf(node, needed)) RunNode(node);
    }
  }

  void RunNode(const Node& node) {
    std::vector<Operand*> inputs;
    bool each_round = false;
    for (const std::string& name : node.inputs) {
      inputs.push_back(name.empty() ? nullptr : Find(name));
      if (inputs.back() != nullptr && inputs.back()->each_round) each_round = true;
      if (!name.empty() && inputs.back() == nullptr) {
        NodeContext(session_, node, {})
            .Refuse(fmt::format("its input {} is given by no node before it", EscapeForLog(name, 500)),
                    "export the model again; or that result of the node is not supported");
        return;
      }
    }
    NodeContext context(session_, node, std::move(inputs));
    auto importer = Table().find(node.op);
    if (importer == Table().end() || !node.domain.empty()) {
      context.Fail("ONNX03", "this op is not supported", Suggestion(node));
      return;
    }
    // Exporters name nodes by the module that they come from: /encoder/layer.0/dense/MatMul.
    const std::size_t slash = node.name.rfind('/');
    std::string module = slash == std::string::npos ? "" : node.name.substr(0, slash);
    module.erase(0, module.find_first_not_of('/'));
    Operands outputs;
    if (module.empty()) {
      outputs = each_round ? ForAllRounds(context, importer->second) : importer->second(context);
    } else {
      auto scope = b_.Module(module);
      outputs = each_round ? ForAllRounds(context, importer->second) : importer->second(context);
    }
    if (!b_.status().ok()) {
      if (last_.empty()) last_ = context.Title();
      return;
    }
    for (std::size_t i = 0; i < node.outputs.size() && i < outputs.size(); ++i) {
      if (!node.outputs[i].empty()) names_[node.outputs[i]] = std::move(outputs[i]);
    }
  }

 public:
  // The node at which the builder failed.
  Status Named(const Status& status) const {
    if (status.ok() || status.tag().starts_with("ONNX") || last_.empty()) return status;
    return Status(status.code(), status.tag(), last_ + ": " + WithoutPlace(status.what()), status.why(), status.fix());
  }

 private:
  Builder& b_;
  const ImportOptions& options_;
  NodeContext::Session session_;
  std::map<std::string, Operand> names_;
  std::map<std::string, StateId> statistics_;
  ImportedModel model_;
  std::string last_;  // the title of the node that is being run, where it fails
};

}  // namespace

Result<ImportedModel> ImportOnnx(Builder& b, storage::FileSystem& files, const std::string& path, const ImportOptions& options) {
  RETURN_IF_ERROR(b.status());
  auto file = ReadModel(files, path);
  if (!file.ok()) {
    b.Fail(file.status());
    return file.status();
  }
  return ImportModel(b, *file, path, options);
}

Result<ImportedModel> ImportModel(Builder& b, const ModelDef& model, const std::string& path, const ImportOptions& options) {
  RETURN_IF_ERROR(b.status());
  Import import(b, path, options);
  try {
    auto made = import.Run(model);
    if (!made.ok()) return import.Named(made.status());
    return made;
  } catch (const std::out_of_range&) {  // an input or a number that a well-formed node has
    b.Fail(Status(Code::kInvalid, "ONNX05", storage::QuotedPath(path) + ": a node lacks an input, or a list of numbers is too short",
                  "each op has so many inputs and numbers as its definition says", "export the model again"));
    return b.status();
  }
}

std::set<std::string> NamesNeeded(const GraphDef& graph, const std::vector<std::string>& outputs) {
  std::set<std::string> needed(outputs.begin(), outputs.end());
  for (auto node = graph.nodes.rbegin(); node != graph.nodes.rend(); ++node) {
    if (!GivesOneOf(*node, needed)) continue;
    needed.insert(node->inputs.begin(), node->inputs.end());
    for (const auto& [key, value] : node->attributes) {
      if (const auto* body = std::get_if<std::shared_ptr<const GraphDef>>(&value)) Uses(**body, &needed);
    }
  }
  return needed;
}

std::vector<std::string> SupportedOps() {
  std::vector<std::string> names;
  for (const auto& [name, importer] : Table()) names.emplace_back(name);
  return names;
}

}  // namespace ropewalk::mlrunner::onnx
