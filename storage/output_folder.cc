// What is known of an output folder without its commit, and how the hidden folder of one that will not be published goes.
#include "storage/output_folder.h"

#include <cerrno>

#include "storage/commit_output.h"
#include "storage/file_system.h"
#include "storage/output_owner.h"
#include "storage/output_paths.h"

namespace ropewalk::storage {

Status CommitOutput(const OutputSpec& spec, std::span<const std::string> winners) { return CommitOutput(spec, winners, 0); }

Result<OutputTotals> TotalsOf(std::span<const std::string> winners) {
  ASSIGN_OR_RETURN(std::vector<PartFacts> parts, DecodeParts(winners));
  return Sum(parts);
}

namespace {

// A commit that was cut off between its two steps had moved the former output into its folder: gives it back. False: it lies there, or may
// lie there, and must not be deleted.
bool GiveBack(FileSystem& files, const OutputPaths& paths) {
  std::vector<std::string> attempts;
  if (int error = files.List(paths.commit, &attempts); error != 0) return error == ENOENT;
  for (const std::string& attempt : attempts) {
    const CommitPaths commit = CommitPathsOf(paths.commit, attempt);
    FileFacts facts;
    // Without what is ready the new output was published, and what became of that is not ours to mend.
    if (files.Look(commit.replaced, &facts) == ENOENT || files.Look(commit.ready, &facts) == ENOENT) continue;
    int error = files.Look(paths.final_folder, &facts);
    if (error == ENOENT) error = files.Rename(commit.replaced, paths.final_folder, RenameMode::kReplace);
    if (error != 0) return false;
  }
  return true;
}

// Removes the hidden folder that `paths` name. False: something is left. Best effort: the name is hidden, and no job reads it.
bool RemoveHidden(FileSystem& files, const OutputPaths& paths) { return GiveBack(files, paths) && RemoveTree(files, paths.hidden) == 0; }

// Renames the hidden folder first: an attempt that is taken for dead may be about to publish it, and could publish what is half removed.
bool RemoveOnce(const OutputSpec& spec) {
  OutputFiles files(spec);
  const OutputPaths paths = PathsOf(spec);
  if (spec.key.ends_with(kGoneSuffix)) return RemoveHidden(*files, paths);
  OutputSpec gone = spec;
  gone.key += kGoneSuffix;
  const OutputPaths gone_paths = PathsOf(gone);
  if (!RemoveHidden(*files, gone_paths)) return false;  // of somebody who was cut off here
  if (files->Rename(paths.hidden, gone_paths.hidden, RenameMode::kReplace) != 0) return false;
  return RemoveHidden(*files, gone_paths);
}

}  // namespace

void DiscardOutput(const OutputSpec& spec) { RemoveOnce(spec); }

void AbandonOutput(const OutputSpec& spec) {
  constexpr int kRoundsMax = 3;  // a task that opens its part just now makes the folder again
  for (int round = 0; round < kRoundsMax && RemoveOnce(spec); ++round) {
  }
}

}  // namespace ropewalk::storage
