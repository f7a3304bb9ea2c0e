// The master in a process of its choosing: RunMaster() gives it the whole process, tests run several side by side.
//
//   daemon.cc            start, events → Step → journal → actions
//   worker_messages.cc   what workers say, and the orders to them
//   client_requests.cc   requests, long polls
//
// Thread rule: lives on one EventLoop and is used from its thread only; it must be destroyed before the loop.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/serial_worker.h"
#include "base/status.h"
#include "master/daemon/committer.h"
#include "master/daemon/files.h"
#include "master/daemon/job_logs.h"
#include "master/daemon/master.h"
#include "master/daemon/record_store.h"

#include "master/scheduler/scheduler.h"
#include "rpc/event_loop.h"
#include "rpc/server.h"
#include "storage/file_system.h"
#include "storage/metric_file.h"

namespace ropewalk::storage {
class ArtifactStore;
}
namespace ropewalk::wire {
class ClientRequest;
class ClientResponse;
class FromWorker;
class HaveArtifacts;
class JobQuery;
class Output;
class PutArtifact;
class ReadLog;
class Register;
class SubmitJob;
class ToWorker;
class ArtifactRequest;
class ExecutorExited;
class FromExecutorPayload;
class GangMetrics;
class Heartbeat;
class MetricsQuery;
}  // namespace ropewalk::wire

namespace ropewalk::master {

class Master final : public rpc::ServerHandler {
 public:
  // `failed` is called once when the master cannot go on (a decision could not be made durable): from then on it does nothing.
  static Result<std::unique_ptr<Master>> Start(rpc::EventLoop& loop, MasterOptions options, std::function<void(const Status&)> failed);
  ~Master() override;

  std::string address() const { return server_->address(); }
  std::uint64_t epoch() const { return epoch_; }
  rpc::Server::Stats stats() const { return server_->stats(); }

  void OnConnected(rpc::ConnectionId id, const rpc::Peer& peer) override;
  void OnFrame(rpc::ConnectionId id, rpc::Frame frame) override;
  void OnDisconnected(rpc::ConnectionId id, const Status& reason) override;

 private:
  struct Session {  // a registered worker
    rpc::ConnectionId connection = 0;
    WorkerId worker;
    std::string name, instance, data_address, limits;
    std::uint32_t slots = 0;
    std::uint64_t memory_bytes = 0, blocks_bytes = 0, spilled_bytes = 0, spilled_bytes_total = 0, executor_pss_bytes_max = 0,
                  lent_bytes = 0;
    std::set<JobId> jobs;  // that it was told the token of
    bool drains = false;
    std::int64_t heard_ms = 0;                   // its last heartbeat
    std::map<std::string, std::int64_t> claims;  // instances of other processes that ask for its name, and since when
  };
  struct Bucket {  // of requests that a principal may still make
    double left = 0;
    std::int64_t at_ms = 0;
  };
  struct ExecutorEntry {
    WorkerId worker;
    JobId job;
  };
  struct JobEntry {
    std::unique_ptr<JobLogs> logs;                 // null: their files cannot be used
    std::unique_ptr<storage::MetricFile> metrics;  // null: no rank has measured anything in this life of the master
    bool over = false;                             // FinishJob was carried out, or it was over when the master started
    bool ended = false;                            // and nothing more will be written
    bool driver_late = false;                      // the end does not wait for its process any more
    std::vector<std::string> pinned;               // artifacts, until it is over
    rpc::EventLoop::TimerId end_timer = 0;
    std::vector<JobLogs::Ack> held;  // of stdout, until more of it is on the disk
    bool syncing[4] = {};            // a sync of that stream is under way or queued
    std::uint64_t settled[4] = {};   // bytes of it that are on the disk
  };
  struct JobWaiter {
    rpc::ConnectionId connection = 0;
    std::uint64_t request = 0;
    std::uint64_t version = 0;
    std::int64_t not_before_ms = 0;  // changes within this time are told together
    rpc::EventLoop::TimerId deadline = 0;
    bool soon = false;  // `deadline` is now not_before_ms
    bool plans = false;
  };
  struct LogWaiter {
    rpc::ConnectionId connection = 0;
    std::uint64_t request = 0;
    LogStream stream = LogStream::kDriver;
    std::uint64_t offset = 0;
    rpc::EventLoop::TimerId deadline = 0;
  };
  struct Submitter {
    rpc::ConnectionId connection = 0;
    std::uint64_t request = 0;
  };
  struct ConnectionInfo {
    rpc::Peer peer;
    std::uint32_t waiting = 0;  // requests that are not answered yet
  };

  Master(rpc::EventLoop& loop, MasterOptions options, std::function<void(const Status&)> failed);
  Status Open();

  // daemon.cc
  void Step(const scheduler::Event& event);
  void Take(std::vector<scheduler::SchedulerAction> actions);
  void KeepOutputOf(JobId job);
  void Carry(const scheduler::AcceptJob& action);
  void Carry(const scheduler::RefuseJob& action);
  void Carry(const scheduler::StartExecutor& action);
  void Carry(const scheduler::StopExecutor& action);
  void Carry(const scheduler::NameDriver& action);
  void Carry(const scheduler::FreeSegments& action);
  void Carry(const scheduler::FinishJob& action);
  void Carry(const scheduler::SetTimer& action);
  void Carry(const scheduler::LogEvent& action);
  void Carry(const scheduler::JournalRecord&) {}  // made durable by Take()
  template <class Order>
  void Carry(const Order& order);  // what goes to an executor as it is: RunTask, CancelTask, Publish..., ComputeOnce
  void Failed(const Status& status);
  std::string JobToken(JobId job) const;
  std::uint32_t TotalSlots() const;
  std::uint64_t OperatorBytes() const;  // for a job that names none: what the smallest worker bears
  JobEntry& Job(JobId job);
  void PinArtifacts(JobId job);  // until it has finished
  std::string JobFolder(JobId job) const;
  std::string MetricsPath(JobId job) const { return JobFolder(job) + "/metrics"; }
  void RemoveOldFolders();
  void CheckEnded(JobId job);
  void EndLogs(JobId id, JobEntry& job);
  void SyncLog(JobId job, LogStream stream);
  void OnLogSynced(JobId job, LogStream stream, std::uint64_t bytes, const Status& status);

  // worker_messages.cc
  void OnWorkerFrame(rpc::ConnectionId id, const std::string& payload);
  void OnWorkerGone(rpc::ConnectionId id, const Status& reason);
  void OnHeartbeat(Session& session, const wire::Heartbeat& beat);
  void OnRegister(rpc::ConnectionId id, const wire::Register& message);
  void OnExecutorMessage(Session& session, const wire::FromExecutorPayload& message);
  Status OnGangMetrics(const Session& session, JobId job, const wire::GangMetrics& message);
  void OnExecutorExited(Session& session, const wire::ExecutorExited& message);
  void OnOutput(Session& session, const wire::Output& message);
  void OnOutputFailed(ExecutorId executor, const Status& status);
  void OnArtifactRequest(rpc::ConnectionId id, const wire::ArtifactRequest& message);
  void SendOrder(Session& session, wire::ToWorker* order);
  void Acknowledge(JobEntry& job, const std::vector<JobLogs::Ack>& acks);
  void SendAcks(const std::vector<JobLogs::Ack>& acks);
  void Allow(Session& session, JobId job);
  Session* FindWorker(WorkerId worker);
  void ForgetExecutor(ExecutorId executor);

  // client_requests.cc
  void OnClientFrame(rpc::ConnectionId id, const std::string& payload);
  void OnClientGone(rpc::ConnectionId id);
  bool MayAsk(const rpc::Peer& peer);  // takes one request from the principal's bucket
  void OnHaveArtifacts(rpc::ConnectionId id, std::uint64_t request, const wire::HaveArtifacts& body);
  void OnPutArtifact(rpc::ConnectionId id, std::uint64_t request, const wire::PutArtifact& body);
  void OnSubmitJob(rpc::ConnectionId id, std::uint64_t request, const wire::SubmitJob& body);
  void OnJobQuery(rpc::ConnectionId id, std::uint64_t request, const wire::JobQuery& body);
  void OnMetricsQuery(rpc::ConnectionId id, std::uint64_t request, const wire::MetricsQuery& body);
  void OnReadLog(rpc::ConnectionId id, std::uint64_t request, const wire::ReadLog& body);
  void OnListJobs(rpc::ConnectionId id, std::uint64_t request, std::uint32_t limit);
  void OnListWorkers(rpc::ConnectionId id, std::uint64_t request);
  void OnCancelJob(rpc::ConnectionId id, std::uint64_t request, JobId job);
  void Answer(rpc::ConnectionId id, std::uint64_t request, wire::ClientResponse* response);
  void AnswerFailure(rpc::ConnectionId id, std::uint64_t request, const Status& status);
  void AnswerJob(rpc::ConnectionId id, std::uint64_t request, JobId job, bool with_plans);
  bool AnswerLog(rpc::ConnectionId id, std::uint64_t request, JobId job, LogStream stream, std::uint64_t offset, bool now);
  void WakeJobWaiters();
  void WakeJobWaiters(JobId job);
  void WakeLogWaiters(JobId job, LogStream stream);
  void WaitEnds(rpc::ConnectionId id);

  rpc::EventLoop* loop_;
  MasterOptions options_;
  std::function<void(const Status&)> failed_;
  bool stopped_ = false;

  std::unique_ptr<FolderLock> lock_;
  std::unique_ptr<RecordStore> records_;
  std::unique_ptr<storage::ArtifactStore> artifacts_;
  std::string job_secret_;
  std::uint64_t epoch_ = 0;
  std::uint64_t worker_next_ = 1;
  scheduler::Scheduler scheduler_;

  std::map<rpc::ConnectionId, ConnectionInfo> connections_;
  std::map<rpc::ConnectionId, Session> sessions_;
  std::map<WorkerId, rpc::ConnectionId> workers_;
  std::map<ExecutorId, ExecutorEntry> executors_;
  std::map<JobId, JobEntry> jobs_;
  std::set<JobId> finishing_;  // the core has finished them, the journal not yet: nobody is told
  std::set<rpc::EventLoop::TimerId> timers_;
  std::uint32_t finished_since_cleanup_ = 0;
  std::map<std::string, std::vector<Submitter>> submitters_;  // by submit key
  std::map<JobId, std::vector<JobWaiter>> job_waiters_;
  std::map<JobId, std::vector<LogWaiter>> log_waiters_;
  std::map<std::string, Bucket> buckets_;  // by principal
  storage::LocalFileSystem files_;         // of metrics

  // Last, so that they stop first: their threads use what is above.
  std::unique_ptr<Committer> committer_;
  std::unique_ptr<SerialWorker> disk_;
  std::unique_ptr<SerialWorker> log_disk_;  // syncs what jobs print
  std::unique_ptr<rpc::Server> server_;
};

}  // namespace ropewalk::master
