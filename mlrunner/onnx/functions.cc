#include "mlrunner/onnx/functions.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>
#include <onnx/onnx.pb.h>

#include "base/escape.h"
#include "storage/io_error.h"

namespace ropewalk::mlrunner::onnx {
namespace {

using ::onnx::AttributeProto, ::onnx::FunctionProto, ::onnx::GraphProto, ::onnx::NodeProto;
using Names = std::map<std::string, std::string>;
using Attributes = std::map<std::string, const AttributeProto*>;

constexpr int kDepthMax = 64;                            // functions within functions, and bodies within bodies
constexpr std::size_t kNodesMax = std::size_t{1} << 18;  // of all calls together: functions that call two others double with each depth
constexpr std::size_t kBytesMax = std::size_t{1} << 30;  // of them, with their names and what the callers give them
constexpr std::size_t kBodyFactor = 64;                  // so many times its bytes in a file, a body of many small nodes takes in memory

Status NotWhole(const FunctionProto& function, std::string why) {
  return Status(Code::kInvalid, "ONNX03", "function " + EscapeForLog(function.name(), 500), std::move(why), "export it again");
}

// FunctionProto.attribute_proto: attributes with what they are where a caller says nothing. It is younger than the definition that Debian
// ships, and so a field that is not known.
Result<std::vector<AttributeProto>> Defaults(const FunctionProto& function) {
  constexpr std::uint32_t kTag = 11 << 3 | 2;  // a message of its own
  using google::protobuf::internal::WireFormatLite;
  std::vector<AttributeProto> attributes;
  const std::string& fields = function.unknown_fields();
  google::protobuf::io::CodedInputStream in(reinterpret_cast<const std::uint8_t*>(fields.data()), static_cast<int>(fields.size()));
  while (const std::uint32_t tag = in.ReadTag()) {
    std::uint32_t length = 0;
    std::string bytes;
    const bool is_one = tag == kTag;
    if (is_one ? !in.ReadVarint32(&length) || !in.ReadString(&bytes, static_cast<int>(length)) : !WireFormatLite::SkipField(&in, tag))
      return NotWhole(function, "its fields are not whole");
    if (!is_one) continue;
    if (!attributes.emplace_back().ParseFromString(bytes)) return NotWhole(function, "an attribute is not whole");
    if (attributes.back().has_g()) return NotWhole(function, "what an attribute is where a caller says nothing is a graph");
  }
  return attributes;
}

std::string DomainOf(const std::string& domain) { return domain == "ai.onnx" ? "" : domain; }

class Inliner {
 public:
  Inliner(const std::string& path, ::onnx::ModelProto* model) : path_(path), model_(*model) {}

  Status Run() {
    std::int64_t opset = 0;
    for (const auto& used : model_.opset_import())
      if (DomainOf(used.domain()).empty()) opset = used.version();
    for (const FunctionProto& function : model_.functions()) {
      ASSIGN_OR_RETURN(std::vector<AttributeProto> defaults, Defaults(function));
      if (!functions_.emplace(std::pair{DomainOf(function.domain()), function.name()}, Function{&function, std::move(defaults)}).second)
        return Refuse(function.name(), "two functions have that name");
      for (const auto& used : function.opset_import()) {
        if (DomainOf(used.domain()).empty() && used.version() != opset)
          return Refuse(function.name(), fmt::format("it is of opset {}, and the model of {}", used.version(), opset));
      }
    }
    KeepClearOf(model_.graph());
    return InGraph(model_.mutable_graph(), 0);
  }

 private:
  struct Function {
    const FunctionProto* proto = nullptr;
    std::vector<AttributeProto> defaults;
  };

  Status Refuse(const std::string& function, std::string why) const {
    return Status(Code::kInvalid, "ONNX03", fmt::format("function {} of {}", EscapeForLog(function, 500), storage::QuotedPath(path_)),
                  std::move(why), "write the functions into the graph: onnx.inliner.inline_local_functions");
  }

  // Before what it is for is made: all calls together must not become too much.
  Status Count(const std::string& function, std::size_t nodes, std::size_t bytes) {
    nodes_ += nodes;
    bytes_ += bytes;
    if (nodes_ <= kNodesMax && bytes_ <= kBytesMax) return {};
    return Refuse(function, fmt::format("all calls together have more than {} nodes, or {} bytes", kNodesMax, kBytesMax));
  }

  // No name of the graph, and of its bodies, begins with mark_.
  void KeepClearOf(const std::string& name) {
    constexpr std::string_view kMark = "call";
    if (!name.starts_with(kMark)) return;
    const std::size_t end = std::min(name.find_first_not_of('_', kMark.size()), name.size());
    if (end >= mark_.size()) mark_ = std::string(kMark) + std::string(end - kMark.size() + 1, '_');
  }
  void KeepClearOf(const GraphProto& graph) {
    for (const auto& value : graph.input()) KeepClearOf(value.name());
    for (const auto& tensor : graph.initializer()) KeepClearOf(tensor.name());
    for (const NodeProto& node : graph.node()) {
      for (const std::string& name : node.output()) KeepClearOf(name);
      for (const AttributeProto& attribute : node.attribute())
        if (attribute.has_g()) KeepClearOf(attribute.g());
    }
  }

  // Calls in a graph, and in the bodies of its nodes.
  Status InGraph(GraphProto* graph, int depth) {
    GraphProto made;
    for (NodeProto& node : *graph->mutable_node()) RETURN_IF_ERROR(Put(std::move(node), depth, &made));
    graph->mutable_node()->Swap(made.mutable_node());
    return {};
  }

  // The node itself, or what its function does.
  Status Put(NodeProto node, int depth, GraphProto* into) {
    if (depth > kDepthMax) return Refuse(node.op_type(), fmt::format("calls and bodies lie deeper than {} in each other", kDepthMax));
    for (AttributeProto& attribute : *node.mutable_attribute())
      if (attribute.has_g()) RETURN_IF_ERROR(InGraph(attribute.mutable_g(), depth + 1));
    const auto function = functions_.find({DomainOf(node.domain()), node.op_type()});
    if (function == functions_.end()) {
      *into->add_node() = std::move(node);
      return {};
    }
    return Call(node, function->second, depth, into);
  }

  Status Call(const NodeProto& node, const Function& called, int depth, GraphProto* into) {
    const FunctionProto& function = *called.proto;
    if (node.input_size() > function.input_size() || node.output_size() > function.output_size())
      return Refuse(function.name(), "a node calls it with more inputs or outputs than it has");
    const std::string prefix = fmt::format("{}{}/{}/", mark_, calls_++, function.name());
    RETURN_IF_ERROR(Count(
        function.name(), 0,
        static_cast<std::size_t>(function.input_size()) * sizeof(Names::value_type) + called.defaults.size() * sizeof(AttributeProto)));
    Names names;
    for (int i = 0; i < function.input_size(); ++i) names[function.input(i)] = i < node.input_size() ? node.input(i) : "";
    for (int i = 0; i < node.output_size(); ++i) {
      if (node.output(i).empty()) continue;
      if (!names.emplace(function.output(i), node.output(i)).second) {  // it gives back what it got
        NodeProto same;
        same.set_op_type("Identity");
        same.set_name(node.name());
        same.add_input(names.at(function.output(i)));
        same.add_output(node.output(i));
        *into->add_node() = std::move(same);
      }
    }
    Attributes attributes;
    for (const AttributeProto& attribute : called.defaults) attributes[attribute.name()] = &attribute;
    for (const AttributeProto& attribute : node.attribute()) attributes[attribute.name()] = &attribute;
    for (const NodeProto& part : function.node()) {
      RETURN_IF_ERROR(Count(function.name(), 0, part.ByteSizeLong() + node.name().size()));
      NodeProto copy = part;
      RETURN_IF_ERROR(Rename(function.name(), prefix, attributes, 0, &names, &copy));
      if (!node.name().empty()) copy.set_name(node.name() + "/" + copy.name());
      RETURN_IF_ERROR(Put(std::move(copy), depth + 1, into));
    }
    return {};
  }

  // A value of the function gets the name that the caller has for it, or one that nothing else has.
  Status Rename(const std::string& function, const std::string& prefix, Names* names, std::string* name) {
    if (!name->empty()) *name = names->emplace(*name, prefix + *name).first->second;
    return Count(function, 0, sizeof(std::string) + name->size());
  }

  // The node with its caller's names and attributes; values of bodies too, which see those around them.
  Status Rename(const std::string& function, const std::string& prefix, const Attributes& attributes, int depth, Names* names,
                NodeProto* node) {
    if (depth > kDepthMax) return Refuse(function, fmt::format("bodies lie deeper than {} in each other", kDepthMax));
    RETURN_IF_ERROR(Count(function, 1, sizeof(NodeProto)));
    for (std::string& name : *node->mutable_input()) RETURN_IF_ERROR(Rename(function, prefix, names, &name));
    for (std::string& name : *node->mutable_output()) RETURN_IF_ERROR(Rename(function, prefix, names, &name));
    const auto given = [&](const AttributeProto& attribute) {  // null: an optional one that the caller leaves out
      const auto found = attributes.find(attribute.ref_attr_name());
      return found == attributes.end() ? nullptr : found->second;
    };
    for (const AttributeProto& attribute : node->attribute()) {
      const AttributeProto* value = attribute.ref_attr_name().empty() ? nullptr : given(attribute);
      const std::size_t bytes = value == nullptr ? 0 : value->ByteSizeLong() * (value->has_g() ? kBodyFactor : 1);
      RETURN_IF_ERROR(Count(function, 0, sizeof(AttributeProto) + bytes));
    }
    google::protobuf::RepeatedPtrField<AttributeProto> kept;
    for (AttributeProto& attribute : *node->mutable_attribute()) {
      if (!attribute.ref_attr_name().empty()) {
        if (const AttributeProto* value = given(attribute)) {
          *kept.Add() = *value;
          kept.Mutable(kept.size() - 1)->set_name(attribute.name());
        }
        continue;
      }
      if (attribute.has_g()) {
        GraphProto& body = *attribute.mutable_g();
        for (auto& value : *body.mutable_input()) RETURN_IF_ERROR(Rename(function, prefix, names, value.mutable_name()));
        for (auto& value : *body.mutable_output()) RETURN_IF_ERROR(Rename(function, prefix, names, value.mutable_name()));
        for (auto& tensor : *body.mutable_initializer()) RETURN_IF_ERROR(Rename(function, prefix, names, tensor.mutable_name()));
        for (NodeProto& inner : *body.mutable_node()) RETURN_IF_ERROR(Rename(function, prefix, attributes, depth + 1, names, &inner));
      }
      *kept.Add() = std::move(attribute);
    }
    node->mutable_attribute()->Swap(&kept);
    return {};
  }

  const std::string& path_;
  ::onnx::ModelProto& model_;
  std::map<std::pair<std::string, std::string>, Function> functions_;
  std::string mark_ = "call";
  std::size_t calls_ = 0, nodes_ = 0, bytes_ = 0;
};

}  // namespace

Status InlineFunctions(const std::string& path, ::onnx::ModelProto* model) {
  return model->functions_size() == 0 ? Status() : Inliner(path, model).Run();
}

}  // namespace ropewalk::mlrunner::onnx
