#include "worker/daemon/daemon.h"

#include <glog/logging.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "base/escape.h"
#include "base/job_name.h"
#include "dag/wire/wire.h"
#include "proto/executor.pb.h"
#include "proto/worker.pb.h"
#include "rpc/frame.h"
#include "storage/artifacts.h"
#include "worker/daemon/machine.h"
#include "worker/daemon/processes.h"

namespace ropewalk::worker {
namespace {

constexpr std::uint32_t kProtocol = 1;
constexpr int kConnectMs = 5'000;
constexpr std::size_t kDiskQueueMax = 64;  // chunks of artifacts, one for each artifact that is fetched
constexpr std::int64_t kFirstPauseMs = 50;
constexpr std::uint32_t kForgetGraceMs = 2'000;  // for executors of a job that is over, and which nobody has told to stop
constexpr std::int64_t kRankSilentMs = 6'000;    // the others have to be told within 10 s
constexpr std::int64_t kSilentBeatsLeast = 3;
constexpr std::int64_t kRegisterMs = 15'000;  // silence that is borne until the master has said its own limit

}  // namespace

Daemon::Daemon(rpc::EventLoop& loop, WorkerOptions options, JobUser user, std::string token, std::unique_ptr<Spawner> spawner,
               std::function<void(const Status&)> ended)
    : loop_(loop),
      options_(std::move(options)),
      user_(user),
      token_(std::move(token)),
      ended_(std::move(ended)),
      spawner_(std::move(spawner)),
      instance_(rpc::NewNonce()) {}

Result<std::unique_ptr<Daemon>> Daemon::Start(rpc::EventLoop& loop, WorkerOptions options, JobUser user, std::string token,
                                              std::unique_ptr<Spawner> spawner, std::function<void(const Status&)> ended) {
  std::unique_ptr<Daemon> daemon(new Daemon(loop, std::move(options), user, std::move(token), std::move(spawner), std::move(ended)));
  RETURN_IF_ERROR(daemon->Open());
  loop.Post([raw = daemon.get(), alive = daemon->alive_] {
    if (*alive) raw->Connect();
  });
  return daemon;
}

Status Daemon::Open() {
  const std::string& folder = options_.state_dir;
  std::error_code error;
  std::filesystem::remove_all(folder + "/jobs",
                              error);  // of a worker that was killed: its segments are gone, so is all that goes with them
  if (!error) std::filesystem::create_directories(folder + "/jobs", error);
  if (error)
    return Status(Code::kUserError, "WORKER12", "cannot use the state folder " + folder, error.message(),
                  "name a writable folder with --dir");
  ASSIGN_OR_RETURN(artifacts_, storage::ArtifactStore::Open({.folder = folder + "/artifacts", .bytes_max = options_.artifact_bytes_max}));
  disk_ = std::make_unique<SerialWorker>(kDiskQueueMax);
  ASSIGN_OR_RETURN(store_, blocks::BlockStore::Open({.memory_bytes_max = options_.memory_bytes,
                                                     .spill_dir = folder + "/blocks",
                                                     .keep_run_files = true,
                                                     .on_lost = [this, alive = alive_](JobId job, SegmentId segment) {
                                                       loop_.Post([this, alive, job, segment] {
                                                         if (!*alive) return;
                                                         wire::FromWorker message;
                                                         message.mutable_segments_lost()->set_job(job.value);
                                                         message.mutable_segments_lost()->add_segments(segment.value);
                                                         message.mutable_segments_lost()->set_reason("its run file cannot be read");
                                                         Send(&message);
                                                       });
                                                     }}));
  ASSIGN_OR_RETURN(
      service_, blocks::BlockService::Start({.unix_path = folder + "/blocks.sock", .listen_address = options_.data_address}, store_.get()));
  if (user_.uid >= 0) {  // the token proves who may speak there; the mode only kept others out
    for (const std::string& path : {folder + "/blocks.sock", folder + "/artifacts", folder + "/jobs"})
      if (::chmod(path.c_str(), path.ends_with(".sock") ? 0666 : 0711) != 0)
        return Status(Code::kUserError, "WORKER12", "cannot open " + path + " to the user of jobs", std::strerror(errno),
                      "name a folder of our own with --dir");
  }
  if (options_.use_cgroups) groups_ = ExecutorGroups::Open();
  if (groups_ == nullptr || !groups_->limits_memory())
    LOG(WARNING) << Limits() << ": a job's memory is limited by rlimits only, and its processes only where jobs have a user of their own";
  spawner_->Listen([this, alive = alive_](const SpawnEvent& event) {
    loop_.Post([this, alive, event] {
      if (*alive) OnSpawnEvent(event);
    });
  });
  return {};
}

std::string Daemon::Limits() const { return groups_ == nullptr ? "no cgroups: turned off" : groups_->description(); }

Daemon::~Daemon() {
  *alive_ = false;
  if (connector_.joinable()) connector_.join();
  disk_.reset();  // what it posts from here on is not run
  master_.reset();
  for (rpc::EventLoop::TimerId timer : {beat_timer_, silence_timer_, connect_timer_, drain_timer_}) loop_.Cancel(timer);
  spawner_.reset();  // ends all executors, so that the readers below meet their end
  executors_.clear();
  service_.reset();
  std::error_code ignored;  // the next start removes what is left
  std::filesystem::remove_all(options_.state_dir + "/jobs", ignored);
}

// ---- registration
// ------------------------------------------------------------------------------------------------------------------------

void Daemon::Connect() {
  connect_timer_ = 0;
  if (connector_.joinable()) connector_.join();
  connector_ = std::thread([this, alive = alive_] {
    auto channel = rpc::Channel::Connect(options_.master_address, token_, "worker", kConnectMs);
    auto shared = std::make_shared<std::unique_ptr<rpc::Channel>>(channel.ok() ? *std::move(channel) : nullptr);
    loop_.Post([this, alive, shared, status = channel.status()] {
      if (*alive) OnConnected(status, std::move(*shared));
    });
  });
}

void Daemon::OnConnected(Status status, std::unique_ptr<rpc::Channel> channel) {
  connector_.join();
  if (channel == nullptr) {
    // A wrong token stays wrong; everything else may be a master that is not up (yet).
    if (status.code() == Code::kUnauthenticated || status.code() == Code::kInvalid || status.code() == Code::kVersionSkew)
      return ended_(status);
    if (pause_ms_ == 0) LOG(WARNING) << "no master: " << status.ToString();
    return OnMasterGone(status);
  }
  registering_ = true;
  heard_ms_ = rpc::EventLoop::NowMs();
  master_ = std::make_unique<Link>(
      std::move(channel), loop_, [this](rpc::Frame frame) { OnMasterFrame(frame.payload); },
      [this](const Status& reason) { OnMasterGone(reason); });
  if (executors_.empty()) RegisterNow();
}

void Daemon::RegisterNow() {
  registering_ = false;
  heard_ms_ = rpc::EventLoop::NowMs();
  silence_ms_ = kRegisterMs;
  if (silence_timer_ == 0) CheckSilence();
  wire::FromWorker message;
  wire::Register* hello = message.mutable_hello();
  hello->set_protocol(kProtocol);
  hello->set_name(options_.name);
  hello->set_instance(instance_);
  hello->set_slots(options_.slots);
  hello->set_data_address(service_->data_address());
  hello->set_memory_bytes(options_.memory_bytes);
  hello->set_glibc(GlibcVersion());
  hello->set_cpu_level(CpuLevel());
  hello->set_limits(Limits());
  for (const blocks::HeldSegment& held : store_->List()) {
    wire::HeldSegment* segment = hello->add_segments();
    segment->set_job(held.job.value);
    dag::ToWire(held.ref, segment->mutable_ref());
    segment->mutable_ref()->set_location(service_->data_address());
    segment->set_content_hash(held.info.content_hash);
    segment->set_records(held.info.records);
  }
  master_->Send(message.SerializeAsString());
}

void Daemon::OnMasterGone(const Status& reason) {
  if (worker_) LOG(WARNING) << "the master is gone: " << reason.ToString();
  worker_ = {};
  registering_ = false;
  master_.reset();
  fetching_.clear();
  loop_.Cancel(beat_timer_);
  loop_.Cancel(silence_timer_);
  beat_timer_ = silence_timer_ = 0;
  // Whoever is master next counts them as lost: ending them now leaves their slots to what it will order.
  std::vector<ExecutorId> ids;
  for (const auto& [id, executor] : executors_) ids.push_back(id);
  for (ExecutorId id : ids)
    if (Executor* executor = Find(id)) EndExecutor(*executor, Status(Code::kUnavailable, "WORKER23", "the worker lost its master"));
  pause_ms_ = pause_ms_ == 0 ? kFirstPauseMs : std::min(pause_ms_ * 2, options_.reconnect_ms_max);
  if (connect_timer_ == 0 && !connector_.joinable()) connect_timer_ = loop_.After(pause_ms_, [this] { Connect(); });
  LeaveIfUnneeded();
}

void Daemon::CheckSilence() {
  std::int64_t left = heard_ms_ + silence_ms_ - rpc::EventLoop::NowMs();
  silence_timer_ = 0;
  if (left <= 0)
    return OnMasterGone(Status(Code::kUnavailable, "WORKER24", "the master has been silent for " + std::to_string(silence_ms_) + " ms"));
  silence_timer_ = loop_.After(left, [this] { CheckSilence(); });
}

void Daemon::OnRegistered(const wire::ToWorker& message) {
  const wire::Registered& registered = message.registered();
  worker_ = WorkerId{registered.worker()};
  epoch_ = registered.epoch();
  heartbeat_ms_ = std::clamp<std::int64_t>(registered.heartbeat_ms(), 10, 60'000);
  silence_ms_ = std::clamp<std::int64_t>(registered.silence_ms(), 2 * heartbeat_ms_, 600'000);
  output_window_bytes_ = registered.output_window_bytes();
  pause_ms_ = 0;
  loop_.Cancel(silence_timer_);
  CheckSilence();
  LOG(INFO) << "registered as worker " << worker_.value << " with " << store_->stats().segments << " segments; data on "
            << service_->data_address();
  if (options_.on_registered) options_.on_registered(worker_, options_.name);
  if (left_) TellDrain();  // the master's knowledge of it ended with the former registration
  Beat();
}

// ---- leaving
// ------------------------------------------------------------------------------------------------------------------------------

void Daemon::Drain(std::function<void()> left) {
  left_ = std::move(left);
  LOG(INFO) << "draining for at most " << options_.drain_ms_max << " ms: no new tasks; " << executors_.size() << " executors and "
            << store_->stats().segments << " segments are still here";
  TellDrain();
  drain_timer_ = loop_.After(options_.drain_ms_max, [this] {
    drain_timer_ = 0;
    LOG(WARNING) << "the drain timeout is over: leaving with " << executors_.size() << " executors and " << store_->stats().segments
                 << " segments";
    std::exchange(left_, {})();
  });
  LeaveIfUnneeded();
}

void Daemon::TellDrain() {
  wire::FromWorker message;
  message.mutable_draining()->set_reason("SIGTERM");
  Send(&message);
}

// Whatever frees the last of what is here ends in a call of this.
void Daemon::LeaveIfUnneeded() {
  if (!left_ || !executors_.empty() || store_->stats().segments > 0) return;
  LOG(INFO) << "drained: nobody needs this worker any more";
  // Not here: the caller is in the middle of an order.
  loop_.Post([this, alive = alive_] {
    if (*alive && left_) std::exchange(left_, {})();
  });
}

// Every executor says something each second. One that is stopped, or hangs as a whole process, would keep its slots for as long as its job
// lasts; and ranks wait for each other, so one of them would hold all.
void Daemon::EndSilentExecutors() {
  std::vector<std::pair<ExecutorId, std::int64_t>> silent;
  for (const auto& [id, executor] : executors_) {
    if (!executor->checks.welcomed() || executor->stop_ordered) continue;  // they have limits of their own
    const bool ranks = executor->checks.runs_ranks();
    const std::int64_t limit_ms = ranks && options_.silence_ms_max > 0 ? std::min(kRankSilentMs, options_.silence_ms_max)
                                  : ranks                              ? kRankSilentMs
                                                                       : options_.silence_ms_max;
    executor->silent_ms += heartbeat_ms_;
    if (limit_ms <= 0) continue;
    // One heartbeat is added before a word may have come in it, and a second one while the word is under way: neither is silence.
    const std::int64_t most_ms = std::max(limit_ms, kSilentBeatsLeast * heartbeat_ms_);
    if (executor->silent_ms < most_ms) continue;
    silent.emplace_back(id, most_ms);
    executor->silent_ms = 0;
  }
  for (const auto& [id, most_ms] : silent)
    if (Executor* executor = Find(id))
      EndExecutor(*executor,
                  Status(Code::kUnavailable, "WORKER36", "an executor on " + options_.name + " fell silent",
                         "its process is stopped, or gets no processor: it said nothing for " + std::to_string(most_ms / 1000) + " s",
                         "none needed: its tasks are run again (worker.executor_silence says how long it may)"));
}

void Daemon::NoteMemoryKills() {
  const std::uint64_t machine = OutOfMemoryKills();
  for (const auto& [id, executor] : executors_) {
    if (!executor->spawned || executor->process_gone) continue;
    executor->machine_kills.Note(machine);
    if (groups_ == nullptr) continue;
    if (const auto kills = groups_->MemoryKills(id.value)) executor->group_kills.Note(*kills);
  }
}

void Daemon::Beat() {
  EndSilentExecutors();
  NoteMemoryKills();
  blocks::StoreStats stats = store_->stats();
  for (const auto& [id, executor] : executors_)
    if (executor->pid != 0 && !executor->process_gone) pss_bytes_max_ = std::max(pss_bytes_max_, PssBytes(executor->pid));
  wire::FromWorker message;
  wire::Heartbeat* beat = message.mutable_heartbeat();
  beat->set_sequence(++beats_);
  beat->set_blocks_bytes(stats.memory_bytes - stats.lent_bytes);
  beat->set_lent_bytes(stats.lent_bytes);
  beat->set_spilled_bytes(stats.spilled_bytes);
  beat->set_spilled_bytes_total(stats.spilled_bytes_total);
  beat->set_executors(static_cast<std::uint32_t>(executors_.size()));
  beat->set_executor_pss_bytes_max(pss_bytes_max_);
  for (const auto& [id, executor] : executors_)
    for (auto& [id_of_task, said] : executor->checks.TakeProgress()) {
      const task::TaskCounters& c = said.counters;
      wire::TaskProgress* progress = beat->add_progress();
      progress->set_line(std::move(said.line));
      progress->set_reached(said.reached);
      progress->set_executor(id.value);
      dag::ToWire(id_of_task, progress->mutable_id());
      wire::TaskCounters* counters = progress->mutable_counters();
      counters->set_records_in(c.records_in);
      counters->set_bytes_in(c.bytes_in);
      counters->set_records_out(c.records_out);
      counters->set_bytes_out(c.bytes_out);
      counters->set_bytes_spilled(c.bytes_spilled);
    }
  Send(&message);
  beat_timer_ = loop_.After(heartbeat_ms_, [this] { Beat(); });
}

void Daemon::Send(wire::FromWorker* message) {
  if (!worker_ || master_ == nullptr) return;  // the next registration tells what counts
  message->set_worker(worker_.value);
  message->set_epoch(epoch_);
  master_->Send(message->SerializeAsString());
}

// ---- orders
// ------------------------------------------------------------------------------------------------------------------------------

void Daemon::OnMasterFrame(const std::string& payload) {
  heard_ms_ = rpc::EventLoop::NowMs();
  wire::ToWorker message;
  if (!message.ParseFromString(payload))
    return OnMasterGone(Status(Code::kVersionSkew, "WORKER22", "a message of the master cannot be read",
                               "it is damaged or of a newer version", "bring worker and master to one version"));
  if (message.has_refused()) {
    Status status = dag::FromWire(message.refused().failure());
    if (status.code() != Code::kUnavailable && status.code() != Code::kStale) return ended_(status);
    LOG(WARNING) << "refused: " << status.ToString();
    return OnMasterGone(status);
  }
  if (message.has_registered()) {
    if (!worker_) OnRegistered(message);
    return;
  }
  if (!worker_ || message.worker() != worker_.value || message.epoch() != epoch_) return;  // of an earlier registration
  switch (message.body_case()) {
    case wire::ToWorker::kAllowJob: {
      JobId job{message.allow_job().job()};
      tokens_[job] = message.allow_job().token();
      service_->AllowJob(job, message.allow_job().token());
      return;
    }
    case wire::ToWorker::kForgetJob: {
      std::vector<storage::OutputSpec> discard;
      for (const wire::OutputPlace& place : message.forget_job().discard()) discard.push_back({place.folder(), place.key()});
      return ForgetJob(JobId{message.forget_job().job()}, std::move(discard));
    }
    case wire::ToWorker::kStartExecutor:
      return StartExecutor(message.start_executor());
    case wire::ToWorker::kStopExecutor:
      return StopExecutor(ExecutorId{message.stop_executor().executor()}, message.stop_executor().reason(),
                          message.stop_executor().grace_ms());
    case wire::ToWorker::kToExecutor: {
      Executor* executor = Find(ExecutorId{message.to_executor().executor()});
      if (executor == nullptr || executor->link == nullptr || executor->process_gone) return;
      if (Status status = executor->checks.OnOrder(message.to_executor().payload()); !status.ok()) return EndExecutor(*executor, status);
      executor->link->Send(std::move(*message.mutable_to_executor()->mutable_payload()));
      return;
    }
    case wire::ToWorker::kFreeSegments: {
      std::vector<SegmentId> segments;
      for (std::uint64_t segment : message.free_segments().segments()) segments.push_back(SegmentId{segment});
      store_->FreeOf(JobId{message.free_segments().job()}, segments);
      return LeaveIfUnneeded();
    }
    case wire::ToWorker::kArtifactChunk:
      return OnArtifactChunk(message.artifact_chunk());
    case wire::ToWorker::kOutputAck: {
      Executor* executor = Find(ExecutorId{message.output_ack().executor()});
      if (executor == nullptr) return;
      OutputReader* reader = message.output_ack().stream() == wire::Output::STDERR ? executor->err.get() : executor->out.get();
      if (reader != nullptr) reader->Acknowledge(message.output_ack().offset());
      return;
    }
    default:
      return;  // heartbeat_ack: heard_ms_ is what it is for; unknown ones are of a newer master
  }
}

std::string Daemon::JobFolder(JobId job) const { return options_.state_dir + "/jobs/" + JobName(job); }

void Daemon::ForgetJob(JobId job, std::vector<storage::OutputSpec> discard) {
  service_->ForgetJob(job);
  tokens_.erase(job);
  auto at = jobs_.find(job);
  // An earlier life of this worker may have started executors that wrote.
  if (at == jobs_.end() && !discard.empty()) at = jobs_.emplace(job, Job{}).first;
  if (at != jobs_.end()) {
    at->second.forgotten = true;
    at->second.discard = std::move(discard);
    std::vector<ExecutorId> ids(at->second.executors.begin(), at->second.executors.end());
    // Those that were told to stop are about to end by themselves; the others are told now.
    for (ExecutorId id : ids)
      if (Executor* executor = Find(id); executor != nullptr && !executor->stop_ordered)
        StopExecutor(id, "the job is over", kForgetGraceMs);
  }
  store_->FreeJob(job);
  DropJobIfOver(job);
  LeaveIfUnneeded();
}

void Daemon::DropJobIfOver(JobId job) {
  auto at = jobs_.find(job);
  if (at == jobs_.end() || !at->second.forgotten || !at->second.executors.empty()) return;
  for (const std::string& sha256 : at->second.pinned) artifacts_->Unpin(sha256);
  store_->FreeJob(job);  // what the last executor handed over between our order and its end
  janitor_.Do([folder = JobFolder(job), discard = std::move(at->second.discard)] {
    for (const storage::OutputSpec& output : discard) storage::DiscardOutput(output);
    std::error_code error;
    std::filesystem::remove_all(folder, error);
    if (error) LOG(WARNING) << "cannot remove " << folder << ": " << error.message();
  });
  jobs_.erase(at);
}

}  // namespace ropewalk::worker
