#include "cli/query.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <functional>
#include <memory>

#include "base/escape.h"
#include "base/job_name.h"
#include "base/monotonic.h"
#include "cli/job_view.h"
#include "cli/metrics_view.h"
#include "cli/rank_log.h"
#include "cli/settings.h"
#include "job/client/find_cluster.h"
#include "job/client/master_link.h"
#include "job/report.h"
#include "proto/client.pb.h"
#include "rpc/channel.h"
#include "storage/io_error.h"
#include "storage/metric_file.h"

namespace ropewalk::cli {
namespace {

constexpr std::uint32_t kPollMs = 10'000;
constexpr std::uint32_t kFollowMs = 200;  // two streams are followed in turn

std::int64_t NowUs() {
  return std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// So many that a table can be read.
std::uint32_t PointsMax(const Invocation& invocation) {
  constexpr std::uint32_t kInTable = 20;
  return invocation.points != 0 || invocation.output != job::OutputForm::kTable ? invocation.points : kInTable;
}

// Of a job that has run in a process of its own.
Result<std::string> MetricsOfFile(const Invocation& invocation) {
  storage::LocalFileSystem files;
  ASSIGN_OR_RETURN(const storage::MetricHistory history, storage::ReadMetricFile(files, invocation.job_name));
  const std::uint32_t points = PointsMax(invocation);
  return ShowMetrics(invocation.job_name, history.AtMost(points == 0 ? ~std::size_t{0} : points), invocation.rank, invocation.output);
}

Status WriteAll(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    ssize_t n = write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return storage::IoError(errno, "CLI06", fd == STDOUT_FILENO ? "cannot write to stdout" : "cannot write to stderr");
    bytes.remove_prefix(static_cast<std::size_t>(n));
  }
  return {};
}

class Query {
 public:
  Query(const Invocation& invocation, job::MasterLinkOptions options) : invocation_(invocation), link_(std::move(options)) {}

  Result<int> Run() {
    const std::string& verb = invocation_.verb;
    if (verb == "job list") return List();
    if (verb == "worker list") return Workers();
    auto job = ParseJobName(invocation_.job_name);
    if (!job) {
      return Status(Code::kNotFound, "CLI07", "\"" + EscapeForLog(invocation_.job_name, 64) + "\" is no job", "a job is called like j-713",
                    "`ropewalk job list` shows them");
    }
    job_ = *job;
    if (verb == "job cancel") return Cancel();
    if (verb == "job wait") return Wait();
    if (verb == "job metrics") return Metrics();
    if (verb == "logs") return invocation_.rank ? LogsOfRank() : Logs();
    auto state = Ask(0, 0);
    if (!state.ok()) return state.status();
    return Print(verb == "explain" ? ShowPlan(*state, invocation_.output) : ShowJob(*state, invocation_.output, NowUs()));
  }

 private:
  Result<int> Print(const std::string& text) {
    RETURN_IF_ERROR(WriteAll(STDOUT_FILENO, text));
    return 0;
  }

  Result<int> List() {
    wire::ClientRequest request;
    request.mutable_list_jobs()->set_limit(invocation_.limit);
    ASSIGN_OR_RETURN(wire::ClientResponse response, link_.Call(&request));
    return Print(ShowJobs(response.job_list(), invocation_.output, NowUs()));
  }

  Result<int> Workers() {
    wire::ClientRequest request;
    request.mutable_list_workers();
    ASSIGN_OR_RETURN(wire::ClientResponse response, link_.Call(&request));
    return Print(ShowWorkers(response.worker_list(), invocation_.output));
  }

  Result<wire::JobState> Ask(std::uint64_t version, std::uint32_t wait_ms) {
    wire::ClientRequest request;
    request.mutable_job_query()->set_job(job_.value);
    request.mutable_job_query()->set_version(version);
    request.mutable_job_query()->set_wait_ms(wait_ms);
    ASSIGN_OR_RETURN(wire::ClientResponse response, link_.Call(&request, wait_ms));
    return std::move(*response.mutable_job_state());
  }

  Result<int> Metrics() {
    wire::ClientRequest request;
    request.mutable_metrics_query()->set_job(job_.value);
    request.mutable_metrics_query()->set_points_max(PointsMax(invocation_));
    ASSIGN_OR_RETURN(wire::ClientResponse response, link_.Call(&request));
    ASSIGN_OR_RETURN(const storage::Metrics metrics, storage::DecodeMetrics(response.job_metrics().metrics()));
    return Print(ShowMetrics(JobName(job_), metrics, invocation_.rank, invocation_.output));
  }

  Result<int> Cancel() {
    wire::ClientRequest request;
    request.mutable_cancel_job()->set_job(job_.value);
    ASSIGN_OR_RETURN(wire::ClientResponse response, link_.Call(&request));
    (void)response;
    // It may have ended by itself before: say what is true.
    ASSIGN_OR_RETURN(wire::JobState state, Ask(0, 0));
    if (invocation_.output != job::OutputForm::kTable) return Print(ShowJob(state, invocation_.output, NowUs()));
    std::string name = JobName(job_);
    return Print(IsOver(state) ? "job " + name + " is over: " + state.phase() + "\n" : "job " + name + " is being cancelled\n");
  }

  Result<int> Wait() {
    std::int64_t give_up_ms = invocation_.timeout_ms < 0 ? -1 : MonotonicMs() + invocation_.timeout_ms;
    for (std::uint64_t version = 0;;) {
      std::int64_t left_ms = give_up_ms < 0 ? kPollMs : std::max<std::int64_t>(give_up_ms - MonotonicMs(), 0);
      ASSIGN_OR_RETURN(wire::JobState state, Ask(version, static_cast<std::uint32_t>(std::min<std::int64_t>(left_ms, kPollMs))));
      if (IsOver(state)) {
        Status end = EndOf(state);
        if (invocation_.output != job::OutputForm::kTable) {
          RETURN_IF_ERROR(WriteAll(STDOUT_FILENO, ShowJob(state, invocation_.output, NowUs())));
        } else if (end.ok()) {
          RETURN_IF_ERROR(WriteAll(STDOUT_FILENO, "job " + JobName(job_) + " succeeded\n"));
        }
        if (!end.ok()) job::PrintError(end, invocation_.output);
        return ExitCode(end.code());
      }
      version = state.version();
      if (give_up_ms >= 0 && MonotonicMs() >= give_up_ms) {
        return Status(Code::kDeadlineExceeded, "CLI08",
                      "job " + JobName(job_) + " is not over after " + std::to_string(invocation_.timeout_ms) + " ms",
                      "it is " + state.phase(), "wait longer; `ropewalk job show " + JobName(job_) + "` shows what it does");
      }
    }
  }

  struct Stream {
    std::string name;
    int fd;
    std::uint64_t offset = 0;
    bool end = false;
  };

  // Prints what is there; waits up to `wait_ms` for more.
  Status Copy(Stream* stream, std::uint32_t wait_ms) {
    return Read(stream, wait_ms, [&](const std::string& bytes) { return WriteAll(stream->fd, bytes); });
  }
  Status Read(Stream* stream, std::uint32_t wait_ms, const std::function<Status(const std::string&)>& take) {
    while (true) {
      wire::ClientRequest request;
      request.mutable_read_log()->set_job(job_.value);
      request.mutable_read_log()->set_stream(stream->name);
      request.mutable_read_log()->set_offset(stream->offset);
      request.mutable_read_log()->set_wait_ms(wait_ms);
      ASSIGN_OR_RETURN(wire::ClientResponse response, link_.Call(&request, wait_ms));
      const wire::LogChunk& chunk = response.log_chunk();
      RETURN_IF_ERROR(take(chunk.data()));
      stream->offset = chunk.next_offset();
      stream->end = chunk.end();
      if (chunk.end() || chunk.data().empty()) return {};
      wait_ms = 0;
    }
  }

  Result<int> Logs() {
    std::vector<Stream> streams;
    if (invocation_.stream.empty()) {
      streams = {{"driver", STDOUT_FILENO}, {"stderr", STDERR_FILENO}};
    } else {
      streams = {{invocation_.stream, STDOUT_FILENO}};
    }
    while (true) {
      bool end = true;
      for (Stream& stream : streams) {
        if (stream.end) continue;
        RETURN_IF_ERROR(Copy(&stream, !invocation_.follow ? 0 : streams.size() == 1 ? kPollMs : kFollowMs));
        end = end && stream.end;
      }
      if (end || !invocation_.follow) break;
    }
    bool silent = true;
    for (const Stream& stream : streams) silent = silent && stream.offset == 0;
    if (silent) RETURN_IF_ERROR(TellWhySilent());
    return 0;
  }

  // The executors' log, as far as it is of the rank's executors, on stdout; of the driver's stderr all, where it was the driver's.
  Result<int> LogsOfRank() {
    if (!invocation_.stream.empty())
      return Status(Code::kInvalid, "CLI11", "logs: --rank and --stream together", "a rank's lines are in the logs of its executors",
                    "leave one of them out");
    RankLog of(*invocation_.rank);
    Stream events{"events", -1}, executors{"executor", STDOUT_FILENO}, stderr_of_driver{"stderr", STDOUT_FILENO};
    std::string told;
    auto learn = [&](std::uint32_t wait_ms) {
      return Read(&events, wait_ms, [&](const std::string& bytes) { return of.AddEvents(bytes), Status(); });
    };
    auto show = [&](const std::string& bytes) -> Status {
      if (bytes.empty()) return {};
      RETURN_IF_ERROR(learn(0));  // an executor that a rank writes in is named by an event before
      return WriteAll(STDOUT_FILENO, of.Filter(bytes));
    };
    while (true) {
      RETURN_IF_ERROR(learn(0));
      if (of.Places() != told && invocation_.output == job::OutputForm::kTable) {
        told = of.Places();
        RETURN_IF_ERROR(WriteAll(STDERR_FILENO, told));
      }
      if (of.found() && !executors.end) RETURN_IF_ERROR(Read(&executors, invocation_.follow ? kFollowMs : 0, show));
      if (of.was_driver() && !stderr_of_driver.end) RETURN_IF_ERROR(Copy(&stderr_of_driver, invocation_.follow ? kFollowMs : 0));
      if (!invocation_.follow || events.end) break;
      if (!of.found()) RETURN_IF_ERROR(learn(kPollMs));
    }
    if (of.found()) return 0;
    return Status(Code::kNotFound, "CLI12", "job " + JobName(job_) + " has had no rank " + std::to_string(*invocation_.rank),
                  "its event log names no gang that was formed with so many", "`ropewalk logs " + JobName(job_) + " --stream events`");
  }

  // An empty log raises a question: whether the job has come to print anything, and if not, why.
  Status TellWhySilent() {
    if (invocation_.output != job::OutputForm::kTable) return {};
    ASSIGN_OR_RETURN(wire::JobState state, Ask(0, 0));
    const std::string job = "job " + JobName(job_), where = invocation_.stream.empty() ? "" : " to its log \"" + invocation_.stream + "\"";
    std::string text;
    if (IsOver(state)) {
      text = job + " wrote nothing" + where + "; it " + (state.phase() == "cancelled" ? "was cancelled" : state.phase()) + "\n";
      if (const Status end = EndOf(state); !end.ok()) text += job::Completed(end).ToString() + "\n";
    } else {
      text = job + " has written nothing" + where + " so far; it is " + state.phase() + "\n";
      for (const std::string& reason : state.pending_reasons()) text += "waits for  " + EscapeForLog(reason) + "\n";
    }
    return WriteAll(STDERR_FILENO, text);
  }

  const Invocation& invocation_;
  job::MasterLink link_;
  JobId job_;
};

}  // namespace

Result<int> RunQuery(const Invocation& invocation, const Config& config) {
  if (invocation.verb == "job metrics" && !ParseJobName(invocation.job_name)) {
    ASSIGN_OR_RETURN(const std::string text, MetricsOfFile(invocation));
    RETURN_IF_ERROR(WriteAll(STDOUT_FILENO, text));
    return 0;
  }
  auto token = job::TokenFor(config.Text("client.master"), TokenFile(config, "client"));
  if (!token.ok()) return token.status();
  job::MasterLinkOptions options;
  options.address = config.Text("client.master");
  options.token = *token;
  if (invocation.output == job::OutputForm::kTable)
    options.on_waiting = [address = options.address](int patience_ms) {
      std::fputs(job::WaitingText(address, patience_ms).c_str(), stderr);
    };
  if (invocation.timeout_ms >= 0) {
    options.first_connect_ms = static_cast<int>(std::min<std::int64_t>(options.first_connect_ms, invocation.timeout_ms));
    options.reconnect_ms = static_cast<int>(std::min<std::int64_t>(options.reconnect_ms, invocation.timeout_ms));
  }
  return Query(invocation, std::move(options)).Run();
}

}  // namespace ropewalk::cli
