// Where the files of an output folder lie. Internal to storage/.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "storage/file_system.h"
#include "storage/output_folder.h"

namespace ropewalk::storage {

struct OutputPaths {
  std::string final_folder;
  std::string parent;
  std::string hidden;    // .out.ropewalk-<key>
  std::string attempts;  // hidden/a
  std::string commit;    // hidden/commit
};
OutputPaths PathsOf(const OutputSpec& spec);

// What commit_output.h describes, of one attempt.
struct CommitPaths {
  std::string folder;    // commit/<attempt>
  std::string gathered;  // .../p
  std::string ready;     // .../ready
  std::string replaced;  // .../old
};
CommitPaths CommitPathsOf(const std::string& commit, const std::string& attempt);

std::string PartName(const OutputSpec& spec, std::uint32_t part);
std::string AttemptPath(const OutputPaths& paths, std::uint32_t part, std::uint32_t attempt);

// What Finish() returns and CommitOutput() takes, as a value.
struct PartFacts {
  std::uint32_t part = 0;
  std::uint32_t attempt = 0;
  std::uint64_t records = 0;
  std::uint64_t bytes = 0;
  std::uint64_t checksum = 0;  // XXH3 of the file
};
std::string EncodePart(const PartFacts& facts);
Result<PartFacts> DecodePart(std::string_view bytes);
Result<std::vector<PartFacts>> DecodeParts(std::span<const std::string> winners);
OutputTotals Sum(const std::vector<PartFacts>& parts);

// A failure of an output's disk belongs to the user, who chose the folder: it must end the job after the usual tries with this message, not
// send the work from machine to machine for ever.
Status OutputError(int error_number, const std::string& what);

// The file system of the spec.
class OutputFiles {
 public:
  explicit OutputFiles(const OutputSpec& spec) : files_(spec.files != nullptr ? spec.files : &local_) {}
  FileSystem* operator->() { return files_; }
  FileSystem& operator*() { return *files_; }

 private:
  LocalFileSystem local_;
  FileSystem* files_;
};

}  // namespace ropewalk::storage
