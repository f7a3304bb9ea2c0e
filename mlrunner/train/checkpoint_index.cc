#include "mlrunner/train/checkpoint_index.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "mlrunner/tensors/safetensors.h"
#include "mlrunner/train/tensor_file.h"

namespace ropewalk::mlrunner {
namespace {

using Json = nlohmann::json;

bool IsSize(const Json& value) {
  return value.is_number_unsigned() && value.get<std::uint64_t>() <= std::uint64_t{1} << 61;  // sums of two still fit
}

std::optional<Dims> DimsIn(const Json& entry, const char* key) {
  auto found = entry.find(key);
  if (found == entry.end() || !found->is_array() || !std::all_of(found->begin(), found->end(), IsSize)) return {};
  return found->get<Dims>();
}

std::optional<std::uint64_t> SizeIn(const Json& entry, const char* key) {
  auto found = entry.find(key);
  if (found == entry.end() || !IsSize(*found)) return {};
  return found->get<std::uint64_t>();
}

std::optional<std::string> TextIn(const Json& entry, const char* key) {
  auto found = entry.find(key);
  if (found == entry.end() || !found->is_string()) return {};
  return found->get<std::string>();
}

// A piece of a tensor in one of `files`; nothing: it is none.
std::optional<StoredPiece> PieceIn(const Json& entry, const StoredTensor& tensor, std::size_t files) {
  if (!entry.is_object()) return {};
  const std::optional<Dims> offsets = DimsIn(entry, "offsets"), lengths = DimsIn(entry, "lengths");
  const std::optional<std::uint64_t> at = SizeIn(entry, "at");
  const std::optional<std::string> checksum = TextIn(entry, "checksum");
  if (!offsets || !lengths || offsets->size() != lengths->size() || !at || !checksum) return {};
  StoredPiece piece{{*offsets, *offsets}, StoredPiece::kSameFile, *at, 0};
  for (std::size_t d = 0; d < lengths->size(); ++d) piece.slice.end[d] += (*lengths)[d];
  auto [end, error] = std::from_chars(checksum->data(), checksum->data() + checksum->size(), piece.checksum, 16);
  if (error != std::errc() || end != checksum->data() + checksum->size() || !IsWithin(piece.slice, tensor.dims)) return {};
  if (entry.contains("file")) {
    const std::optional<std::uint64_t> file = SizeIn(entry, "file");
    if (!file || *file >= files) return {};
    piece.file = static_cast<std::int32_t>(*file);
  }
  return piece;
}

// Whether a tensor of so many bytes can be.
bool FitsMemory(const StoredTensor& tensor) {
  std::uint64_t bytes = SizeOf(tensor.dtype);
  for (std::int64_t length : tensor.dims) {
    if (__builtin_mul_overflow(bytes, static_cast<std::uint64_t>(length), &bytes)) return false;
  }
  return bytes <= std::uint64_t{1} << 61;  // sums of two still fit
}

std::string Place(const CheckpointIndex& index, const StoredPiece& piece) {
  return piece.file == StoredPiece::kSameFile ? ToString(piece.slice)
                                              : ToString(piece.slice) + " in " + index.files[static_cast<std::size_t>(piece.file)].name;
}

}  // namespace

StoredTensor InOnePiece(Dtype dtype, const Dims& dims) {
  StoredPiece piece;
  piece.slice = WholeOf(dims);
  return {dtype, dims, {std::move(piece)}};
}

std::string Encode(const CheckpointIndex& index) {
  Json json = {{"files", Json::array()}, {"tensors", Json::object()}};
  for (const StoredFile& file : index.files) json["files"].push_back({{"name", file.name}, {"data_begins", file.data_begins}});
  for (const auto& [name, tensor] : index.tensors) {
    Json pieces = Json::array();
    for (const StoredPiece& piece : tensor.pieces) {
      Json entry = {{"offsets", piece.slice.begin},
                    {"lengths", LengthsOf(piece.slice)},
                    {"at", piece.at},
                    {"checksum", fmt::format("{:016x}", piece.checksum)}};
      if (piece.file != StoredPiece::kSameFile) entry["file"] = piece.file;
      pieces.push_back(std::move(entry));
    }
    json["tensors"][name] = {{"dtype", std::string(FileNameOf(tensor.dtype))}, {"shape", tensor.dims}, {"pieces", std::move(pieces)}};
  }
  return json.dump();
}

Result<CheckpointIndex> ParseCheckpointIndex(const std::string& text, const std::string& path) {
  auto bad = [&](const std::string& why) { return DamagedTensorFile(path, "its index of slices: " + why); };
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("files") || !json["files"].is_array() || !json.contains("tensors") ||
      !json["tensors"].is_object())
    return bad("files or tensors are missing");
  CheckpointIndex index;
  for (const Json& entry : json["files"]) {
    if (!entry.is_object()) return bad("a file that is none");
    const std::optional<std::string> name = TextIn(entry, "name");
    const std::optional<std::uint64_t> data_begins = SizeIn(entry, "data_begins");
    // In this folder, nowhere else.
    if (!name || name->empty() || name->find('/') != std::string::npos || !data_begins) return bad("a file that is none");
    index.files.push_back({*name, *data_begins});
  }
  for (const auto& [name, entry] : json["tensors"].items()) {
    if (!entry.is_object()) return bad(fmt::format("tensor {} is none", name));
    const std::optional<std::string> type = TextIn(entry, "dtype");
    const std::optional<Dtype> dtype = DtypeOfFile(type.value_or(""));
    const std::optional<Dims> dims = DimsIn(entry, "shape");
    if (!dtype || !dims) return bad(fmt::format("tensor {} has no type or no shape", name));
    StoredTensor tensor{*dtype, *dims, {}};
    if (!FitsMemory(tensor)) return bad(fmt::format("tensor {} has a shape that no file can hold", name));
    if (!entry.contains("pieces") || !entry["pieces"].is_array()) return bad(fmt::format("tensor {} has no pieces", name));
    for (const Json& piece : entry["pieces"]) {
      std::optional<StoredPiece> read = PieceIn(piece, tensor, index.files.size());
      if (!read) return bad(fmt::format("tensor {} has a piece that is none of it", name));
      tensor.pieces.push_back(*std::move(read));
    }
    index.tensors.emplace(name, std::move(tensor));
  }
  return index;
}

std::string AddPart(const CheckpointIndex& part, StoredFile file, CheckpointIndex* index) {
  const auto number = static_cast<std::int32_t>(index->files.size());
  index->files.push_back(std::move(file));
  for (const auto& [name, tensor] : part.tensors) {
    StoredTensor& all = index->tensors.try_emplace(name, StoredTensor{tensor.dtype, tensor.dims, {}}).first->second;
    if (all.dtype != tensor.dtype || all.dims != tensor.dims)
      return fmt::format("state {} is {} {} in {} and {} {} in what other ranks have written", name, ToString(tensor.dims),
                         Name(tensor.dtype), index->files.back().name, ToString(all.dims), Name(all.dtype));
    for (StoredPiece piece : tensor.pieces) {
      piece.file = number;
      all.pieces.push_back(std::move(piece));
    }
  }
  return {};
}

std::string WhyNotWhole(const CheckpointIndex& index) {
  for (const auto& [name, tensor] : index.tensors) {
    std::vector<const StoredPiece*> pieces;
    std::int64_t elements = 0;
    for (const StoredPiece& piece : tensor.pieces) {
      const std::int64_t held = NumElements(piece.slice);
      if (held == 0) continue;
      // Before they are added up: more than the tensor has would be an overlap, and may be more than a number holds.
      elements = std::min(elements, NumElements(tensor.dims)) + held;
      pieces.push_back(&piece);
    }
    auto begin = [](const StoredPiece* piece) { return piece->slice.begin.empty() ? 0 : piece->slice.begin[0]; };
    auto end = [](const StoredPiece* piece) { return piece->slice.end.empty() ? 1 : piece->slice.end[0]; };
    std::stable_sort(pieces.begin(), pieces.end(), [&](const StoredPiece* a, const StoredPiece* b) { return begin(a) < begin(b); });
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      for (std::size_t k = i + 1; k < pieces.size() && begin(pieces[k]) < end(pieces[i]); ++k) {
        if (NumElements(Intersection(pieces[i]->slice, pieces[k]->slice)) > 0)
          return fmt::format("state {} has elements twice: {} and {}", name, Place(index, *pieces[i]), Place(index, *pieces[k]));
      }
    }
    // None lies in two pieces, so the numbers say whether each lies in one.
    if (elements != NumElements(tensor.dims))
      return fmt::format("state {} {} has a gap: its pieces hold {} of {} elements", name, ToString(tensor.dims), elements,
                         NumElements(tensor.dims));
  }
  return {};
}

}  // namespace ropewalk::mlrunner
