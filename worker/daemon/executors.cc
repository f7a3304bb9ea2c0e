// The life of an executor: its files, its start through the spawner, the relay, and its end.
#include <fcntl.h>
#include <glog/logging.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <span>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/escape.h"
#include "base/job_name.h"
#include "dag/failure_tags.h"
#include "dag/operator_memory.h"
#include "dag/wire/wire.h"
#include "proto/executor.pb.h"
#include "proto/worker.pb.h"
#include "storage/artifacts.h"
#include "worker/daemon/daemon.h"
#include "worker/daemon/processes.h"

namespace ropewalk::worker {
namespace {

Status SocketClosed(const std::string& what) {
  return Status(Code::kUserError, dag::kSocketClosedTag, what,
                "most likely the job's code closed descriptors that it did not open (closefrom, close_range, a loop over close)",
                "close only what the job opened: an executor speaks to its worker through one of them");
}

constexpr std::int64_t kPipeGraceMs = 2'000;  // for a pipe that outlives its executor
constexpr std::int64_t kSocketGraceMs = 1'000;
constexpr std::int64_t kAskAgainMs = 200;
constexpr std::int64_t kHelloMs = 60'000;
constexpr std::uint32_t kSlotsMax = 1024;
// A job that is built as we are: shadow memory takes several times what the program does, and far more addresses.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::uint64_t kMemoryFactor = 8;
#else
constexpr std::uint64_t kMemoryFactor = 1;
#endif
constexpr std::uint64_t kProcessBytes = 64ull << 20;  // an executor's code and buffers, beside what its tasks borrow
constexpr std::uint64_t kSlotBytes = 8ull << 20;      // a thread's stack and its arena of small memory
constexpr std::uint64_t kDataBytesSlack = 1ull << 30;
constexpr std::uint64_t kProcessesMax = 1024;

// The last part of a library's name; "" for what cannot be a file's name.
std::string FileName(const std::string& name) {
  std::string last = name.substr(name.rfind('/') + 1);
  if (last == "." || last == ".." || last.find('\0') != std::string::npos || last.size() > 255) return "";
  return last;
}

Status PlaceFailed(const std::string& path, const std::string& why) {
  return Status(Code::kUnavailable, "WORKER25", "cannot place " + path + " for an executor", why,
                "free space or mend the worker's state folder");
}

Status PlaceLink(const std::string& target, const std::string& path) {
  // Another executor of the job may have placed it before.
  if (::symlink(target.c_str(), path.c_str()) == 0 || errno == EEXIST) return {};
  return PlaceFailed(path, std::strerror(errno));
}

bool CrashedByItself(int signal) {
  return signal == SIGSEGV || signal == SIGABRT || signal == SIGBUS || signal == SIGFPE || signal == SIGILL || signal == SIGSYS ||
         signal == SIGTRAP || signal == SIGPIPE || signal == SIGXCPU || signal == SIGXFSZ;
}

}  // namespace

Daemon::Executor::Executor(ExecutorId id, JobId job, blocks::BlockStore* store) : id(id), job(job), checks(job, store) {}
Daemon::Executor::~Executor() = default;

Daemon::Executor* Daemon::Find(ExecutorId id) {
  auto at = executors_.find(id);
  return at == executors_.end() ? nullptr : at->second.get();
}

// ---- start
// -------------------------------------------------------------------------------------------------------------------------------

void Daemon::StartExecutor(const wire::StartExecutorOrder& order) {
  ExecutorId id{order.executor()};
  JobId job{order.spec().settings().job()};
  if (!id || executors_.count(id) > 0) return;
  auto executor = std::make_unique<Executor>(id, job, store_.get());
  executor->order = std::make_unique<wire::StartExecutorOrder>(order);
  executor->scratch = JobFolder(job) + "/" + std::to_string(id.value);
  Executor& started = *executor;
  executors_[id] = std::move(executor);
  jobs_[job].executors.insert(id);
  service_->AllowJob(job, order.job_token());
  if (!job || order.spec().artifacts().empty() || order.slots() == 0 || order.slots() > kSlotsMax)
    return EndExecutor(started, Status(Code::kInvalid, "WORKER22", "an order to start an executor cannot be right",
                                       "no job, executable or slots", "bring worker and master to one version"));
  for (const std::string& sha256 : order.spec().artifacts()) {
    if (jobs_[job].pinned.insert(sha256).second) artifacts_->Pin(sha256);
    if (!artifacts_->Has(sha256)) started.missing.insert(sha256);
  }
  std::set<std::string> missing = started.missing;
  for (const std::string& sha256 : missing) RequestArtifact(sha256);
  if (!missing.empty()) return;
  if (Status status = Spawn(started); !status.ok()) EndExecutor(started, status);
}

void Daemon::RequestArtifact(const std::string& sha256) {
  if (!fetching_.insert(sha256).second) return;
  wire::FromWorker message;
  message.mutable_artifact_request()->set_sha256(sha256);
  message.mutable_artifact_request()->set_offset(artifacts_->ReceivedBytes(sha256));
  Send(&message);
}

void Daemon::OnArtifactChunk(const wire::ArtifactChunk& chunk) {
  const std::string sha256 = chunk.sha256();
  if (fetching_.count(sha256) == 0) return;  // nobody asked
  if (chunk.failure().code() != 0) {
    Status status = dag::FromWire(chunk.failure());
    if (status.code() != Code::kUnavailable) return ArtifactFailed(sha256, status);
    return AskAgain(sha256);
  }
  auto kept = std::make_shared<wire::ArtifactChunk>(chunk);
  const bool queued = disk_->Post([this, alive = alive_, kept, asked_by = worker_] {
    auto complete = artifacts_->Put(kept->sha256(), kept->offset(), kept->size(), kept->chunk());
    loop_.Post([this, alive, kept, asked_by, complete = std::move(complete)] {
      if (*alive && worker_ == asked_by) OnArtifactStored(kept->sha256(), complete);
    });
  });
  if (!queued) AskAgain(sha256);
}

void Daemon::AskAgain(const std::string& sha256) {
  loop_.After(kAskAgainMs, [this, alive = alive_, sha256, asked_by = worker_] {
    if (!*alive || worker_ != asked_by || fetching_.erase(sha256) == 0) return;
    RequestArtifact(sha256);
  });
}

void Daemon::OnArtifactStored(const std::string& sha256, const Result<bool>& complete) {
  if (fetching_.count(sha256) == 0) return;
  if (!complete.ok()) return ArtifactFailed(sha256, complete.status());
  fetching_.erase(sha256);
  if (!*complete) return RequestArtifact(sha256);
  std::vector<ExecutorId> ids;
  for (const auto& [id, executor] : executors_)
    if (executor->missing.erase(sha256) > 0 && executor->missing.empty()) ids.push_back(id);
  for (ExecutorId id : ids) {
    Executor* executor = Find(id);
    if (executor == nullptr) continue;
    if (Status status = Spawn(*executor); !status.ok()) EndExecutor(*executor, status);
  }
}

void Daemon::ArtifactFailed(const std::string& sha256, const Status& status) {
  fetching_.erase(sha256);
  std::vector<ExecutorId> ids;
  for (const auto& [id, executor] : executors_)
    if (executor->missing.count(sha256) > 0) ids.push_back(id);
  for (ExecutorId id : ids)
    if (Executor* executor = Find(id)) EndExecutor(*executor, status.WithContext("fetching the job's files"));
}

Result<std::vector<std::string>> Daemon::PlaceFiles(Executor& executor, std::string* path) {
  const wire::JobSpec& spec = executor.order->spec();
  const std::string folder = JobFolder(executor.job), lib = folder + "/lib";
  std::error_code error;
  for (const std::string& each : {lib, folder + "/bin", executor.scratch, executor.scratch + "/spill"}) {
    std::filesystem::create_directories(each, error);
    if (error) return PlaceFailed(each, error.message());
  }
  for (int i = 0; i < spec.artifacts_size(); ++i) {
    std::string name = i < spec.artifact_names_size() ? FileName(spec.artifact_names(i)) : "";
    if (i == 0 && name.empty()) name = "job";
    if (name.empty())
      return Status(Code::kInvalid, "WORKER26", "a library of the job has an impossible name",
                    EscapeForLog(spec.artifact_names_size() > i ? spec.artifact_names(i) : "it has none"),
                    "submit again, with client and master of one version");
    std::string at = (i == 0 ? folder + "/bin/" : lib + "/") + name;
    const std::string artifact = artifacts_->PathOf(spec.artifacts(i));
    if (user_.uid >= 0 && ::chmod(artifact.c_str(), 0555) != 0) return PlaceFailed(artifact, std::strerror(errno));
    RETURN_IF_ERROR(PlaceLink(artifact, at));
    if (i == 0) *path = at;
  }
  // Its cursors: readable after its end, whatever that was.
  const std::string cursors = executor.scratch + "/cursors";
  executor.cursors = UniqueFd(::open(cursors.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!executor.cursors ||
      ::ftruncate(executor.cursors.get(), static_cast<off_t>(executor.order->slots() * sizeof(dag::RecordCursor))) != 0)
    return PlaceFailed(cursors, std::strerror(errno));

  std::vector<std::string> environment;
  auto declared = [&](std::string_view name) {
    return std::any_of(spec.environment().begin(), spec.environment().end(), [&](const std::string& variable) {
      return variable.size() > name.size() && variable.starts_with(name) && variable[name.size()] == '=';
    });
  };
  for (const std::string& variable : spec.environment()) {
    std::string_view name = std::string_view(variable).substr(0, variable.find('='));
    // What decides how the executor starts is ours to say.
    if (name.empty() || name.size() == variable.size() || name == "LD_LIBRARY_PATH" || name == "ROPEWALK_EXECUTOR_FD" ||
        name == "ROPEWALK_MASTER" || variable.find('\0') != std::string::npos)
      continue;
    environment.push_back(variable);
  }
  if (!declared("PATH")) environment.push_back("PATH=/usr/local/bin:/usr/bin:/bin");
  if (!declared("TMPDIR")) environment.push_back("TMPDIR=" + executor.scratch);
  if (!declared("HOME")) environment.push_back("HOME=" + executor.scratch);
  // The first touch of small pages is dear on many machines; malloc then asks for large ones.
  if (!declared("GLIBC_TUNABLES")) environment.push_back("GLIBC_TUNABLES=glibc.malloc.hugetlb=1");
  environment.push_back("LD_LIBRARY_PATH=" + lib);
  environment.push_back("ROPEWALK_EXECUTOR_FD=3");
  return environment;
}

Status Daemon::Spawn(Executor& executor) {
  const wire::JobSpec& spec = executor.order->spec();
  SpawnRequest request{.id = executor.id.value, .folder = spec.settings().work_dir(), .fallback_folder = executor.scratch};
  ASSIGN_OR_RETURN(request.environment, PlaceFiles(executor, &request.path));
  request.argv.assign(spec.argv().begin(), spec.argv().end());
  if (request.argv.empty()) request.argv.push_back(request.path);

  RETURN_IF_ERROR(SetLimits(executor, &request));

  int pair[2], out[2], err[2];
  auto failed = [] {
    return Status(Code::kUnavailable, "WORKER25", "no descriptors for an executor", std::strerror(errno), "raise the open files limit");
  };
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) return failed();
  UniqueFd ours(pair[0]), theirs(pair[1]);
  if (::pipe2(out, O_CLOEXEC) != 0) return failed();
  UniqueFd out_read(out[0]), out_write(out[1]);
  if (::pipe2(err, O_CLOEXEC) != 0) return failed();
  UniqueFd err_read(err[0]), err_write(err[1]);
  request.socket_fd = theirs.get();
  request.stdout_fd = out_write.get();
  request.stderr_fd = err_write.get();
  executor.machine_kills = RecentGrowth(OutOfMemoryKills());
  if (Status status = spawner_->Spawn(request); !status.ok()) {
    if (status.tag() == "WORKER13") ended_(status);
    return status;
  }
  executor.spawned = true;
  ExecutorId id = executor.id;
  executor.link = std::make_unique<worker::Link>(
      std::make_unique<rpc::Channel>(ours.release()), loop_, [this, id](rpc::Frame frame) { OnExecutorFrame(id, frame.payload); },
      [this, id](const Status&) {
        Executor* ended = Find(id);
        if (ended == nullptr) return;
        ended->link_gone = true;
        FinishIfGone(id);
        // The socket closes just before the process is reaped; one that closed it and lives on works for nobody.
        loop_.After(kSocketGraceMs, [this, alive = alive_, id] {
          Executor* late = *alive ? Find(id) : nullptr;
          if (late != nullptr && !late->process_gone)
            EndExecutor(*late, SocketClosed("an executor on " + options_.name + " closed its socket and went on"));
        });
      });
  auto reader = [&](UniqueFd pipe, bool is_stderr) {
    return std::make_unique<OutputReader>(
        std::move(pipe), output_window_bytes_, loop_,
        [this, id, is_stderr](std::uint64_t offset, std::string data) { OnOutput(id, is_stderr, offset, std::move(data)); },
        [this, id, is_stderr] {
          if (Executor* ended = Find(id)) (is_stderr ? ended->err_gone : ended->out_gone) = true;
          FinishIfGone(id);
        });
  };
  executor.out = reader(std::move(out_read), false);
  executor.err = reader(std::move(err_read), true);
  loop_.After(kHelloMs, [this, alive = alive_, id] {
    Executor* silent = *alive ? Find(id) : nullptr;
    if (silent != nullptr && !silent->checks.welcomed())
      EndExecutor(*silent,
                  Status(Code::kUserError, "WORKER27", "an executor did not say hello within " + std::to_string(kHelloMs / 1000) + " s",
                         "main does something slow before Init", "call Init first in main"));
  });
  return {};
}

// What an executor may take: the memory of its slots and what a process needs besides, by a control group where there are any.
Status Daemon::SetLimits(Executor& executor, SpawnRequest* request) {
  const std::uint64_t slots = executor.order->slots();
  const dag::Settings settings = dag::FromWire(executor.order->spec().settings());
  // A task that declares more than there is runs alone, so it must be able to.
  executor.memory_bytes_max =
      std::max(options_.memory_bytes / std::max<std::uint64_t>(options_.slots, 1) * slots, dag::LargestTaskBytes(settings)) +
      kProcessBytes + kSlotBytes * slots;
  executor.memory_bytes_max *= kMemoryFactor;
  const std::uint64_t processes_max = kProcessesMax + 4 * slots;
  if (user_.uid >= 0) {
    request->uid = user_.uid;
    request->gid = user_.gid;
    request->processes_max = options_.slots * kProcessesMax;  // counts all executors of the worker
    const auto uid = static_cast<uid_t>(user_.uid);
    const auto gid = static_cast<gid_t>(user_.gid);
    const std::string folder = JobFolder(executor.job);
    for (const std::string& path : {folder, folder + "/bin", folder + "/lib"})
      if (::chmod(path.c_str(), 0711) != 0) return PlaceFailed(path, std::strerror(errno));
    for (const std::string& path : {executor.scratch, executor.scratch + "/spill", executor.scratch + "/cursors"})
      if (::chmod(path.c_str(), 0700) != 0 || ::chown(path.c_str(), uid, gid) != 0) return PlaceFailed(path, std::strerror(errno));
  }
  if (groups_ != nullptr && groups_->limits_memory()) {
    ASSIGN_OR_RETURN(ExecutorGroups::Entry entry,
                     groups_->Make(executor.id.value, {.memory_bytes = executor.memory_bytes_max, .processes_max = processes_max}));
    request->group_procs = std::move(entry.procs);
    request->group_processes_max = std::move(entry.processes_max);
  } else if (kMemoryFactor == 1) {
    // Counts what is mapped and not what is touched, so it is generous.
    executor.memory_bytes_max = 2 * executor.memory_bytes_max + kDataBytesSlack;
    request->data_bytes_max = executor.memory_bytes_max;
  }
  return {};
}

// ---- relay
// -------------------------------------------------------------------------------------------------------------------------------

void Daemon::OnExecutorFrame(ExecutorId id, const std::string& payload) {
  Executor* executor = Find(id);
  if (executor == nullptr || !executor->end_reason.ok()) return;
  executor->silent_ms = 0;
  auto verdict = executor->checks.OnMessage(payload);
  if (!verdict.ok()) {
    LOG(WARNING) << "executor " << id.value << " of " << JobName(executor->job) << ": " << verdict.status().ToString();
    return EndExecutor(*executor, verdict.status());
  }
  if (*verdict == ExecutorChecks::Verdict::kDrop) return;
  if (*verdict == ExecutorChecks::Verdict::kHello) {
    wire::ToExecutor message;
    wire::ExecutorWelcome* welcome = message.mutable_welcome();
    *welcome->mutable_settings() = executor->order->spec().settings();
    welcome->set_executor(id.value);
    welcome->set_slots(executor->order->slots());
    welcome->set_block_socket(options_.state_dir + "/blocks.sock");
    welcome->set_data_address(service_->data_address());
    welcome->set_job_token(executor->order->job_token());
    welcome->set_spill_dir(executor->scratch + "/spill");
    welcome->set_cursor_path(executor->scratch + "/cursors");
    executor->link->Send(message.SerializeAsString());
  }
  wire::FromWorker message;
  message.mutable_from_executor()->set_executor(id.value);
  message.mutable_from_executor()->set_payload(payload);
  Send(&message);
}

void Daemon::OnOutput(ExecutorId id, bool is_stderr, std::uint64_t offset, std::string data) {
  wire::FromWorker message;
  wire::Output* output = message.mutable_output();
  output->set_executor(id.value);
  output->set_stream(is_stderr ? wire::Output::STDERR : wire::Output::STDOUT);
  output->set_offset(offset);
  output->set_data(std::move(data));
  Send(&message);
}

// ---- end
// ---------------------------------------------------------------------------------------------------------------------------------

void Daemon::StopExecutor(ExecutorId id, const std::string& reason, std::uint32_t grace_ms) {
  Executor* executor = Find(id);
  if (executor == nullptr) return;
  executor->stop_ordered = true;
  if (executor->link == nullptr || !executor->checks.welcomed() || grace_ms == 0) return EndExecutor(*executor, {});
  wire::ToExecutor message;
  message.mutable_stop()->set_reason(reason);
  executor->link->Send(message.SerializeAsString());
  loop_.After(grace_ms, [this, alive = alive_, id] {
    Executor* late = *alive ? Find(id) : nullptr;
    if (late != nullptr && !late->process_gone) EndExecutor(*late, {});
  });
}

void Daemon::EndExecutor(Executor& executor, Status reason) {
  if (executor.end_reason.ok()) executor.end_reason = std::move(reason);
  if (executor.spawned) {
    if (Status status = spawner_->Kill(executor.id.value, SIGKILL); !status.ok()) ended_(status);
    return;  // its exit will be told
  }
  executor.process_gone = executor.link_gone = executor.out_gone = executor.err_gone = true;
  loop_.Post([this, alive = alive_, id = executor.id] {  // not here: the caller still holds the executor
    if (*alive) FinishIfGone(id);
  });
}

void Daemon::OnSpawnEvent(const SpawnEvent& event) {
  ExecutorId id{event.id};
  Executor* executor = Find(id);
  if (executor == nullptr) return;
  if (event.kind == SpawnEvent::kStarted) {
    executor->pid = event.pid;
    // It may have been ended while it started.
    if (!executor->end_reason.ok() || (executor->stop_ordered && !executor->checks.welcomed())) (void)spawner_->Kill(event.id, SIGKILL);
    return;
  }
  executor->exit = event;
  executor->process_gone = true;
  if (event.kind == SpawnEvent::kFailed && executor->end_reason.ok()) {
    bool unfit = event.error == ENOEXEC || event.error == ENOENT || event.error == E2BIG;
    executor->end_reason =
        Status(unfit ? Code::kInvalid : Code::kUnavailable, "WORKER28", "the job's executable could not be started on " + options_.name,
               std::strerror(event.error), unfit ? "is it built for this machine?" : "look at the worker's state folder");
  }
  executor->out->IgnoreWindow();
  executor->err->IgnoreWindow();
  loop_.After(kPipeGraceMs, [this, alive = alive_, id] {
    Executor* late = *alive ? Find(id) : nullptr;
    if (late == nullptr) return;
    late->out->GiveUp();
    late->err->GiveUp();
  });
  FinishIfGone(id);
}

KillEvidence Daemon::EvidenceOf(const Executor& executor) const {
  KillEvidence evidence;
  evidence.machine_kills = executor.machine_kills.Until(OutOfMemoryKills());
  evidence.memory_bytes_max = executor.memory_bytes_max;
  if (groups_ == nullptr) return evidence;
  if (const auto kills = groups_->MemoryKills(executor.id.value)) evidence.group_kills = executor.group_kills.Until(*kills);
  evidence.group_was_full = groups_->WasFull(executor.id.value);
  return evidence;
}

void Daemon::FinishIfGone(ExecutorId id) {
  Executor* executor = Find(id);
  // Everything it said and wrote comes first. The socket closes with the process; the pipes do when its last child is gone.
  if (executor != nullptr && executor->process_gone && executor->link_gone && executor->out_gone && executor->err_gone) Finish(id);
}

void Daemon::Finish(ExecutorId id) {
  std::unique_ptr<Executor> executor = std::move(executors_.at(id));
  executors_.erase(id);
  executor->link.reset();
  executor->checks.FreeLeftovers();

  wire::FromWorker message;
  wire::ExecutorExited* exited = message.mutable_executor_exited();
  exited->set_executor(id.value);
  const SpawnEvent& exit = executor->exit;
  std::string words = "not started";
  if (executor->pid != 0) {
    exited->set_exit_code(exit.exit_code);
    exited->set_signal(exit.signal);
    words = exit.signal == 0 ? "exit " + std::to_string(exit.exit_code)
                             : "signal " + std::to_string(exit.signal) + " (" + ::strsignal(exit.signal) + ")";
    // What was told to stop and did is no news of trouble.
    if (executor->stop_ordered && executor->end_reason.ok()) {
      if (exit.signal == 0)
        words = "ended as it was told (" + words + ")";
      else if (exit.signal == SIGKILL && executor->checks.welcomed())
        words += ": it was told to stop and did not end in time";
    }
  }
  exited->set_main_exit(words);
  Status reason = executor->end_reason;
  if (reason.ok() && !executor->stop_ordered) {
    const std::string who = "an executor on " + options_.name + " ended by " + words;
    if (exit.signal == SIGKILL)
      reason = ReasonOfKill(who, EvidenceOf(*executor));
    else if (exit.signal == 0 && exit.exit_code == dag::kExitSocketClosed)
      reason = SocketClosed(who);
    else if (exit.signal != 0 && !CrashedByItself(exit.signal))
      reason = Status(Code::kUnavailable, "WORKER30", who, "somebody killed it", "none needed: the job goes on");
    else
      reason = Status(Code::kUserError, "WORKER31", who, "the job's code ended the process",
                      "see `ropewalk logs " + JobName(executor->job) + "`");
  }
  if (!reason.ok()) dag::ToWire(reason, exited->mutable_reason());
  if (executor->cursors) {
    for (std::uint32_t slot = 0; slot < executor->order->slots(); ++slot) {
      dag::RecordCursor cursor;
      if (::pread(executor->cursors.get(), static_cast<void*>(&cursor), sizeof cursor, static_cast<off_t>(slot * sizeof cursor)) !=
          sizeof cursor)
        break;
      TaskAttempt task{StageId{cursor.stage.load()}, cursor.task.load(), cursor.attempt.load()};
      if (!executor->checks.knows(task)) continue;  // idle, or nonsense that user code wrote
      wire::TaskCursor* at = exited->add_tasks();
      dag::ToWire(task, at->mutable_id());
      at->set_split(cursor.split.load());
      at->set_offset(cursor.offset.load());
      at->set_signal(cursor.signal.load());
      at->set_source(std::string(cursor.source, ::strnlen(cursor.source, sizeof cursor.source)));
    }
  }
  Send(&message);
  LOG(INFO) << "executor " << id.value << " of " << JobName(executor->job) << ": " << words
            << (reason.ok() ? "" : "; " + EscapeForLog(reason.what() + ": " + reason.why()));

  if (groups_ != nullptr) groups_->Remove(id.value);
  std::error_code error;
  std::filesystem::remove_all(executor->scratch, error);
  if (error) LOG(WARNING) << "cannot remove " << executor->scratch << ": " << error.message();
  const JobId job = executor->job;
  executor.reset();
  jobs_[job].executors.erase(id);
  DropJobIfOver(job);
  if (registering_ && executors_.empty() && master_ != nullptr) RegisterNow();
  LeaveIfUnneeded();
}

}  // namespace ropewalk::worker
