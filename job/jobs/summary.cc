#include "job/jobs/summary.h"

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <tuple>

#include "base/escape.h"
#include "dag/stage_graph.h"
#include "job/options.h"
#include "job/progress.h"
#include "storage/input.h"

namespace ropewalk::jobs {
namespace {

// The number after `"name": ` in the manifest (storage/output_folder.h), whose totals come first.
std::uint64_t ManifestNumber(const std::string& manifest, const std::string& name) {
  std::size_t at = manifest.find("\"" + name + "\": ");
  return at == std::string::npos ? 0 : std::strtoull(manifest.c_str() + at + name.size() + 4, nullptr, 10);
}

}  // namespace

Summary::Summary(Job* job, const Arguments& arguments) : job_(job), arguments_(arguments), started_(std::chrono::steady_clock::now()) {}

void Summary::Print(const std::string& records_name) {
  std::string folder = std::filesystem::path(job_->settings().work_dir) / arguments_.output;
  // Files are looked at by one replica only, as everything outside the plan.
  using Totals = std::tuple<std::uint64_t, std::uint64_t, std::uint64_t, std::uint64_t, bool>;
  auto [bytes_in, records, bytes_out, only_hidden, replaced] = job_->Once("summary", [&]() -> Totals {
    std::uint64_t input = 0, only_hidden_names = 0;
    Result<storage::InputListing> listing = storage::ListInputs(arguments_.inputs, job_->settings().work_dir);
    if (listing.ok()) {
      for (const storage::InputFile& file : listing->files) input += file.bytes;
      if (listing->files.empty()) only_hidden_names = listing->skipped_hidden;
    }
    std::ifstream file(folder + "/_SUCCESS");
    std::string head(4096, '\0');  // the totals stand before the list of parts
    file.read(head.data(), static_cast<std::streamsize>(head.size()));
    // Another job may have overwritten the folder since: its counts are none of ours.
    const std::string key = dag::OutputKeyOf(job_->settings().job, job_->settings().now_us) + "-";
    if (head.find("\"key\": \"" + key) == std::string::npos) return {input, 0, 0, only_hidden_names, true};
    return {input, ManifestNumber(head, "records"), ManifestNumber(head, "bytes"), only_hidden_names, false};
  });
  double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - started_).count();
  // Init has taken the options, on a cluster even in another process; how a job talks is in the environment of both.
  const job::JobOptions options = job::EnvironmentOptions([](const char* name) { return std::getenv(name); });
  if (options.quiet) return;
  const bool json = options.output != job::OutputForm::kTable;
  if (replaced && json) {
    std::fprintf(stderr, "{\"job\":%s,\"input_bytes\":%llu,\"seconds\":%.3f,\"output\":%s,\"replaced\":true}\n",
                 JsonString(arguments_.job).c_str(), static_cast<unsigned long long>(bytes_in), seconds, JsonString(folder).c_str());
  } else if (replaced) {
    std::fprintf(stderr, "%s: %s in %.2f s (%s/s), written whole to %s, where another job's output lies since\n", arguments_.job.c_str(),
                 job::HumanBytes(double(bytes_in)).c_str(), seconds, job::HumanBytes(double(bytes_in) / std::max(seconds, 1e-6)).c_str(),
                 EscapeForLog(folder).c_str());
  } else if (json) {
    std::fprintf(stderr, "{\"job\":%s,\"input_bytes\":%llu,\"records\":%llu,\"output_bytes\":%llu,\"seconds\":%.3f,\"output\":%s}\n",
                 JsonString(arguments_.job).c_str(), static_cast<unsigned long long>(bytes_in), static_cast<unsigned long long>(records),
                 static_cast<unsigned long long>(bytes_out), seconds, JsonString(folder).c_str());
  } else {
    std::fprintf(stderr, "%s: %s in %.2f s (%s/s), %llu %s (%s) in %s\n", arguments_.job.c_str(), job::HumanBytes(double(bytes_in)).c_str(),
                 seconds, job::HumanBytes(double(bytes_in) / std::max(seconds, 1e-6)).c_str(), static_cast<unsigned long long>(records),
                 records_name.c_str(), job::HumanBytes(double(bytes_out)).c_str(), EscapeForLog(folder).c_str());
    if (only_hidden > 0)
      std::fprintf(stderr, "%s: the input holds only names that begin with '.' or '_' (%llu), which are skipped\n", arguments_.job.c_str(),
                   static_cast<unsigned long long>(only_hidden));
  }
}

}  // namespace ropewalk::jobs
