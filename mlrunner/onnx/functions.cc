#include "mlrunner/onnx/functions.h"

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>
#include <onnx/onnx.pb.h>

#include "storage/io_error.h"

namespace ropewalk::mlrunner::onnx {
namespace {

using ::onnx::AttributeProto, ::onnx::FunctionProto, ::onnx::GraphProto, ::onnx::NodeProto;
using Names = std::map<std::string, std::string>;

constexpr int kDepthMax = 64;                            // functions within functions, and bodies within bodies
constexpr std::size_t kNodesMax = std::size_t{1} << 18;  // of all calls together: functions that call two others double with each depth
constexpr std::size_t kBytesMax = std::size_t{1} << 30;  // of them

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
      return Status(Code::kInvalid, "ONNX03", "function " + function.name(), "its fields are not whole", "export it again");
    if (is_one && !attributes.emplace_back().ParseFromString(bytes))
      return Status(Code::kInvalid, "ONNX03", "function " + function.name(), "an attribute is not whole", "export it again");
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
      if (!functions_.emplace(std::pair{DomainOf(function.domain()), function.name()}, &function).second)
        return Refuse(function.name(), "two functions have that name");
      for (const auto& used : function.opset_import()) {
        if (DomainOf(used.domain()).empty() && used.version() != opset)
          return Refuse(function.name(), fmt::format("it is of opset {}, and the model of {}", used.version(), opset));
      }
    }
    return InGraph(model_.mutable_graph(), 0);
  }

 private:
  Status Refuse(const std::string& function, std::string why) const {
    return Status(Code::kInvalid, "ONNX03", fmt::format("function {} of {}", function, storage::QuotedPath(path_)), std::move(why),
                  "write the functions into the graph: onnx.inliner.inline_local_functions");
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
    return Call(node, *function->second, depth, into);
  }

  Status Call(const NodeProto& node, const FunctionProto& function, int depth, GraphProto* into) {
    if (node.input_size() > function.input_size() || node.output_size() > function.output_size())
      return Refuse(function.name(), "a node calls it with more inputs or outputs than it has");
    const std::string prefix = fmt::format("{}.{}/", function.name(), calls_++);
    Names names;
    for (int i = 0; i < function.input_size(); ++i) names[function.input(i)] = i < node.input_size() ? node.input(i) : "";
    for (int i = 0; i < node.output_size(); ++i) {
      if (node.output(i).empty()) continue;
      if (!names.emplace(function.output(i), node.output(i)).second) {  // it gives back what it got
        NodeProto same;
        same.set_op_type("Identity");
        same.set_name(prefix + "Identity");
        same.add_input(names.at(function.output(i)));
        same.add_output(node.output(i));
        *into->add_node() = std::move(same);
      }
    }
    std::map<std::string, const AttributeProto*> attributes;
    ASSIGN_OR_RETURN(const std::vector<AttributeProto> defaults, Defaults(function));
    for (const AttributeProto& attribute : defaults) attributes[attribute.name()] = &attribute;
    for (const AttributeProto& attribute : node.attribute()) attributes[attribute.name()] = &attribute;
    for (const NodeProto& part : function.node()) {
      bytes_ += part.ByteSizeLong();
      if (++nodes_ > kNodesMax || bytes_ > kBytesMax)
        return Refuse(function.name(), fmt::format("all calls together have more than {} nodes, or {} bytes", kNodesMax, kBytesMax));
      NodeProto copy = part;
      RETURN_IF_ERROR(Rename(function.name(), prefix, attributes, 0, &names, &copy));
      if (!node.name().empty()) copy.set_name(node.name() + "/" + copy.name());
      RETURN_IF_ERROR(Put(std::move(copy), depth + 1, into));
    }
    return {};
  }

  // A value of the function: what the caller calls it, or a name that nothing else has.
  static std::string Renamed(const std::string& name, const std::string& prefix, Names* names) {
    return name.empty() ? name : names->emplace(name, prefix + name).first->second;
  }

  // The node with its caller's names and attributes; values of bodies too, which see those around them.
  Status Rename(const std::string& function, const std::string& prefix, const std::map<std::string, const AttributeProto*>& attributes,
                int depth, Names* names, NodeProto* node) {
    if (depth > kDepthMax) return Refuse(function, fmt::format("bodies lie deeper than {} in each other", kDepthMax));
    for (std::string& name : *node->mutable_input()) name = Renamed(name, prefix, names);
    for (std::string& name : *node->mutable_output()) name = Renamed(name, prefix, names);
    google::protobuf::RepeatedPtrField<AttributeProto> kept;
    for (AttributeProto& attribute : *node->mutable_attribute()) {
      if (!attribute.ref_attr_name().empty()) {
        const auto given = attributes.find(attribute.ref_attr_name());
        if (given == attributes.end()) continue;  // an optional one that the caller leaves out
        AttributeProto value = *given->second;
        value.set_name(attribute.name());
        *kept.Add() = std::move(value);
        continue;
      }
      if (attribute.has_g()) {
        GraphProto& body = *attribute.mutable_g();
        for (auto& value : *body.mutable_input()) value.set_name(Renamed(value.name(), prefix, names));
        for (auto& value : *body.mutable_output()) value.set_name(Renamed(value.name(), prefix, names));
        for (auto& tensor : *body.mutable_initializer()) tensor.set_name(Renamed(tensor.name(), prefix, names));
        for (NodeProto& inner : *body.mutable_node()) RETURN_IF_ERROR(Rename(function, prefix, attributes, depth + 1, names, &inner));
      }
      *kept.Add() = std::move(attribute);
    }
    node->mutable_attribute()->Swap(&kept);
    return {};
  }

  const std::string& path_;
  ::onnx::ModelProto& model_;
  std::map<std::pair<std::string, std::string>, const FunctionProto*> functions_;
  std::size_t calls_ = 0, nodes_ = 0, bytes_ = 0;
};

}  // namespace

Status InlineFunctions(const std::string& path, ::onnx::ModelProto* model) {
  return model->functions_size() == 0 ? Status() : Inliner(path, model).Run();
}

}  // namespace ropewalk::mlrunner::onnx
