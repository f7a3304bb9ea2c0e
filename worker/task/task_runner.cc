#include "worker/task/task_runner.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <deque>
#include <mutex>
#include <new>
#include <thread>
#include <utility>

#include "base/escape.h"
#include "base/home_process.h"
#include "dag/failure_tags.h"
#include "dag/plan_failure.h"
#include "worker/task/current_task.h"
#include "worker/task/exception.h"
#include "worker/task/tracking_reader.h"

namespace ropewalk::task {
namespace {

std::string TaskName(const TaskOrder& order) { return "task " + std::to_string(order.id.task) + " of \"" + order.stage_name + "\""; }

TaskPlace PlaceOf(const dag::RecordCursor& cursor) {
  return {cursor.split.load(std::memory_order_relaxed), cursor.offset.load(std::memory_order_relaxed), cursor.source};
}

// A child that the job's code forked has left that code, as if it were the task: what comes next is its parent's to do.
[[noreturn]] void EndForkedChild() {
  const CurrentTask* task = ThisCurrentTask();
  const std::string who = task != nullptr ? task->name : "the job's code";
  const Status status(Code::kUserError, "TASK07", "a process that " + who + " forked came out of the function that forked it",
                      "it is no task: its parent goes on with the records and makes the report",
                      "end it by exec() or _exit() in that function");
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  ::_exit(ExitCode(status.code()));
}

// The border: no exception passes it.
Status RunProgram(const TaskOrder& order, const dag::RecordCursor& cursor, dag::TaskContext& context, dag::TaskResult* result) {
  try {
    dag::StageProgram program = *order.program;
    return program(context, result);
  } catch (const std::bad_alloc&) {
    return Status(Code::kResourceExhausted, dag::kOutOfMemoryTag, TaskName(order) + " could not get the memory it asked for",
                  "it failed on " + PlaceText(cursor, order.precise_cursor), "give the job more memory or more partitions");
  } catch (const dag::PlanFailure& failure) {
    return failure.status;
  } catch (...) {
    // A thread that ends itself goes on from here (see Hold).
    return Status(Code::kUserError, "USER01", "the job's code threw " + DescribeCurrentException(),
                  "it stood at " + PlaceText(cursor, order.precise_cursor), "mend that record, or the code that reads it");
  }
}

TaskCounters Read(const dag::TaskProgress& p) {
  return {p.records_in.load(std::memory_order_relaxed), p.bytes_in.load(std::memory_order_relaxed),
          p.records_out.load(std::memory_order_relaxed), p.bytes_out.load(std::memory_order_relaxed),
          p.bytes_spilled.load(std::memory_order_relaxed)};
}

void Add(TaskCounters* sum, const TaskCounters& c) {
  sum->records_in += c.records_in;
  sum->bytes_in += c.bytes_in;
  sum->records_out += c.records_out;
  sum->bytes_out += c.bytes_out;
  sum->bytes_spilled += c.bytes_spilled;
}

// An attempt from its start to its report.
struct Running {
  TaskAttempt id;
  std::atomic<bool> cancelled{false};
  dag::TaskProgress progress;
};

}  // namespace

struct TaskRunner::Impl {
  RunnerOptions options;
  std::unique_ptr<dag::RecordCursor[]> own_cursors;
  std::deque<dag::RecordCursor> more_cursors;  // of threads beyond the slots

  mutable std::mutex mutex;
  std::condition_variable work, idle;
  std::deque<TaskOrder> queue;    // at most `slots` in practice: the scheduler counts
  std::vector<Running*> running;  // one for each thread; nullptr: idle
  TaskCounters finished;          // sums of attempts that are over
  bool stopping = false;
  std::vector<std::thread> threads;  // by slot
  const HomeProcess home;

  // The crash handler needs a stack of its own, or endless recursion in user code would die unmarked.
  class SignalStack {
   public:
    SignalStack() {
      stack_.ss_sp = memory_.get();
      stack_.ss_size = kBytes;
      sigaltstack(&stack_, nullptr);
    }
    ~SignalStack() {
      stack_.ss_flags = SS_DISABLE;
      sigaltstack(&stack_, nullptr);
    }

   private:
    static constexpr std::size_t kBytes = 64 << 10;
    std::unique_ptr<char[]> memory_ = std::make_unique<char[]>(kBytes);
    stack_t stack_ = {};
  };

  // What an attempt holds from its order to its report. User code may end the thread (pthread_exit) and so unwind it past the border: then
  // the attempt is reported from here, and another thread takes over the slot.
  class Hold {
   public:
    Hold(Impl* impl, std::uint32_t slot, Running* run) : impl_(impl), slot_(slot), run_(run) {}
    ~Hold() {
      if (!reported_ && !impl_->home.here()) EndForkedChild();
      if (!reported_) impl_->ReportEndedThread(slot_, run_->id);
      if (memory_bytes_ > 0) impl_->options.memory->Give(memory_bytes_);
      {
        std::lock_guard lock(impl_->mutex);
        impl_->running[slot_] = nullptr;
        Add(&impl_->finished, Read(run_->progress));
        if (!reported_ && !impl_->stopping) impl_->ReplaceThread(slot_);
      }
      impl_->idle.notify_all();
    }
    void HoldsMemory(std::uint64_t bytes) { memory_bytes_ = bytes; }
    void Reported() { reported_ = true; }

   private:
    Impl* const impl_;
    const std::uint32_t slot_;
    Running* const run_;
    std::uint64_t memory_bytes_ = 0;
    bool reported_ = false;
  };

  void Serve(std::uint32_t slot) {
    SignalStack signal_stack;
    for (;;) {
      TaskOrder order;
      Running run;
      {
        std::unique_lock lock(mutex);
        work.wait(lock, [&] { return stopping || !queue.empty(); });
        if (stopping) return;
        order = std::move(queue.front());
        queue.pop_front();
        run.id = order.id;
        running[slot] = &run;
      }
      Hold hold(this, slot, &run);
      const std::uint64_t memory_bytes = options.memory == nullptr ? 0 : order.memory_bytes;
      Status granted = memory_bytes == 0 ? Status() : options.memory->Take(memory_bytes, run.cancelled);
      if (granted.ok()) {
        hold.HoldsMemory(memory_bytes);
        RunOne(slot, std::move(order), &run);
      } else {
        options.listener->OnFailed(order.id, std::move(granted), {.split = order.id.task});
      }
      hold.Reported();
    }
  }

  // On the thread that ends.
  void ReportEndedThread(std::uint32_t slot, const TaskAttempt& id) {
    dag::RecordCursor& cursor = CursorOf(slot);
    TaskPlace place = PlaceOf(cursor);
    cursor.stage.store(0, std::memory_order_release);
    options.listener->OnFailed(
        id,
        Status(Code::kUserError, "TASK06", "the job's code ended the thread of its task",
               "it called pthread_exit(), or cancelled the thread", "return from the function, or throw an exception"),
        std::move(place));
  }

  // With `mutex` held, by the thread that ends: the new one waits for it.
  void ReplaceThread(std::uint32_t slot) {
    threads[slot] = std::thread([this, slot, before = std::move(threads[slot])]() mutable {
      before.join();
      Serve(slot);
    });
  }

  dag::RecordCursor& CursorOf(std::uint32_t slot) {
    if (slot < options.slots) return options.cursors[slot];
    std::lock_guard lock(mutex);
    return more_cursors[slot - options.slots];
  }

  // Ranks wait for each other, so none may wait for a thread: with `mutex` held.
  void MakeRoomForRanks() {
    std::size_t idle_threads = 0;
    for (const Running* run : running) idle_threads += run == nullptr ? 1 : 0;
    for (; idle_threads < queue.size(); ++idle_threads) {
      const auto slot = static_cast<std::uint32_t>(running.size());
      running.push_back(nullptr);
      more_cursors.emplace_back();
      threads.emplace_back([this, slot] { Serve(slot); });
    }
  }

  void RunOne(std::uint32_t slot, TaskOrder order, Running* run) {
    dag::RecordCursor& cursor = CursorOf(slot);
    cursor.split.store(order.id.task, std::memory_order_relaxed);
    cursor.offset.store(0, std::memory_order_relaxed);
    cursor.task.store(order.id.task, std::memory_order_relaxed);
    cursor.attempt.store(order.id.attempt, std::memory_order_relaxed);
    cursor.signal.store(0, std::memory_order_relaxed);
    cursor.SetSource("");
    cursor.stage.store(order.id.stage.value, std::memory_order_release);

    TrackingReader reader(options.blocks);
    dag::TaskContext context;
    context.id = order.id;
    context.settings = options.settings;
    context.inputs = std::move(order.inputs);
    context.blocks = &reader;
    context.segments = options.segments;
    context.spill = options.spill;
    context.progress = &run->progress;
    context.cursor = &cursor;
    context.precise_cursor = order.precise_cursor;
    context.cancelled = &run->cancelled;
    context.gang = order.gang.get();

    dag::TaskResult result;
    Status status;
    {
      const TaskScope scope({&cursor, EscapeForLog(TaskName(order), 400), order.precise_cursor});
      status = RunProgram(order, cursor, context, &result);
      if (!home.here()) EndForkedChild();
    }
    TaskPlace place = PlaceOf(cursor);
    cursor.stage.store(0, std::memory_order_release);
    order.program.reset();  // before the report: main may free the plan as soon as it hears of the result

    bool of_an_input = status.code() == Code::kDataLoss || status.code() == Code::kUnavailable;
    if (status.ok()) {
      options.listener->OnFinished(order.id, std::move(result), Read(run->progress));
    } else if (of_an_input && reader.failure().has_value()) {
      options.listener->OnFetchFailed(order.id, reader.failure()->segment, reader.failure()->status);
    } else {
      options.listener->OnFailed(order.id, std::move(status), std::move(place));
    }
  }
};

TaskRunner::TaskRunner(RunnerOptions options) : impl_(std::make_unique<Impl>()) {
  impl_->options = options;
  if (options.cursors == nullptr) {
    impl_->own_cursors = std::make_unique<dag::RecordCursor[]>(options.slots);
    impl_->options.cursors = impl_->own_cursors.get();
  }
  impl_->running.assign(options.slots, nullptr);
  for (std::uint32_t slot = 0; slot < options.slots; ++slot) impl_->threads.emplace_back([impl = impl_.get(), slot] { impl->Serve(slot); });
}

TaskRunner::~TaskRunner() {
  {
    std::lock_guard lock(impl_->mutex);
    impl_->stopping = true;
    impl_->queue.clear();
    for (Running* run : impl_->running)
      if (run != nullptr) run->cancelled.store(true, std::memory_order_relaxed);
  }
  impl_->work.notify_all();
  if (impl_->options.memory != nullptr) impl_->options.memory->Wake();
  for (std::thread& thread : impl_->threads) thread.join();
}

void TaskRunner::Run(TaskOrder order) {
  {
    std::lock_guard lock(impl_->mutex);
    const bool rank = order.gang != nullptr;
    impl_->queue.push_back(std::move(order));
    if (rank) impl_->MakeRoomForRanks();
  }
  impl_->work.notify_one();
}

void TaskRunner::Cancel(const TaskAttempt& id) {
  bool was_queued = false;
  {
    std::lock_guard lock(impl_->mutex);
    for (Running* run : impl_->running)
      if (run != nullptr && run->id == id) run->cancelled.store(true, std::memory_order_relaxed);
    was_queued = std::erase_if(impl_->queue, [&](const TaskOrder& order) { return order.id == id; }) > 0;
  }
  if (impl_->options.memory != nullptr) impl_->options.memory->Wake();
  if (was_queued)
    impl_->options.listener->OnFailed(id, Status(Code::kCancelled, "TASK01", "the attempt was cancelled"), {.split = id.task});
}

bool TaskRunner::CancelAllAndWait(int timeout_ms) {
  std::unique_lock lock(impl_->mutex);
  impl_->queue.clear();
  for (Running* run : impl_->running)
    if (run != nullptr) run->cancelled.store(true, std::memory_order_relaxed);
  if (impl_->options.memory != nullptr) impl_->options.memory->Wake();
  return impl_->idle.wait_for(lock, std::chrono::milliseconds(timeout_ms), [&] {
    for (Running* run : impl_->running)
      if (run != nullptr) return false;
    return impl_->queue.empty();
  });
}

std::vector<std::pair<TaskAttempt, TaskCounters>> TaskRunner::RunningTasks() const {
  std::lock_guard lock(impl_->mutex);
  std::vector<std::pair<TaskAttempt, TaskCounters>> tasks;
  for (const Running* run : impl_->running)
    if (run != nullptr) tasks.emplace_back(run->id, Read(run->progress));
  return tasks;
}

TaskCounters TaskRunner::Totals() const {
  std::lock_guard lock(impl_->mutex);
  TaskCounters sum = impl_->finished;
  for (Running* run : impl_->running)
    if (run != nullptr) Add(&sum, Read(run->progress));
  return sum;
}

}  // namespace ropewalk::task
