#include "mlrunner/train/tensor_file.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/bytes.h"
#include "base/copy_bytes.h"
#include "base/wide_checksum.h"
#include "mlrunner/tensors/safetensors.h"
#include "storage/io_error.h"

namespace ropewalk::mlrunner {
namespace {

using Json = nlohmann::json;
using storage::IoError;
using storage::QuotedPath;

constexpr std::size_t kFileBytesMax = std::size_t{1} << 40, kHeaderBytesMax = std::size_t{1} << 28;
constexpr const char* kMetadata = "__metadata__";
constexpr std::string_view kNoChecksum = "0000000000000000";

// The header with zeros where the checksum goes, which covers it like that.
Result<std::string> Header(std::map<std::string, std::string> metadata, const std::map<std::string, Tensor>& tensors) {
  metadata["checksum"] = std::string(kNoChecksum);
  auto text = SafetensorsHeaderText(metadata, tensors);
  if (!text.ok()) return Status(Code::kInternal, "CKPT01", text.status().what(), text.status().why(), "please report this");
  return text;
}

// Where the checksum stands in the header's text.
std::size_t ChecksumPlace(std::string_view header) {
  constexpr std::string_view kKey = "\"checksum\":\"";
  std::size_t at = header.find(kKey);
  return at == std::string_view::npos || at + kKey.size() + kNoChecksum.size() > header.size() ? std::string_view::npos : at + kKey.size();
}

std::string TextOf(const WideHash& hash) { return fmt::format("{:016x}", hash.value()); }

Result<Json> ParseHeader(const std::string& header, const std::string& path) {
  Json json = Json::parse(header, nullptr, /*allow_exceptions=*/false);
  if (json.is_object() && json.contains(kMetadata) && json[kMetadata].is_object()) return json;
  return DamagedTensorFile(path, "its header is no JSON object with __metadata__");
}

std::map<std::string, std::string> MetadataIn(const Json& header) {
  std::map<std::string, std::string> metadata;
  for (const auto& [name, text] : header[kMetadata].items()) {
    if (text.is_string()) metadata[name] = text.get<std::string>();
  }
  return metadata;
}

Result<TensorFile> Parse(const std::string& header, std::string_view bytes, const std::string& path) {
  ASSIGN_OR_RETURN(const Json json, ParseHeader(header, path));
  TensorFile file{MetadataIn(json), {}};
  auto form = SafetensorsHeader::Parse(header, path);
  if (!form.ok()) return DamagedTensorFile(path, form.status().why());
  if (form->data_bytes != bytes.size())
    return DamagedTensorFile(path, fmt::format("its tensors have {} bytes, and {} are there", form->data_bytes, bytes.size()));
  for (const auto& [name, stored] : form->tensors) {
    if (!stored.dtype) return DamagedTensorFile(path, fmt::format("tensor {}: a type that is not known", name));
    Tensor& tensor = file.tensors[name] = {*stored.dtype, stored.dims, std::vector<std::byte>(stored.end - stored.begin)};
    CopyBytes(tensor.bytes.data(), bytes.data() + stored.begin, tensor.bytes.size());
  }
  return file;
}

}  // namespace

Status TensorFileError(int error, const std::string& path, const char* what) {
  if (error == 0) return {};
  Status io = IoError(error, "CKPT01", fmt::format("cannot {} the checkpoint {}", what, QuotedPath(path)));
  return Status(io.code(), "CKPT01", io.what(), io.why(), io.fix().empty() ? "older checkpoints are still there" : io.fix());
}

Status DamagedTensorFile(const std::string& path, const std::string& why) {
  return Status(Code::kDataLoss, "CKPT02", QuotedPath(path) + " is no whole checkpoint", why, "remove it; an older one is used then");
}

Result<std::uint64_t> WriteTensorFile(storage::FileSystem& files, const std::string& path,
                                      const std::map<std::string, std::string>& metadata, const std::map<std::string, Tensor>& tensors) {
  ASSIGN_OR_RETURN(std::string header, Header(metadata, tensors));
  WideHash hash;
  hash.Add(AsBytes(header));
  for (const auto& [name, tensor] : tensors) hash.Add(tensor.bytes);
  header.replace(ChecksumPlace(header), kNoChecksum.size(), TextOf(hash));
  std::string length;
  ByteWriter(&length).Fixed(static_cast<std::uint64_t>(header.size()));

  std::unique_ptr<storage::WritableFile> file;
  RETURN_IF_ERROR(TensorFileError(files.Create(path, &file), path, "make"));
  for (std::string_view part : {std::string_view(length), std::string_view(header)})
    RETURN_IF_ERROR(TensorFileError(file->Append(AsBytes(part)), path, "write"));
  for (const auto& [name, tensor] : tensors) RETURN_IF_ERROR(TensorFileError(file->Append(tensor.bytes), path, "write"));
  RETURN_IF_ERROR(TensorFileError(file->Sync(), path, "sync"));
  RETURN_IF_ERROR(TensorFileError(file->Close(), path, "close"));
  return Checksum64(header);
}

Result<TensorFileHeader> ReadTensorFileHeader(storage::FileSystem& files, const std::string& path) {
  TensorFileHeader header;
  // What the file holds of so many bytes from `offset` on.
  auto read = [&](std::uint64_t offset, std::size_t bytes, std::string* text) -> Status {
    text->resize(bytes);
    std::size_t count = 0;
    if (int error = files.ReadAt(path, offset, std::as_writable_bytes(std::span(*text)), &count); error != 0)
      return IoError(error, "CKPT02", "cannot read the checkpoint " + QuotedPath(path));
    return count == bytes ? Status() : DamagedTensorFile(path, fmt::format("it ends after {} bytes", offset + count));
  };
  std::string text;
  RETURN_IF_ERROR(read(0, sizeof(std::uint64_t), &text));
  const auto header_bytes = ByteReader(text).Fixed<std::uint64_t>();
  if (header_bytes > kHeaderBytesMax) return DamagedTensorFile(path, fmt::format("a header of {} bytes", header_bytes));
  RETURN_IF_ERROR(read(sizeof header_bytes, header_bytes, &text));
  header.hash = Checksum64(text);
  header.data_begins = sizeof header_bytes + header_bytes;
  ASSIGN_OR_RETURN(const Json json, ParseHeader(text, path));
  header.metadata = MetadataIn(json);
  return header;
}

Result<TensorFile> ReadTensorFile(storage::FileSystem& files, const std::string& path) {
  std::string file;
  if (int error = files.ReadSmall(path, kFileBytesMax, &file); error != 0)
    return IoError(error, "CKPT02", "cannot read the checkpoint " + QuotedPath(path));
  ByteReader reader(file);
  auto header_bytes = reader.Fixed<std::uint64_t>();
  if (!reader.ok() || header_bytes > reader.remaining()) return DamagedTensorFile(path, fmt::format("it ends after {} bytes", file.size()));
  std::string header = file.substr(sizeof header_bytes, header_bytes);
  std::string_view bytes = std::string_view(file).substr(sizeof header_bytes + header_bytes);
  std::size_t place = ChecksumPlace(header);
  if (place == std::string::npos) return DamagedTensorFile(path, "its header has no checksum");
  std::string stored = header.substr(place, kNoChecksum.size());
  header.replace(place, kNoChecksum.size(), kNoChecksum);
  WideHash hash;
  hash.Add(AsBytes(header));
  hash.Add(AsBytes(bytes));
  if (stored != TextOf(hash)) return DamagedTensorFile(path, "its checksum is another");
  return Parse(header, bytes, path);
}

}  // namespace ropewalk::mlrunner
