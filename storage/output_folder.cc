// Publishing an output folder.
//
// The steps, each of which may be repeated: (1) move every winner to its part name, (2) write the manifest beside them, (3) sync the
// folder, (4) rename the folder to its final name, (5) sync the parent, (6) remove the hidden sibling. A commit that was cut off goes on
// where it stopped: a winner is at one of two places, and a final folder that holds exactly our manifest is published.
#include "storage/output_folder.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <utility>

#include "base/bytes.h"
#include "base/escape.h"
#include "storage/file_system.h"
#include "storage/io_error.h"
#include "storage/output_owner.h"
#include "storage/output_paths.h"

namespace ropewalk::storage {
namespace {

constexpr char kManifest[] = "_SUCCESS";
constexpr std::size_t kManifestBytesMax = 256 << 20;

std::string Hex16(std::uint64_t value) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(value));
  return text;
}

OutputTotals Sum(const std::vector<PartFacts>& parts) {
  OutputTotals totals;
  for (const PartFacts& part : parts) {
    totals.records += part.records;
    totals.bytes += part.bytes;
  }
  return totals;
}

Result<std::vector<PartFacts>> DecodeParts(std::span<const std::string> winners) {
  std::vector<PartFacts> parts;
  for (const std::string& winner : winners) {
    auto facts = DecodePart(winner);
    if (!facts.ok()) return facts.status();
    parts.push_back(*facts);
  }
  return parts;
}

std::string Manifest(const OutputSpec& spec, const std::vector<PartFacts>& parts) {
  const OutputTotals totals = Sum(parts);
  std::string list;
  for (const PartFacts& part : parts) {
    list += std::string(list.empty() ? "" : ",") + "\n    {\"name\": " + JsonString(PartName(spec, part.part)) +
            ", \"records\": " + std::to_string(part.records) + ", \"bytes\": " + std::to_string(part.bytes) + ", \"xxh3\": \"" +
            Hex16(part.checksum) + "\"}";
  }
  return "{\n  \"format\": 1,\n  \"key\": " + JsonString(spec.key) +
         (spec.writer.empty() ? "" : ",\n  \"writer\": " + JsonString(spec.writer)) +
         ",\n  \"records\": " + std::to_string(totals.records) + ",\n  \"bytes\": " + std::to_string(totals.bytes) + ",\n  \"parts\": [" +
         list + (list.empty() ? "]\n}\n" : "\n  ]\n}\n");
}

class Committer {
 public:
  Committer(const OutputSpec& spec, std::vector<PartFacts> parts)
      : spec_(spec), parts_(std::move(parts)), paths_(PathsOf(spec)), files_(spec), manifest_(Manifest(spec, parts_)) {}

  Status Run() {
    auto published = IsPublished();
    if (!published.ok()) return published.status();
    if (!*published) {
      RETURN_IF_ERROR(GatherParts());
      RETURN_IF_ERROR(WriteManifest());
      RETURN_IF_ERROR(Check(files_->SyncFolder(paths_.parts), "cannot sync the folder ", paths_.parts));
      RETURN_IF_ERROR(Publish());
    }
    // Or a power cut may undo the rename after the job was called done.
    RETURN_IF_ERROR(Check(files_->SyncFolder(paths_.parent), "cannot sync the folder ", paths_.parent));
    // Published is published: leftovers under a hidden name (the replaced output, say, with a folder that we may not write) fail no job.
    if (RemoveTree(*files_, paths_.hidden) != 0) return {};
    return {};
  }

 private:
  Status Check(int error, const char* what, const std::string& path) {
    return error == 0 ? Status() : OutputError(error, what + QuotedPath(path));
  }

  // The final folder holds exactly what we would publish: an earlier try got that far.
  Result<bool> IsPublished() {
    std::string found;
    int error = files_->ReadSmall(paths_.final_folder + "/" + kManifest, kManifestBytesMax, &found);
    if (error == 0) return found == manifest_;
    if (error == ENOENT || error == ENOTDIR || error == EFBIG || error == EISDIR) return false;
    return OutputError(error, "cannot read " + QuotedPath(paths_.final_folder + "/" + kManifest));
  }

  Status EnsureFolder(const std::string& path) {
    int error = files_->MakeFolder(path);
    return Check(error == EEXIST ? 0 : error, "cannot make the folder ", path);
  }

  Status GatherParts() {
    RETURN_IF_ERROR(EnsureFolder(paths_.hidden));
    RETURN_IF_ERROR(EnsureFolder(paths_.parts));
    for (const PartFacts& part : parts_) {
      std::string from = AttemptPath(paths_, part.part, part.attempt), to = paths_.parts + "/" + PartName(spec_, part.part);
      int error = files_->Rename(from, to, RenameMode::kReplace);
      if (error != 0 && error != ENOENT) return Check(error, "cannot move ", from);
      FileFacts facts;
      error = files_->Look(to, &facts);
      if (error == ENOENT) return Lost(part, from, "the file is gone");
      RETURN_IF_ERROR(Check(error, "cannot look at ", to));
      if (facts.kind != FileKind::kFile || facts.bytes != part.bytes)
        return Lost(part, to, "it has " + std::to_string(facts.bytes) + " bytes; its task wrote " + std::to_string(part.bytes));
    }
    // Nothing but the winners may be published.
    std::vector<std::string> names;
    RETURN_IF_ERROR(Check(files_->List(paths_.parts, &names), "cannot read the folder ", paths_.parts));
    std::vector<std::string> wanted;
    for (const PartFacts& part : parts_) wanted.push_back(PartName(spec_, part.part));
    std::sort(wanted.begin(), wanted.end());
    for (const std::string& name : names) {
      if (std::binary_search(wanted.begin(), wanted.end(), name)) continue;
      RETURN_IF_ERROR(Check(RemoveTree(*files_, paths_.parts + "/" + name), "cannot remove ", paths_.parts + "/" + name));
    }
    return {};
  }

  Status Lost(const PartFacts& part, const std::string& path, const std::string& why) {
    return Status(
        Code::kDataLoss, "OUT07",
        "part " + std::to_string(part.part) + " (attempt " + std::to_string(part.attempt) + ") of the output: " + QuotedPath(path), why,
        "something else removes or changes files in the output's folder");
  }

  Status WriteManifest() {
    std::string path = paths_.parts + "/" + kManifest;
    std::unique_ptr<WritableFile> file;
    RETURN_IF_ERROR(Check(files_->Create(path, &file), "cannot make the file ", path));
    RETURN_IF_ERROR(Check(file->Append(AsBytes(manifest_)), "cannot write ", path));
    RETURN_IF_ERROR(Check(file->Sync(), "cannot sync ", path));
    return Check(file->Close(), "cannot close ", path);
  }

  Status Publish() {
    int error = files_->Rename(paths_.parts, paths_.final_folder, RenameMode::kNoReplace);
    if (error == 0) return {};
    if (error == EEXIST || error == ENOTEMPTY) {
      if (!spec_.overwrite) return Exists();
      error = files_->Rename(paths_.parts, paths_.final_folder, RenameMode::kExchange);
      if (error == 0) return {};
    }
    // NFS, some FUSE and overlay file systems know neither mode.
    if (error == EINVAL || error == ENOSYS || error == EOPNOTSUPP) return PublishInTwoSteps();
    return Check(error, "cannot rename to ", paths_.final_folder);
  }

  // The fallback has short moments in which the final folder is absent, but none in which it is partial. rename(2) refuses to replace a
  // folder that is not empty, so a stranger's data that appears between the look and the rename is not lost.
  Status PublishInTwoSteps() {
    FileFacts facts;
    int error = files_->Look(paths_.final_folder, &facts);
    if (error != 0 && error != ENOENT) return Check(error, "cannot look at ", paths_.final_folder);
    if (error == 0) {
      if (!spec_.overwrite) return Exists();
      RETURN_IF_ERROR(Check(RemoveTree(*files_, paths_.replaced), "cannot remove ", paths_.replaced));
      RETURN_IF_ERROR(
          Check(files_->Rename(paths_.final_folder, paths_.replaced, RenameMode::kReplace), "cannot move away ", paths_.final_folder));
    }
    error = files_->Rename(paths_.parts, paths_.final_folder, RenameMode::kReplace);
    if (error == EEXIST || error == ENOTEMPTY || error == ENOTDIR) return Exists();
    return Check(error, "cannot rename to ", paths_.final_folder);
  }

  Status Exists() {
    return Status(Code::kUserError, "OUT01", "output " + QuotedPath(paths_.final_folder) + " exists", "it appeared while the job ran",
                  "choose another folder, or replace it: --overwrite, in a program WriteText(folder, {.overwrite = true})");
  }

  const OutputSpec& spec_;
  std::vector<PartFacts> parts_;
  OutputPaths paths_;
  OutputFiles files_;
  std::string manifest_;
};

}  // namespace

Status CommitOutput(const OutputSpec& spec, std::span<const std::string> winners) {
  ASSIGN_OR_RETURN(std::vector<PartFacts> parts, DecodeParts(winners));
  return Committer(spec, std::move(parts)).Run();
}

Result<OutputTotals> TotalsOf(std::span<const std::string> winners) {
  ASSIGN_OR_RETURN(std::vector<PartFacts> parts, DecodeParts(winners));
  return Sum(parts);
}

namespace {

// Removes the hidden folder `paths` names, whose job is over. False: the former output lies in it and cannot be given back.
bool RemoveHidden(FileSystem& files, const OutputPaths& paths) {
  // A commit that was cut off between its two steps had moved the former output away: give it back.
  FileFacts facts;
  if (files.Look(paths.replaced, &facts) == 0 && files.Look(paths.final_folder, &facts) == ENOENT) {
    if (files.Rename(paths.replaced, paths.final_folder, RenameMode::kReplace) != 0) return false;  // and never delete it
  }
  // Best effort: the name is hidden, and no job reads it.
  return RemoveTree(files, paths.hidden) == 0;
}

}  // namespace

void DiscardOutput(const OutputSpec& spec) {
  OutputFiles files(spec);
  RemoveHidden(*files, PathsOf(spec));
}

void AbandonOutput(const OutputSpec& spec) {
  constexpr int kRoundsMax = 3;  // a task that opens its part just now makes the folder again
  OutputFiles files(spec);
  OutputPaths paths = PathsOf(spec);
  OutputSpec gone = spec;
  gone.key += kGoneSuffix;
  OutputPaths gone_paths = PathsOf(gone);
  for (int round = 0; round < kRoundsMax; ++round) {
    FileFacts facts;
    if (files->Look(paths.hidden, &facts) != 0) return;
    if (files->Rename(paths.hidden, gone_paths.hidden, RenameMode::kReplace) != 0) return;
    if (!RemoveHidden(*files, gone_paths)) return;
  }
}

}  // namespace ropewalk::storage
