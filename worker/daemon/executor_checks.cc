#include "worker/daemon/executor_checks.h"

#include "dag/wire/wire.h"
#include "proto/executor.pb.h"
#include "storage/metrics.h"
#include "worker/blocks/segment_format.h"

namespace ropewalk::worker {
namespace {

constexpr std::uint32_t kProtocol = 3;  // 2: an executor owes a word every second; 3: ranks tell what they measure
constexpr std::size_t kLineBytesMax = 200;
constexpr std::uint32_t kMetricsPerBeat = 4;  // of one rank; it says them once a second, and before its end
constexpr std::size_t kExchangeBytesMax = 64 << 10;

Status Wrong(std::string why) {
  return Status(Code::kInvalid, "WORKER20", "an executor said what it cannot say", std::move(why), "does user code write to descriptor 3?");
}

}  // namespace

Result<ExecutorChecks::Verdict> ExecutorChecks::OnMessage(const std::string& payload) {
  wire::FromExecutor message;
  if (!message.ParseFromString(payload)) return Wrong("a message that cannot be read");
  if (message.has_hello()) {
    if (welcomed_) return Wrong("hello twice");
    if (message.hello().protocol() != kProtocol)
      return Status(Code::kVersionSkew, "WORKER21", "an executor of protocol " + std::to_string(message.hello().protocol()),
                    "this worker speaks " + std::to_string(kProtocol), "link the job with this version of Ropewalk");
    welcomed_ = true;
    return Verdict::kHello;
  }
  if (!welcomed_) return Wrong("something before hello");

  // The attempt that a report ends.
  auto end = [this](const wire::TaskAttempt& reported, bool* verify) {
    auto at = tasks_.find(dag::FromWire(reported));
    if (at == tasks_.end()) return false;
    *verify = at->second;
    progress_.erase(at->first);
    ranks_.erase(at->first);
    metrics_said_.erase(at->first);
    tasks_.erase(at);
    return true;
  };
  bool verify = false;
  switch (message.body_case()) {
    case wire::FromExecutor::kTaskFinished: {
      const wire::TaskFinished& finished = message.task_finished();
      TaskAttempt id = dag::FromWire(finished.id());
      if (!end(finished.id(), &verify)) return Verdict::kDrop;
      dag::SegmentInfo info = dag::FromWire(finished.segment());
      if (finished.has_segment()) {
        auto held = store_->Find(job_, id, info.segment);
        if (!held || held->info != info) return Wrong("a segment of " + blocks::ToString(id) + " that it did not seal here");
      }
      // A verifying run is done for its hash. Any other attempt may have sealed more than it reports.
      store_->FreeAttempt(job_, id, finished.has_segment() && !verify ? info.segment : SegmentId{});
      return Verdict::kForward;
    }
    case wire::FromExecutor::kTaskFailed:
      if (!end(message.task_failed().id(), &verify)) return Verdict::kDrop;
      if (message.task_failed().failure().code() == 0) return Wrong("a failure without a reason");
      store_->FreeAttempt(job_, dag::FromWire(message.task_failed().id()));
      return Verdict::kForward;
    case wire::FromExecutor::kFetchFailed:
      if (!end(message.fetch_failed().id(), &verify)) return Verdict::kDrop;
      store_->FreeAttempt(job_, dag::FromWire(message.fetch_failed().id()));
      return Verdict::kForward;
    case wire::FromExecutor::kProgress: {
      TaskAttempt id = dag::FromWire(message.progress().id());
      const wire::TaskCounters& c = message.progress().counters();
      if (!knows(id)) return Verdict::kDrop;
      progress_[id] = {{c.records_in(), c.bytes_in(), c.records_out(), c.bytes_out(), c.bytes_spilled()},
                       message.progress().line().substr(0, kLineBytesMax),
                       message.progress().reached()};
      auto rank = ranks_.find(id);
      if (rank == ranks_.end() || message.progress().reached() <= rank->second) return Verdict::kDrop;
      rank->second = message.progress().reached();
      return Verdict::kForward;
    }
    case wire::FromExecutor::kGangMetrics: {
      const TaskAttempt id = dag::FromWire(message.gang_metrics().id());
      if (message.gang_metrics().metrics().size() > storage::kMetricsSaidMax) return Wrong("more metrics than a rank may say at once");
      return ranks_.contains(id) && ++metrics_said_[id] <= kMetricsPerBeat ? Verdict::kForward : Verdict::kDrop;
    }
    case wire::FromExecutor::kGangExchange:
      if (message.gang_exchange().value().size() > kExchangeBytesMax) return Wrong("an exchange that is larger than they may be");
      return knows(dag::FromWire(message.gang_exchange().id())) ? Verdict::kForward : Verdict::kDrop;
    case wire::FromExecutor::kAtAction:
      if (message.at_action().plan().sequence() <= last_action_) return Wrong("an action that is not after the one before");
      last_action_ = message.at_action().plan().sequence();
      return Verdict::kForward;
    case wire::FromExecutor::kAtOnce:
    case wire::FromExecutor::kOnceComputed:
      return Verdict::kForward;
    case wire::FromExecutor::kMainReturned:
      if (main_returned_) return Wrong("the end of main twice");
      main_returned_ = true;
      return Verdict::kForward;
    default:
      return Wrong("a message without content");
  }
}

Status ExecutorChecks::OnOrder(const std::string& payload) {
  wire::ToExecutor order;
  if (!order.ParseFromString(payload))
    return Status(Code::kInvalid, "WORKER22", "an order to an executor cannot be read", "it is damaged or of a newer version",
                  "upgrade this worker");
  if (order.has_run_task()) {
    tasks_[dag::FromWire(order.run_task().id())] = order.run_task().verify();
    if (order.run_task().has_gang()) ranks_.emplace(dag::FromWire(order.run_task().id()), 0);
  }
  return {};
}

void ExecutorChecks::FreeLeftovers() {
  for (const auto& [id, verify] : tasks_) store_->FreeAttempt(job_, id);
}

}  // namespace ropewalk::worker
