#include "mlrunner/tensors/safetensors.h"

#include <algorithm>
#include <cerrno>
#include <limits>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/bytes.h"
#include "base/escape.h"
#include "mlrunner/kernels/elements.h"
#include "storage/io_error.h"

namespace ropewalk::mlrunner {
namespace {

using Json = nlohmann::json;
using storage::IoError;
using storage::QuotedPath;

constexpr const char* kMetadata = "__metadata__";
constexpr std::uint64_t kHeaderBytesMax = 100'000'000;  // the format's own limit

struct TypeName {
  Dtype dtype;
  std::string_view name;
};
constexpr TypeName kTypes[] = {{Dtype::kF64, "F64"}, {Dtype::kF32, "F32"}, {Dtype::kF16, "F16"}, {Dtype::kBF16, "BF16"},
                               {Dtype::kI64, "I64"}, {Dtype::kI32, "I32"}, {Dtype::kU8, "U8"},   {Dtype::kBool, "BOOL"}};

Status Damaged(const std::string& path, std::string why) {
  return Status(Code::kDataLoss, "TENS02", QuotedPath(path) + " is no whole safetensors file", std::move(why),
                "fetch or write it again; files that are to be loaded end in .safetensors, and are not those of torch.save");
}

// Whether something lies deeper than the numbers of a shape: none of the format does, and 100 million brackets would take gigabytes.
bool IsDeep(std::string_view text) {
  constexpr int kDepthMax = 3;
  int depth = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '"') {
      in_string = !in_string;
    } else if (in_string) {
      if (text[i] == '\\') ++i;  // what follows ends no string
    } else if (text[i] == '{' || text[i] == '[') {
      if (++depth > kDepthMax) return true;
    } else if (text[i] == '}' || text[i] == ']') {
      --depth;
    }
  }
  return false;
}

Result<TensorPlace> StoredIn(const Json& entry, const std::string& name, const std::string& path) {
  auto bad = [&](const char* why) { return Damaged(path, fmt::format("tensor {}: {}", EscapeForLog(name, 500), why)); };
  if (!entry.is_object() || !entry.contains("dtype") || !entry.contains("shape") || !entry.contains("data_offsets"))
    return bad("type, shape or place is missing");
  const Json &dtype = entry["dtype"], &shape = entry["shape"], &offsets = entry["data_offsets"];
  auto is_size = [](const Json& value) {
    return value.is_number_unsigned() && value.get<std::uint64_t>() <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  };
  if (!dtype.is_string()) return bad("a type that is none");
  if (!shape.is_array() || !std::all_of(shape.begin(), shape.end(), is_size)) return bad("a shape that is none");
  if (!offsets.is_array() || offsets.size() != 2 || !is_size(offsets[0]) || !is_size(offsets[1])) return bad("a place that is none");
  TensorPlace stored{dtype.get<std::string>(), {}, {}, offsets[0].get<std::uint64_t>(), offsets[1].get<std::uint64_t>()};
  stored.dtype = DtypeOfFile(stored.type);
  std::uint64_t expected = stored.dtype ? SizeOf(*stored.dtype) : 0;
  for (const Json& size : shape) {
    stored.dims.push_back(size.get<std::int64_t>());
    if (__builtin_mul_overflow(expected, size.get<std::uint64_t>(), &expected)) return bad("a shape that no file can hold");
  }
  if (stored.begin > stored.end || (stored.dtype && stored.end - stored.begin != expected)) return bad("its place does not fit its shape");
  return stored;
}

// Names of the file that a person may have meant: those with the same last part, else the first ones.
std::string Others(const SafetensorsHeader& header, const std::string& name) {
  auto last = [](const std::string& path) { return path.substr(path.find_last_of("./") + 1); };
  std::vector<std::string> alike, all;
  for (const auto& [other, tensor] : header.tensors) {
    if (last(other) == last(name)) alike.push_back(EscapeForLog(other, 500));
    all.push_back(EscapeForLog(other, 500));
  }
  std::vector<std::string>& shown = alike.empty() ? all : alike;
  const std::size_t count = shown.size();
  if (count > 5) shown.resize(5);
  return shown.empty() ? "it has no tensor at all"
                       : fmt::format("it has {} tensors; {}: {}{}", all.size(), alike.empty() ? "the first" : "of that ending",
                                     fmt::join(shown, ", "), count > shown.size() ? ", ..." : "");
}

Status Missing(const SafetensorsFile& file, const std::string& name, const std::string& what) {
  return Status(Code::kNotFound, "TENS03", fmt::format("{} has no tensor {}{}", QuotedPath(file.path()), EscapeForLog(name, 500), what),
                Others(file.header(), name),
                "name the tensor as the file does (LoadOptions::name_in_file), or leave the state out (wanted)");
}

}  // namespace

std::string_view FileNameOf(Dtype dtype) {
  const auto* type = std::find_if(std::begin(kTypes), std::end(kTypes), [&](const TypeName& t) { return t.dtype == dtype; });
  return type == std::end(kTypes) ? std::string_view() : type->name;
}

std::optional<Dtype> DtypeOfFile(std::string_view name) {
  const auto* type = std::find_if(std::begin(kTypes), std::end(kTypes), [&](const TypeName& t) { return t.name == name; });
  if (type == std::end(kTypes)) return {};
  return type->dtype;
}

Result<SafetensorsHeader> SafetensorsHeader::Parse(std::string_view text, const std::string& path) {
  if (IsDeep(text)) return Damaged(path, "its header is of other things than tensors");
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return Damaged(path, "its header is no JSON object");
  SafetensorsHeader header;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> places;
  for (const auto& [name, entry] : json.items()) {
    if (name == kMetadata) {
      if (!entry.is_object()) return Damaged(path, "its __metadata__ is no JSON object");
      for (const auto& [key, value] : entry.items()) {
        if (value.is_string()) header.metadata[key] = value.get<std::string>();
      }
      continue;
    }
    ASSIGN_OR_RETURN(TensorPlace stored, StoredIn(entry, name, path));
    places.emplace_back(stored.begin, stored.end);
    header.tensors[name] = std::move(stored);
  }
  // Each byte belongs to one tensor: bytes of two, or of none, could be read as anything.
  std::sort(places.begin(), places.end());
  std::uint64_t at = 0;
  for (const auto& [begin, end] : places) {
    if (begin != at)
      return Damaged(path, fmt::format("its tensors do not lie side by side: byte {} belongs to {} of them", std::min(begin, at),
                                       begin > at ? "none" : "two"));
    at = end;
  }
  header.data_bytes = at;
  return header;
}

Result<SafetensorsFile> SafetensorsFile::Open(storage::FileSystem& files, const std::string& path) {
  SafetensorsFile file;
  file.files_ = &files;
  file.path_ = path;
  auto failed = [&](int error) { return IoError(error, "TENS01", "cannot read " + QuotedPath(path)); };
  std::string text(sizeof(std::uint64_t), '\0');
  auto read = [&](std::uint64_t offset) -> Result<bool> {
    std::size_t count = 0;
    if (int error = files.ReadAt(path, offset, std::as_writable_bytes(std::span(text)), &count); error != 0) return failed(error);
    return count == text.size();
  };
  ASSIGN_OR_RETURN(bool whole, read(0));
  if (!whole) return Damaged(path, "it ends within the length of its header");
  const auto header_bytes = ByteReader(text).Fixed<std::uint64_t>();
  if (header_bytes > kHeaderBytesMax)
    return Damaged(path, fmt::format("a header of {} bytes, where {} are the most", header_bytes, kHeaderBytesMax));
  text.resize(header_bytes);
  ASSIGN_OR_RETURN(whole, read(sizeof header_bytes));
  if (!whole) return Damaged(path, fmt::format("it ends within its header of {} bytes", header_bytes));
  file.data_begins_ = sizeof header_bytes + header_bytes;
  ASSIGN_OR_RETURN(file.header_, SafetensorsHeader::Parse(text, path));
  // Of the last byte and the one behind it there is the first only. (A file's size is not asked for: of a link it is the link's.)
  std::byte last[2];
  std::size_t count = 0;
  const std::uint64_t bytes = file.header_.data_bytes, from = file.data_begins_ + bytes;
  const bool some = bytes > 0;
  if (int error = files.ReadAt(path, from - (some ? 1 : 0), last, &count); error != 0) return failed(error);
  if (count != (some ? 1 : 0)) {
    return Damaged(path, fmt::format("its tensors have {} bytes, and {} follow the header", bytes, count == 0 ? "fewer" : "more"));
  }
  return file;
}

Result<Tensor> SafetensorsFile::Read(const std::string& name) const {
  auto found = header_.tensors.find(name);
  if (found == header_.tensors.end()) return Missing(*this, name, "");
  const TensorPlace& stored = found->second;
  if (!stored.dtype) {
    return Status(Code::kInvalid, "TENS05",
                  fmt::format("tensor {} of {} is of type {}", EscapeForLog(name, 500), QuotedPath(path_), EscapeForLog(stored.type, 100)),
                  "there is no such element type here", "convert it before, to one of F64, F32, F16, BF16, I64, I32, U8, BOOL");
  }
  Tensor tensor{*stored.dtype, stored.dims, std::vector<std::byte>(stored.end - stored.begin)};
  std::size_t count = 0;
  if (int error = files_->ReadAt(path_, data_begins_ + stored.begin, tensor.bytes, &count); error != 0)
    return IoError(error, "TENS01", fmt::format("cannot read tensor {} of {}", EscapeForLog(name, 500), QuotedPath(path_)));
  if (count != tensor.bytes.size()) return Damaged(path_, fmt::format("it ends within tensor {}", EscapeForLog(name, 500)));
  return tensor;
}

Result<std::map<std::string, Tensor>> SafetensorsFile::ReadAll() const {
  std::map<std::string, Tensor> tensors;
  for (const auto& [name, stored] : header_.tensors) {
    ASSIGN_OR_RETURN(tensors[name], Read(name));
  }
  return tensors;
}

Result<std::string> SafetensorsHeaderText(const std::map<std::string, std::string>& metadata,
                                          const std::map<std::string, Tensor>& tensors) {
  Json header = Json::object();
  if (!metadata.empty()) header[kMetadata] = metadata;
  std::size_t at = 0;
  for (const auto& [name, tensor] : tensors) {
    const std::string_view type = FileNameOf(tensor.dtype);
    if (type.empty() || name == kMetadata) {
      return Status(Code::kInvalid, "TENS05", fmt::format("tensor {} ({}) cannot be written", name, Name(tensor.dtype)),
                    "no file holds one of that type or name", "leave it out, or call it otherwise");
    }
    header[name] = {{"dtype", std::string(type)}, {"shape", tensor.dims}, {"data_offsets", {at, at + tensor.bytes.size()}}};
    at += tensor.bytes.size();
  }
  std::string text = header.dump(-1, ' ', false, Json::error_handler_t::replace);
  text.resize((text.size() + 7) / 8 * 8, ' ');  // the bytes begin aligned
  return text;
}

Status WriteSafetensors(storage::FileSystem& files, const std::string& path, const std::map<std::string, Tensor>& tensors,
                        const std::map<std::string, std::string>& metadata) {
  ASSIGN_OR_RETURN(const std::string header, SafetensorsHeaderText(metadata, tensors));
  std::string length;
  ByteWriter(&length).Fixed(static_cast<std::uint64_t>(header.size()));
  const std::string beside = path + ".new";
  auto failed = [&](int error, const char* what) {
    Status status = IoError(error, "TENS01", fmt::format("cannot {} {}", what, QuotedPath(path)));
    if (int left = files.RemoveFile(beside); left != 0 && left != ENOENT) return status.WithContext("and " + QuotedPath(beside) + " stays");
    return status;
  };
  std::unique_ptr<storage::WritableFile> file;
  if (int error = files.Create(beside, &file); error != 0) return failed(error, "make");
  for (std::string_view part : {std::string_view(length), std::string_view(header)}) {
    if (int error = file->Append(AsBytes(part)); error != 0) return failed(error, "write");
  }
  for (const auto& [name, tensor] : tensors) {
    if (int error = file->Append(tensor.bytes); error != 0) return failed(error, "write");
  }
  if (int error = file->Sync(); error != 0) return failed(error, "sync");
  if (int error = file->Close(); error != 0) return failed(error, "close");
  if (int error = files.Rename(beside, path, storage::RenameMode::kReplace); error != 0) return failed(error, "rename to");
  const std::size_t slash = path.rfind('/');
  // Or the new name may vanish with the power.
  if (int error = files.SyncFolder(slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash)); error != 0)
    return IoError(error, "TENS01", "cannot sync the folder of " + QuotedPath(path));
  return {};
}

Tensor ConvertTo(const Tensor& tensor, Dtype dtype) {
  if (tensor.dtype == dtype || tensor.bytes.empty()) return {dtype, tensor.dims, tensor.bytes};
  constexpr std::size_t kElementsAtOnce = 8192;
  const std::size_t count = tensor.bytes.size() / SizeOf(tensor.dtype);
  Tensor converted{dtype, tensor.dims, std::vector<std::byte>(count * SizeOf(dtype))};
  double values[kElementsAtOnce];
  for (std::size_t done = 0; done < count; done += kElementsAtOnce) {
    const std::span<double> some(values, std::min(count - done, kElementsAtOnce));
    ToDoubles(tensor.dtype, tensor.bytes.data() + done * SizeOf(tensor.dtype), some);
    FromDoubles(dtype, some, converted.bytes.data() + done * SizeOf(dtype));
  }
  return converted;
}

Status LoadStates(const SafetensorsFile& file, const Graph& graph, const Bindings& bindings, const LoadOptions& options,
                  StateStore* states) {
  std::map<std::string, Tensor> loaded;
  for (const StateInfo& state : graph.states) {
    const bool wanted = options.wanted ? options.wanted(state) : state.kind == StateKind::kParameter || state.kind == StateKind::kStatistic;
    if (!wanted) continue;
    const std::string name = options.name_in_file ? options.name_in_file(state.name) : state.name;
    if (!state.sharding.IsReplicated()) {
      return Status(Code::kInvalid, "TENS06", fmt::format("state {} cannot be loaded from {}", state.name, QuotedPath(file.path())),
                    "it is cut over ranks, and the file has whole tensors",
                    "load it whole, save a checkpoint, and let the ranks read that");
    }
    auto found = file.header().tensors.find(name);
    if (found == file.header().tensors.end()) return Missing(file, name, ", which is to be state " + state.name);
    const Dims dims = Evaluate(state.type.shape, bindings);
    if (found->second.dims != dims) {
      return Status(Code::kInvalid, "TENS04",
                    fmt::format("tensor {} of {} has the shape {}", name, QuotedPath(file.path()), ToString(found->second.dims)),
                    fmt::format("state {} has {}", state.name, ToString(dims)),
                    "build the model with the sizes of the file, or leave the state out (LoadOptions::wanted)");
    }
    ASSIGN_OR_RETURN(Tensor tensor, file.Read(name));
    const bool converts = options.convert && IsFloat(tensor.dtype) && IsFloat(state.type.dtype);
    if (tensor.dtype != state.type.dtype && !converts) {
      return Status(Code::kInvalid, "TENS05",
                    fmt::format("tensor {} of {} is of type {}", name, QuotedPath(file.path()), found->second.type),
                    fmt::format("state {} is of type {}", state.name, FileNameOf(state.type.dtype)),
                    IsFloat(tensor.dtype) && IsFloat(state.type.dtype) ? "ask for the conversion (LoadOptions::convert)"
                                                                       : "convert it before; only floating-point types are converted here");
    }
    loaded[state.name] = ConvertTo(tensor, state.type.dtype);
  }
  for (auto& [name, tensor] : loaded) states->Set(name, std::move(tensor));
  return {};
}

}  // namespace ropewalk::mlrunner
