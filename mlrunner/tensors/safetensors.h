// Named tensors in safetensors files, as PyTorch, JAX and others write and read them: the length of a header, the header (JSON: type, shape
// and place of each tensor, and "__metadata__": texts by name), the tensors' bytes side by side, without holes.
//
//   ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::Open(files, "bert.safetensors"));
//   RETURN_IF_ERROR(LoadStates(file, graph, bindings, {.convert = true}, &states));
//
// Checkpoints are such files with a checksum (train/tensor_file.h); these here may come from anybody: every number in one is doubted.
//
// Thread rule: values and functions; a file may be read by several threads, as far as its file system may.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "mlrunner/executor/executor.h"
#include "storage/file_system.h"

namespace ropewalk::mlrunner {

// The format's names of types ("F32"); empty, none: it has none, it is none of ours.
std::string_view FileNameOf(Dtype dtype);
std::optional<Dtype> DtypeOfFile(std::string_view name);

struct TensorPlace {
  std::string type;            // as the file has it
  std::optional<Dtype> dtype;  // nothing: a type that we have none for (I8, F8_E4M3): listed, and refused when it is read
  Dims dims;
  std::uint64_t begin = 0, end = 0;  // among the bytes behind the header
};
struct SafetensorsHeader {
  std::map<std::string, std::string> metadata;
  std::map<std::string, TensorPlace> tensors;
  std::uint64_t data_bytes = 0;  // that follow the header
  // kDataLoss TENS02, whose why says what is wrong with the text; what and fix are about `path`.
  static Result<SafetensorsHeader> Parse(std::string_view text, const std::string& path);
};

class SafetensorsFile {
 public:
  // Reads and checks the header. TENS01: the file system's reason; TENS02: it is no such file, or not whole.
  static Result<SafetensorsFile> Open(storage::FileSystem& files, const std::string& path);
  const SafetensorsHeader& header() const { return header_; }
  const std::string& path() const { return path_; }
  // TENS03: there is none of that name; TENS05: its type is none of ours.
  Result<Tensor> Read(const std::string& name) const;
  Result<std::map<std::string, Tensor>> ReadAll() const;

 private:
  SafetensorsFile() = default;
  storage::FileSystem* files_ = nullptr;  // the caller's; must outlive the file
  std::string path_;
  std::uint64_t data_begins_ = 0;
  SafetensorsHeader header_;
};

// The header's text, padded so that bytes behind it and the 8 of its length are aligned. TENS05: a tensor of a type that no file holds.
Result<std::string> SafetensorsHeaderText(const std::map<std::string, std::string>& metadata, const std::map<std::string, Tensor>& tensors);

// Written beside `path`, synced and renamed: a reader finds the old file or the whole new one. TENS01.
Status WriteSafetensors(storage::FileSystem& files, const std::string& path, const std::map<std::string, Tensor>& tensors,
                        const std::map<std::string, std::string>& metadata = {});

// The tensor with elements of another type: floats are rounded to nearest (ties to even), integers as types/saturate.h says.
Tensor ConvertTo(const Tensor& tensor, Dtype dtype);

struct LoadOptions {
  // The name in the file of a state, by the state's own; empty: the same.
  std::function<std::string(const std::string& state)> name_in_file;
  // States that are to be loaded; empty: all parameters and statistics. What is left out begins as the graph says.
  std::function<bool(const StateInfo& state)> wanted;
  // Floating-point numbers of another width are converted (a file in bf16, a model in f32); otherwise they are refused.
  bool convert = false;
};
// Puts the file's tensors into the states of `graph`; all or none. `bindings` as for a run. TENS03: a state that the file has not; TENS04:
// it has another shape; TENS05: another type; TENS06: a state that is cut over ranks (a file knows whole tensors only).
Status LoadStates(const SafetensorsFile& file, const Graph& graph, const Bindings& bindings, const LoadOptions& options,
                  StateStore* states);

}  // namespace ropewalk::mlrunner
