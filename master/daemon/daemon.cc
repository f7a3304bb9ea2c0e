#include "master/daemon/daemon.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <utility>

#include <glog/logging.h>

#include "base/escape.h"
#include "base/job_name.h"
#include "base/random.h"
#include "dag/operator_memory.h"
#include "master/daemon/convert.h"
#include "proto/client.pb.h"
#include "proto/worker.pb.h"
#include "rpc/token.h"
#include "storage/artifacts.h"

namespace ropewalk::master {
namespace {

constexpr std::size_t kDiskQueueMax = 4096;
constexpr std::size_t kSha256Bytes = 32;
constexpr std::size_t kSecretBytes = 32;
constexpr std::int64_t kOutputEndMs = 3'000;  // how long the end of a job's output waits for its driver to be gone
constexpr std::size_t kOpenJobsMax = 64;      // finished jobs whose log files stay open
constexpr std::uint32_t kFinishedPerCleanup = 64;
constexpr std::uint32_t kStopGraceMs = 2'000;
constexpr std::uint64_t kSettleBytes = 4u << 20;
constexpr std::uint64_t kShortSyncBytes = 256u << 10;
constexpr std::int64_t kSyncAgainMs = 200;

Result<std::string> ReadOrCreateSecret(const std::string& path) {
  if (access(path.c_str(), F_OK) != 0) {
    std::string secret = SecureRandomBytes(kSecretBytes);
    RETURN_IF_ERROR(WriteFileDurably(path, secret));
    return secret;
  }
  ASSIGN_OR_RETURN(std::string secret, ReadWholeFile(path, kSecretBytes));
  if (secret.size() == kSecretBytes) return secret;
  return Status(Code::kDataLoss, "MASTER04", EscapeForLog(path) + " is damaged",
                "it is not " + std::to_string(kSecretBytes) + " bytes long", "remove it: running jobs will be started again");
}

// Once, at the start: the core's own clock is monotonic, and what people read is counted from here.
scheduler::Options CoreOptions() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  scheduler::Options options;
  options.epoch_us = std::chrono::duration_cast<std::chrono::microseconds>(now).count() - rpc::EventLoop::NowMs() * 1000;
  return options;
}

}  // namespace

Master::Master(rpc::EventLoop& loop, MasterOptions options, std::function<void(const Status&)> failed)
    : loop_(&loop), options_(std::move(options)), failed_(std::move(failed)), scheduler_(CoreOptions()) {}

Master::~Master() {
  server_.reset();
  disk_.reset();
  log_disk_.reset();
  committer_.reset();
  for (rpc::EventLoop::TimerId timer : timers_) loop_->Cancel(timer);
  for (auto& [id, job] : jobs_) loop_->Cancel(job.end_timer);
  for (auto& [id, list] : job_waiters_)
    for (JobWaiter& waiter : list) loop_->Cancel(waiter.deadline);
  for (auto& [id, list] : log_waiters_)
    for (LogWaiter& waiter : list) loop_->Cancel(waiter.deadline);
}

Result<std::unique_ptr<Master>> Master::Start(rpc::EventLoop& loop, MasterOptions options, std::function<void(const Status&)> failed) {
  std::unique_ptr<Master> master(new Master(loop, std::move(options), std::move(failed)));
  RETURN_IF_ERROR(master->Open());
  return master;
}

Status Master::Open() {
  const std::string& dir = options_.state_dir;
  if (dir.empty()) return {Code::kInvalid, "MASTER02", "no state folder", "the master keeps its jobs in one", "name one with --dir"};
  RETURN_IF_ERROR(MakeFolder(dir));
  const std::string holder = "pid " + std::to_string(getpid());
  ASSIGN_OR_RETURN(lock_, FolderLock::Take(dir + "/lock", holder));
  if (options_.token_file.empty()) options_.token_file = dir + "/token";
  ASSIGN_OR_RETURN(std::string token, rpc::ReadOrCreateTokenFile(options_.token_file));
  ASSIGN_OR_RETURN(job_secret_, ReadOrCreateSecret(dir + "/job_secret"));
  RETURN_IF_ERROR(MakeFolder(dir + "/jobs"));
  ASSIGN_OR_RETURN(artifacts_, storage::ArtifactStore::Open({.folder = dir + "/artifacts", .bytes_max = options_.artifact_bytes_max}));
  ASSIGN_OR_RETURN(records_, RecordStore::Open(dir));
  std::uint64_t replayed = 0;
  RETURN_IF_ERROR(records_->Replay([&](std::string record) {
    ++replayed;
    return scheduler_.Replay({std::move(record), true});
  }));
  ASSIGN_OR_RETURN(epoch_, records_->NextEpoch());

  Committer::Callbacks callbacks;
  callbacks.write = [store = records_.get()](CommitBatch& batch) -> Status {
    if (!batch.records.empty()) RETURN_IF_ERROR(store->Append(batch.records));
    return batch.snapshot.has_value() ? store->Snapshot(*batch.snapshot) : Status();
  };
  callbacks.snapshot = [this] {
    std::vector<std::string> records;
    for (scheduler::JournalRecord& record : scheduler_.Snapshot()) records.push_back(std::move(record.bytes));
    return records;
  };
  callbacks.failed = [this](const Status& status) { Failed(status); };
  committer_ = std::make_unique<Committer>(*loop_, std::move(callbacks), options_.snapshot_records);
  disk_ = std::make_unique<SerialWorker>(kDiskQueueMax);
  log_disk_ = std::make_unique<SerialWorker>(kDiskQueueMax);

  rpc::ServerOptions server;
  server.listen_address = options_.listen_address;
  server.token = token;
  server.roles["client"] = rpc::RoleLimits{};
  // Orders are pushed, so reading from a worker never pauses: its heartbeats must be seen. A Collect may be published to several executors
  // at once.
  server.roles["worker"] = rpc::RoleLimits{.message_bytes_max = rpc::kMessageBytesMax,
                                           .queue_bytes_pause = ~0ull,
                                           .queue_bytes_max = 2ull << 30,
                                           .silence_ms = options_.silence_ms};
  ASSIGN_OR_RETURN(server_, rpc::Server::Start(*loop_, std::move(server), this));
  lock_->Describe(holder + ", listening on " + server_->address());
  LOG(INFO) << "master epoch " << epoch_ << " on " << server_->address() << ", state in " << EscapeForLog(dir) << ", " << replayed
            << " records replayed";
  RemoveOldFolders();
  for (const scheduler::JobView& view : scheduler_.Jobs())
    if (view.phase < scheduler::JobPhase::kSucceeded) PinArtifacts(view.job);
  Take(scheduler_.Recovered(rpc::EventLoop::NowMs()));
  return {};
}

void Master::Failed(const Status& status) {
  if (std::exchange(stopped_, true)) return;
  LOG(ERROR) << "the master stops: " << status.ToString();
  failed_(status);
}

void Master::OnConnected(rpc::ConnectionId id, const rpc::Peer& peer) { connections_[id].peer = peer; }

void Master::OnFrame(rpc::ConnectionId id, rpc::Frame frame) {
  auto at = connections_.find(id);
  if (at == connections_.end() || stopped_) return;
  const bool worker = at->second.peer.role == "worker";
  if (frame.kind != (worker ? rpc::FrameKind::kMessage : rpc::FrameKind::kRequest)) {
    server_->Close(
        id, Status(Code::kInvalid, "WIRE02", "a frame of the wrong kind", "the peer is of another version", "bring both to one version"));
    return;
  }
  if (worker)
    OnWorkerFrame(id, frame.payload);
  else
    OnClientFrame(id, frame.payload);
}

void Master::OnDisconnected(rpc::ConnectionId id, const Status& reason) {
  auto at = connections_.find(id);
  if (at == connections_.end()) return;
  const bool worker = at->second.peer.role == "worker";
  connections_.erase(at);
  if (stopped_) return;
  if (worker)
    OnWorkerGone(id, reason);
  else
    OnClientGone(id);
}

void Master::Step(const scheduler::Event& event) {
  if (stopped_) return;
  Take(scheduler_.Step(rpc::EventLoop::NowMs(), event));
}

void Master::Take(std::vector<scheduler::SchedulerAction> actions) {
  for (const scheduler::SchedulerAction& action : actions)
    if (const auto* finish = std::get_if<scheduler::FinishJob>(&action)) KeepOutputOf(finish->job);
  for (scheduler::SchedulerAction& action : actions) {
    if (auto* record = std::get_if<scheduler::JournalRecord>(&action)) {
      committer_->AddRecord(std::move(record->bytes), record->sync);
      continue;
    }
    if (const auto* finish = std::get_if<scheduler::FinishJob>(&action)) finishing_.insert(finish->job);
    if (const auto* accept = std::get_if<scheduler::AcceptJob>(&action)) PinArtifacts(accept->job);
    committer_->Then([this, action = std::move(action)] { std::visit([this](const auto& a) { Carry(a); }, action); });
  }
  committer_->Pump();
  WakeJobWaiters();
}

// A job that is over is not run again: what it has printed must be there before the record of its end is. That is no more than
// Acknowledge() lets be unsynced.
void Master::KeepOutputOf(JobId id) {
  const auto it = jobs_.find(id);
  if (it == jobs_.end() || it->second.logs == nullptr) return;
  const std::shared_ptr<LogFile>& file = it->second.logs->file(LogStream::kDriver);
  if (file->size() > it->second.logs->shown(LogStream::kDriver)) committer_->Before([file] { return file->Sync(); });
}

void Master::Carry(const scheduler::AcceptJob& action) {
  LOG(INFO) << "job " << JobName(action.job) << " accepted";
  auto it = submitters_.find(action.submit_key);
  if (it == submitters_.end()) return;
  for (const Submitter& submitter : std::exchange(it->second, {})) {
    wire::ClientResponse response;
    response.mutable_job_accepted()->set_job(action.job.value);
    Answer(submitter.connection, submitter.request, &response);
    WaitEnds(submitter.connection);
  }
  submitters_.erase(it);
}

void Master::Carry(const scheduler::RefuseJob& action) {
  auto it = submitters_.find(action.submit_key);
  if (it == submitters_.end()) return;
  for (const Submitter& submitter : std::exchange(it->second, {})) {
    AnswerFailure(submitter.connection, submitter.request, action.status);
    WaitEnds(submitter.connection);
  }
  submitters_.erase(it);
}

void Master::Carry(const scheduler::StartExecutor& action) {
  Session* session = FindWorker(action.worker);
  const scheduler::JobSpec* spec = scheduler_.Spec(action.job);
  if (session == nullptr || spec == nullptr) return;  // the core knows already, or is about to be told
  Allow(*session, action.job);
  executors_[action.executor] = {action.worker, action.job};
  wire::ToWorker order;
  wire::StartExecutorOrder* start = order.mutable_start_executor();
  start->set_executor(action.executor.value);
  ToWire(*spec, start->mutable_spec());
  start->set_job_token(JobToken(action.job));
  start->set_slots(session->slots);
  SendOrder(*session, &order);
}

void Master::Carry(const scheduler::StopExecutor& action) {
  Session* session = FindWorker(action.worker);
  if (session == nullptr) return;
  wire::ToWorker order;
  wire::StopExecutorOrder* stop = order.mutable_stop_executor();
  stop->set_executor(action.executor.value);
  stop->set_reason(action.reason);
  stop->set_grace_ms(kStopGraceMs);
  SendOrder(*session, &order);
}

void Master::Carry(const scheduler::NameDriver& action) {
  if (!executors_.contains(action.executor)) return;
  Carry<scheduler::NameDriver>(action);
  JobEntry& job = Job(action.job);
  if (job.logs == nullptr) return;
  auto acks = job.logs->NameDriver(action.executor);
  if (!acks.ok()) return OnOutputFailed(action.executor, acks.status());
  SyncLog(action.job, LogStream::kDriver);
  Acknowledge(job, *acks);
}

template <class Order>
void Master::Carry(const Order& order) {
  auto executor = executors_.find(order.executor);
  if (executor == executors_.end()) return;
  Session* session = FindWorker(executor->second.worker);
  if (session == nullptr) return;
  wire::ToWorker message;
  message.mutable_to_executor()->set_executor(order.executor.value);
  message.mutable_to_executor()->set_payload(Encode(order));
  SendOrder(*session, &message);
}

void Master::Carry(const scheduler::FreeSegments& action) {
  Session* session = FindWorker(action.worker);
  if (session == nullptr) return;
  wire::ToWorker order;
  if (action.whole_job) {
    order.mutable_forget_job()->set_job(action.job.value);
    for (const dag::OutputPlace& output : action.discard) {
      wire::OutputPlace* place = order.mutable_forget_job()->add_discard();
      place->set_folder(output.folder);
      place->set_key(output.key);
    }
    session->jobs.erase(action.job);
  } else {
    order.mutable_free_segments()->set_job(action.job.value);
    for (SegmentId id : action.segments) order.mutable_free_segments()->add_segments(id.value);
  }
  SendOrder(*session, &order);
}

void Master::Carry(const scheduler::FinishJob& action) {
  LOG(INFO) << "job " << JobName(action.job) << " finished: " << EscapeForLog(action.status.ok() ? "ok" : action.status.ToString());
  finishing_.erase(action.job);
  JobEntry& job = Job(action.job);
  job.over = true;
  const JobId id = action.job;
  for (const std::string& sha256 : std::exchange(job.pinned, {})) artifacts_->Unpin(sha256);
  // Behind the orders that follow in this step: executors stop before their job is forgotten.
  committer_->Then([this, id] {
    for (auto& [connection, session] : sessions_) {
      if (session.jobs.erase(id) == 0) continue;
      wire::ToWorker order;
      order.mutable_forget_job()->set_job(id.value);
      SendOrder(session, &order);
    }
  });
  job.end_timer = loop_->After(kOutputEndMs, [this, id] {
    auto it = jobs_.find(id);
    if (it == jobs_.end()) return;
    it->second.end_timer = 0;
    it->second.driver_late = true;
    CheckEnded(id);
  });
  CheckEnded(id);
  WakeJobWaiters(id);
  if (++finished_since_cleanup_ >= kFinishedPerCleanup) {
    finished_since_cleanup_ = 0;
    RemoveOldFolders();
  }
}

// The driver's process is gone, or has had its time, and all that it wrote is on the disk: readers may be told that this was all.
void Master::CheckEnded(JobId id) {
  auto it = jobs_.find(id);
  if (it == jobs_.end() || !it->second.over || it->second.ended) return;
  JobEntry& job = it->second;
  if (job.logs != nullptr && !job.driver_late && executors_.contains(job.logs->driver())) return;
  if (job.logs != nullptr && job.logs->file(LogStream::kDriver)->size() > job.logs->shown(LogStream::kDriver))
    return;  // comes back after the sync
  loop_->Cancel(std::exchange(job.end_timer, 0));
  EndLogs(id, job);
}

void Master::EndLogs(JobId id, JobEntry& job) {
  job.ended = true;
  job.metrics.reset();  // who asks for them from now on reads the file
  if (job.logs != nullptr) {
    if (Status status = job.logs->Ended(); !status.ok()) LOG(ERROR) << "logs of " << JobName(id) << ": " << status.ToString();
  }
  for (int s = 0; s < 4; ++s) WakeLogWaiters(id, static_cast<LogStream>(s));
}

void Master::Carry(const scheduler::SetTimer& action) {
  auto timer = std::make_shared<rpc::EventLoop::TimerId>(0);
  *timer = loop_->At(action.at, [this, timer, id = action.timer] {
    timers_.erase(*timer);
    Step(scheduler::TimerFired{id});
  });
  timers_.insert(*timer);
}

void Master::Carry(const scheduler::LogEvent& action) {
  JobEntry& job = Job(action.job);
  if (job.logs == nullptr) return;
  if (Status status = job.logs->Event(action.json); !status.ok()) {
    LOG_EVERY_N(ERROR, 100) << "event log of " << JobName(action.job) << ": " << status.ToString();
  }
  SyncLog(action.job, LogStream::kEvents);
  WakeLogWaiters(action.job, LogStream::kEvents);
}

// Driver output is shown once it is durable: after a crash nobody has seen what a replacement could contradict. Of the other streams nobody
// waits for that. They go to the disk in pieces all the same: a file system that journals may make the next sync of any file, the journal's
// too, wait for all that was written to others before.
void Master::SyncLog(JobId id, LogStream stream) {
  JobEntry& job = Job(id);
  const auto i = static_cast<std::size_t>(stream);
  if (job.logs == nullptr || job.syncing[i]) return;  // its end looks again
  const std::shared_ptr<LogFile>& file = job.logs->file(stream);
  const std::uint64_t size = file->size();
  const std::uint64_t least = stream == LogStream::kDriver ? 1 : kSettleBytes;
  const std::uint64_t done = stream == LogStream::kDriver ? job.logs->shown(stream) : job.settled[i];
  if (size < done + least) return;
  // The end of a small job's output is shown after its sync: that does not wait for those of jobs which print much.
  const auto length = size - done < kShortSyncBytes ? SerialWorker::Length::kShort : SerialWorker::Length::kAny;
  job.syncing[i] = log_disk_->Post(
      [this, id, stream, file, size] {
        Status status = options_.sync_log ? options_.sync_log() : Status();
        if (status.ok()) status = file->Sync();
        loop_->Post([this, id, stream, size, status] { OnLogSynced(id, stream, size, status); });
      },
      length);
  if (!job.syncing[i])
    loop_->After(kSyncAgainMs, [this, id, stream] {
      if (jobs_.contains(id)) SyncLog(id, stream);
    });
}

void Master::OnLogSynced(JobId id, LogStream stream, std::uint64_t bytes, const Status& status) {
  auto it = jobs_.find(id);
  if (it == jobs_.end() || it->second.logs == nullptr) return;
  JobEntry& job = it->second;
  const auto i = static_cast<std::size_t>(stream);
  job.syncing[i] = false;
  if (stream != LogStream::kDriver) {
    if (!status.ok()) LOG(ERROR) << "a log of " << JobName(id) << ": " << status.ToString();
    job.settled[i] = bytes;
    return SyncLog(id, stream);
  }
  if (!status.ok()) return Failed(status);  // never tried again: nobody knows what reached the disk
  job.logs->Synced(bytes);
  SyncLog(id, stream);
  Acknowledge(job, {});
  WakeLogWaiters(id, stream);
  CheckEnded(id);
}

std::string Master::JobToken(JobId job) const {
  // Derived, so that it needs no journal and is the same after a restart.
  const std::string text = "job " + std::to_string(job.value);
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  CHECK(HMAC(EVP_sha256(), job_secret_.data(), static_cast<int>(job_secret_.size()), reinterpret_cast<const unsigned char*>(text.data()),
             text.size(), digest, &size) != nullptr);
  return {reinterpret_cast<const char*>(digest), size};
}

std::uint32_t Master::TotalSlots() const {
  std::uint32_t slots = 0;
  for (const auto& [id, session] : sessions_) slots += session.slots;
  return slots;
}

std::uint64_t Master::OperatorBytes() const {
  std::uint64_t bytes = dag::kOperatorBytesMax;
  for (const auto& [id, session] : sessions_) bytes = std::min(bytes, dag::OperatorBytesFor(session.memory_bytes, session.slots));
  return bytes;
}

void Master::PinArtifacts(JobId job) {
  const scheduler::JobSpec* spec = scheduler_.Spec(job);
  JobEntry& entry = Job(job);
  if (spec == nullptr || !entry.pinned.empty()) return;  // the same submission again
  for (const std::string& artifact : spec->artifacts) {
    entry.pinned.push_back(artifact.substr(0, kSha256Bytes));  // its name follows
    artifacts_->Pin(entry.pinned.back());
  }
}

std::string Master::JobFolder(JobId job) const { return options_.state_dir + "/jobs/" + JobName(job); }

Master::JobEntry& Master::Job(JobId id) {
  auto [it, fresh] = jobs_.try_emplace(id);
  if (!fresh) return it->second;
  auto logs = JobLogs::Open(JobFolder(id), {.stdout_bytes = options_.job_output_bytes_max, .other_bytes = options_.job_log_bytes_max});
  if (logs.ok())
    it->second.logs = *std::move(logs);
  else
    LOG(ERROR) << "no logs of " << JobName(id) << ": " << logs.status().ToString();
  auto view = scheduler_.Job(id, false);
  if (view && view->phase >= scheduler::JobPhase::kSucceeded && !finishing_.contains(id)) it->second.over = it->second.ended = true;
  // Descriptors are few: the oldest finished jobs that nobody reads are closed.
  for (auto other = jobs_.begin(); jobs_.size() > kOpenJobsMax && other != jobs_.end();) {
    const bool close = other->first != id && other->second.ended && !log_waiters_.contains(other->first);
    other = close ? jobs_.erase(other) : std::next(other);
  }
  return it->second;
}

// Folders of jobs that the core does not know any more, beyond the number that is kept.
void Master::RemoveOldFolders() {
  std::error_code error;
  std::map<JobId, std::filesystem::path> folders;
  for (const auto& entry : std::filesystem::directory_iterator(options_.state_dir + "/jobs", error))
    if (auto id = ParseJobName(entry.path().filename().string())) folders.emplace(*id, entry.path());
  for (auto it = folders.begin(); it != folders.end() && folders.size() > options_.job_folders_max;) {
    if (scheduler_.Spec(it->first) != nullptr || log_waiters_.contains(it->first)) {
      ++it;
      continue;
    }
    jobs_.erase(it->first);
    std::filesystem::remove_all(it->second, error);
    it = folders.erase(it);
  }
}

}  // namespace ropewalk::master
