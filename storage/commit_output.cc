// Publishing an output folder.
//
// The steps, each of which may be repeated: (1) take the commit's folder over, or make it, (2) move every winner to its part name,
// (3) write the manifest beside them, (4) sync the folder, (5) call it ready, (6) rename it to its final name, (7) sync the parent,
// (8) remove the hidden sibling. A commit that was cut off goes on where it stopped: a winner is at one of two places, and what the
// commit's folder holds tells the rest.
#include "storage/commit_output.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/escape.h"
#include "storage/file_system.h"
#include "storage/io_error.h"
#include "storage/output_paths.h"

namespace ropewalk::storage {
namespace {

constexpr char kManifest[] = "_SUCCESS";
constexpr std::size_t kManifestBytesMax = 256 << 20;
constexpr int kTakeOversMax = 64;  // each that fails means that another attempt got one step further

std::string Hex16(std::uint64_t value) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(value));
  return text;
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

// The highest of the attempts that `names` are.
std::optional<std::uint32_t> Holder(const std::vector<std::string>& names) {
  std::optional<std::uint32_t> holder;
  for (const std::string& name : names) {
    std::uint32_t attempt = 0;
    auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), attempt);
    if (error == std::errc() && end == name.data() + name.size() && (!holder || attempt > *holder)) holder = attempt;
  }
  return holder;
}

class Committer {
 public:
  Committer(const OutputSpec& spec, std::vector<PartFacts> parts, std::uint32_t attempt)
      : spec_(spec),
        parts_(std::move(parts)),
        attempt_(attempt),
        paths_(PathsOf(spec)),
        own_(CommitPathsOf(paths_.commit, std::to_string(attempt))),
        files_(spec),
        manifest_(Manifest(spec, parts_)) {}

  Status Run() {
    ASSIGN_OR_RETURN(bool published, HoldsOurManifest(paths_.final_folder));
    if (!published) {
      Status status = Publish();
      if (!status.ok()) {
        // Another attempt may have overtaken this one, and even have ended by now.
        Result<bool> since = HoldsOurManifest(paths_.final_folder);
        if (!since.ok() || !*since) return held_ && !Holds() ? Overtaken() : status;
      }
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

  // Whether the folder's manifest is exactly what we would publish. No other job's is.
  Result<bool> HoldsOurManifest(const std::string& folder) {
    std::string found;
    int error = files_->ReadSmall(folder + "/" + kManifest, kManifestBytesMax, &found);
    if (error == 0) return found == manifest_;
    if (error == ENOENT || error == ENOTDIR || error == EFBIG || error == EISDIR) return false;
    return OutputError(error, "cannot read " + QuotedPath(folder + "/" + kManifest));
  }

  // False only where it is certain that a later attempt has the commit's folder, or that it was removed with all the rest.
  bool Holds() {
    FileFacts facts;
    return files_->Look(own_.folder, &facts) != ENOENT;
  }

  Status Overtaken() {
    return Status(Code::kStale, "OUT08", "the commit of " + QuotedPath(paths_.final_folder) + " was taken over by a later attempt",
                  "this one was taken for dead");
  }

  Status EnsureFolder(const std::string& path) {
    int error = files_->MakeFolder(path);
    return Check(error == EEXIST ? 0 : error, "cannot make the folder ", path);
  }

  Status Publish() {
    RETURN_IF_ERROR(TakeOver());
    FileFacts facts;
    int error = files_->Look(own_.ready, &facts);
    if (error != 0 && error != ENOENT) return Check(error, "cannot look at ", own_.ready);
    if (error == 0) {
      ASSIGN_OR_RETURN(bool ours, HoldsOurManifest(own_.ready));
      return ours ? PublishReady() : WasPublished();
    }
    error = files_->Look(own_.gathered, &facts);
    if (error == ENOENT) return WasPublished();
    RETURN_IF_ERROR(Check(error, "cannot look at ", own_.gathered));
    RETURN_IF_ERROR(GatherParts());
    RETURN_IF_ERROR(WriteManifest());
    RETURN_IF_ERROR(Check(files_->SyncFolder(own_.gathered), "cannot sync the folder ", own_.gathered));
    RETURN_IF_ERROR(Check(files_->Rename(own_.gathered, own_.ready, RenameMode::kReplace), "cannot rename ", own_.gathered));
    return PublishReady();
  }

  // Makes the commit's folder ours: there is none yet, or an earlier attempt has it.
  Status TakeOver() {
    for (int round = 0; round < kTakeOversMax && !held_; ++round) {
      std::vector<std::string> names;
      int error = files_->List(paths_.commit, &names);
      if (error != 0 && error != ENOENT) return Check(error, "cannot read the folder ", paths_.commit);
      const std::optional<std::uint32_t> holder = Holder(names);
      if (!holder) {
        RETURN_IF_ERROR(Begin());
      } else if (*holder > attempt_) {
        return Overtaken();
      } else if (*holder == attempt_) {
        held_ = true;  // by an earlier try of the same attempt
      } else {
        const std::string theirs = CommitPathsOf(paths_.commit, std::to_string(*holder)).folder;
        error = files_->Rename(theirs, own_.folder, RenameMode::kReplace);
        if (error != 0 && error != ENOENT) return Check(error, "cannot rename ", theirs);
        held_ = error == 0;  // else somebody else was faster
      }
    }
    return held_ ? Status() : Overtaken();
  }

  // The folder is made under another name and renamed when it is whole: it begins once, whoever else begins now.
  Status Begin() {
    const std::string born = paths_.commit + "." + std::to_string(attempt_);
    const CommitPaths first = CommitPathsOf(born, std::to_string(attempt_));
    for (const std::string& folder : {paths_.hidden, born, first.folder, first.gathered}) RETURN_IF_ERROR(EnsureFolder(folder));
    int error = files_->Rename(born, paths_.commit, RenameMode::kReplace);
    held_ = error == 0;
    if (error == 0 || error == ENOENT) return {};
    if (error != EEXIST && error != ENOTEMPTY) return Check(error, "cannot rename ", born);
    return Check(RemoveTree(*files_, born), "cannot remove ", born);
  }

  // What the commit's folder holds says that the output was published: by an earlier attempt, which ended before it could say so.
  Status WasPublished() {
    if (!Holds()) return Overtaken();  // we looked into a folder that was another one's by then
    FileFacts facts;
    int error = files_->Look(paths_.final_folder, &facts);
    if (error != ENOENT) return Check(error, "cannot look at ", paths_.final_folder);
    return Status(Code::kDataLoss, "OUT07", "output " + QuotedPath(paths_.final_folder) + " was published and is gone",
                  "something has removed it since", "run the job again");
  }

  Status GatherParts() {
    for (const PartFacts& part : parts_) {
      std::string from = AttemptPath(paths_, part.part, part.attempt), to = own_.gathered + "/" + PartName(spec_, part.part);
      int error = files_->Rename(from, to, RenameMode::kReplace);
      if (error != 0 && error != ENOENT) return Check(error, "cannot move ", from);
      FileFacts facts;
      error = files_->Look(to, &facts);
      if (error == ENOENT) return Lost(part, from, "the file is gone");
      RETURN_IF_ERROR(Check(error, "cannot look at ", to));
      if (facts.kind != FileKind::kFile || facts.bytes != part.bytes)
        return Lost(part, to, "it has " + std::to_string(facts.bytes) + " bytes; its task wrote " + std::to_string(part.bytes));
    }
    // Nothing but the winners may be published, and the manifest, which an earlier attempt may have written.
    std::vector<std::string> names;
    RETURN_IF_ERROR(Check(files_->List(own_.gathered, &names), "cannot read the folder ", own_.gathered));
    std::vector<std::string> wanted = {kManifest};
    for (const PartFacts& part : parts_) wanted.push_back(PartName(spec_, part.part));
    std::sort(wanted.begin(), wanted.end());
    for (const std::string& name : names) {
      if (std::binary_search(wanted.begin(), wanted.end(), name)) continue;
      RETURN_IF_ERROR(Check(RemoveTree(*files_, own_.gathered + "/" + name), "cannot remove ", own_.gathered + "/" + name));
    }
    return {};
  }

  Status Lost(const PartFacts& part, const std::string& path, const std::string& why) {
    return Status(
        Code::kDataLoss, "OUT07",
        "part " + std::to_string(part.part) + " (attempt " + std::to_string(part.attempt) + ") of the output: " + QuotedPath(path), why,
        "something else removes or changes files in the output's folder");
  }

  // By a rename: an earlier attempt may hold its own half of a manifest open.
  Status WriteManifest() {
    std::string path = own_.folder + "/" + kManifest + "." + std::to_string(attempt_), to = own_.gathered + "/" + kManifest;
    std::unique_ptr<WritableFile> file;
    RETURN_IF_ERROR(Check(files_->Create(path, &file), "cannot make the file ", path));
    RETURN_IF_ERROR(Check(file->Append(AsBytes(manifest_)), "cannot write ", path));
    RETURN_IF_ERROR(Check(file->Sync(), "cannot sync ", path));
    RETURN_IF_ERROR(Check(file->Close(), "cannot close ", path));
    return Check(files_->Rename(path, to, RenameMode::kReplace), "cannot rename to ", to);
  }

  Status PublishReady() {
    int error = files_->Rename(own_.ready, paths_.final_folder, RenameMode::kNoReplace);
    if (error == 0) return {};
    if (error == EEXIST || error == ENOTEMPTY) {
      if (!spec_.overwrite) return Exists();
      ASSIGN_OR_RETURN(bool published, HoldsOurManifest(paths_.final_folder));  // of no parts there may be two
      if (published) return {};
      error = files_->Rename(own_.ready, paths_.final_folder, RenameMode::kExchange);
      if (error == 0) return {};
    }
    // NFS, some FUSE and overlay file systems know neither mode.
    if (error == EINVAL || error == ENOSYS || error == EOPNOTSUPP) return PublishInTwoSteps();
    return Check(error, "cannot rename to ", paths_.final_folder);
  }

  // The fallback has short moments in which the final folder is absent, but none in which it is partial. rename(2) refuses to replace a
  // folder that is not empty, so a stranger's data that appears between the look and the rename is not lost. The former output goes into
  // the commit's folder: so an attempt that was overtaken cannot move away what its successor published.
  Status PublishInTwoSteps() {
    FileFacts facts;
    int error = files_->Look(paths_.final_folder, &facts);
    if (error != 0 && error != ENOENT) return Check(error, "cannot look at ", paths_.final_folder);
    if (error == 0) {
      if (!spec_.overwrite) return Exists();
      ASSIGN_OR_RETURN(bool published, HoldsOurManifest(paths_.final_folder));
      if (published) return {};
      RETURN_IF_ERROR(Check(RemoveTree(*files_, own_.replaced), "cannot remove ", own_.replaced));
      RETURN_IF_ERROR(
          Check(files_->Rename(paths_.final_folder, own_.replaced, RenameMode::kReplace), "cannot move away ", paths_.final_folder));
    }
    error = files_->Rename(own_.ready, paths_.final_folder, RenameMode::kReplace);
    if (error == EEXIST || error == ENOTEMPTY || error == ENOTDIR) return Exists();
    return Check(error, "cannot rename to ", paths_.final_folder);
  }

  Status Exists() {
    return Status(Code::kUserError, "OUT01", "output " + QuotedPath(paths_.final_folder) + " exists", "it appeared while the job ran",
                  "choose another folder, or replace it: --overwrite, in a program WriteText(folder, {.overwrite = true})");
  }

  const OutputSpec& spec_;
  std::vector<PartFacts> parts_;
  const std::uint32_t attempt_;
  OutputPaths paths_;
  CommitPaths own_;
  OutputFiles files_;
  std::string manifest_;
  bool held_ = false;  // it was ours at least once
};

}  // namespace

Status CommitOutput(const OutputSpec& spec, std::span<const std::string> winners, std::uint32_t attempt) {
  ASSIGN_OR_RETURN(std::vector<PartFacts> parts, DecodeParts(winners));
  return Committer(spec, std::move(parts), attempt).Run();
}

}  // namespace ropewalk::storage
