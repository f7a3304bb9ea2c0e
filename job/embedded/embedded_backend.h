// A whole cluster in one process: the same scheduler core and task runner as on many machines, one worker, one executor, main's thread as
// the driver. No daemon, no port, no config.
//
//   main's thread  Submit / Once / Wait ─┐                      ┌─▶ TaskRunner (slots threads) ─┐
//                                        ├─▶ Post(event) ─▶ Step ─▶ actions                     │
//   task threads   TaskListener ─────────┘      ▲               └─▶ results to main             │
//                                               └───────────────────────────────────────────────┘
//
// Events from all threads go through Post(): whoever finds nobody stepping steps for all, so the core stays single-threaded without a
// thread of its own, and an empty action costs two wake-ups.
//
// Journal records are dropped: a journal serves the restart of a master whose executors live on, and here they end together.
//
// Thread rule: Backend methods from main's thread; Interrupt() and spilled_bytes() from any.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/status.h"
#include "dag/backend.h"

namespace ropewalk::job {

struct EmbeddedOptions {
  dag::Settings settings;                       // complete: job id, slots, seed, time, folder
  std::uint64_t memory_bytes_max = 1ull << 30;  // of segments and running tasks together; segments beyond it spill
  std::string spill_dir;                        // made 0700 when first needed by the block store
  std::string event_log_path;                   // empty: none. One JSON object a line
  std::string metrics_path;                     // empty: none. What ranks measure (storage/metric_file.h)
  bool show_progress = false;                   // on stderr while main waits
};

class EmbeddedBackend final : public dag::Backend {
 public:
  static Result<std::unique_ptr<EmbeddedBackend>> Start(EmbeddedOptions options);
  // Cancels what still runs and waits for it.
  ~EmbeddedBackend() override;

  const dag::Settings& settings() const override;
  std::unique_ptr<dag::PendingAction> Submit(dag::Action action) override;
  Result<std::string> Once(const std::string& name, const std::function<Result<std::string>()>& compute) override;
  bool in_one_process() const override { return true; }

  // Tells the core that main is over, so that the event log has an end.
  void MainReturned(int exit_code);
  // Cancels the job: a waiting main gets kCancelled. `running`: how many tasks have to end before it goes on. False when no action is in
  // progress, so that main will not see it.
  bool Interrupt(std::size_t* running);
  // Removes what unfinished actions have written so far, while their tasks may still run. The process must end right after it.
  void AbandonOutputs();
  // Bytes that went to disk so far, of segments and of operators.
  std::uint64_t spilled_bytes() const;

 private:
  struct Impl;
  class Pending;
  explicit EmbeddedBackend(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace ropewalk::job
