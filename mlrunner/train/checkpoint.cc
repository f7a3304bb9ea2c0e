#include "mlrunner/train/checkpoint.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "mlrunner/train/tensor_file.h"
#include "storage/io_error.h"

namespace ropewalk::mlrunner {
namespace {

constexpr std::string_view kPrefix = "step-", kSuffix = ".safetensors", kHidden = ".step-";
constexpr const char* kForm = "ropewalk-checkpoint-1";

std::string NameOf(std::int64_t step) { return fmt::format("{}{:012}{}", kPrefix, step, kSuffix); }

// The step in a file's name; -1: it is no checkpoint's.
std::int64_t StepIn(std::string_view name) {
  if (!name.starts_with(kPrefix) || !name.ends_with(kSuffix)) return -1;
  name.remove_prefix(kPrefix.size());
  name.remove_suffix(kSuffix.size());
  std::int64_t step = -1;
  auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), step);
  return error == std::errc() && end == name.data() + name.size() && name.size() >= 12 ? step : -1;
}

// MakeFolder with those above it.
Status MakeFolders(storage::FileSystem& files, const std::string& folder) {
  storage::FileFacts facts;
  if (files.Look(folder, &facts) == 0) return {};
  std::size_t slash = folder.rfind('/');
  if (slash != std::string::npos && slash > 0) RETURN_IF_ERROR(MakeFolders(files, folder.substr(0, slash)));
  int error = files.MakeFolder(folder);
  return error == EEXIST ? Status() : TensorFileError(error, folder, "make the folder of");
}

template <class T>
Result<T> NumberIn(const std::map<std::string, std::string>& metadata, const char* key, const std::string& path) {
  if (auto found = metadata.find(key); found != metadata.end()) {
    const std::string& text = found->second;
    T number = 0;
    auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error == std::errc() && end == text.data() + text.size()) return number;
  }
  return DamagedTensorFile(path, fmt::format("its header gives no {}", key));
}

}  // namespace

std::string CheckpointPath(const std::string& folder, std::int64_t step) { return folder + "/" + NameOf(step); }

Status SaveCheckpoint(storage::FileSystem& files, const std::string& folder, const Checkpoint& checkpoint, std::int64_t keep) {
  RETURN_IF_ERROR(MakeFolders(files, folder));
  const std::string path = CheckpointPath(folder, checkpoint.step), hidden = folder + "/." + NameOf(checkpoint.step);
  const std::map<std::string, std::string> metadata = {{"format", kForm},
                                                       {"step", std::to_string(checkpoint.step)},
                                                       {"epoch", std::to_string(checkpoint.position.epoch)},
                                                       {"offset", std::to_string(checkpoint.position.offset)},
                                                       {"seed", std::to_string(checkpoint.seed)},
                                                       {"vocabulary", std::to_string(checkpoint.vocabulary)}};
  if (Status status = WriteTensorFile(files, hidden, metadata, checkpoint.tensors); !status.ok()) {
    (void)files.RemoveFile(hidden);  // what matters is the first failure
    return status;
  }
  RETURN_IF_ERROR(TensorFileError(files.Rename(hidden, path, storage::RenameMode::kReplace), path, "rename"));
  RETURN_IF_ERROR(TensorFileError(files.SyncFolder(folder), folder, "sync the folder of"));

  // Only now that the new one is safe. What cannot be removed takes room, no more: it is tried again behind the next checkpoint.
  std::vector<std::string> names;
  RETURN_IF_ERROR(TensorFileError(files.List(folder, &names), folder, "list the folder of"));
  for (const std::string& name : names) {
    if (name.starts_with(kHidden) && name.ends_with(kSuffix)) (void)files.RemoveFile(folder + "/" + name);
  }
  ASSIGN_OR_RETURN(std::vector<std::string> paths, ListCheckpoints(files, folder));
  for (std::size_t i = static_cast<std::size_t>(std::max<std::int64_t>(keep, 1)); i < paths.size(); ++i) (void)files.RemoveFile(paths[i]);
  return {};
}

Status TryCheckpointFolder(storage::FileSystem& files, const std::string& folder) {
  RETURN_IF_ERROR(MakeFolders(files, folder));
  // By its name what a killed save leaves behind: if this is killed here, the next save removes it.
  const std::string path = folder + "/" + std::string(kHidden) + "trial" + std::string(kSuffix);
  std::unique_ptr<storage::WritableFile> file;
  int error = files.Create(path, &file);
  if (error == 0) error = file->Close();
  if (error == 0) error = files.RemoveFile(path);
  return error == 0 ? Status() : storage::IoError(error, "CKPT01", "no checkpoints can be written to " + storage::QuotedPath(folder));
}

Result<Checkpoint> LoadCheckpoint(storage::FileSystem& files, const std::string& path) {
  ASSIGN_OR_RETURN(TensorFile file, ReadTensorFile(files, path));
  if (file.metadata["format"] != kForm) return DamagedTensorFile(path, "another program wrote it");
  Checkpoint checkpoint;
  ASSIGN_OR_RETURN(checkpoint.step, NumberIn<std::int64_t>(file.metadata, "step", path));
  ASSIGN_OR_RETURN(checkpoint.position.epoch, NumberIn<std::int64_t>(file.metadata, "epoch", path));
  ASSIGN_OR_RETURN(checkpoint.position.offset, NumberIn<std::int64_t>(file.metadata, "offset", path));
  ASSIGN_OR_RETURN(checkpoint.seed, NumberIn<std::uint64_t>(file.metadata, "seed", path));
  if (file.metadata.contains("vocabulary")) {
    ASSIGN_OR_RETURN(checkpoint.vocabulary, NumberIn<std::uint64_t>(file.metadata, "vocabulary", path));
  }
  if (checkpoint.step < 0 || checkpoint.position.epoch < 0 || checkpoint.position.offset < 0)
    return DamagedTensorFile(path, "its header gives a place before the beginning");
  checkpoint.tensors = std::move(file.tensors);
  return checkpoint;
}

Result<std::vector<std::string>> ListCheckpoints(storage::FileSystem& files, const std::string& folder) {
  std::vector<std::string> names;
  if (int error = files.List(folder, &names); error == ENOENT) {
    return std::vector<std::string>();
  } else if (error != 0) {
    return storage::IoError(error, "CKPT02", "cannot list the checkpoints in " + storage::QuotedPath(folder));
  }
  std::vector<std::pair<std::int64_t, std::string>> found;
  for (const std::string& name : names) {
    if (std::int64_t step = StepIn(name); step >= 0) found.emplace_back(step, folder + "/" + name);
  }
  std::sort(found.rbegin(), found.rend());
  std::vector<std::string> paths;
  for (auto& [step, path] : found) paths.push_back(std::move(path));
  return paths;
}

Result<Checkpoint> LoadNewestCheckpoint(storage::FileSystem& files, const std::string& folder, std::vector<Status>* passed_over) {
  ASSIGN_OR_RETURN(std::vector<std::string> paths, ListCheckpoints(files, folder));
  for (const std::string& path : paths) {
    auto loaded = LoadCheckpoint(files, path);
    // A disk that fails is no reason to go back.
    if (loaded.ok() || loaded.status().code() != Code::kDataLoss) return loaded;
    passed_over->push_back(loaded.status());
  }
  Checkpoint none;
  none.step = -1;
  return none;
}

}  // namespace ropewalk::mlrunner
