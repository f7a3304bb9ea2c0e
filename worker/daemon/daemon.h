// The worker's control thread: all its state, and what master, spawner, executors and the block store tell it.
//
//   daemon.cc       start, registration, heartbeats, orders of the master
//   executors.cc    the life of an executor: files, start, relay, end
//
// Thread rule: lives on one EventLoop and is used from its thread only.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/ids.h"
#include "base/serial_worker.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "dag/task.h"
#include "rpc/event_loop.h"
#include "storage/output_folder.h"
#include "worker/blocks/block_service.h"
#include "worker/blocks/block_store.h"
#include "worker/daemon/cgroup.h"
#include "worker/daemon/executor_checks.h"
#include "worker/daemon/janitor.h"
#include "worker/daemon/kill_reason.h"
#include "worker/daemon/link.h"
#include "worker/daemon/machine.h"
#include "worker/daemon/output_reader.h"
#include "worker/daemon/spawner.h"
#include "worker/daemon/worker.h"

namespace ropewalk::storage {
class ArtifactStore;
}
namespace ropewalk::wire {
class ArtifactChunk;
class FromWorker;
class ToWorker;
class StartExecutorOrder;
}  // namespace ropewalk::wire

namespace ropewalk::worker {

class Daemon {
 public:
  // `options` are complete (no "0: default" left); `spawner` was forked before any thread. `ended` is called once when the daemon cannot go
  // on.
  static Result<std::unique_ptr<Daemon>> Start(rpc::EventLoop& loop, WorkerOptions options, JobUser user, std::string token,
                                               std::unique_ptr<Spawner> spawner, std::function<void(const Status&)> ended);
  ~Daemon();  // ends all executors

  // Takes no new tasks, and calls `left` once nobody needs this worker any more, or when drain_ms_max are over.
  void Drain(std::function<void()> left);

 private:
  struct Executor {
    ExecutorId id;
    JobId job;
    std::unique_ptr<wire::StartExecutorOrder> order;
    std::string scratch;            // folder, removed at the end
    std::set<std::string> missing;  // artifacts that are still fetched; not started before it is empty
    bool spawned = false;           // asked of the spawner: an exit or a failure will be told
    pid_t pid = 0;
    std::unique_ptr<Link> link;
    std::unique_ptr<OutputReader> out, err;
    ExecutorChecks checks;
    UniqueFd cursors;                         // read with pread only: the executor could truncate it
    bool stop_ordered = false;                // by the master
    std::int64_t silent_ms = 0;               // counted in our heartbeats: if we did not run either, it proves nothing
    Status end_reason;                        // set where we ended it by ourselves
    std::uint64_t memory_bytes_max = 0;       // of its control group, or of its data segment
    RecentGrowth group_kills, machine_kills;  // for lack of memory
    bool process_gone = false, link_gone = false, out_gone = false, err_gone = false;
    SpawnEvent exit;
    Executor(ExecutorId id, JobId job, blocks::BlockStore* store);
    ~Executor();
  };
  struct Job {
    std::set<ExecutorId> executors;
    bool forgotten = false;
    std::vector<storage::OutputSpec> discard;  // when the last executor is gone: until then it may write there
    std::set<std::string> pinned;              // artifacts
  };

  Daemon(rpc::EventLoop& loop, WorkerOptions options, JobUser user, std::string token, std::unique_ptr<Spawner> spawner,
         std::function<void(const Status&)> ended);

  // ---- daemon.cc
  Status Open();
  void Connect();
  void OnConnected(Status status, std::unique_ptr<rpc::Channel> channel);
  void RegisterNow();
  void OnMasterGone(const Status& reason);
  void OnMasterFrame(const std::string& payload);
  void OnRegistered(const wire::ToWorker& message);
  void Beat();
  void EndSilentExecutors();
  void NoteMemoryKills();
  void CheckSilence();
  void Send(wire::FromWorker* message);
  void TellDrain();
  void LeaveIfUnneeded();
  void ForgetJob(JobId job, std::vector<storage::OutputSpec> discard);
  void DropJobIfOver(JobId job);
  std::string JobFolder(JobId job) const;
  std::string Limits() const;  // in words: what can be limited here

  // ---- executors.cc
  void StartExecutor(const wire::StartExecutorOrder& order);
  void RequestArtifact(const std::string& sha256);
  void OnArtifactChunk(const wire::ArtifactChunk& chunk);
  void OnArtifactStored(const std::string& sha256, const Result<bool>& complete);
  void AskAgain(const std::string& sha256);
  void ArtifactFailed(const std::string& sha256, const Status& status);
  Status Spawn(Executor& executor);
  Status SetLimits(Executor& executor, SpawnRequest* request);
  Result<std::vector<std::string>> PlaceFiles(Executor& executor, std::string* path);  // gives the environment
  void OnSpawnEvent(const SpawnEvent& event);
  void OnExecutorFrame(ExecutorId id, const std::string& payload);
  void OnOutput(ExecutorId id, bool is_stderr, std::uint64_t offset, std::string data);
  void StopExecutor(ExecutorId id, const std::string& reason, std::uint32_t grace_ms);
  void EndExecutor(Executor& executor, Status reason);  // by force, for a reason of ours
  KillEvidence EvidenceOf(const Executor& executor) const;
  void FinishIfGone(ExecutorId id);
  void Finish(ExecutorId id);
  Executor* Find(ExecutorId id);

  rpc::EventLoop& loop_;
  const WorkerOptions options_;
  const JobUser user_;
  const std::string token_;
  std::function<void(const Status&)> ended_;
  std::unique_ptr<Spawner> spawner_;
  std::unique_ptr<ExecutorGroups> groups_;
  std::string instance_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // of what other threads post; false from the destructor on

  std::unique_ptr<storage::ArtifactStore> artifacts_;
  std::unique_ptr<SerialWorker> disk_;  // where artifacts are written, hashed and synced
  std::unique_ptr<blocks::BlockStore> store_;
  std::unique_ptr<blocks::BlockService> service_;

  std::thread connector_;  // while it connects
  std::unique_ptr<Link> master_;
  bool registering_ = false;  // connected, waiting for the last executors of before to end
  std::int64_t pause_ms_ = 0;
  WorkerId worker_;  // of the registration in force; 0: none
  std::uint64_t epoch_ = 0;
  std::int64_t heartbeat_ms_ = 1'000, silence_ms_ = 10'000, heard_ms_ = 0;
  std::uint64_t output_window_bytes_ = 1u << 20, beats_ = 0, pss_bytes_max_ = 0;
  rpc::EventLoop::TimerId beat_timer_ = 0, silence_timer_ = 0, connect_timer_ = 0, drain_timer_ = 0;
  std::function<void()> left_;  // set while it drains
  Janitor janitor_;

  std::map<JobId, Job> jobs_;
  std::map<JobId, std::string> tokens_;
  std::map<ExecutorId, std::unique_ptr<Executor>> executors_;
  std::set<std::string> fetching_;  // artifacts
};

}  // namespace ropewalk::worker
