#include "mlrunner/onnx/file.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string_view>

#include <fmt/format.h>
#include <onnx/onnx.pb.h>

#include "base/bytes.h"
#include "base/escape.h"
#include "mlrunner/onnx/functions.h"
#include "storage/io_error.h"

namespace ropewalk::mlrunner::onnx {
namespace {

using storage::QuotedPath;

constexpr std::size_t kFileBytesMax = std::numeric_limits<std::int32_t>::max();  // of a message of this format
constexpr std::int64_t kIrVersion = 8;                                           // what goes with opset 17

struct TypeCode {
  std::int32_t code;
  Dtype dtype;
};
constexpr TypeCode kTypes[] = {{1, Dtype::kF32},  {2, Dtype::kU8},   {6, Dtype::kI32},  {7, Dtype::kI64},
                               {9, Dtype::kBool}, {10, Dtype::kF16}, {11, Dtype::kF64}, {16, Dtype::kBF16}};

std::optional<Dtype> DtypeOf(std::int32_t code) {
  for (const TypeCode& type : kTypes) {
    if (type.code == code) return type.dtype;
  }
  return std::nullopt;
}
std::int32_t CodeOf(Dtype dtype) {
  for (const TypeCode& type : kTypes) {
    if (type.dtype == dtype) return type.code;
  }
  return 0;
}

double AsWritten(float value) { return std::strtod(fmt::format("{}", value).c_str(), nullptr); }

// Reads one file: where it lies, and what its messages say.
class Reader {
 public:
  Reader(storage::FileSystem& files, const std::string& path) : files_(files), path_(path) {}

  Result<ModelDef> Read() {
    std::string bytes;
    if (int error = files_.ReadSmall(path_, kFileBytesMax, &bytes); error == EFBIG) {
      return NoModel("it has more bytes than the 2^31 - 1 of one message",
                     "export it with its weights in a file of their own (external data)");
    } else if (error != 0) {
      return storage::IoError(error, "ONNX01", "cannot read " + QuotedPath(path_));
    }
    ::onnx::ModelProto proto;
    if (bytes.empty() || !proto.ParseFromString(bytes)) {
      return NoModel(fmt::format("its {} bytes are no ONNX message, or it is cut off", bytes.size()), "export or copy it again");
    }
    if (!proto.has_graph() || proto.opset_import_size() == 0) {
      return NoModel("it says no graph, or no opset", "export or copy it again; the part of a model that a tool cut out is none");
    }
    ModelDef model;
    model.producer = fmt::format("{} {}", proto.producer_name(), proto.producer_version());
    for (const auto& opset : proto.opset_import()) {
      if (opset.domain().empty() || opset.domain() == "ai.onnx") model.opset = opset.version();
    }
    if (model.opset < kOpsetMin || model.opset > kOpsetMax) {
      return Status(Code::kInvalid, "ONNX02", fmt::format("{} is of opset {}", QuotedPath(path_), model.opset),
                    fmt::format("opsets {} to {} are read; others define some ops otherwise", kOpsetMin, kOpsetMax),
                    "export it with opset_version=17, or convert it by onnx.version_converter");
    }
    RETURN_IF_ERROR(InlineFunctions(path_, &proto));
    ASSIGN_OR_RETURN(model.graph, Graph(proto.graph()));
    return model;
  }

 private:
  Status NoModel(std::string why, std::string fix) const {
    return Status(Code::kInvalid, "ONNX01", QuotedPath(path_) + " is no whole ONNX model", std::move(why), std::move(fix));
  }
  Status BadTensor(const std::string& name, std::string why, std::string fix) const {
    return Status(Code::kInvalid, "ONNX07", fmt::format("tensor {} of {}", EscapeForLog(name, 500), QuotedPath(path_)), std::move(why),
                  std::move(fix));
  }
  Status BadData(const std::string& name, const std::string& location, std::string why, std::string fix) const {
    return Status(Code::kInvalid, "ONNX04",
                  fmt::format("the data of tensor {} of {}, in {}", EscapeForLog(name, 500), QuotedPath(path_), QuotedPath(location)),
                  std::move(why), std::move(fix));
  }

  Result<GraphDef> Graph(const ::onnx::GraphProto& proto) {
    GraphDef graph;
    graph.name = proto.name();
    std::set<std::string> given;
    for (const auto& tensor : proto.initializer()) {
      ASSIGN_OR_RETURN(Literal literal, Tensor(tensor));
      if (!given.insert(tensor.name()).second) return BadTensor(tensor.name(), "two initializers have that name", "export it again");
      graph.initializers.emplace_back(tensor.name(), std::move(literal));
    }
    if (proto.sparse_initializer_size() > 0)
      return BadTensor(proto.sparse_initializer(0).values().name(), "it is sparse", "export it dense");
    for (const auto& input : proto.input()) {
      if (given.contains(input.name())) continue;
      ASSIGN_OR_RETURN(ValueDef value, Value(input));
      graph.inputs.push_back(std::move(value));
    }
    for (const auto& output : proto.output()) {
      // Types of outputs are what the graph gives; tools leave them out.
      ValueDef value;
      value.name = output.name();
      graph.outputs.push_back(std::move(value));
    }
    for (const auto& node : proto.node()) {
      ASSIGN_OR_RETURN(Node made, NodeOf(node));
      graph.nodes.push_back(std::move(made));
    }
    return graph;
  }

  Result<ValueDef> Value(const ::onnx::ValueInfoProto& proto) {
    ValueDef value;
    value.name = proto.name();
    if (!proto.type().has_tensor_type()) return value;  // of a body, where types may be left out; of the model it is refused for its shape
    const auto& type = proto.type().tensor_type();
    if (type.elem_type() != 0) {
      auto dtype = DtypeOf(type.elem_type());
      if (!dtype)
        return BadTensor(value.name, fmt::format("its element type has the code {}, which is none of ours", type.elem_type()), TypesFix());
      value.dtype = *dtype;
    }
    value.has_shape = type.has_shape();
    for (const auto& dim : type.shape().dim()) value.dims.push_back({dim.has_dim_value() ? dim.dim_value() : -1, dim.dim_param()});
    return value;
  }

  static std::string TypesFix() { return "use float32, float64, float16, bfloat16, int32, int64, uint8 or bool"; }

  Result<Node> NodeOf(const ::onnx::NodeProto& proto) {
    Node node{proto.name(),
              proto.op_type(),
              proto.domain(),
              {proto.input().begin(), proto.input().end()},
              {proto.output().begin(), proto.output().end()},
              {}};
    if (node.domain == "ai.onnx") node.domain.clear();
    for (const auto& attribute : proto.attribute()) {
      Attribute& value = node.attributes[attribute.name()];
      switch (attribute.type()) {
        case ::onnx::AttributeProto::INT:
          value = static_cast<std::int64_t>(attribute.i());
          break;
        case ::onnx::AttributeProto::FLOAT:
          value = AsWritten(attribute.f());
          break;
        case ::onnx::AttributeProto::STRING:
          value = attribute.s();
          break;
        case ::onnx::AttributeProto::INTS:
          value = std::vector<std::int64_t>(attribute.ints().begin(), attribute.ints().end());
          break;
        case ::onnx::AttributeProto::FLOATS: {
          std::vector<double> numbers;
          for (float number : attribute.floats()) numbers.push_back(AsWritten(number));
          value = std::move(numbers);
          break;
        }
        case ::onnx::AttributeProto::STRINGS:
          value = std::vector<std::string>(attribute.strings().begin(), attribute.strings().end());
          break;
        case ::onnx::AttributeProto::TENSOR: {
          ASSIGN_OR_RETURN(value, Tensor(attribute.t()));
          break;
        }
        case ::onnx::AttributeProto::GRAPH: {
          ASSIGN_OR_RETURN(GraphDef body, Graph(attribute.g()));
          value = std::make_shared<const GraphDef>(std::move(body));
          break;
        }
        default:
          node.attributes.erase(attribute.name());  // of kinds that no op here reads
      }
    }
    return node;
  }

  Result<Literal> Tensor(const ::onnx::TensorProto& proto) {
    const std::string& name = proto.name();
    auto dtype = DtypeOf(proto.data_type());
    if (!dtype)
      return BadTensor(name, fmt::format("its element type has the code {}, which is none of ours", proto.data_type()), TypesFix());
    Literal literal{*dtype, {proto.dims().begin(), proto.dims().end()}, nullptr};
    std::uint64_t bytes = SizeOf(*dtype);
    for (std::int64_t dim : literal.dims) {
      if (dim < 0 || __builtin_mul_overflow(bytes, static_cast<std::uint64_t>(dim), &bytes))
        return BadTensor(name, fmt::format("its shape {} is none", ToString(literal.dims)), "export it again");
    }
    if (proto.data_location() == ::onnx::TensorProto::EXTERNAL) {
      ASSIGN_OR_RETURN(std::string data, External(proto, bytes));
      literal.bytes = std::make_shared<const std::string>(std::move(data));
    } else {
      std::string data = proto.has_raw_data() ? proto.raw_data() : Typed(proto, *dtype);
      if (data.size() != bytes) {
        return BadTensor(
            name, fmt::format("it has {} bytes, and its shape {} of {} needs {}", data.size(), ToString(literal.dims), Name(*dtype), bytes),
            "export or copy it again");
      }
      literal.bytes = std::make_shared<const std::string>(std::move(data));
    }
    if (*dtype == Dtype::kBool) {  // whatever stands for true
      std::string flags = *literal.bytes;
      for (char& flag : flags) flag = flag != 0 ? 1 : 0;
      literal.bytes = std::make_shared<const std::string>(std::move(flags));
    }
    return literal;
  }

  // The fields in which small tensors lie, each of which holds several types.
  static std::string Typed(const ::onnx::TensorProto& proto, Dtype dtype) {
    std::string bytes;
    ByteWriter writer(&bytes);
    switch (dtype) {
      case Dtype::kF32:
        for (float value : proto.float_data()) writer.Fixed(value);
        break;
      case Dtype::kF64:
        for (double value : proto.double_data()) writer.Fixed(value);
        break;
      case Dtype::kI64:
        for (std::int64_t value : proto.int64_data()) writer.Fixed(value);
        break;
      case Dtype::kI32:
        for (std::int32_t value : proto.int32_data()) writer.Fixed(value);
        break;
      case Dtype::kF16:
      case Dtype::kBF16:
        for (std::int32_t value : proto.int32_data()) writer.Fixed(static_cast<std::uint16_t>(value));
        break;
      default:
        for (std::int32_t value : proto.int32_data()) writer.Fixed(static_cast<std::uint8_t>(value));
    }
    return bytes;
  }

  Result<std::string> External(const ::onnx::TensorProto& proto, std::uint64_t bytes) {
    std::map<std::string, std::string> keys;
    for (const auto& entry : proto.external_data()) keys[entry.key()] = entry.value();
    const std::string& location = keys["location"];
    auto bad = [&](std::string why, std::string fix) { return BadData(proto.name(), location, std::move(why), std::move(fix)); };
    auto number = [](const std::string& text) -> std::optional<std::uint64_t> {
      if (text.empty() || text.size() > 18 || !std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; }))
        return std::nullopt;
      return std::strtoull(text.c_str(), nullptr, 10);
    };
    std::optional<std::uint64_t> offset = keys.contains("offset") ? number(keys["offset"]) : 0;
    std::optional<std::uint64_t> length = keys.contains("length") ? number(keys["length"]) : bytes;
    if (!offset || !length || *length != bytes) {
      return bad(fmt::format("offset [{}] and length [{}] do not give the {} bytes of its shape", EscapeForLog(keys["offset"], 100),
                             EscapeForLog(keys["length"], 100), bytes),
                 "export it again");
    }
    // A file from somebody else must not read what lies elsewhere on this machine.
    const std::string outside = "it must be a plain file in the model's folder, without .. or links on the way";
    std::string at = path_.find('/') == std::string::npos ? "." : path_.substr(0, path_.rfind('/') + 1);
    std::string_view rest = location;
    storage::FileFacts facts;
    if (location.empty() || location.front() == '/' || location.find('\0') != std::string::npos || location.find('\\') != std::string::npos)
      return bad(outside, "put the data beside the model, and name it by a relative path");
    while (!rest.empty()) {
      const std::size_t slash = std::min(rest.find('/'), rest.size());
      const std::string_view part = rest.substr(0, slash);
      rest.remove_prefix(std::min(slash + 1, rest.size()));
      if (part.empty() || part == ".") continue;
      if (part == "..") return bad(outside, "put the data beside the model, and name it by a relative path");
      at += (at.ends_with('/') ? "" : "/") + std::string(part);
      if (int error = files_.Look(at, &facts); error == ENOENT) {
        return bad("there is no such file", "copy it beside the model; it comes with it, under this name");
      } else if (error != 0) {
        return storage::IoError(error, "ONNX04", "cannot look at " + QuotedPath(at));
      }
      if (facts.kind != (rest.empty() ? storage::FileKind::kFile : storage::FileKind::kFolder))
        return bad(outside, "put the data beside the model, and name it by a relative path");
    }
    if (facts.kind != storage::FileKind::kFile) return bad(outside, "name the file that holds the data");
    if (*offset > facts.bytes || facts.bytes - *offset < bytes) {
      return bad(fmt::format("it has {} bytes, and those of the tensor are {} from byte {} on", facts.bytes, bytes, *offset),
                 "copy it again: it is cut off, or belongs to another model");
    }
    // A small file must not fill the memory by naming the same bytes again and again.
    std::uint64_t& taken = taken_[at];
    if (facts.bytes - taken < bytes) {
      return bad(fmt::format("it has {} bytes, and the tensors that lie in it have more together", facts.bytes),
                 "export it again, with bytes of its own for each tensor");
    }
    taken += bytes;
    std::string data(bytes, '\0');
    std::size_t count = 0;
    if (int error = files_.ReadAt(at, *offset, std::as_writable_bytes(std::span(data)), &count); error != 0)
      return storage::IoError(error, "ONNX04", "cannot read " + QuotedPath(at));
    if (count != data.size()) return bad("it ended while it was read", "let nobody write to it");
    return data;
  }

  storage::FileSystem& files_;
  std::string path_;
  std::map<std::string, std::uint64_t> taken_;  // bytes that tensors have of a file beside the model
};

void Put(const Literal& literal, const std::string& name, ::onnx::TensorProto* proto) {
  proto->set_name(name);
  proto->set_data_type(CodeOf(literal.dtype));
  for (std::int64_t dim : literal.dims) proto->add_dims(dim);
  proto->set_raw_data(*literal.bytes);
}

void Put(const ValueDef& value, ::onnx::ValueInfoProto* proto) {
  proto->set_name(value.name);
  auto* type = proto->mutable_type()->mutable_tensor_type();
  type->set_elem_type(CodeOf(value.dtype));
  if (!value.has_shape) return;
  type->mutable_shape();
  for (const DimDef& dim : value.dims) {
    auto* made = type->mutable_shape()->add_dim();
    if (dim.value >= 0) {
      made->set_dim_value(dim.value);
    } else if (!dim.symbol.empty()) {
      made->set_dim_param(dim.symbol);
    }
  }
}

void Put(const std::string& name, const Attribute& value, ::onnx::AttributeProto* proto) {
  proto->set_name(name);
  if (const auto* number = std::get_if<std::int64_t>(&value)) {
    proto->set_type(::onnx::AttributeProto::INT);
    proto->set_i(*number);
  } else if (const auto* real = std::get_if<double>(&value)) {
    proto->set_type(::onnx::AttributeProto::FLOAT);
    proto->set_f(static_cast<float>(*real));
  } else if (const auto* text = std::get_if<std::string>(&value)) {
    proto->set_type(::onnx::AttributeProto::STRING);
    proto->set_s(*text);
  } else if (const auto* literal = std::get_if<Literal>(&value)) {
    proto->set_type(::onnx::AttributeProto::TENSOR);
    Put(*literal, "", proto->mutable_t());
  } else if (const auto* numbers = std::get_if<std::vector<std::int64_t>>(&value)) {
    proto->set_type(::onnx::AttributeProto::INTS);
    for (std::int64_t number_in : *numbers) proto->add_ints(number_in);
  } else if (const auto* reals = std::get_if<std::vector<double>>(&value)) {
    proto->set_type(::onnx::AttributeProto::FLOATS);
    for (double real_in : *reals) proto->add_floats(static_cast<float>(real_in));
  } else if (const auto* texts = std::get_if<std::vector<std::string>>(&value)) {
    proto->set_type(::onnx::AttributeProto::STRINGS);
    for (const std::string& text_in : *texts) proto->add_strings(text_in);
  }
}

}  // namespace

Result<ModelDef> ReadModel(storage::FileSystem& files, const std::string& path) { return Reader(files, path).Read(); }

Status WriteModel(storage::FileSystem& files, const std::string& path, const ModelDef& model) {
  ::onnx::ModelProto proto;
  proto.set_ir_version(kIrVersion);
  proto.set_producer_name(model.producer);
  proto.add_opset_import()->set_version(model.opset);
  auto* graph = proto.mutable_graph();
  graph->set_name(model.graph.name);
  for (const Node& node : model.graph.nodes) {
    auto* made = graph->add_node();
    made->set_name(node.name);
    made->set_op_type(node.op);
    if (!node.domain.empty()) made->set_domain(node.domain);
    for (const std::string& input : node.inputs) made->add_input(input);
    for (const std::string& output : node.outputs) made->add_output(output);
    for (const auto& [name, value] : node.attributes) Put(name, value, made->add_attribute());
  }
  for (const auto& [name, literal] : model.graph.initializers) Put(literal, name, graph->add_initializer());
  for (const ValueDef& input : model.graph.inputs) Put(input, graph->add_input());
  for (const ValueDef& output : model.graph.outputs) Put(output, graph->add_output());

  const std::size_t size = proto.ByteSizeLong();
  if (size > kFileBytesMax) {
    return Status(Code::kInvalid, "ONNX09", fmt::format("{} would have {} bytes", QuotedPath(path), size),
                  "a file of this format has 2^31 - 1 at most", "export fewer layers, or keep the checkpoint, which has no such limit");
  }
  std::string bytes;
  if (!proto.SerializeToString(&bytes)) {
    return Status(Code::kInternal, "ONNX09", QuotedPath(path) + " cannot be encoded", "a name is no UTF-8",
                  "name states and outputs otherwise");
  }
  const std::string beside = path + ".new";
  auto failed = [&](int error, const char* what) {
    Status status = storage::IoError(error, "ONNX01", fmt::format("cannot {} {}", what, QuotedPath(path)));
    if (int left = files.RemoveFile(beside); left != 0 && left != ENOENT) return status.WithContext("and " + QuotedPath(beside) + " stays");
    return status;
  };
  std::unique_ptr<storage::WritableFile> file;
  if (int error = files.Create(beside, &file); error != 0) return failed(error, "make");
  if (int error = file->Append(AsBytes(bytes)); error != 0) return failed(error, "write");
  if (int error = file->Sync(); error != 0) return failed(error, "sync");
  if (int error = file->Close(); error != 0) return failed(error, "close");
  if (int error = files.Rename(beside, path, storage::RenameMode::kReplace); error != 0) return failed(error, "rename to");
  const std::size_t slash = path.rfind('/');
  if (int error = files.SyncFolder(slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash)); error != 0)
    return storage::IoError(error, "ONNX01", "cannot sync the folder of " + QuotedPath(path));
  return {};
}

}  // namespace ropewalk::mlrunner::onnx
