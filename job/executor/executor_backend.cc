#include "job/executor/executor_backend.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <tuple>
#include <utility>

#include "dag/failure_tags.h"
#include "dag/operator_memory.h"
#include "dag/wire/wire.h"
#include "job/gang_ranks.h"
#include "job/once.h"
#include "job/replica_state.h"
#include "job/task_stdout.h"
#include "proto/executor.pb.h"
#include "rpc/channel.h"
#include "worker/blocks/block_service.h"
#include "worker/task/copy_segment.h"
#include "worker/task/crash.h"
#include "worker/task/task_runner.h"

namespace ropewalk::job {
namespace {

constexpr int kWelcomeMs = 30'000;
constexpr std::uint32_t kProtocol = 3;  // 2: an executor owes a word every second; 3: ranks tell what they measure
constexpr auto kProgressEvery = std::chrono::seconds(1);
constexpr int kExitOrphaned = 5;  // seen by nobody but a process list: the daemon is gone

// Maps the daemon's file of record cursors; it has to hold one for each slot.
Result<dag::RecordCursor*> MapCursors(const std::string& path, std::uint32_t slots) {
  auto refuse = [&](const char* why) { return Status(Code::kInternal, "EXE02", "cannot map the record cursors " + path, why); };
  int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return refuse(std::strerror(errno));
  struct stat info = {};
  std::size_t bytes = slots * sizeof(dag::RecordCursor);
  if (fstat(fd, &info) != 0 || static_cast<std::size_t>(info.st_size) < bytes) {
    close(fd);
    return refuse("the file is too short");
  }
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  int error = errno;
  close(fd);
  if (memory == MAP_FAILED) return refuse(std::strerror(error));
  return static_cast<dag::RecordCursor*>(memory);
}

}  // namespace

struct ExecutorBackend::Impl final : task::TaskListener {
  explicit Impl(int fd) : channel(fd), socket_fd(fd) { socket_known = fstat(fd, &socket) == 0; }

  rpc::Channel channel;
  const int socket_fd;
  struct stat socket = {};
  bool socket_known = false;
  dag::Settings settings;
  std::unique_ptr<blocks::RemoteBlocks> blocks;
  std::unique_ptr<dag::SpillSpace> spill;
  GangRanks ranks{[this](const TaskAttempt& id, std::uint32_t epoch, std::uint64_t round, std::string bytes) {
                    wire::FromExecutor message;
                    wire::GangExchange* exchange = message.mutable_gang_exchange();
                    dag::ToWire(id, exchange->mutable_id());
                    exchange->set_epoch(epoch);
                    exchange->set_round(round);
                    exchange->set_value(std::move(bytes));
                    Send(message);
                  },
                  [this](const TaskAttempt& id) { TellReached(id); }};
  std::unique_ptr<task::TaskRunner> runner;

  std::mutex metrics_mutex;  // of who tells what a rank measured: once a second, and at its end
  mutable std::mutex mutex;  // guards everything down to `main_exit`
  std::condition_variable changed;
  std::map<std::uint64_t, ActionState> actions;
  Programs programs;
  std::map<std::string, OnceState> once;
  bool failed = false;
  bool main_over = false;
  int main_exit = 0;
  std::thread reader;

  // ---- out ------------------------------------------------------------------------------------------------------------------------

  void Send(const wire::FromExecutor& message) {
    EndIfSocketIsClosed();  // first: its number may be a file of the job's by now
    // A broken socket ends the process from the reader's side.
    [[maybe_unused]] Status status = channel.Send(rpc::FrameKind::kMessage, message.SerializeAsString());
  }

  // A job whose code closes all descriptors (closefrom) closes our socket too. A reader that waits keeps it open in the kernel, so the
  // worker would not notice, and would be told nothing any more.
  void EndIfSocketIsClosed() const {
    struct stat now = {};
    if (!socket_known || (fstat(socket_fd, &now) == 0 && now.st_dev == socket.st_dev && now.st_ino == socket.st_ino)) return;
    _exit(dag::kExitSocketClosed);
  }

  static void ToWire(const task::TaskCounters& c, wire::TaskCounters* counters) {
    counters->set_records_in(c.records_in);
    counters->set_bytes_in(c.bytes_in);
    counters->set_records_out(c.records_out);
    counters->set_bytes_out(c.bytes_out);
    counters->set_bytes_spilled(c.bytes_spilled);
  }

  void TellProgressOf(const TaskAttempt& id, const task::TaskCounters& counters, const GangRanks::Said& said) {
    wire::FromExecutor message;
    dag::ToWire(id, message.mutable_progress()->mutable_id());
    ToWire(counters, message.mutable_progress()->mutable_counters());
    message.mutable_progress()->set_line(said.line);
    message.mutable_progress()->set_reached(said.reached);
    Send(message);
  }

  void TellMetrics(const TaskAttempt& id) {
    std::lock_guard lock(metrics_mutex);  // also of the taking: what was measured later would be told earlier, and be lost by it
    const storage::Metrics metrics = ranks.TakeMetrics(id);
    if (metrics.empty()) return;
    wire::FromExecutor message;
    dag::ToWire(id, message.mutable_gang_metrics()->mutable_id());
    message.mutable_gang_metrics()->set_metrics(Encode(metrics));
    Send(message);
  }

  // What a rank has got to decides how often its gang may still fail, so it is told before the end of the rank, also a good one: another
  // rank may fail later.
  void TellReached(const TaskAttempt& id) {
    const GangRanks::Said said = ranks.SaidBy(id);
    if (said.reached == 0) return;
    task::TaskCounters so_far;
    for (const auto& [running, counters] : runner->RunningTasks())
      if (running == id) so_far = counters;
    TellProgressOf(id, so_far, said);
  }

  void OnFinished(const TaskAttempt& id, dag::TaskResult result, const task::TaskCounters& c) override {
    TellMetrics(id);
    TellReached(id);
    wire::FromExecutor message;
    wire::TaskFinished* finished = message.mutable_task_finished();
    dag::ToWire(id, finished->mutable_id());
    finished->set_value(std::move(result.value));
    if (result.segment) dag::ToWire(*result.segment, finished->mutable_segment());
    finished->set_content_hash(result.content_hash);
    ToWire(c, finished->mutable_counters());
    Send(message);
  }
  void OnFailed(const TaskAttempt& id, Status status, task::TaskPlace place) override {
    TellMetrics(id);
    TellReached(id);
    wire::FromExecutor message;
    wire::TaskFailed* task_failed = message.mutable_task_failed();
    dag::ToWire(id, task_failed->mutable_id());
    dag::ToWire(status, task_failed->mutable_failure());
    task_failed->set_cursor_split(place.split);
    task_failed->set_cursor_offset(place.offset);
    task_failed->set_source(std::move(place.source));
    Send(message);
  }
  void OnFetchFailed(const TaskAttempt& id, dag::SegmentRef lost, Status status) override {
    TellMetrics(id);
    TellReached(id);
    wire::FromExecutor message;
    wire::FetchFailed* fetch = message.mutable_fetch_failed();
    dag::ToWire(id, fetch->mutable_id());
    dag::ToWire(lost, fetch->mutable_lost());
    dag::ToWire(status, fetch->mutable_failure());
    Send(message);
  }

  // Main waits for a value, at most until `end`.
  Result<std::string> Once(const std::string& name, const std::function<Result<std::string>()>& compute,
                           std::optional<std::chrono::steady_clock::time_point> end);

  // Tells, once a second, how far each running task is, where that has changed; of ranks always. Where there is nothing to tell it says
  // just that: an executor that falls silent is ended. The worker passes on what it is told with its heartbeat.
  [[noreturn]] void TellProgress() {
    using Said = std::pair<task::TaskCounters, GangRanks::Said>;
    std::map<TaskAttempt, Said> told;
    for (;;) {
      std::this_thread::sleep_for(kProgressEvery);
      EndIfSocketIsClosed();
      bool silent = true;
      std::map<TaskAttempt, Said> now;
      for (const auto& [id, counters] : runner->RunningTasks()) {
        const auto& said = now.emplace(id, Said(counters, ranks.SaidBy(id))).first->second;
        auto before = told.find(id);
        if (before != told.end() && before->second == said && !ranks.Has(id)) continue;
        TellProgressOf(id, counters, said.second);
        TellMetrics(id);
        silent = false;
      }
      told = std::move(now);
      if (!silent) continue;
      wire::FromExecutor beat;  // of no task: the worker drops it, and knows that this process runs
      beat.mutable_progress();
      Send(beat);
    }
  }

  // ---- in -------------------------------------------------------------------------------------------------------------------------

  [[noreturn]] void Read() {
    for (;;) {
      Result<rpc::Frame> frame = channel.Receive(-1);
      EndIfSocketIsClosed();
      if (!frame.ok()) _exit(kExitOrphaned);
      wire::ToExecutor message;
      if (!message.ParseFromString(frame->payload)) _exit(kExitOrphaned);
      Handle(message);
    }
  }

  void Handle(wire::ToExecutor& message) {
    switch (message.body_case()) {
      case wire::ToExecutor::kRunTask:
        RunTask(message.run_task());
        break;
      case wire::ToExecutor::kCancelTask:
        runner->Cancel(dag::FromWire(message.cancel_task().id()));
        break;
      case wire::ToExecutor::kEndRank:
        ranks.Lose(dag::FromWire(message.end_rank().id()), dag::FromWire(message.end_rank().failure()));
        runner->Cancel(dag::FromWire(message.end_rank().id()));
        break;
      case wire::ToExecutor::kGangGathered:
        GangGathered(message.mutable_gang_gathered());
        break;
      case wire::ToExecutor::kPublishAction:
        PublishAction(message.mutable_publish_action());
        break;
      case wire::ToExecutor::kPublishOnce:
        PublishOnce(message.mutable_publish_once());
        break;
      case wire::ToExecutor::kComputeOnce:
        ComputeOnce(message.compute_once().name());
        break;
      case wire::ToExecutor::kStop:
        Stop();
      default:
        break;  // becoming the driver changes nothing here: Once values are asked for one by one, and the daemon captures output
    }
  }

  void RunTask(const wire::RunTask& ordered) {
    task::TaskOrder order;
    order.id = dag::FromWire(ordered.id());
    order.precise_cursor = ordered.retry();
    if (ordered.has_gang()) {
      const wire::GangPlace& place = ordered.gang();
      order.gang = ranks.Add(order.id, {place.rank(), place.ranks(), place.epoch(), place.machine(), place.address()});
    }
    for (const wire::TaskInput& input : ordered.inputs()) {
      Result<dag::TaskInput> parsed = dag::FromWire(input);
      if (!parsed.ok()) {
        OnFailed(order.id, parsed.status(), {.split = order.id.task});
        return;
      }
      order.inputs.push_back(*std::move(parsed));
    }
    bool known = false;
    {
      std::lock_guard lock(mutex);
      if (ordered.copy_parts() != 0) {
        order.program = std::make_shared<const dag::StageProgram>(task::CopySegment(ordered.copy_parts()));
        order.stage_name = "copy of stage " + std::to_string(order.id.stage.value);
      }
      known = ordered.copy_parts() != 0 || (actions.contains(ordered.sequence()) && programs.Fill(&order));
    }
    if (known) {
      runner->Run(std::move(order));
    } else {
      OnFailed(order.id, Status(Code::kStale, "EXE03", "a task was ordered of an action that is over here"), {.split = order.id.task});
    }
  }

  void GangGathered(wire::GangGathered* gathered) {
    auto values = std::make_shared<std::vector<std::string>>();
    for (std::string& value : *gathered->mutable_values()) values->push_back(std::move(value));
    ranks.Gathered(StageId{gathered->stage()}, gathered->epoch(), gathered->round(), std::move(values));
  }

  void PublishAction(wire::PublishAction* published) {
    std::vector<std::string> values;
    for (std::string& value : *published->mutable_values()) values.push_back(std::move(value));
    std::lock_guard lock(mutex);
    auto state = actions.find(published->sequence());
    if (state == actions.end()) return;
    state->second.status = dag::FromWire(published->failure());
    state->second.values = std::make_shared<const std::vector<std::string>>(std::move(values));
    for (std::uint64_t stage : published->cut()) state->second.cut.push_back(StageId{stage});
    state->second.answered = true;
    failed = failed || !state->second.status.ok();
    changed.notify_all();
  }

  void PublishOnce(wire::PublishOnce* published) {
    std::lock_guard lock(mutex);
    auto state = once.find(published->name());
    if (state == once.end()) return;
    state->second.status = dag::FromWire(published->failure());
    state->second.value = std::move(*published->mutable_value());
    state->second.answered = true;
    failed = failed || !state->second.status.ok();
    changed.notify_all();
  }

  void ComputeOnce(const std::string& name) {
    std::lock_guard lock(mutex);
    auto state = once.find(name);
    if (state == once.end()) return;
    state->second.compute = true;
    changed.notify_all();
  }

  [[noreturn]] void Stop() {
    // Lines are flushed as they are written (Start), and a lock that main holds must not keep the process alive.
    if (ftrylockfile(stdout) == 0) {
      fflush_unlocked(stdout);
      funlockfile(stdout);
    }
    std::lock_guard lock(mutex);
    _exit(main_over ? main_exit : 0);
  }
};

class ExecutorBackend::Pending final : public dag::PendingAction {
 public:
  Pending(Impl* impl, std::uint64_t sequence, std::unique_ptr<TaskStdout> of_tasks)
      : impl_(impl), sequence_(sequence), of_tasks_(std::move(of_tasks)) {}

  Result<std::vector<std::string>> Wait() override {
    if (of_tasks_ == nullptr) of_tasks_ = std::make_unique<TaskStdout>();
    const std::unique_ptr<TaskStdout> of_tasks = std::move(of_tasks_);  // until main goes on
    std::unique_lock lock(impl_->mutex);
    auto state = impl_->actions.find(sequence_);
    if (state == impl_->actions.end()) return Status(Code::kInternal, "EXE04", "an action was waited for twice");
    impl_->changed.wait(lock, [&] { return state->second.answered; });
    auto node = impl_->actions.extract(state);
    impl_->programs.EndAction(sequence_);
    lock.unlock();  // copying the values takes no lock along
    cut_ = std::move(node.mapped().cut);
    return node.mapped().TakeAnswer();
  }
  std::vector<StageId> cut() const override { return cut_; }

 private:
  Impl* impl_;
  std::uint64_t sequence_;
  std::unique_ptr<TaskStdout> of_tasks_;
  std::vector<StageId> cut_;
};

ExecutorBackend::ExecutorBackend(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

ExecutorBackend::~ExecutorBackend() {
  impl_->reader.detach();
  impl_.release();
}

Result<std::unique_ptr<ExecutorBackend>> ExecutorBackend::Start(int fd) {
  // A child of user code must not hold the socket open: the daemon would not see the end of this process.
  if (fcntl(fd, F_SETFD, FD_CLOEXEC) != 0) {
    return Status(Code::kInvalid, "EXE01", "descriptor " + std::to_string(fd) + " is not a worker's socket", std::strerror(errno),
                  "executors are started by a worker; unset ROPEWALK_EXECUTOR_FD");
  }
  // By line, so that what main says is journalled as it happens and not lost when the process is killed.
  std::setvbuf(stdout, nullptr, _IOLBF, 64 << 10);

  auto impl = std::make_unique<Impl>(fd);
  wire::FromExecutor hello;
  hello.mutable_hello()->set_protocol(kProtocol);
  hello.mutable_hello()->set_pid(static_cast<std::uint32_t>(getpid()));
  RETURN_IF_ERROR(impl->channel.Send(rpc::FrameKind::kMessage, hello.SerializeAsString()));
  ASSIGN_OR_RETURN(rpc::Frame frame, impl->channel.Receive(kWelcomeMs));
  wire::ToExecutor answer;
  if (!answer.ParseFromString(frame.payload)) return Status(Code::kInternal, "EXE01", "the worker's welcome cannot be read");
  if (answer.has_stop()) _exit(0);
  if (!answer.has_welcome()) return Status(Code::kInternal, "EXE01", "the worker did not answer hello with welcome");
  const wire::ExecutorWelcome& welcome = answer.welcome();

  impl->settings = dag::FromWire(welcome.settings());
  blocks::RemoteOptions remote;
  remote.unix_path = welcome.block_socket();
  remote.data_address = welcome.data_address();
  remote.job = impl->settings.job;
  remote.token = welcome.job_token();
  remote.read_ahead_bytes_total = dag::ReadAheadBytes(impl->settings, std::max<std::uint32_t>(1, welcome.slots()));
  remote.read_ahead_bytes = std::min(remote.read_ahead_bytes, remote.read_ahead_bytes_total);
  ASSIGN_OR_RETURN(impl->blocks, blocks::RemoteBlocks::Connect(std::move(remote)));
  impl->spill = blocks::NewSpillSpace(welcome.spill_dir());

  task::RunnerOptions runner;
  runner.slots = std::max<std::uint32_t>(1, welcome.slots());
  if (!welcome.cursor_path().empty()) {
    ASSIGN_OR_RETURN(runner.cursors, MapCursors(welcome.cursor_path(), runner.slots));
  }
  runner.settings = &impl->settings;
  runner.blocks = impl->blocks.get();
  runner.segments = impl->blocks.get();
  runner.spill = impl->spill.get();
  runner.memory = &impl->blocks->memory();
  runner.listener = impl.get();
  task::InstallCrashMarks();
  impl->runner = std::make_unique<task::TaskRunner>(runner);
  impl->reader = std::thread([i = impl.get()] { i->Read(); });
  std::thread([i = impl.get()] { i->TellProgress(); }).detach();  // ends with the process, as the reader does
  return std::unique_ptr<ExecutorBackend>(new ExecutorBackend(std::move(impl)));
}

const dag::Settings& ExecutorBackend::settings() const { return impl_->settings; }

std::unique_ptr<dag::PendingAction> ExecutorBackend::Submit(dag::Action action) {
  std::unique_ptr<TaskStdout> of_tasks = MakeTaskStdout(action.plan);  // before the first task runs
  wire::FromExecutor message;
  dag::ToWire(action.plan, message.mutable_at_action()->mutable_plan());
  {
    std::lock_guard lock(impl_->mutex);
    impl_->actions[action.plan.sequence];
    impl_->programs.Add(&action, impl_->settings);
  }
  impl_->Send(message);  // after the programs are there: tasks may come at once
  return std::make_unique<Pending>(impl_.get(), action.plan.sequence, std::move(of_tasks));
}

Result<std::string> ExecutorBackend::Once(const std::string& name, const std::function<Result<std::string>()>& compute) {
  return impl_->Once(name, compute, std::nullopt);
}

Result<std::string> ExecutorBackend::Impl::Once(const std::string& name, const std::function<Result<std::string>()>& compute,
                                                std::optional<std::chrono::steady_clock::time_point> end) {
  {
    std::lock_guard lock(mutex);
    once[name] = OnceState{};
  }
  wire::FromExecutor at;
  at.mutable_at_once()->set_name(name);
  Send(at);

  std::unique_lock lock(mutex);
  OnceState& state = once[name];  // stays where it is: only this function removes it
  for (;;) {
    const auto told = [&] { return state.answered || state.compute; };
    if (end && !changed.wait_until(lock, *end, told)) return Status(Code::kUnavailable, "EXE05", "no answer came to " + name);
    changed.wait(lock, told);
    if (state.answered) break;
    state.compute = false;
    lock.unlock();
    Result<std::string> value = ComputeOnceValue(name, compute);
    wire::FromExecutor computed;
    computed.mutable_once_computed()->set_name(name);
    if (value.ok()) {
      computed.mutable_once_computed()->set_value(*std::move(value));
    } else {
      dag::ToWire(value.status(), computed.mutable_once_computed()->mutable_failure());
    }
    Send(computed);
    lock.lock();
  }
  Status status = std::move(state.status);
  std::string value = std::move(state.value);
  once.erase(name);
  if (!status.ok()) return status;
  return value;
}

void ExecutorBackend::ReportFailure(const Status& status, int timeout_ms) {
  // A Once that fails ends the job with its status, which is just what is wanted; every replica fails alike, and only the driver is asked.
  std::optional<std::chrono::steady_clock::time_point> end;
  if (timeout_ms >= 0) end = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
  [[maybe_unused]] Result<std::string> answer = impl_->Once("ropewalk: main failed", [&]() -> Result<std::string> { return status; }, end);
}

void ExecutorBackend::ServeUntilStopped(int exit_code) {
  std::fflush(nullptr);
  {
    std::lock_guard lock(impl_->mutex);
    impl_->main_over = true;
    impl_->main_exit = exit_code;
  }
  wire::FromExecutor message;
  message.mutable_main_returned()->set_exit_code(exit_code);
  impl_->Send(message);
  impl_->reader.join();  // ends with the process
  _exit(exit_code);
}

bool ExecutorBackend::job_failed() const {
  std::lock_guard lock(impl_->mutex);
  return impl_->failed;
}

}  // namespace ropewalk::job
