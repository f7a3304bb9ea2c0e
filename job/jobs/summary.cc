#include "job/jobs/summary.h"

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <tuple>

#include "base/escape.h"
#include "dag/stage_graph.h"
#include "job/options.h"
#include "job/progress.h"
#include "storage/input.h"

namespace ropewalk::jobs {
namespace {

constexpr const char* kNobody = "nobody";

// Whose output lies in `folder` by its manifest (storage/output_folder.h): "" the job's whose keys begin with `key`, kNobody where there is
// no manifest, else another one's, in words.
std::string OwnerOf(const std::string& folder, const std::string& key) {
  std::ifstream file(folder + "/_SUCCESS");
  if (!file.is_open()) return kNobody;
  std::string head(4096, '\0');  // what is looked for stands before the list of parts; other tools leave the file empty
  file.read(head.data(), static_cast<std::streamsize>(head.size()));
  if (head.find("\"key\": \"" + key) != std::string::npos) return "";
  constexpr std::string_view kWriter = "\"writer\": \"";
  const std::size_t at = head.find(kWriter);
  if (at == std::string::npos) return "another job";
  const std::size_t begin = at + kWriter.size();
  return head.substr(begin, head.find('"', begin) - begin);
}

}  // namespace

Summary::Summary(Job* job, const Arguments& arguments) : job_(job), arguments_(arguments), started_(std::chrono::steady_clock::now()) {}

void Summary::Print(const Written& written, const std::string& records_name) {
  std::string folder = std::filesystem::path(job_->settings().work_dir) / arguments_.output;
  // Files are looked at by one replica only, as everything outside the plan.
  using Seen = std::tuple<std::uint64_t, std::uint64_t, std::string>;
  auto [bytes_in, only_hidden, owner] = job_->Once("summary", [&]() -> Seen {
    std::uint64_t input = 0, only_hidden_names = 0;
    Result<storage::InputListing> listing = storage::ListInputs(arguments_.inputs, job_->settings().work_dir);
    if (listing.ok()) {
      for (const storage::InputFile& file : listing->files) input += file.bytes;
      if (listing->files.empty()) only_hidden_names = listing->skipped_hidden;
    }
    return {input, only_hidden_names, OwnerOf(folder, dag::OutputKeyOf(job_->settings().job, job_->settings().now_us) + "-")};
  });
  double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - started_).count();
  // Init has taken the options, on a cluster even in another process; how a job talks is in the environment of both.
  const job::JobOptions options = job::EnvironmentOptions([](const char* name) { return std::getenv(name); });
  if (options.quiet) return;
  if (options.output != job::OutputForm::kTable) {
    const std::string since = owner.empty() ? "" : owner == kNobody ? ",\"gone\":true" : ",\"replaced_by\":" + JsonString(owner);
    std::fprintf(stderr, "{\"job\":%s,\"input_bytes\":%llu,\"records\":%llu,\"output_bytes\":%llu,\"seconds\":%.3f,\"output\":%s%s}\n",
                 JsonString(arguments_.job).c_str(), static_cast<unsigned long long>(bytes_in),
                 static_cast<unsigned long long>(written.records), static_cast<unsigned long long>(written.bytes), seconds,
                 JsonString(folder).c_str(), since.c_str());
    return;
  }
  std::fprintf(stderr, "%s: %s in %.2f s (%s/s), %llu %s (%s) in %s\n", arguments_.job.c_str(),
               job::HumanBytes(static_cast<double>(bytes_in)).c_str(), seconds,
               job::HumanBytes(static_cast<double>(bytes_in) / std::max(seconds, 1e-6)).c_str(),
               static_cast<unsigned long long>(written.records), records_name.c_str(),
               job::HumanBytes(static_cast<double>(written.bytes)).c_str(), EscapeForLog(folder).c_str());
  if (owner == kNobody)
    std::fprintf(stderr, "%s: since then something has removed that output\n", arguments_.job.c_str());
  else if (!owner.empty())
    std::fprintf(stderr, "%s: since then the output of %s has replaced that one\n", arguments_.job.c_str(), EscapeForLog(owner).c_str());
  if (only_hidden > 0)
    std::fprintf(stderr, "%s: the input holds only names that begin with '.' or '_' (%llu), which are skipped\n", arguments_.job.c_str(),
                 static_cast<unsigned long long>(only_hidden));
}

}  // namespace ropewalk::jobs
