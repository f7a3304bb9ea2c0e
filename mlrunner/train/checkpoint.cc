#include "mlrunner/train/checkpoint.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "base/escape.h"
#include "mlrunner/train/tensor_file.h"
#include "storage/io_error.h"

namespace ropewalk::mlrunner {
namespace {

constexpr std::string_view kPrefix = "step-", kSuffix = ".safetensors", kHidden = ".step-";
// Versions to come keep the checksum and the first part of this text, so that they are told from what is damaged.
constexpr std::string_view kForms = "ropewalk-checkpoint-", kForm = "ropewalk-checkpoint-1";
// What nobody has written to for so long is no save that is under way.
constexpr std::int64_t kAbandonedUs = std::int64_t{3600} * 1'000'000;

std::string NameOf(std::int64_t step) { return fmt::format("{}{:012}{}", kPrefix, step, kSuffix); }

// Of a file that is being made: two writers in one folder have two, and the later forming knows which are the earlier one's.
std::string HiddenName(const std::string& of, const CheckpointWriter& writer) {
  return fmt::format("{}{}-{:016x}-{}{}", kHidden, of, writer.run, writer.forming, kSuffix);
}

bool IsHidden(std::string_view name) { return name.starts_with(kHidden) && name.ends_with(kSuffix); }

// Whether the writer's training made this hidden file, in the writer's forming or an earlier one.
bool IsOfAnEarlierSave(std::string_view name, const CheckpointWriter& writer) {
  name.remove_suffix(kSuffix.size());
  const std::size_t dash = name.rfind('-');
  std::uint32_t forming = 0;
  auto [end, error] = std::from_chars(name.data() + dash + 1, name.data() + name.size(), forming);
  return error == std::errc() && end == name.data() + name.size() && forming <= writer.forming &&
         name.substr(0, dash).ends_with(fmt::format("-{:016x}", writer.run));
}

// The step in a file's name; -1: it is no checkpoint's.
std::int64_t StepIn(std::string_view name) {
  if (!name.starts_with(kPrefix) || !name.ends_with(kSuffix)) return -1;
  name.remove_prefix(kPrefix.size());
  name.remove_suffix(kSuffix.size());
  std::int64_t step = -1;
  auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), step);
  return error == std::errc() && end == name.data() + name.size() && name.size() >= 12 ? step : -1;
}

// MakeFolder with those above it. Each is synced into the one above, or all that is put into it may vanish with its name.
Status MakeFolders(storage::FileSystem& files, const std::string& folder) {
  storage::FileFacts facts;
  if (files.Look(folder, &facts) == 0) return {};
  const std::size_t slash = folder.rfind('/');
  const std::string above = slash == std::string::npos ? "." : slash == 0 ? "/" : folder.substr(0, slash);
  if (slash != std::string::npos && slash > 0) RETURN_IF_ERROR(MakeFolders(files, above));
  const int error = files.MakeFolder(folder);
  if (error == EEXIST) return {};
  RETURN_IF_ERROR(TensorFileError(error, folder, "make the folder of"));
  return TensorFileError(files.SyncFolder(above), above, "sync the folder above that of");
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

// What older versions did not write is left as it is.
template <class T>
Status NumberIfThere(const std::map<std::string, std::string>& metadata, const char* key, const std::string& path, T* number) {
  if (!metadata.contains(key)) return {};
  ASSIGN_OR_RETURN(*number, NumberIn<T>(metadata, key, path));
  return {};
}

std::map<std::string, std::string> MetadataOf(const Checkpoint& checkpoint) {
  std::map<std::string, std::string> metadata = {{"format", std::string(kForm)},
                                                 {"step", std::to_string(checkpoint.step)},
                                                 {"epoch", std::to_string(checkpoint.position.epoch)},
                                                 {"offset", std::to_string(checkpoint.position.offset)},
                                                 {"seed", std::to_string(checkpoint.seed)},
                                                 {"vocabulary", std::to_string(checkpoint.vocabulary)},
                                                 {"data", std::to_string(checkpoint.data)},
                                                 {"samples", std::to_string(checkpoint.samples)},
                                                 {"run", std::to_string(checkpoint.run)}};
  if (std::isfinite(checkpoint.loss)) metadata["loss"] = fmt::format("{}", checkpoint.loss);
  return metadata;
}

// Behind a save: hidden files that nobody will rename. What cannot be removed takes room, no more, and is tried again behind the next one.
void RemoveLeftovers(storage::FileSystem& files, const std::string& folder, const std::vector<std::string>& names,
                     const CheckpointWriter& writer, const std::string& newest) {
  storage::FileFacts now, then;
  const bool has_time = files.Look(newest, &now) == 0;
  for (const std::string& name : names) {
    if (!IsHidden(name)) continue;
    const std::string path = folder + "/" + name;
    if (IsOfAnEarlierSave(name, writer) || (has_time && files.Look(path, &then) == 0 && now.modified_us - then.modified_us > kAbandonedUs))
      (void)files.RemoveFile(path);
  }
}

// Behind a save as well: nothing that was disowned or passed over is to be the newest.
void SetAside(storage::FileSystem& files, const std::string& folder, const std::string& name, std::uint64_t run, SavedCheckpoint* saved) {
  // With the run in its name: another that is set aside one day does not take its place.
  std::string path = fmt::format("{}/aside-{:016x}-{}", folder, run, name);
  const int error = files.Rename(folder + "/" + name, path, storage::RenameMode::kReplace);
  if (error == 0) {
    saved->aside.push_back(std::move(path));
  } else if (error != ENOENT && saved->left.ok()) {  // else somebody else did it
    saved->left = TensorFileError(error, folder + "/" + name, "set aside");
  }
}

// A whole checkpoint that this run has not written.
bool IsOfAnotherTraining(storage::FileSystem& files, const std::string& path, std::uint64_t run) {
  storage::FileFacts facts;
  if (files.Look(path, &facts) != 0) return false;
  const auto loaded = LoadCheckpoint(files, path);
  return loaded.ok() ? loaded->run != run : loaded.status().code() == Code::kVersionSkew;
}

// Writes `hidden` and gives it its name.
Result<SavedCheckpoint> Publish(storage::FileSystem& files, const std::string& folder, const Checkpoint& checkpoint,
                                const SaveOptions& options, const std::string& hidden) {
  const std::string path = CheckpointPath(folder, checkpoint.step);
  RETURN_IF_ERROR(WriteTensorFile(files, folder + "/" + hidden, MetadataOf(checkpoint), checkpoint.tensors));
  // While an error can still mean that there is no new one.
  std::vector<std::string> names;
  RETURN_IF_ERROR(TensorFileError(files.List(folder, &names), folder, "list the folder of"));
  SavedCheckpoint saved;
  // It takes this one's name. Were this killed now, there would be none of this step: the training does not go on from that one anyway.
  if (checkpoint.step > options.stands_on && IsOfAnotherTraining(files, path, checkpoint.run))
    SetAside(files, folder, NameOf(checkpoint.step), checkpoint.run, &saved);
  RETURN_IF_ERROR(TensorFileError(files.Rename(folder + "/" + hidden, path, storage::RenameMode::kReplace), path, "rename"));
  RETURN_IF_ERROR(TensorFileError(files.SyncFolder(folder), folder, "sync the folder of"));

  // Only now that the new one is safe.
  std::erase_if(names, [&](const std::string& name) { return name == hidden || StepIn(name) == checkpoint.step; });
  RemoveLeftovers(files, folder, names, {checkpoint.run, options.forming}, path);
  std::erase_if(names, [](const std::string& name) { return StepIn(name) < 0; });
  std::sort(names.begin(), names.end(), [](const std::string& a, const std::string& b) { return StepIn(a) > StepIn(b); });
  std::int64_t kept = 1;
  for (const std::string& name : names) {
    if (StepIn(name) > options.stands_on) {
      SetAside(files, folder, name, checkpoint.run, &saved);
    } else if (++kept > options.keep) {
      (void)files.RemoveFile(folder + "/" + name);  // or behind the next save
    }
  }
  if (!saved.aside.empty() && saved.left.ok()) saved.left = TensorFileError(files.SyncFolder(folder), folder, "sync the folder of");
  return saved;
}

}  // namespace

std::string CheckpointPath(const std::string& folder, std::int64_t step) { return folder + "/" + NameOf(step); }

Result<SavedCheckpoint> SaveCheckpoint(storage::FileSystem& files, const std::string& folder, const Checkpoint& checkpoint,
                                       const SaveOptions& options) {
  RETURN_IF_ERROR(MakeFolders(files, folder));
  const std::string hidden = HiddenName(fmt::format("{:012}", checkpoint.step), {checkpoint.run, options.forming});
  auto saved = Publish(files, folder, checkpoint, options, hidden);
  if (!saved.ok()) (void)files.RemoveFile(folder + "/" + hidden);  // what matters is the first failure
  return saved;
}

Status TryCheckpointFolder(storage::FileSystem& files, const std::string& folder, const CheckpointWriter& writer) {
  RETURN_IF_ERROR(MakeFolders(files, folder));
  // By its name what a killed save leaves behind: if this is killed here, the next save removes it.
  const std::string path = folder + "/" + HiddenName("trial", writer);
  std::unique_ptr<storage::WritableFile> file;
  int error = files.Create(path, &file);
  if (error == 0) error = file->Close();
  if (error == 0) error = files.RemoveFile(path);
  return error == 0 ? Status() : storage::IoError(error, "CKPT01", "no checkpoints can be written to " + storage::QuotedPath(folder));
}

Result<Checkpoint> LoadCheckpoint(storage::FileSystem& files, const std::string& path) {
  ASSIGN_OR_RETURN(TensorFile file, ReadTensorFile(files, path));
  if (const std::string& form = file.metadata["format"]; form != kForm) {
    if (!form.starts_with(kForms)) return DamagedTensorFile(path, "another program wrote it");
    return Status(Code::kVersionSkew, "CKPT05", "another version of Ropewalk wrote the checkpoint " + storage::QuotedPath(path),
                  fmt::format("it is a \"{}\", and this version reads \"{}\"", EscapeForLog(form, 100), kForm),
                  "go on with the version that wrote it, name another checkpoint.folder, or set checkpoint.resume = false");
  }
  Checkpoint checkpoint;
  ASSIGN_OR_RETURN(checkpoint.step, NumberIn<std::int64_t>(file.metadata, "step", path));
  ASSIGN_OR_RETURN(checkpoint.position.epoch, NumberIn<std::int64_t>(file.metadata, "epoch", path));
  ASSIGN_OR_RETURN(checkpoint.position.offset, NumberIn<std::int64_t>(file.metadata, "offset", path));
  ASSIGN_OR_RETURN(checkpoint.seed, NumberIn<std::uint64_t>(file.metadata, "seed", path));
  RETURN_IF_ERROR(NumberIfThere(file.metadata, "vocabulary", path, &checkpoint.vocabulary));
  RETURN_IF_ERROR(NumberIfThere(file.metadata, "data", path, &checkpoint.data));
  RETURN_IF_ERROR(NumberIfThere(file.metadata, "samples", path, &checkpoint.samples));
  RETURN_IF_ERROR(NumberIfThere(file.metadata, "run", path, &checkpoint.run));
  RETURN_IF_ERROR(NumberIfThere(file.metadata, "loss", path, &checkpoint.loss));
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

Result<Checkpoint> LoadNewestCheckpoint(storage::FileSystem& files, const std::string& folder, std::vector<Status>* passed_over,
                                        std::uint64_t run) {
  ASSIGN_OR_RETURN(std::vector<std::string> paths, ListCheckpoints(files, folder));
  for (const std::string& path : paths) {
    auto loaded = LoadCheckpoint(files, path);
    if (run != 0 && (loaded.ok() ? loaded->run != run : loaded.status().code() == Code::kVersionSkew)) continue;
    // A disk that fails is no reason to go back, nor is a version that went on from there.
    if (loaded.ok() || loaded.status().code() != Code::kDataLoss) return loaded;
    passed_over->push_back(loaded.status());
  }
  Checkpoint none;
  none.step = -1;
  return none;
}

}  // namespace ropewalk::mlrunner
