// What workers say, and the orders to them. Nothing here is believed about another worker's executors or another registration.
#include <chrono>
#include <utility>

#include <glog/logging.h>

#include "base/escape.h"
#include "base/job_name.h"
#include "dag/wire/wire.h"
#include "master/daemon/convert.h"
#include "master/daemon/daemon.h"
#include "proto/executor.pb.h"
#include "proto/worker.pb.h"
#include "storage/artifacts.h"

namespace ropewalk::master {
namespace {

constexpr std::uint32_t kProtocol = 1;
constexpr std::uint64_t kArtifactChunkBytes = 1 << 20;
constexpr std::uint64_t kOutputWindowBytes = 1 << 20;
constexpr std::size_t kLimitsBytesMax = 200;
constexpr std::size_t kClaimsMax = 64;

}  // namespace

void Master::OnWorkerFrame(rpc::ConnectionId id, const std::string& payload) {
  wire::FromWorker message;
  if (!message.ParseFromString(payload)) {
    server_->Close(id, Status(Code::kInvalid, "WIRE02", "a worker's message cannot be read", "it is damaged or of another version",
                              "bring worker and master to one version"));
    return;
  }
  auto it = sessions_.find(id);
  if (message.body_case() == wire::FromWorker::kHello) {
    if (it != sessions_.end())
      server_->Close(id, Status(Code::kInvalid, "WIRE02", "a worker registered twice on one connection",
                                "it is damaged or of another version", "bring worker and master to one version"));
    else
      OnRegister(id, message.hello());
    return;
  }
  // Of an earlier registration, or before any: the worker has been told, or will be.
  if (it == sessions_.end() || message.worker() != it->second.worker.value || message.epoch() != epoch_) return;
  Session& session = it->second;
  switch (message.body_case()) {
    case wire::FromWorker::kHeartbeat:
      return OnHeartbeat(session, message.heartbeat());
    case wire::FromWorker::kFromExecutor:
      return OnExecutorMessage(session, message.from_executor());
    case wire::FromWorker::kExecutorExited:
      return OnExecutorExited(session, message.executor_exited());
    case wire::FromWorker::kOutput:
      return OnOutput(session, message.output());
    case wire::FromWorker::kSegmentsLost: {
      scheduler::SegmentsLost lost{session.worker, JobId{message.segments_lost().job()}, {}};
      for (std::uint64_t segment : message.segments_lost().segments()) lost.segments.push_back(SegmentId{segment});
      LOG(WARNING) << "worker " << EscapeForLog(session.name) << " lost " << lost.segments.size() << " segments of " << JobName(lost.job)
                   << ": " << EscapeForLog(message.segments_lost().reason());
      return Step(lost);
    }
    case wire::FromWorker::kArtifactRequest:
      return OnArtifactRequest(id, message.artifact_request());
    case wire::FromWorker::kDraining:
      LOG(INFO) << "worker " << EscapeForLog(session.name) << " drains: " << EscapeForLog(message.draining().reason());
      session.drains = true;
      return Step(scheduler::WorkerDrained{session.worker});
    default:
      server_->Close(id, Status(Code::kInvalid, "WIRE02", "a worker's message says nothing", "it is damaged or of a newer version",
                                "bring worker and master to one version"));
  }
}

void Master::OnHeartbeat(Session& session, const wire::Heartbeat& beat) {
  session.heard_ms = rpc::EventLoop::NowMs();
  session.blocks_bytes = beat.blocks_bytes();
  session.spilled_bytes = beat.spilled_bytes();
  session.spilled_bytes_total = beat.spilled_bytes_total();
  session.executor_pss_bytes_max = beat.executor_pss_bytes_max();
  session.lent_bytes = beat.lent_bytes();
  wire::ToWorker answer;
  answer.mutable_heartbeat_ack()->set_sequence(beat.sequence());
  SendOrder(session, &answer);
  std::map<ExecutorId, scheduler::TasksProgressed> progress;
  for (const wire::TaskProgress& task : beat.progress()) {
    const ExecutorId executor{task.executor()};
    auto it = executors_.find(executor);
    if (it == executors_.end() || it->second.worker != session.worker) continue;
    progress[executor].tasks.push_back({dag::FromWire(task.id()), FromWire(task.counters()), task.line(), task.reached()});
  }
  for (auto& [executor, event] : progress) {
    event.executor = executor;
    Step(event);
  }
}

void Master::OnRegister(rpc::ConnectionId id, const wire::Register& message) {
  const auto refuse = [&](const Status& status) {
    LOG(WARNING) << "worker \"" << EscapeForLog(message.name()) << "\" refused: " << status.ToString();
    wire::ToWorker answer;
    dag::ToWire(status, answer.mutable_refused()->mutable_failure());
    server_->Send(id, rpc::FrameKind::kMessage, answer.SerializeAsString());
    server_->Close(id, status);
  };
  if (message.protocol() != kProtocol) {
    return refuse({Code::kVersionSkew, "WIRE03", "worker of protocol " + std::to_string(message.protocol()),
                   "this master speaks " + std::to_string(kProtocol), "upgrade the older of the two"});
  }
  const WorkerId worker{epoch_ << 32 | worker_next_++};
  auto event = FromWire(message, worker);
  if (!event.ok()) return refuse(event.status());
  // A daemon that comes back replaces its own earlier connection; another one of its name has to wait until that is gone.
  for (auto& [connection, other] : sessions_) {
    if (other.name != event->name) continue;
    if (other.instance != message.instance()) {
      if (other.claims.size() >= kClaimsMax) other.claims.clear();  // they begin anew
      const std::int64_t claimed_ms = other.claims.try_emplace(message.instance(), rpc::EventLoop::NowMs()).first->second;
      // A worker that was started anew may be here before the end of its former process is known. One that is heard later than what can
      // have been under way then is alive, and who asks need not ask again.
      const bool alive = other.heard_ms > claimed_ms + options_.heartbeat_ms;
      return refuse({alive ? Code::kInvalid : Code::kUnavailable, "WORKER01",
                     "a worker named \"" + EscapeForLog(event->name) + "\" is already here",
                     "it is another process, with its data on " + EscapeForLog(other.data_address),
                     "give this one another name with --name, or stop that one first"});
    }
    server_->Close(connection, Status(Code::kStale, "WORKER02", "replaced", "the worker registered again", ""));
    OnWorkerGone(connection, Status(Code::kStale, "WORKER02", "it registered again"));
    break;
  }
  Session& session = sessions_[id];
  session.connection = id;
  session.worker = worker;
  session.name = event->name;
  session.instance = message.instance();
  session.data_address = event->data_address;
  session.slots = event->slots;
  session.memory_bytes = message.memory_bytes();
  session.limits = message.limits().substr(0, kLimitsBytesMax);
  workers_[worker] = id;
  LOG(INFO) << "worker " << EscapeForLog(session.name) << " (" << WorkerName(worker) << ") registered: " << session.slots << " slots, "
            << event->segments.size() << " segments, data on " << EscapeForLog(session.data_address);
  wire::ToWorker answer;
  wire::Registered* registered = answer.mutable_registered();
  registered->set_worker(worker.value);
  registered->set_epoch(epoch_);
  registered->set_heartbeat_ms(static_cast<std::uint32_t>(options_.heartbeat_ms));
  registered->set_silence_ms(static_cast<std::uint32_t>(options_.silence_ms));
  registered->set_output_window_bytes(kOutputWindowBytes);
  SendOrder(session, &answer);
  std::set<JobId> held;
  for (const scheduler::SegmentAt& at : event->segments) held.insert(at.job);
  for (JobId job : held)
    if (scheduler_.Spec(job) != nullptr) Allow(session, job);
  Step(*event);
}

void Master::OnWorkerGone(rpc::ConnectionId id, const Status& reason) {
  auto it = sessions_.find(id);
  if (it == sessions_.end()) return;
  const Session session = std::move(it->second);
  sessions_.erase(it);
  workers_.erase(session.worker);
  std::vector<ExecutorId> gone;
  for (const auto& [executor, entry] : executors_)
    if (entry.worker == session.worker) gone.push_back(executor);
  const std::string name = EscapeForLog(session.name) + " (" + WorkerName(session.worker) + ")";
  if (session.drains && gone.empty())
    LOG(INFO) << "worker " << name << " has left: it was drained";
  else
    LOG(WARNING) << "worker " << name
                 << (session.drains ? " has left before it was drained, with " + std::to_string(gone.size()) + " executors" : " lost")
                 << ": " << EscapeForLog(reason.what() + ": " + reason.why());
  for (ExecutorId executor : gone) ForgetExecutor(executor);
  Step(scheduler::WorkerLost{session.worker, reason.why().empty() ? reason.what() : reason.why()});
}

void Master::OnExecutorMessage(Session& session, const wire::FromExecutorPayload& message) {
  const ExecutorId executor{message.executor()};
  auto it = executors_.find(executor);
  if (it == executors_.end() || it->second.worker != session.worker) return;  // stopped meanwhile
  wire::FromExecutor inner;
  Status status;
  std::optional<scheduler::Event> event;
  if (!inner.ParseFromString(message.payload())) {
    status = Status(Code::kInvalid, "WIRE02", "a message of an executor cannot be read", "user code may have written to its socket",
                    "leave descriptors alone that main did not open");
  } else {
    auto read = FromWire(inner, executor, it->second.job);
    if (read.ok())
      event = *std::move(read);
    else
      status = read.status();
    if (inner.has_gang_metrics()) status = OnGangMetrics(session, it->second.job, inner.gang_metrics());
  }
  if (!status.ok()) {
    // Untrusted: the executor is stopped, which fails its tasks; nothing it says later counts.
    LOG(WARNING) << "executor " << executor.value << " of " << JobName(it->second.job) << ": " << status.ToString();
    Carry(scheduler::StopExecutor{session.worker, executor, status.ToString()});
    return;
  }
  if (event) Step(*event);
}

// They decide nothing, so the core does not hear of them, and a disk that does not take them stops no job.
Status Master::OnGangMetrics(const Session& session, JobId id, const wire::GangMetrics& message) {
  ASSIGN_OR_RETURN(storage::Metrics metrics, storage::DecodeSaidMetrics(message.metrics()));
  JobEntry& job = Job(id);
  if (job.ended) return {};  // who asks reads the file
  const TaskAttempt rank = dag::FromWire(message.id());
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const std::int64_t now_us = std::chrono::duration_cast<std::chrono::microseconds>(now).count();
  for (storage::MetricSeries& series : metrics.series) {
    series.gang = rank.stage.value;
    series.rank = rank.task;
    series.machine = session.name;
    for (storage::MetricPoint& point : series.points) point.time_us = now_us;
  }
  for (storage::MetricNotice& notice : metrics.notices) {
    notice.gang = rank.stage.value;
    notice.time_us = now_us;
    Carry(scheduler::LogEvent{id, "gang_notice", storage::EventOf(notice, rpc::EventLoop::NowMs())});
  }
  Status status;
  if (job.metrics == nullptr) {
    auto file = storage::MetricFile::Open(files_, MetricsPath(id));
    if (file.ok())
      job.metrics = *std::move(file);
    else
      status = file.status();
  }
  if (job.metrics != nullptr) status = job.metrics->Add(metrics);
  if (!status.ok()) {
    LOG_EVERY_N(ERROR, 100) << "metrics of " << JobName(id) << ": " << status.ToString();
  }
  return {};
}

void Master::OnExecutorExited(Session& session, const wire::ExecutorExited& message) {
  const ExecutorId executor{message.executor()};
  auto it = executors_.find(executor);
  if (it == executors_.end() || it->second.worker != session.worker) return;
  const JobId job = it->second.job;
  LOG(INFO) << "executor " << executor.value << " of " << JobName(job) << ": " << EscapeForLog(message.main_exit());
  ForgetExecutor(executor);
  Step(FromWire(message));
  CheckEnded(job);
}

void Master::ForgetExecutor(ExecutorId executor) {
  auto it = executors_.find(executor);
  if (it == executors_.end()) return;
  const JobId job = it->second.job;
  executors_.erase(it);
  if (auto entry = jobs_.find(job); entry != jobs_.end() && entry->second.logs != nullptr) {
    entry->second.logs->Exited(executor);
    WakeLogWaiters(job, LogStream::kExecutor);
  }
  CheckEnded(job);
}

void Master::OnOutput(Session& session, const wire::Output& message) {
  const ExecutorId executor{message.executor()};
  auto it = executors_.find(executor);
  if (it == executors_.end() || it->second.worker != session.worker) return;
  const JobId id = it->second.job;
  JobEntry& job = Job(id);
  if (job.logs == nullptr) return;
  if (message.stream() == wire::Output::STDERR) {
    Status status = job.logs->Stderr(executor, message.data());
    if (!status.ok()) {
      LOG_EVERY_N(ERROR, 100) << "stderr of " << JobName(id) << ": " << status.ToString();
    }
    // Acknowledged all the same: a full log must not stop the job.
    wire::ToWorker ack;
    ack.mutable_output_ack()->set_executor(executor.value);
    ack.mutable_output_ack()->set_stream(wire::Output::STDERR);
    ack.mutable_output_ack()->set_offset(message.offset() + message.data().size());
    SendOrder(session, &ack);
    const LogStream stream = executor == job.logs->driver() ? LogStream::kStderr : LogStream::kExecutor;
    SyncLog(id, stream);
    WakeLogWaiters(id, stream);
    return;
  }
  if (message.stream() != wire::Output::STDOUT) return;
  auto acks = job.logs->Stdout(executor, message.offset(), message.data());
  if (!acks.ok()) return OnOutputFailed(executor, acks.status());
  SyncLog(id, LogStream::kDriver);
  Acknowledge(job, *acks);
  ExecutorId differing;
  std::uint64_t offset = 0;
  if (job.logs->TakeDifference(&differing, &offset)) {
    LOG(WARNING) << "stdout of executor " << differing.value << " of " << JobName(id) << " differs from what was shown, at byte " << offset;
    Carry(scheduler::LogEvent{
        id, "output_differs",
        "{\"event\":\"output_differs\",\"executor\":" + std::to_string(differing.value) + ",\"offset\":" + std::to_string(offset) + "}"});
  }
  SyncLog(id, LogStream::kExecutor);
  WakeLogWaiters(id, LogStream::kExecutor);
}

// A gap is the worker's doing. What the disk did not take is lost to this process, though the executor will not write it again: only a
// fresh start, which replays main and compares, can show the stream without a hole.
void Master::OnOutputFailed(ExecutorId executor, const Status& status) {
  if (status.code() != Code::kInvalid) return Failed(status);
  LOG(ERROR) << status.ToString();
  Carry(scheduler::StopExecutor{executors_.at(executor).worker, executor, status.ToString()});
}

// A job that prints faster than the disk writes waits for it: a sync is of hardly more than this, and what was on its way meanwhile.
void Master::Acknowledge(JobEntry& job, const std::vector<JobLogs::Ack>& acks) {
  constexpr std::uint64_t kUnsyncedBytesMax = 8u << 20;
  job.held.insert(job.held.end(), acks.begin(), acks.end());
  if (job.logs->file(LogStream::kDriver)->size() > job.logs->shown(LogStream::kDriver) + kUnsyncedBytesMax) return;
  SendAcks(std::exchange(job.held, {}));
}

void Master::SendAcks(const std::vector<JobLogs::Ack>& acks) {
  for (const JobLogs::Ack& ack : acks) {
    auto it = executors_.find(ack.executor);
    if (it == executors_.end()) continue;
    Session* session = FindWorker(it->second.worker);
    if (session == nullptr) continue;
    wire::ToWorker message;
    message.mutable_output_ack()->set_executor(ack.executor.value);
    message.mutable_output_ack()->set_stream(wire::Output::STDOUT);
    message.mutable_output_ack()->set_offset(ack.offset);
    SendOrder(*session, &message);
  }
}

void Master::OnArtifactRequest(rpc::ConnectionId id, const wire::ArtifactRequest& message) {
  const std::string sha256 = message.sha256();
  const std::uint64_t offset = message.offset();
  const bool queued = disk_->Post([this, id, sha256, offset] {
    auto size = artifacts_->Size(sha256);
    auto chunk = size.ok() ? artifacts_->Read(sha256, offset, kArtifactChunkBytes) : Result<std::string>(size.status());
    loop_->Post([this, id, sha256, offset, size = size.ok() ? *size : 0, chunk = std::move(chunk)] {
      auto it = sessions_.find(id);
      if (it == sessions_.end()) return;
      wire::ToWorker answer;
      wire::ArtifactChunk* out = answer.mutable_artifact_chunk();
      out->set_sha256(sha256);
      out->set_offset(offset);
      out->set_size(size);
      if (chunk.ok())
        out->set_chunk(*chunk);
      else
        dag::ToWire(chunk.status(), out->mutable_failure());
      SendOrder(it->second, &answer);
    });
  });
  if (queued) return;
  wire::ToWorker answer;
  wire::ArtifactChunk* out = answer.mutable_artifact_chunk();
  out->set_sha256(sha256);
  out->set_offset(offset);
  dag::ToWire(Status(Code::kUnavailable, "MASTER06", "the master is busy", "too many chunks are asked for at once", "ask again later"),
              out->mutable_failure());
  SendOrder(sessions_.at(id), &answer);
}

void Master::SendOrder(Session& session, wire::ToWorker* order) {
  order->set_worker(session.worker.value);
  order->set_epoch(epoch_);
  // A worker that is gone or too slow is told of by OnDisconnected.
  (void)server_->Send(session.connection, rpc::FrameKind::kMessage, order->SerializeAsString());
}

void Master::Allow(Session& session, JobId job) {
  if (!session.jobs.insert(job).second) return;
  wire::ToWorker order;
  order.mutable_allow_job()->set_job(job.value);
  order.mutable_allow_job()->set_token(JobToken(job));
  SendOrder(session, &order);
}

Master::Session* Master::FindWorker(WorkerId worker) {
  auto it = workers_.find(worker);
  return it == workers_.end() ? nullptr : &sessions_.at(it->second);
}

}  // namespace ropewalk::master
