// Between client/worker messages and the scheduler's values.
//
// Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/status.h"
#include "master/scheduler/job_view.h"
#include "master/scheduler/scheduler.h"

namespace ropewalk::wire {
class FromExecutor;
class JobSpec;
class JobState;
class Register;
class ExecutorExited;
class TaskCounters;
}  // namespace ropewalk::wire

namespace ropewalk::master {

// "2.36" -> 2036; 0 for anything else (not known: any).
std::uint32_t ParseGlibc(const std::string& text);
// "x86-64-v3" -> 3; 0 for anything else.
std::uint32_t ParseCpuLevel(const std::string& text);

// kInvalid JOB10: no arguments, no executable, a name that is no SHA-256, too much of anything.
Result<scheduler::JobSpec> FromWire(const wire::JobSpec& spec);
void ToWire(const scheduler::JobSpec& spec, wire::JobSpec* out);

void ToWire(const scheduler::JobView& view, wire::JobState* out);
scheduler::TaskCounters FromWire(const wire::TaskCounters& counters);

scheduler::ExecutorExited FromWire(const wire::ExecutorExited& exited);
Result<scheduler::WorkerRegistered> FromWire(const wire::Register& registration, WorkerId id);

// The event that an executor's message means; nullopt where it means none (metrics). kInvalid WIRE01/02: it cannot be right.
Result<std::optional<scheduler::Event>> FromWire(const wire::FromExecutor& message, ExecutorId executor, JobId job);

// The message that an order to an executor means, serialised (wire::ToExecutor).
std::string Encode(const scheduler::NameDriver& order);
std::string Encode(const scheduler::ComputeOnce& order);
std::string Encode(const scheduler::RunTask& order);
std::string Encode(const scheduler::CancelTask& order);
std::string Encode(const scheduler::PublishAction& order);
std::string Encode(const scheduler::EndRank& order);
std::string Encode(const scheduler::GangGathered& order);
std::string Encode(const scheduler::PublishOnce& order);

}  // namespace ropewalk::master
