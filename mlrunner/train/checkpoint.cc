#include "mlrunner/train/checkpoint.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "base/bytes.h"
#include "base/escape.h"
#include "mlrunner/train/checkpoint_index.h"
#include "mlrunner/train/checkpoint_names.h"
#include "mlrunner/train/checkpoint_reader.h"
#include "mlrunner/train/tensor_file.h"
#include "storage/io_error.h"

namespace ropewalk::mlrunner {
namespace {

// What nobody has written to for so long is no save that is under way.
constexpr std::int64_t kAbandonedUs = std::int64_t{3600} * 1'000'000;

std::map<std::string, std::string> MetadataOf(const Checkpoint& checkpoint) {
  std::map<std::string, std::string> metadata = {{"format", std::string(kWholeForm)},
                                                 {"step", std::to_string(checkpoint.step)},
                                                 {"epoch", std::to_string(checkpoint.position.epoch)},
                                                 {"offset", std::to_string(checkpoint.position.offset)},
                                                 {"seed", std::to_string(checkpoint.seed)},
                                                 {"vocabulary", std::to_string(checkpoint.vocabulary)},
                                                 {"data", std::to_string(checkpoint.data)},
                                                 {"samples", std::to_string(checkpoint.samples)},
                                                 {"run", std::to_string(checkpoint.run)}};
  if (std::isfinite(checkpoint.loss)) metadata["loss"] = fmt::format("{}", checkpoint.loss);
  if (checkpoint.best_step >= 0) {
    metadata["best_step"] = std::to_string(checkpoint.best_step);
    metadata["best_loss"] = fmt::format("{}", checkpoint.best_loss);
  }
  if (!checkpoint.losses.empty()) {
    const std::span<const double> all(checkpoint.losses), kept = all.last(std::min(all.size(), kKeptLossesMax));
    metadata["losses"] = HexString(AsView(std::as_bytes(kept)));
  }
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
  std::string path = folder + "/" + AsideName(run, name);
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
  const auto opened = CheckpointReader::Open(files, path);
  if (!opened.ok()) return opened.status().code() == Code::kVersionSkew;
  return (*opened)->about().run != run && (*opened)->Verify().ok();
}

// The parts that a checkpoint names; nothing where it cannot be read.
std::optional<std::set<std::string>> PartsOf(storage::FileSystem& files, const std::string& path) {
  auto header = ReadTensorFileHeader(files, path);
  if (!header.ok()) return {};
  std::set<std::string> parts;
  if (header->metadata["format"] == kWholeForm) return parts;  // of which the rest may be long
  const auto opened = CheckpointReader::Open(files, path);
  if (!opened.ok()) return {};
  for (const StoredFile& file : (*opened)->index().files) parts.insert(file.name);
  return parts;
}

// Behind a save: parts that no checkpoint in the folder names, of earlier saves of this training, of checkpoints that it has removed
// (`freed`), or that nobody has written to for long. Those that some checkpoint may name, since it cannot be read, stay.
void RemoveParts(storage::FileSystem& files, const std::string& folder, std::int64_t step, const CheckpointWriter& writer,
                 const std::set<std::string>& freed, const std::string& newest) {
  storage::FileFacts now, then;
  const bool has_time = files.Look(newest, &now) == 0;
  std::vector<std::string> names;
  if (files.List(folder, &names) != 0) return;  // or behind the next save
  std::map<std::int64_t, std::vector<std::string>> unused;
  for (const std::string& name : names) {
    const std::optional<PartName> part = PartIn(name);
    if (!part) continue;
    const bool earlier = part->writer.run == writer.run && part->writer.forming <= writer.forming && part->step <= step;
    if (earlier || freed.contains(name) ||
        (has_time && files.Look(folder + "/" + name, &then) == 0 && now.modified_us - then.modified_us > kAbandonedUs))
      unused[part->step].push_back(name);
  }
  if (unused.empty()) return;
  std::set<std::string> of_renamed;
  for (const std::string& name : names) {
    if (!MayBeRenamed(name)) continue;
    if (auto parts = PartsOf(files, folder + "/" + name)) of_renamed.merge(*parts);
  }
  for (auto& [of, parts] : unused) {
    std::erase_if(parts, [&](const std::string& part) { return of_renamed.contains(part); });
    for (const std::string& name : names) {
      if (StepHereOrAside(name) != of) continue;
      const std::optional<std::set<std::string>> used = PartsOf(files, folder + "/" + name);
      std::erase_if(parts, [&](const std::string& part) { return !used || used->contains(part); });
    }
    for (const std::string& part : parts) (void)files.RemoveFile(folder + "/" + part);
  }
}

// What the parts hold, as they say themselves: each has to be the file that its rank has written, as long as it says.
Result<CheckpointIndex> Collect(storage::FileSystem& files, const std::string& folder, const std::vector<CheckpointPart>& parts) {
  CheckpointIndex index;
  for (const CheckpointPart& part : parts) {
    const std::string path = folder + "/" + part.file;
    auto unsafe = [&](const std::string& why, Code code = Code::kUserError) {
      return Status(code, "CKPT01", "what a rank has written into " + storage::QuotedPath(path) + " is not seen by rank 0", why,
                    "let checkpoint.folder be a folder that all machines share");
    };
    auto header = ReadTensorFileHeader(files, path);
    if (!header.ok()) {  // a disk that fails for once is no mistake of the job
      const Code code = header.status().code();
      return unsafe(header.status().what() + ": " + header.status().why(),
                    code == Code::kNotFound || code == Code::kDataLoss ? Code::kUserError : code);
    }
    if (header->hash != part.header_hash) return unsafe("it is another file there");
    ASSIGN_OR_RETURN(const CheckpointIndex held, ParseCheckpointIndex(header->metadata["slices"], path));
    std::uint64_t bytes = header->data_begins;
    for (const auto& [name, tensor] : held.tensors) {
      for (const StoredPiece& piece : tensor.pieces) bytes += static_cast<std::uint64_t>(NumElements(piece.slice)) * SizeOf(tensor.dtype);
    }
    storage::FileFacts facts;
    RETURN_IF_ERROR(TensorFileError(files.Look(path, &facts), path, "look at"));
    if (facts.bytes != bytes) return unsafe(fmt::format("it has {} of {} bytes there", facts.bytes, bytes));
    if (const std::string why = AddPart(held, {part.file, header->data_begins}, &index); !why.empty())
      return Status(Code::kInternal, "CKPT01", "the ranks have written what is no checkpoint", why, "please report this");
  }
  return index;
}

// Whether the tensors and the parts make up whole states.
Status AreWhole(CheckpointIndex index, const std::map<std::string, Tensor>& tensors) {
  std::string why;
  for (const auto& [name, tensor] : tensors) {
    if (!index.tensors.emplace(name, InOnePiece(tensor.dtype, tensor.dims)).second)
      why = fmt::format("state {} is there whole and in slices", name);
  }
  if (why.empty()) why = WhyNotWhole(index);
  if (why.empty()) return {};
  return Status(Code::kInternal, "CKPT01", "the ranks have written what is no checkpoint", why, "please report this");
}

// Writes `hidden` and gives it its name; `named` says whether it has got it.
Result<SavedCheckpoint> Publish(storage::FileSystem& files, const std::string& folder, const Checkpoint& checkpoint,
                                const SaveOptions& options, const std::string& hidden, bool* named) {
  const std::string path = CheckpointPath(folder, checkpoint.step);
  std::map<std::string, std::string> metadata = MetadataOf(checkpoint);
  if (!options.parts.empty()) {
    ASSIGN_OR_RETURN(const CheckpointIndex index, Collect(files, folder, options.parts));
    RETURN_IF_ERROR(AreWhole(index, checkpoint.tensors));
    metadata["format"] = std::string(kSlicedForm);
    metadata["slices"] = Encode(index);
  }
  RETURN_IF_ERROR(WriteTensorFile(files, folder + "/" + hidden, metadata, checkpoint.tensors).status());
  // While an error can still mean that there is no new one.
  std::vector<std::string> names;
  RETURN_IF_ERROR(TensorFileError(files.List(folder, &names), folder, "list the folder of"));
  SavedCheckpoint saved;
  std::set<std::string> freed;  // parts of those that go
  std::set<std::int64_t> steps_with_parts;
  for (const std::string& name : names) {
    if (const std::optional<PartName> part = PartIn(name)) steps_with_parts.insert(part->step);
  }
  auto free_parts_of = [&](std::int64_t step) {
    if (!steps_with_parts.contains(step)) return;
    if (auto parts = PartsOf(files, CheckpointPath(folder, step))) freed.merge(*parts);
  };
  // It takes this one's name. Were this killed now, there would be none of this step: the training does not go on from that one anyway.
  if (checkpoint.step > options.stands_on && IsOfAnotherTraining(files, path, checkpoint.run)) {
    SetAside(files, folder, CheckpointName(checkpoint.step), checkpoint.run, &saved);
  } else {
    free_parts_of(checkpoint.step);
  }
  // A later forming of this training that has saved meanwhile has removed what it took for leftovers, these parts and the hidden file.
  for (const CheckpointPart& part : options.parts) {
    storage::FileFacts facts;
    RETURN_IF_ERROR(TensorFileError(files.Look(folder + "/" + part.file, &facts), folder + "/" + part.file, "look at"));
  }
  RETURN_IF_ERROR(TensorFileError(files.Rename(folder + "/" + hidden, path, storage::RenameMode::kReplace), path, "rename"));
  *named = true;
  RETURN_IF_ERROR(TensorFileError(files.SyncFolder(folder), folder, "sync the folder of"));

  // Only now that the new one is safe.
  const CheckpointWriter writer{.run = checkpoint.run, .forming = options.forming};
  std::erase_if(names, [&](const std::string& name) { return name == hidden || StepIn(name) == checkpoint.step; });
  RemoveLeftovers(files, folder, names, writer, path);
  std::erase_if(names, [](const std::string& name) { return StepIn(name) < 0; });
  std::sort(names.begin(), names.end(), [](const std::string& a, const std::string& b) { return StepIn(a) > StepIn(b); });
  std::int64_t kept = 1;
  for (const std::string& name : names) {
    if (StepIn(name) > options.stands_on) {
      SetAside(files, folder, name, checkpoint.run, &saved);
    } else if (++kept > options.keep) {
      free_parts_of(StepIn(name));
      (void)files.RemoveFile(folder + "/" + name);  // or behind the next save
    }
  }
  if (!steps_with_parts.empty()) RemoveParts(files, folder, checkpoint.step, writer, freed, path);
  if (!saved.aside.empty() && saved.left.ok()) saved.left = TensorFileError(files.SyncFolder(folder), folder, "sync the folder of");
  return saved;
}

Status NoCheckpointsIn(const std::string& folder, int error) {
  return storage::IoError(error, "CKPT01", "no checkpoints can be written to " + storage::QuotedPath(folder));
}

}  // namespace

// Each folder is synced into the one above, or all that is put into it may vanish with its name.
Status MakeCheckpointFolder(storage::FileSystem& files, const std::string& folder) {
  storage::FileFacts facts;
  if (files.Look(folder, &facts) == 0) return {};
  const std::size_t slash = folder.rfind('/');
  const std::string above = slash == std::string::npos ? "." : slash == 0 ? "/" : folder.substr(0, slash);
  if (slash != std::string::npos && slash > 0) RETURN_IF_ERROR(MakeCheckpointFolder(files, above));
  const int error = files.MakeFolder(folder);
  if (error == EEXIST) return {};
  RETURN_IF_ERROR(TensorFileError(error, folder, "make the folder of"));
  return TensorFileError(files.SyncFolder(above), above, "sync the folder above that of");
}

std::string CheckpointPath(const std::string& folder, std::int64_t step) { return folder + "/" + CheckpointName(step); }

Result<SavedCheckpoint> SaveCheckpoint(storage::FileSystem& files, const std::string& folder, const Checkpoint& checkpoint,
                                       const SaveOptions& options) {
  RETURN_IF_ERROR(MakeCheckpointFolder(files, folder));
  const std::string hidden = HiddenName(fmt::format("{:012}", checkpoint.step), {.run = checkpoint.run, .forming = options.forming});
  bool named = false;
  auto saved = Publish(files, folder, checkpoint, options, hidden, &named);
  if (!saved.ok() && !named) {  // what matters is the first failure
    (void)files.RemoveFile(folder + "/" + hidden);
    for (const CheckpointPart& part : options.parts) (void)files.RemoveFile(folder + "/" + part.file);
  }
  return saved;
}

Status WriteTrial(storage::FileSystem& files, const std::string& folder, const std::string& path) {
  std::unique_ptr<storage::WritableFile> file;
  int error = files.Create(path, &file);
  if (error == 0) error = file->Close();
  return error == 0 ? Status() : NoCheckpointsIn(folder, error);
}

Status TryCheckpointFolder(storage::FileSystem& files, const std::string& folder, const CheckpointWriter& writer) {
  RETURN_IF_ERROR(MakeCheckpointFolder(files, folder));
  // By its name what a killed save leaves behind: if this is killed here, the next save removes it.
  const std::string path = folder + "/" + HiddenName("trial", writer);
  RETURN_IF_ERROR(WriteTrial(files, folder, path));
  const int error = files.RemoveFile(path);
  return error == 0 ? Status() : NoCheckpointsIn(folder, error);
}

Result<Checkpoint> LoadCheckpoint(storage::FileSystem& files, const std::string& path) {
  ASSIGN_OR_RETURN(const std::unique_ptr<CheckpointReader> reader, CheckpointReader::Open(files, path));
  return reader->ReadAll();
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
  ASSIGN_OR_RETURN(const std::unique_ptr<CheckpointReader> newest, OpenNewestCheckpoint(files, folder, passed_over, run));
  if (newest != nullptr) return newest->ReadAll();
  Checkpoint none;
  none.step = -1;
  return none;
}

}  // namespace ropewalk::mlrunner
