// Requests of clients. A long poll is a waiter with a deadline; it is answered by the change it waits for, never by looking again and
// again.
#include <algorithm>
#include <chrono>
#include <utility>

#include <glog/logging.h>

#include "base/escape.h"
#include "base/job_name.h"
#include "base/random.h"
#include "dag/wire/wire.h"
#include "master/daemon/convert.h"
#include "master/daemon/daemon.h"
#include "proto/client.pb.h"
#include "storage/artifacts.h"

namespace ropewalk::master {
namespace {

constexpr std::uint32_t kWaitMsMax = 60'000;
constexpr std::uint32_t kWaitingMax = 64;         // unanswered requests of one connection
constexpr std::int64_t kChangesTogetherMs = 100;  // progress is told this often at most; the end of a job at once
constexpr std::uint64_t kLogChunkBytes = 256 << 10;
constexpr std::uint64_t kArtifactChunkMax = 1 << 20;
constexpr std::uint32_t kListMax = 1'000;
constexpr std::int64_t kBurstSeconds = 4;
constexpr std::size_t kBucketsMax = 1'024;

std::int64_t WallMs() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

Status NoSuchJob(JobId job) {
  return {Code::kNotFound, "JOB07", "there is no job " + JobName(job), "it was never submitted here, or it is long over",
          "`ropewalk job list` shows them"};
}

}  // namespace

void Master::OnClientFrame(rpc::ConnectionId id, const std::string& payload) {
  wire::ClientRequest request;
  if (!request.ParseFromString(payload)) {
    server_->Close(id, Status(Code::kInvalid, "WIRE02", "a client's request cannot be read", "it is damaged or of another version",
                              "bring client and master to one version"));
    return;
  }
  if (connections_[id].waiting >= kWaitingMax) {
    return AnswerFailure(id, request.id(),
                         Status(Code::kResourceExhausted, "MASTER07", "too many requests at once on one connection",
                                std::to_string(kWaitingMax) + " wait for their answer", "wait for some of them"));
  }
  if (!MayAsk(connections_[id].peer)) {
    return AnswerFailure(id, request.id(),
                         Status(Code::kResourceExhausted, "MASTER08", "too many requests from one machine",
                                "more than " + std::to_string(options_.requests_per_s_max) + " a second", "ask less often"));
  }
  switch (request.body_case()) {
    case wire::ClientRequest::kHaveArtifacts:
      return OnHaveArtifacts(id, request.id(), request.have_artifacts());
    case wire::ClientRequest::kPutArtifact:
      return OnPutArtifact(id, request.id(), request.put_artifact());
    case wire::ClientRequest::kSubmitJob:
      return OnSubmitJob(id, request.id(), request.submit_job());
    case wire::ClientRequest::kJobQuery:
      return OnJobQuery(id, request.id(), request.job_query());
    case wire::ClientRequest::kListJobs:
      return OnListJobs(id, request.id(), request.list_jobs().limit());
    case wire::ClientRequest::kCancelJob:
      return OnCancelJob(id, request.id(), JobId{request.cancel_job().job()});
    case wire::ClientRequest::kReadLog:
      return OnReadLog(id, request.id(), request.read_log());
    case wire::ClientRequest::kMetricsQuery:
      return OnMetricsQuery(id, request.id(), request.metrics_query());
    case wire::ClientRequest::kListWorkers:
      return OnListWorkers(id, request.id());
    case wire::ClientRequest::kPing: {
      wire::ClientResponse response;
      response.mutable_pong()->set_version(ROPEWALK_VERSION);
      response.mutable_pong()->set_epoch(epoch_);
      response.mutable_pong()->set_slots(TotalSlots());
      return Answer(id, request.id(), &response);
    }
    case wire::ClientRequest::BODY_NOT_SET:
      return AnswerFailure(id, request.id(),
                           Status(Code::kVersionSkew, "WIRE03", "a request that this master does not know",
                                  "it is of version " ROPEWALK_VERSION, "upgrade the master"));
  }
}

// Who asks is known by role and machine as long as all clients share one token.
bool Master::MayAsk(const rpc::Peer& peer) {
  const std::int64_t now = rpc::EventLoop::NowMs();
  const double per_s = options_.requests_per_s_max, most = double(kBurstSeconds) * per_s;
  if (buckets_.size() > kBucketsMax)  // a full one is as good as none
    std::erase_if(buckets_, [&](const auto& entry) { return now - entry.second.at_ms > 1000 * kBurstSeconds; });
  auto [at, fresh] = buckets_.try_emplace(peer.role + "@" + peer.address.substr(0, peer.address.rfind(':')), Bucket{most, now});
  Bucket& bucket = at->second;
  bucket.left = std::min(most, bucket.left + per_s * double(now - bucket.at_ms) / 1000);
  bucket.at_ms = now;
  if (bucket.left < 1) return false;
  bucket.left -= 1;
  return true;
}

void Master::OnClientGone(rpc::ConnectionId id) {
  const auto of_it = [id](const auto& waiter) { return waiter.connection == id; };
  const auto drop = [&](auto& waiters) {
    for (auto it = waiters.begin(); it != waiters.end();) {
      for (auto& waiter : it->second)
        if (of_it(waiter)) loop_->Cancel(waiter.deadline);
      std::erase_if(it->second, of_it);
      it = it->second.empty() ? waiters.erase(it) : std::next(it);
    }
  };
  drop(job_waiters_);
  drop(log_waiters_);
  for (auto it = submitters_.begin(); it != submitters_.end();) {
    std::erase_if(it->second, of_it);
    it = it->second.empty() ? submitters_.erase(it) : std::next(it);
  }
}

void Master::Answer(rpc::ConnectionId id, std::uint64_t request, wire::ClientResponse* response) {
  response->set_id(request);
  (void)server_->Send(id, rpc::FrameKind::kResponse, response->SerializeAsString());  // a client that is gone needs no answer
}

void Master::AnswerFailure(rpc::ConnectionId id, std::uint64_t request, const Status& status) {
  wire::ClientResponse response;
  dag::ToWire(status, response.mutable_failure());
  Answer(id, request, &response);
}

void Master::WaitEnds(rpc::ConnectionId id) {
  if (auto it = connections_.find(id); it != connections_.end() && it->second.waiting > 0) --it->second.waiting;
}

void Master::OnHaveArtifacts(rpc::ConnectionId id, std::uint64_t request, const wire::HaveArtifacts& body) {
  wire::ClientResponse response;
  wire::MissingArtifacts* missing = response.mutable_missing_artifacts();
  for (const std::string& sha256 : body.sha256()) {
    if (sha256.size() != 32)
      return AnswerFailure(id, request,
                           Status(Code::kInvalid, "ART01", "an artifact's name is no SHA-256", "it has another length",
                                  "bring client and master to one version"));
    if (!artifacts_->Has(sha256)) missing->add_sha256(sha256);
  }
  Answer(id, request, &response);
}

void Master::OnPutArtifact(rpc::ConnectionId id, std::uint64_t request, const wire::PutArtifact& body) {
  if (body.chunk().size() > kArtifactChunkMax)
    return AnswerFailure(
        id, request,
        Status(Code::kInvalid, "ART01", "a chunk of an artifact above 1 MiB", "that is the limit of a message", "send smaller ones"));
  auto put = std::make_shared<wire::PutArtifact>(body);
  ++connections_[id].waiting;
  const bool queued = disk_->Post([this, id, request, put] {
    auto done = artifacts_->Put(put->sha256(), put->offset(), put->size(), put->chunk());
    loop_->Post([this, id, request, status = done.ok() ? Status() : done.status()] {
      WaitEnds(id);
      if (!status.ok()) return AnswerFailure(id, request, status);
      wire::ClientResponse response;
      response.mutable_ok();
      Answer(id, request, &response);
    });
  });
  if (queued) return;
  WaitEnds(id);
  AnswerFailure(id, request,
                Status(Code::kUnavailable, "MASTER06", "the master is busy", "too many chunks are on their way to its disk", "try again"));
}

void Master::OnSubmitJob(rpc::ConnectionId id, std::uint64_t request, const wire::SubmitJob& body) {
  auto spec = FromWire(body.spec());
  if (!spec.ok()) return AnswerFailure(id, request, spec.status());
  for (const std::string& sha256 : body.spec().artifacts()) {
    if (artifacts_->Has(sha256)) continue;
    return AnswerFailure(id, request,
                         Status(Code::kNotFound, "ART04", "the job's artifact " + HexString(sha256).substr(0, 12) + " is not here",
                                "it was not sent, or not to its end", "submit again"));
  }
  dag::Settings& settings = spec->settings;
  // Random where the user named nothing; journalled with the job, so that every replica has the same.
  if (settings.seed == 0) settings.seed = Random(std::hash<std::string>()(SecureRandomBytes(16)))() | 1;
  if (settings.now_us == 0) settings.now_us = WallMs() * 1000;
  if (settings.slots == 0) settings.slots = std::max(1u, TotalSlots());
  if (body.spec().settings().operator_bytes() == 0) settings.operator_bytes = OperatorBytes();
  if (settings.name.empty()) settings.name = spec->argv.front().substr(spec->argv.front().rfind('/') + 1);
  if (spec->submit_key.empty()) spec->submit_key = SecureRandomBytes(16);  // only to find the one who asked
  LOG(INFO) << "submit of \"" << EscapeForLog(settings.name, 200) << "\" by " << EscapeForLog(spec->user, 100) << " from "
            << connections_[id].peer.address << ", artifact " << HexString(body.spec().artifacts(0)).substr(0, 12);
  submitters_[spec->submit_key].push_back({id, request});
  ++connections_[id].waiting;
  Step(scheduler::JobSubmitted{*std::move(spec)});
}

void Master::OnCancelJob(rpc::ConnectionId id, std::uint64_t request, JobId job) {
  if (scheduler_.JobVersion(job) == 0) return AnswerFailure(id, request, NoSuchJob(job));
  LOG(INFO) << "cancel of " << JobName(job) << " from " << connections_[id].peer.address;
  Step(scheduler::JobCancelled{job, "a client asked for it"});
  committer_->Then([this, id, request] {
    wire::ClientResponse response;
    response.mutable_ok();
    Answer(id, request, &response);
  });
  committer_->Pump();
}

void Master::OnListJobs(rpc::ConnectionId id, std::uint64_t request, std::uint32_t limit) {
  wire::ClientResponse response;
  wire::JobList* list = response.mutable_job_list();
  std::vector<scheduler::JobView> views = scheduler_.Jobs();
  const std::size_t n = std::min<std::size_t>({limit == 0 ? 100u : limit, kListMax, views.size()});
  for (std::size_t i = 0; i < n; ++i) {  // the newest first
    scheduler::JobView& view = views[views.size() - 1 - i];
    if (finishing_.contains(view.job)) view.phase = scheduler::JobPhase::kRunning;
    ToWire(view, list->add_jobs());
  }
  Answer(id, request, &response);
}

void Master::OnListWorkers(rpc::ConnectionId id, std::uint64_t request) {
  wire::ClientResponse response;
  wire::WorkerList* list = response.mutable_worker_list();
  const std::int64_t now = rpc::EventLoop::NowMs();
  for (const scheduler::WorkerView& view : scheduler_.Workers()) {
    wire::WorkerState* out = list->add_workers();
    out->set_worker(view.worker.value);
    out->set_name(view.name);
    out->set_address(view.data_address);
    out->set_slots(view.slots);
    out->set_busy(view.busy);
    out->set_state(view.drained ? "draining" : view.avoided_until > now ? "avoided" : "ready");
    if (const Session* session = FindWorker(view.worker)) {
      out->set_memory_bytes(session->memory_bytes);
      out->set_blocks_bytes(session->blocks_bytes);
      out->set_limits(session->limits);
      out->set_spilled_bytes_total(session->spilled_bytes_total);
      out->set_executor_pss_bytes_max(session->executor_pss_bytes_max);
      out->set_lent_bytes(session->lent_bytes);
    }
  }
  Answer(id, request, &response);
}

void Master::AnswerJob(rpc::ConnectionId id, std::uint64_t request, JobId job, bool with_plans) {
  auto view = scheduler_.Job(job, with_plans);
  if (!view) return AnswerFailure(id, request, NoSuchJob(job));
  wire::ClientResponse response;
  ToWire(*view, response.mutable_job_state());
  Answer(id, request, &response);
}

void Master::OnJobQuery(rpc::ConnectionId id, std::uint64_t request, const wire::JobQuery& body) {
  const JobId job{body.job()};
  const std::uint64_t version = scheduler_.JobVersion(job);
  if (version == 0) return AnswerFailure(id, request, NoSuchJob(job));
  // One that is just being finished waits for its journal record even where no wait was asked for: it takes one sync.
  const bool finishing = finishing_.contains(job);
  const bool plans = !body.without_plans();
  if (!finishing && (body.version() != version || body.wait_ms() == 0)) return AnswerJob(id, request, job, plans);
  JobWaiter waiter{id, request, body.version(), rpc::EventLoop::NowMs() + kChangesTogetherMs, 0, false, plans};
  const std::int64_t wait_ms = finishing && body.wait_ms() == 0 ? kWaitMsMax : std::min(body.wait_ms(), kWaitMsMax);
  waiter.deadline = loop_->After(wait_ms, [this, id, request, job, plans] {
    if (finishing_.contains(job)) return;  // FinishJob answers
    auto& list = job_waiters_[job];
    std::erase_if(list, [&](const JobWaiter& w) { return w.connection == id && w.request == request; });
    if (list.empty()) job_waiters_.erase(job);
    WaitEnds(id);
    AnswerJob(id, request, job, plans);
  });
  ++connections_[id].waiting;
  job_waiters_[job].push_back(waiter);
}

void Master::WakeJobWaiters() {
  if (job_waiters_.empty()) return;
  std::vector<JobId> waited;
  for (const auto& [job, list] : job_waiters_) waited.push_back(job);
  for (JobId job : waited) WakeJobWaiters(job);
}

void Master::WakeJobWaiters(JobId job) {
  auto it = job_waiters_.find(job);
  if (it == job_waiters_.end() || finishing_.contains(job)) return;
  const std::uint64_t version = scheduler_.JobVersion(job);
  const bool over = scheduler_.Spec(job) == nullptr;
  const std::int64_t now = rpc::EventLoop::NowMs();
  std::vector<JobWaiter> ready;
  for (auto waiter = it->second.begin(); waiter != it->second.end();) {
    if (waiter->version == version && !over) {
      ++waiter;
    } else if (over || now >= waiter->not_before_ms) {
      ready.push_back(*waiter);
      waiter = it->second.erase(waiter);
    } else {
      if (!std::exchange(waiter->soon, true)) {  // told when its time has come: the deadline moves forward
        loop_->Cancel(waiter->deadline);
        waiter->deadline = loop_->At(waiter->not_before_ms, [this, job] { WakeJobWaiters(job); });
      }
      ++waiter;
    }
  }
  if (it->second.empty()) job_waiters_.erase(it);
  for (const JobWaiter& waiter : ready) {
    loop_->Cancel(waiter.deadline);
    WaitEnds(waiter.connection);
    AnswerJob(waiter.connection, waiter.request, job, waiter.plans);
  }
}

// True when there was something to say. `now`: say it even if it is nothing.
bool Master::AnswerLog(rpc::ConnectionId id, std::uint64_t request, JobId job, LogStream stream, std::uint64_t offset, bool now) {
  JobEntry& entry = Job(job);
  std::string data;
  if (entry.logs != nullptr) {
    auto read = entry.logs->Read(stream, offset, kLogChunkBytes);
    if (!read.ok()) return AnswerFailure(id, request, read.status()), true;
    data = *std::move(read);
  }
  const std::uint64_t next = offset + data.size();
  const bool end = entry.ended && (entry.logs == nullptr || next >= entry.logs->shown(stream));
  if (data.empty() && !end && !now) return false;
  wire::ClientResponse response;
  response.mutable_log_chunk()->set_data(std::move(data));
  response.mutable_log_chunk()->set_next_offset(next);
  response.mutable_log_chunk()->set_end(end);
  Answer(id, request, &response);
  return true;
}

void Master::OnMetricsQuery(rpc::ConnectionId id, std::uint64_t request, const wire::MetricsQuery& body) {
  const JobId job{body.job()};
  if (scheduler_.JobVersion(job) == 0) return AnswerFailure(id, request, NoSuchJob(job));
  const std::size_t points_max = body.points_max() == 0 ? ~std::size_t{0} : body.points_max();
  wire::ClientResponse response;
  std::string* out = response.mutable_job_metrics()->mutable_metrics();
  const auto open = jobs_.find(job);
  if (open != jobs_.end() && open->second.metrics != nullptr) {
    *out = Encode(open->second.metrics->history().AtMost(points_max));
    return Answer(id, request, &response);
  }
  auto kept = storage::ReadMetricFile(files_, MetricsPath(job));  // of a job that is over, or of an earlier life
  if (!kept.ok() && kept.status().code() != Code::kNotFound) return AnswerFailure(id, request, kept.status());
  *out = Encode(kept.ok() ? kept->AtMost(points_max) : storage::Metrics());
  Answer(id, request, &response);
}

void Master::OnReadLog(rpc::ConnectionId id, std::uint64_t request, const wire::ReadLog& body) {
  const JobId job{body.job()};
  auto stream = ParseLogStream(body.stream());
  if (!stream) {
    return AnswerFailure(id, request,
                         Status(Code::kInvalid, "JOB08", "no log stream \"" + EscapeForLog(body.stream(), 100) + "\"",
                                "there are driver, stderr, executor and events", "ask for one of them"));
  }
  if (scheduler_.JobVersion(job) == 0) return AnswerFailure(id, request, NoSuchJob(job));
  if (AnswerLog(id, request, job, *stream, body.offset(), body.wait_ms() == 0)) return;
  LogWaiter waiter{id, request, *stream, body.offset(), 0};
  waiter.deadline = loop_->After(std::min(body.wait_ms(), kWaitMsMax), [this, job, waiter] {
    auto& list = log_waiters_[job];
    std::erase_if(list, [&](const LogWaiter& w) { return w.connection == waiter.connection && w.request == waiter.request; });
    if (list.empty()) log_waiters_.erase(job);
    WaitEnds(waiter.connection);
    AnswerLog(waiter.connection, waiter.request, job, waiter.stream, waiter.offset, true);
  });
  ++connections_[id].waiting;
  log_waiters_[job].push_back(waiter);
}

void Master::WakeLogWaiters(JobId job, LogStream stream) {
  auto it = log_waiters_.find(job);
  if (it == log_waiters_.end()) return;
  std::vector<LogWaiter> waiters = std::exchange(it->second, {}), still;
  for (const LogWaiter& waiter : waiters) {
    if (waiter.stream != stream || !AnswerLog(waiter.connection, waiter.request, job, stream, waiter.offset, false)) {
      still.push_back(waiter);
      continue;
    }
    loop_->Cancel(waiter.deadline);
    WaitEnds(waiter.connection);
  }
  if (still.empty())
    log_waiters_.erase(job);
  else
    log_waiters_[job] = std::move(still);
}

}  // namespace ropewalk::master
