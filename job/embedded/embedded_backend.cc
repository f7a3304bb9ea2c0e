#include "job/embedded/embedded_backend.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <tuple>
#include <utility>

#include "base/huge_pages.h"
#include "base/monotonic.h"
#include "job/gang_ranks.h"
#include "job/once.h"
#include "job/progress.h"
#include "job/replica_state.h"
#include "job/task_stdout.h"
#include "master/scheduler/scheduler.h"
#include "storage/metric_file.h"
#include "storage/output_folder.h"
#include "worker/blocks/block_store.h"
#include "worker/blocks/local_memory.h"
#include "worker/task/task_runner.h"

namespace ropewalk::job {
namespace {

constexpr WorkerId kWorker{1};
constexpr int kProgressMs = 100, kLinesMs = 1'000, kMetricsMs = 1'000;
constexpr std::uint64_t kPagesMin = 32ull << 20;
constexpr scheduler::TimeMs kRankEndMs = 30'000;  // of a lost gang: nothing can stop one but itself, so it may finish a long step
constexpr std::uint32_t kRanksMax = 64;           // threads that share this machine's processors: to try out what a cluster will run
constexpr int kCancelMs = 10'000;                 // a task looks once a batch; one that does not is the user's endless loop

scheduler::Options CoreOptions() {
  scheduler::Options options;
  options.outputs_durable = true;  // nothing of one process is lost unless all of it is
  options.gang_slots_min = kRanksMax;
  options.gang_end_ms = kRankEndMs;
  return options;
}

}  // namespace

struct EmbeddedBackend::Impl final : task::TaskListener {
  EmbeddedOptions options;
  std::unique_ptr<blocks::BlockStore> store;
  std::unique_ptr<dag::SpillSpace> spill;
  std::unique_ptr<blocks::LocalMemory> memory;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> event_log{nullptr, std::fclose};

  storage::LocalFileSystem files;
  std::mutex metrics_mutex;                      // guards the next two
  std::unique_ptr<storage::MetricFile> metrics;  // null: none are kept
  bool metrics_failed = false;                   // that was said

  std::mutex mutex;                     // guards everything down to `ended`
  std::condition_variable changed;      // main waits here
  std::deque<scheduler::Event> events;  // at most one for each running task and call of main
  bool stepping = false;                // whoever set it owns `core` and carries out its actions
  scheduler::Scheduler core{CoreOptions()};
  ExecutorId executor;
  std::map<std::uint64_t, ActionState> actions;
  Programs programs;
  std::map<std::string, OnceState> once;
  std::map<std::uint64_t, storage::OutputSpec> outputs;  // of actions that have not ended well, by sequence
  std::multimap<scheduler::TimeMs, std::uint64_t> timers;
  scheduler::TimeMs tell_progress_at = 0, keep_metrics_at = 0;
  std::optional<Status> ended;  // the job's end; every wait returns it
  ProgressLines lines{"ropewalk: "};
  scheduler::TimeMs lines_at = 0;  // when they are asked next: over all actions, since many short ones are a long job too
  GangRanks ranks{[this](const TaskAttempt& id, std::uint32_t epoch, std::uint64_t round, std::string bytes) {
    Post(scheduler::GangExchanged{executor, options.settings.job, id, epoch, round, std::move(bytes)});
  }};
  std::unique_ptr<task::TaskRunner> runner;  // last: its threads use all of the above

  // ---- events in ----------------------------------------------------------------------------------------------------------------

  void Post(scheduler::Event event) {
    std::unique_lock lock(mutex);
    events.push_back(std::move(event));
    if (stepping) return;
    stepping = true;
    while (!events.empty()) {
      scheduler::Event next = std::move(events.front());
      events.pop_front();
      lock.unlock();
      for (scheduler::SchedulerAction& action : core.Step(MonotonicMs(), next)) std::visit([this](auto& a) { Do(a); }, action);
      lock.lock();
    }
    stepping = false;
  }

  // How often a gang may fail is counted since it got farther: said before each end of a rank, also a good one, for another may fail later.
  // Progress is told for the bar only, if there is one.
  void TellReached(const TaskAttempt& id) {
    if (const std::uint64_t reached = ranks.SaidBy(id).reached; reached > 0)
      Post(scheduler::TasksProgressed{executor, {{id, {}, {}, reached}}});
  }
  // Into the file and the event log; the core does not hear of them.
  void KeepMetricsOf(const TaskAttempt& id) {
    std::lock_guard lock(metrics_mutex);  // also of the taking: what was measured later would be kept earlier, and be lost by it
    const storage::Metrics taken = ranks.TakeMetrics(id);
    if (taken.empty()) return;
    for (const storage::MetricNotice& notice : taken.notices) {
      scheduler::LogEvent line{options.settings.job, "gang_notice", storage::EventOf(notice, MonotonicMs())};
      Do(line);
    }
    if (metrics == nullptr) return;
    if (const Status status = metrics->Add(taken); !status.ok() && !std::exchange(metrics_failed, true))
      std::fprintf(stderr, "ropewalk: %s\n", status.ToString().c_str());
  }
  void KeepMetrics() {
    for (const auto& [id, counters] : runner->RunningTasks()) KeepMetricsOf(id);
  }
  void OnFinished(const TaskAttempt& id, dag::TaskResult result, const task::TaskCounters& c) override {
    KeepMetricsOf(id);
    TellReached(id);
    scheduler::TaskCounters counters{c.records_in, c.bytes_in, c.records_out, c.bytes_out, c.bytes_spilled};
    Post(scheduler::TaskFinished{executor, options.settings.job, id, std::move(result), counters});
  }
  void OnFailed(const TaskAttempt& id, Status status, task::TaskPlace place) override {
    KeepMetricsOf(id);
    TellReached(id);
    Post(scheduler::TaskFailed{executor, options.settings.job, id, std::move(status), place.split, place.offset, std::move(place.source)});
  }
  void OnFetchFailed(const TaskAttempt& id, dag::SegmentRef lost, Status status) override {
    TellReached(id);
    Post(scheduler::FetchFailed{executor, options.settings.job, id, std::move(lost), std::move(status)});
  }

  // ---- actions out --------------------------------------------------------------------------------------------------------------

  void Do(scheduler::JournalRecord&) {}  // see the header
  void Do(scheduler::AcceptJob& a) { options.settings.job = a.job; }
  void Do(scheduler::RefuseJob& a) { End(a.status); }
  void Do(scheduler::StartExecutor& a) {
    executor = a.executor;
    Post(scheduler::ExecutorReady{a.executor});
  }
  void Do(scheduler::StopExecutor&) {}  // it ends with this process
  void Do(scheduler::NameDriver&) {}    // there is one

  void Do(scheduler::RunTask& a) {
    task::TaskOrder order;
    order.id = a.id;
    order.inputs = std::move(a.inputs);
    order.precise_cursor = a.retry;
    if (a.gang) order.gang = ranks.Add(a.id, *std::move(a.gang));
    bool known = false;
    {
      std::lock_guard lock(mutex);
      known = actions.contains(a.sequence) && programs.Fill(&order);
    }
    if (known) {
      runner->Run(std::move(order));
    } else {
      OnFailed(a.id, Status(Code::kInternal, "EMB02", "a task was ordered of an action that is over"), {.split = a.id.task});
    }
  }
  void Do(scheduler::CancelTask& a) { runner->Cancel(a.id); }
  void Do(scheduler::EndRank& a) {
    ranks.Lose(a.id, a.status);
    runner->Cancel(a.id);
  }
  void Do(scheduler::GangGathered& a) { ranks.Gathered(a.stage, a.epoch, a.round, std::move(a.values)); }

  void Do(scheduler::PublishAction& a) {
    std::lock_guard lock(mutex);
    auto state = actions.find(a.sequence);
    if (state == actions.end()) return;
    state->second.answered = true;
    state->second.status = std::move(a.status);
    state->second.values = std::move(a.values);
    state->second.cut = std::move(a.cut);
    changed.notify_all();
  }
  void Do(scheduler::ComputeOnce& a) {
    std::lock_guard lock(mutex);
    auto state = once.find(a.name);
    if (state == once.end()) return;
    state->second.compute = true;
    changed.notify_all();
  }
  void Do(scheduler::PublishOnce& a) {
    std::lock_guard lock(mutex);
    auto state = once.find(a.name);
    if (state == once.end()) return;
    state->second.answered = true;
    state->second.status = std::move(a.status);
    state->second.value = std::move(a.value);
    changed.notify_all();
  }
  void Do(scheduler::FreeSegments& a) {
    // Freeing fails only for what is gone already; with `whole_job` the store ends with this process.
    [[maybe_unused]] Status status = store->Free(a.segments);
  }
  void Do(scheduler::FinishJob& a) { End(a.status); }
  void Do(scheduler::SetTimer& a) {
    std::lock_guard lock(mutex);
    timers.emplace(a.at, a.timer);
    changed.notify_all();
  }
  void Do(scheduler::LogEvent& a) {
    if (event_log == nullptr) return;
    const std::string line = a.json + '\n';  // in one call: notices come from other threads
    std::fwrite(line.data(), 1, line.size(), event_log.get());
    std::fflush(event_log.get());
  }

  void End(Status status) {
    std::lock_guard lock(mutex);
    if (!ended) ended = std::move(status);
    changed.notify_all();
  }

  // ---- main waits ---------------------------------------------------------------------------------------------------------------

  // Returns, with `lock` held, when `ready()`. Timers fire from here: the core delays retries and restarts with them, and a main that
  // does not wait for an action does not need these yet.
  template <class Ready>
  void WaitUntil(std::unique_lock<std::mutex>& lock, Ready ready) {
    ProgressLine line;
    const int every_ms = line.enabled() ? kProgressMs : kLinesMs;
    scheduler::TimeMs line_at = MonotonicMs();
    scheduler::TimeMs& show_at = line.enabled() ? line_at : lines_at;
    while (!ready()) {
      std::optional<scheduler::TimeMs> wake_at;
      if (!timers.empty()) wake_at = timers.begin()->first;
      if (options.show_progress) {
        if (MonotonicMs() >= show_at) {
          TellProgress(lock);
          if (ready()) return;
          if (!stepping) line.enabled() ? line.Show(Picture()) : lines.Show(Picture());
          show_at = MonotonicMs() + (stepping ? kProgressMs : every_ms);
        }
        wake_at = wake_at ? std::min(*wake_at, show_at) : show_at;
      }
      if (metrics != nullptr || event_log != nullptr) {
        if (MonotonicMs() >= keep_metrics_at) {
          keep_metrics_at = MonotonicMs() + kMetricsMs;
          lock.unlock();
          KeepMetrics();
          lock.lock();
          if (ready()) return;
        }
        wake_at = std::min(wake_at.value_or(keep_metrics_at), keep_metrics_at);
      }
      if (!wake_at) {
        changed.wait(lock);
        continue;
      }
      changed.wait_for(lock, std::chrono::milliseconds(std::max<scheduler::TimeMs>(0, *wake_at - MonotonicMs())));
      while (!timers.empty() && timers.begin()->first <= MonotonicMs()) {
        std::uint64_t timer = timers.begin()->second;
        timers.erase(timers.begin());
        lock.unlock();
        Post(scheduler::TimerFired{timer});
        lock.lock();
      }
    }
  }

  // How far running tasks are, for the bar.
  void TellProgress(std::unique_lock<std::mutex>& lock) {
    if (MonotonicMs() < tell_progress_at) return;
    tell_progress_at = MonotonicMs() + kProgressMs;
    scheduler::TasksProgressed progress{executor, {}};
    for (const auto& [id, c] : runner->RunningTasks()) {
      GangRanks::Said said = ranks.SaidBy(id);
      progress.tasks.push_back(
          {id, {c.records_in, c.bytes_in, c.records_out, c.bytes_out, c.bytes_spilled}, std::move(said.line), said.reached});
    }
    if (progress.tasks.empty()) return;
    lock.unlock();
    Post(std::move(progress));
    lock.lock();
  }

  // With the mutex held and nobody stepping, the core may be read.
  ProgressState Picture() const {
    ProgressState state;
    std::optional<scheduler::JobView> view = core.Job(options.settings.job);
    if (!view) return state;
    state.name = view->action_name;
    state.note = view->note;
    for (const scheduler::StageView& stage : view->stages) {
      state.tasks += stage.tasks;
      state.done += stage.done;
      state.running += stage.running;
      state.running_permille += stage.running_permille;
    }
    state.bytes_in = runner->Totals().bytes_in;
    return state;
  }
};

namespace {

// The status that a main gets whose job is over while it waits for something that was never answered.
Status EndedStatus(const Status& ended) {
  return ended.ok() ? Status(Code::kInternal, "EMB01", "the job ended before its action did") : ended;
}

}  // namespace

class EmbeddedBackend::Pending final : public dag::PendingAction {
 public:
  Pending(Impl* impl, std::uint64_t sequence, std::unique_ptr<TaskStdout> of_tasks)
      : impl_(impl), sequence_(sequence), of_tasks_(std::move(of_tasks)) {}

  Result<std::vector<std::string>> Wait() override {
    if (of_tasks_ == nullptr) of_tasks_ = std::make_unique<TaskStdout>();
    const std::unique_ptr<TaskStdout> of_tasks = std::move(of_tasks_);  // until main goes on
    std::unique_lock lock(impl_->mutex);
    auto state = impl_->actions.find(sequence_);
    if (state == impl_->actions.end()) return Status(Code::kInternal, "EMB03", "an action was waited for twice");
    impl_->WaitUntil(lock, [&] { return state->second.answered || impl_->ended.has_value(); });
    if (!state->second.answered) state->second.status = EndedStatus(*impl_->ended);
    auto node = impl_->actions.extract(state);
    if (node.mapped().status.ok()) impl_->outputs.erase(sequence_);
    impl_->programs.EndAction(sequence_);
    cut_ = std::move(node.mapped().cut);
    for (StageId stage : cut_) impl_->programs.Free(stage);  // it is computed, and nothing is lost in one process
    lock.unlock();                                           // copying the values takes no lock along
    // What a failed action leaves is cleaned up by main next: no task may still be writing then.
    if (!node.mapped().status.ok()) impl_->runner->CancelAllAndWait(kCancelMs);
    return node.mapped().TakeAnswer();
  }
  std::vector<StageId> cut() const override { return cut_; }

 private:
  Impl* impl_;
  std::uint64_t sequence_;
  std::unique_ptr<TaskStdout> of_tasks_;
  std::vector<StageId> cut_;
};

EmbeddedBackend::EmbeddedBackend(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

EmbeddedBackend::~EmbeddedBackend() {
  impl_->ranks.LoseAll(Status(Code::kCancelled, "JOB05", "the process ends", "main is over"));
  // Joined before anything that tasks use is gone.
  impl_->runner.reset();
}

Result<std::unique_ptr<EmbeddedBackend>> EmbeddedBackend::Start(EmbeddedOptions options) {
  auto impl = std::make_unique<Impl>();
  impl->options = std::move(options);
  dag::Settings& settings = impl->options.settings;
  settings.job = JobId{};   // the core gives it
  settings.verify = false;  // a second executor would be the same process
  if (!impl->options.event_log_path.empty()) {
    impl->event_log.reset(std::fopen(impl->options.event_log_path.c_str(), "ae"));
    if (impl->event_log == nullptr) {
      return Status(Code::kInvalid, "CFG03", "cannot write the event log " + impl->options.event_log_path, std::strerror(errno),
                    "mend ROPEWALK_EVENT_LOG");
    }
  }
  if (!impl->options.metrics_path.empty()) {
    ASSIGN_OR_RETURN(impl->metrics, storage::MetricFile::Open(impl->files, impl->options.metrics_path));
  }
  blocks::StoreOptions store_options;
  store_options.memory_bytes_max = impl->options.memory_bytes_max;
  store_options.spill_dir = impl->options.spill_dir;
  ASSIGN_OR_RETURN(impl->store, blocks::BlockStore::Open(store_options));
  impl->spill = blocks::NewSpillSpace(impl->options.spill_dir);
  impl->memory = std::make_unique<blocks::LocalMemory>(*impl->store);
  // What rests is used again by segments and tasks alike, so it may fill what the budget leaves and no more.
  ProcessPages().Limit(std::max(impl->options.memory_bytes_max, kPagesMin));

  Impl& i = *impl;
  std::unique_ptr<EmbeddedBackend> backend(new EmbeddedBackend(std::move(impl)));
  i.Post(scheduler::WorkerRegistered{kWorker, "embedded", "", settings.slots, {}});
  scheduler::JobSpec spec;
  spec.settings = settings;
  spec.executors_max = 1;
  i.Post(scheduler::JobSubmitted{std::move(spec)});
  if (i.ended) return *i.ended;

  task::RunnerOptions runner;
  runner.slots = settings.slots;
  runner.settings = &settings;
  runner.blocks = i.store.get();
  runner.segments = i.store.get();
  runner.spill = i.spill.get();
  runner.listener = &i;
  runner.memory = i.memory.get();
  i.runner = std::make_unique<task::TaskRunner>(runner);
  return backend;
}

const dag::Settings& EmbeddedBackend::settings() const { return impl_->options.settings; }

std::unique_ptr<dag::PendingAction> EmbeddedBackend::Submit(dag::Action action) {
  std::unique_ptr<TaskStdout> of_tasks = MakeTaskStdout(action.plan);  // before the first task runs
  std::uint64_t sequence = action.plan.sequence;
  {
    std::lock_guard lock(impl_->mutex);
    impl_->actions[sequence];
    impl_->programs.Add(&action, impl_->options.settings);
    if (action.plan.output) impl_->outputs[sequence] = {action.plan.output->folder, action.plan.output->key};
  }
  impl_->Post(scheduler::ExecutorAtAction{impl_->executor, std::move(action.plan)});
  return std::make_unique<Pending>(impl_.get(), sequence, std::move(of_tasks));
}

Result<std::string> EmbeddedBackend::Once(const std::string& name, const std::function<Result<std::string>()>& compute) {
  {
    std::lock_guard lock(impl_->mutex);
    impl_->once[name] = OnceState{};
  }
  impl_->Post(scheduler::ExecutorAtOnce{impl_->executor, name});
  std::unique_lock lock(impl_->mutex);
  OnceState& state = impl_->once[name];
  impl_->WaitUntil(lock, [&] { return state.compute || state.answered || impl_->ended.has_value(); });
  if (state.compute && !state.answered && !impl_->ended) {
    lock.unlock();
    Result<std::string> value = ComputeOnceValue(name, compute);
    impl_->Post(value.ok() ? scheduler::OnceComputed{impl_->executor, name, *value, Status()}
                           : scheduler::OnceComputed{impl_->executor, name, "", value.status()});
    lock.lock();
    impl_->WaitUntil(lock, [&] { return state.answered || impl_->ended.has_value(); });
  }
  Status status = state.answered ? state.status : EndedStatus(*impl_->ended);
  std::string value = std::move(state.value);
  impl_->once.erase(name);
  if (!status.ok()) return status;
  return value;
}

void EmbeddedBackend::MainReturned(int exit_code) {
  impl_->Post(scheduler::MainReturned{impl_->executor, exit_code});
  const blocks::StoreStats stats = impl_->store->stats();
  scheduler::LogEvent line{impl_->options.settings.job, "memory",
                           "{\"event\":\"memory\",\"spilled_bytes\":" + std::to_string(spilled_bytes()) +
                               ",\"budget_bytes\":" + std::to_string(impl_->options.memory_bytes_max) +
                               ",\"peak_bytes\":" + std::to_string(stats.memory_bytes_peak) +
                               ",\"lent_beyond\":" + std::to_string(stats.lent_beyond_total) + "}"};
  impl_->Do(line);
}

bool EmbeddedBackend::Interrupt(std::size_t* running) {
  bool waited_for = false;
  {
    std::lock_guard lock(impl_->mutex);
    waited_for = !impl_->actions.empty();
  }
  *running = impl_->runner->RunningTasks().size();
  impl_->Post(scheduler::JobCancelled{impl_->options.settings.job, "interrupted"});
  return waited_for;
}

void EmbeddedBackend::AbandonOutputs() {
  std::map<std::uint64_t, storage::OutputSpec> outputs;
  {
    std::lock_guard lock(impl_->mutex);
    outputs = impl_->outputs;
  }
  for (const auto& [sequence, spec] : outputs) storage::AbandonOutput(spec);
}

std::uint64_t EmbeddedBackend::spilled_bytes() const {
  return impl_->store->stats().spilled_bytes_total + impl_->runner->Totals().bytes_spilled;
}

}  // namespace ropewalk::job
