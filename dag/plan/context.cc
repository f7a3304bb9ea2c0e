#include "dag/plan/context.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "base/escape.h"

namespace ropewalk::dag {

namespace {

// The context whose Once function this thread is in, and that function's name.
struct Computing {
  const PlanContext* context;
  const std::string& name;
};
thread_local const Computing* computing = nullptr;

std::string FunctionName(const std::string& once) {
  constexpr std::string_view kUser = "user:";  // of Session::Once; the others have no name that a user gave
  return once.starts_with(kUser) ? "Once(\"" + EscapeForLog(once.substr(kUser.size()), 200) + "\")" : EscapeForLog(once, 200);
}

// Not pthread_self(): that is the same in a process that main has forked.
std::uint64_t ThisThread() { return static_cast<std::uint64_t>(::gettid()); }

}  // namespace

PlanContext::PlanContext(Backend* backend, FailHook fail) : backend_(backend), fail_(std::move(fail)), main_thread_(ThisThread()) {}

bool PlanContext::OnMainThread() const { return ThisThread() == main_thread_; }

std::uint64_t PlanContext::NextNodeId() {
  RequireMainThread("build a dataset");
  return ++last_node_;
}

std::vector<StageId> PlanContext::TakeRetired() {
  // Sorted: the order in which C++ destroys temporaries is the compiler's business and must not enter a plan.
  std::sort(retired_.begin(), retired_.end());
  return std::exchange(retired_, {});
}

std::string PlanContext::Once(const std::string& name, const std::function<Result<std::string>()>& compute) {
  RequireMainThread("call Once");
  Result<std::string> value = backend_->Once(name, [&]() -> Result<std::string> {
    struct Scope {
      const Computing* const outer = computing;
      ~Scope() { computing = outer; }
    } scope;
    const Computing here{this, name};
    computing = &here;
    return compute();
  });
  if (!value.ok()) Fail(value.status());
  return *std::move(value);
}

void PlanContext::Fail(const Status& status) const {
  if (fail_) fail_(status);
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::exit(ExitCode(status.code()));
}

void PlanContext::RequireMainThread(const char* doing) const {
  if (closed_) {
    Fail(Status(Code::kUserError, "DAG02", std::string("cannot ") + doing + ": the job has ended",
                "the ropewalk::Job object of main is gone", "keep it alive until the last dataset is used"));
  }
  if (!OnMainThread()) {
    Fail(Status(
        Code::kUserError, "DAG01", std::string("cannot ") + doing + " in this thread",
        "every executor replays main, so datasets are built and run in main's thread only, never inside an operator or a forked process",
        "move the call to main's thread; CollectAsync starts several actions at once"));
  }
  if (computing != nullptr && computing->context == this) {
    Fail(Status(Code::kUserError, "DAG07", std::string("cannot ") + doing + " in the function of " + FunctionName(computing->name),
                "one replica of main runs that function, so the others would number their datasets and values in another way",
                "do it before, in main itself, and let the function capture what came of it"));
  }
}

std::uint32_t DefaultPartitions(const Settings& settings) {
  // Two for each slot: stragglers overlap, and tables stay half as large.
  return settings.partitions != 0 ? settings.partitions : std::max<std::uint32_t>(1, 2 * settings.slots);
}

}  // namespace ropewalk::dag
