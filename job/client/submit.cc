#include "job/client/submit.h"

#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "base/escape.h"
#include "base/job_name.h"
#include "base/random.h"
#include "dag/wire/wire.h"
#include "job/client/artifacts.h"
#include "job/client/elf_needs.h"
#include "job/client/find_cluster.h"
#include "job/client/master_link.h"
#include "job/interrupt.h"
#include "job/progress.h"
#include "job/report.h"
#include "proto/client.pb.h"
#include "rpc/channel.h"

namespace ropewalk::job {
namespace {

constexpr std::size_t kChunkBytes = 1 << 20;
constexpr std::uint32_t kPollMs = 10'000;
constexpr int kLookMs = 1'500;
constexpr const char* kDefaultMaster = "127.0.0.1:7077";
constexpr int kUploadsMax = 5;  // a master that was replaced in the middle may ask for artifacts again

bool WriteAll(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    ssize_t n = write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(n));
  }
  return true;
}

// The uid's name; where it has none, what the environment says, else the number.
std::string UserName() {
  char buffer[4096];
  passwd entry = {};
  passwd* found = nullptr;
  if (getpwuid_r(getuid(), &entry, buffer, sizeof buffer, &found) == 0 && found != nullptr && found->pw_name[0] != 0) return found->pw_name;
  const char* user = std::getenv("USER");
  return user != nullptr && user[0] != 0 ? user : std::to_string(getuid());
}

// Sends what the master lacks.
Status Upload(MasterLink* link, const OwnBinary& binary) {
  wire::ClientRequest have;
  for (const Artifact& artifact : binary.artifacts) have.mutable_have_artifacts()->add_sha256(artifact.sha256);
  ASSIGN_OR_RETURN(wire::ClientResponse missing, link->Call(&have));
  for (const Artifact& artifact : binary.artifacts) {
    const auto& wanted = missing.missing_artifacts().sha256();
    if (std::find(wanted.begin(), wanted.end(), artifact.sha256) == wanted.end()) continue;
    std::ifstream file(artifact.path, std::ios::binary);
    std::string chunk(kChunkBytes, '\0');
    for (std::uint64_t offset = 0; offset < artifact.bytes;) {
      std::uint64_t want = std::min<std::uint64_t>(kChunkBytes, artifact.bytes - offset);
      if (!file.read(chunk.data(), static_cast<std::streamsize>(want))) {
        return Status(Code::kInvalid, "SUB01", "cannot read " + artifact.path + " at byte " + std::to_string(offset),
                      file.eof() ? "it became shorter while it was sent" : std::strerror(errno), "submit again once the file is whole");
      }
      wire::ClientRequest put;
      put.mutable_put_artifact()->set_sha256(artifact.sha256);
      put.mutable_put_artifact()->set_offset(offset);
      put.mutable_put_artifact()->set_size(artifact.bytes);
      put.mutable_put_artifact()->set_chunk(std::string_view(chunk).substr(0, want).data(), want);
      ASSIGN_OR_RETURN(wire::ClientResponse ok, link->Call(&put));
      offset += want;
    }
  }
  return Status();
}

Result<JobId> Submit(MasterLink* link, const SubmitRequest& request) {
  ASSIGN_OR_RETURN(OwnBinary binary, DescribeOwnBinary());
  wire::ClientRequest submit;
  wire::JobSpec* spec = submit.mutable_submit_job()->mutable_spec();
  dag::ToWire(request.settings, spec->mutable_settings());
  spec->set_submit_key(HexString(SecureRandomBytes(16)));
  for (const std::string& arg : request.argv) spec->add_argv(arg);
  for (const std::string& variable : request.environment) spec->add_environment(variable);
  for (const Artifact& artifact : binary.artifacts) {
    spec->add_artifacts(artifact.sha256);
    spec->add_artifact_names(artifact.name);
  }
  spec->set_user(UserName());
  spec->set_glibc_min(GlibcText(binary.glibc_min));
  if (request.cpu_level > 1) spec->set_cpu_level("x86-64-v" + std::to_string(request.cpu_level));

  for (int upload = 1;; ++upload) {
    RETURN_IF_ERROR(Upload(link, binary));
    Result<wire::ClientResponse> accepted = link->Call(&submit);
    if (accepted.ok()) return JobId{accepted->job_accepted().job()};
    // The master does not have what it said it had: another one, or one that lost its unsynced files.
    if (accepted.status().code() != Code::kNotFound || upload == kUploadsMax) return accepted.status();
  }
}

// What both threads of a follower write to the terminal, one at a time.
struct Terminal {
  std::mutex mutex;
  ProgressLine line;
  std::optional<ProgressLines> lines;  // for who is no terminal
};

// Copies one of the job's streams until its end.
// The error of a write that failed; a reader that has seen enough (EPIPE) is none.
Status CopyLog(const MasterLinkOptions& options, JobId job, const char* stream, int fd, Terminal* terminal) {
  MasterLink link(options);
  std::uint64_t offset = 0;
  for (;;) {
    wire::ClientRequest request;
    request.mutable_read_log()->set_job(job.value);
    request.mutable_read_log()->set_stream(stream);
    request.mutable_read_log()->set_offset(offset);
    request.mutable_read_log()->set_wait_ms(kPollMs);
    Result<wire::ClientResponse> response = link.Call(&request, kPollMs);
    std::lock_guard lock(terminal->mutex);
    if (!response.ok()) {
      terminal->line.Erase();
      std::fprintf(stderr, "ropewalk: the job's %s cannot be read further: %s\n", stream, response.status().what().c_str());
      return {};
    }
    const wire::LogChunk& chunk = response->log_chunk();
    if (!chunk.data().empty()) {
      terminal->line.Erase();
      if (!WriteAll(fd, chunk.data())) return errno == EPIPE ? Status() : CannotPrint(errno);
    }
    offset = chunk.next_offset();
    if (chunk.end()) return {};
  }
}

ProgressState Picture(const wire::JobState& state) {
  ProgressState picture;
  picture.name = state.action_name();
  for (const wire::StageState& stage : state.stages()) {
    picture.tasks += stage.tasks();
    picture.done += stage.done();
    picture.running += stage.running();
    picture.running_permille += stage.running_permille();
    picture.bytes_in += stage.counters().bytes_in();
  }
  picture.note = state.note();
  if (state.pending_reasons_size() > 0) picture.note = state.pending_reasons(0);
  return picture;
}

bool IsOver(const wire::JobState& state) {
  return state.phase() == "succeeded" || state.phase() == "failed" || state.phase() == "cancelled";
}

// A line for each worker that was lost since `told` of them; how many there are now.
std::uint64_t TellLosses(const wire::JobState& state, std::uint64_t told, Terminal* terminal) {
  const std::uint64_t lost = state.workers_lost();
  const auto& shown = state.lost_workers();  // the last ones
  for (std::uint64_t i = std::max(told, lost - std::min<std::uint64_t>(lost, static_cast<std::uint64_t>(shown.size()))); i < lost; ++i) {
    terminal->line.Erase();
    const wire::LostWorker& worker = shown[static_cast<int>(static_cast<std::uint64_t>(shown.size()) - (lost - i))];
    std::fprintf(stderr, "%s\n", LossText(worker.name(), worker.tasks()).c_str());
  }
  return std::max(told, lost);
}

Result<wire::JobState> WaitForEnd(MasterLink* link, JobId job, Terminal* terminal, bool talks) {
  std::uint64_t version = 0, told = 0;
  for (;;) {
    wire::ClientRequest request;
    request.mutable_job_query()->set_job(job.value);
    request.mutable_job_query()->set_version(version);
    request.mutable_job_query()->set_wait_ms(kPollMs);
    request.mutable_job_query()->set_without_plans(true);
    ASSIGN_OR_RETURN(wire::ClientResponse response, link->Call(&request, kPollMs));
    wire::JobState* state = response.mutable_job_state();
    std::lock_guard lock(terminal->mutex);
    if (talks) told = TellLosses(*state, told, terminal);
    if (IsOver(*state)) return std::move(*state);
    version = state->version();
    if (talks) terminal->line.Show(Picture(*state));
    if (terminal->lines) terminal->lines->Show(Picture(*state));
  }
}

// The job's end as a Status; OK when it succeeded.
Status EndOf(const wire::JobState& state, JobId job) {
  Status failure = dag::FromWire(state.failure());
  if (state.phase() == "succeeded") return Status();
  if (!failure.ok()) return failure;
  if (state.phase() == "cancelled")
    return Status(Code::kCancelled, "JOB01", "job " + JobName(job) + " was cancelled", "somebody asked for it",
                  "submit it again if it is still wanted");
  return Status(Code::kUserError, "JOB02", "main of job " + JobName(job) + " returned " + std::to_string(state.main_exit()),
                "a job whose main does not return 0 has failed", "`ropewalk logs " + JobName(job) + "` shows what it said");
}

// One question on a connection of its own, which does not wait for a master that is gone.
Result<wire::JobState> LookAt(MasterLinkOptions options, JobId job) {
  options.first_connect_ms = kLookMs;
  options.reconnect_ms = kLookMs;
  options.answer_ms = kLookMs;
  MasterLink link(options);
  wire::ClientRequest request;
  request.mutable_job_query()->set_job(job.value);
  request.mutable_job_query()->set_without_plans(true);
  ASSIGN_OR_RETURN(wire::ClientResponse response, link.Call(&request));
  return std::move(*response.mutable_job_state());
}

}  // namespace

int SubmitAndFollow(const SubmitRequest& request) {
  OutputForm form = request.options.output;
  auto fail = [&](const Status& status) {
    PrintError(status, form);
    return ExitCode(status.code());
  };
  Result<std::string> token = TokenFor(request.options.master, request.options.token_file);
  if (!token.ok()) return fail(token.status());
  Terminal terminal;
  MasterLinkOptions link_options{request.options.master, *token};
  MasterLinkOptions said_options = link_options;  // of several links one says that the master is gone
  if (form == OutputForm::kTable)
    said_options.on_waiting = [&](int patience_ms) {
      std::lock_guard lock(terminal.mutex);
      terminal.line.Erase();
      std::fputs(WaitingText(request.options.master, patience_ms).c_str(), stderr);
    };
  MasterLink link(said_options);

  std::atomic<std::uint64_t> accepted{0};
  InterruptWatch watch([&](int, int) {
    const std::string where = request.options.master == kDefaultMaster ? "" : " --master " + request.options.master;
    JobId job{accepted.load()};
    if (!job) {
      WriteAll(STDERR_FILENO, "\ninterrupted while submitting: `ropewalk job list" + where + "` shows whether the job was accepted\n");
      _exit(130);
    }
    const std::string name = JobName(job);
    // Only the master knows, and only now.
    Result<wire::JobState> state = LookAt(link_options, job);
    if (!state.ok()) {
      WriteAll(STDERR_FILENO, "\ndetached: whether job " + name + " goes on is not known, since the master at " + request.options.master +
                                  " does not answer (" + state.status().what() + ")\n  when it is back:  ropewalk job show " + name +
                                  where + "\n");
      _exit(ExitCode(Code::kUnavailable));
    }
    if (IsOver(*state)) {
      WriteAll(STDERR_FILENO, "\njob " + name + " is over: " + state->phase() + "\n  ropewalk job show " + name + where + "\n");
      _exit(ExitCode(EndOf(*state, job).code()));
    }
    WriteAll(STDERR_FILENO, "\ndetached: job " + name + " goes on\n  ropewalk logs " + name + " -f" + where + "\n  ropewalk job cancel " +
                                name + where + "\n");
    _exit(0);
  });
  Result<JobId> job = Submit(&link, request);
  if (!job.ok()) return fail(job.status());
  accepted.store(job->value);
  if (request.options.detach) {
    std::printf("%s\n", JobName(*job).c_str());
    return std::fflush(stdout) == 0 ? 0 : 1;
  }
  const bool talks = form == OutputForm::kTable && !request.options.quiet;
  if (talks) terminal.lines.emplace("job " + JobName(*job) + ": ");
  if (talks) std::fprintf(stderr, "job %s accepted by %s\n", JobName(*job).c_str(), request.options.master.c_str());

  Status printed;
  std::thread out([&] { printed = CopyLog(link_options, *job, "driver", STDOUT_FILENO, &terminal); });
  std::thread err([&] { (void)CopyLog(link_options, *job, "stderr", STDERR_FILENO, &terminal); });  // it has said why
  Result<wire::JobState> end = WaitForEnd(&link, *job, &terminal, talks);
  out.join();
  err.join();
  terminal.line.Erase();
  if (!end.ok()) return fail(end.status());
  Status status = EndOf(*end, *job);
  if (status.ok()) status = printed;
  if (!status.ok()) return fail(status);
  if (talks) std::fprintf(stderr, "%s\n", EndText(JobName(*job), end->submitted_us(), end->finished_us()).c_str());
  return 0;
}

}  // namespace ropewalk::job
