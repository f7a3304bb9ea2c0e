#include "master/daemon/convert.h"

#include <charconv>
#include <string_view>
#include <utility>

#include "dag/wire/wire.h"
#include "proto/client.pb.h"
#include "proto/executor.pb.h"
#include "proto/worker.pb.h"

namespace ropewalk::master {
namespace {

constexpr int kArtifactsMax = 256;
constexpr int kArgumentsMax = 65'536;
constexpr std::size_t kSpecBytesMax = 3u << 20;
constexpr std::size_t kSha256Bytes = 32;
constexpr std::size_t kLineBytesMax = 200;  // of what a rank says of itself

Status BadSpec(std::string why) {
  return {Code::kInvalid, "JOB10", "the job cannot be accepted", std::move(why), "submit it with the command of the same version"};
}

bool ParseNumber(std::string_view text, std::uint32_t* out) {
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *out);
  return error == std::errc() && end == text.data() + text.size();
}

}  // namespace

std::uint32_t ParseGlibc(const std::string& text) {
  const std::size_t dot = text.find('.');
  std::uint32_t major = 0, minor = 0;
  if (dot == std::string::npos || !ParseNumber(std::string_view(text).substr(0, dot), &major) ||
      !ParseNumber(std::string_view(text).substr(dot + 1), &minor) || major > 1000 || minor > 999) {
    return 0;
  }
  return major * 1000 + minor;
}

std::uint32_t ParseCpuLevel(const std::string& text) {
  constexpr std::string_view kPrefix = "x86-64-v";
  std::uint32_t level = 0;
  if (!text.starts_with(kPrefix) || !ParseNumber(std::string_view(text).substr(kPrefix.size()), &level)) return 0;
  return level;
}

Result<scheduler::JobSpec> FromWire(const wire::JobSpec& in) {
  if (in.argv_size() == 0) return BadSpec("it has no arguments, not even a name");
  if (in.artifacts_size() == 0) return BadSpec("it has no executable");
  if (in.artifacts_size() > kArtifactsMax || in.argv_size() > kArgumentsMax || in.ByteSizeLong() > kSpecBytesMax)
    return BadSpec("its arguments, environment or list of libraries are too long");
  if (in.artifact_names_size() != in.artifacts_size()) return BadSpec("artifacts and their names do not match");
  scheduler::JobSpec out;
  out.settings = dag::FromWire(in.settings());
  out.settings.job = {};
  out.submit_key = in.submit_key();
  out.argv.assign(in.argv().begin(), in.argv().end());
  out.environment.assign(in.environment().begin(), in.environment().end());
  for (int i = 0; i < in.artifacts_size(); ++i) {
    const std::string& sha256 = in.artifacts(i);
    const std::string& name = in.artifact_names(i);
    if (sha256.size() != kSha256Bytes) return BadSpec("the name of an artifact is no SHA-256");
    // The name becomes a file name in the executor's folder: nothing that leads elsewhere.
    if (name.empty() || name == "." || name == ".." || name.size() > 255 || name.find('/') != std::string::npos ||
        name.find('\0') != std::string::npos)
      return BadSpec("the file name of an artifact is empty, too long or a path");
    // The core keeps one string for each artifact and never looks inside: hash, then name.
    out.artifacts.push_back(sha256 + name);
  }
  out.user = in.user();
  out.glibc_min = ParseGlibc(in.glibc_min());
  out.cpu_level_min = ParseCpuLevel(in.cpu_level());
  return out;
}

void ToWire(const scheduler::JobSpec& spec, wire::JobSpec* out) {
  out->Clear();
  dag::ToWire(spec.settings, out->mutable_settings());
  out->set_submit_key(spec.submit_key);
  for (const std::string& argument : spec.argv) out->add_argv(argument);
  for (const std::string& variable : spec.environment) out->add_environment(variable);
  for (const std::string& artifact : spec.artifacts) {
    out->add_artifacts(artifact.substr(0, kSha256Bytes));
    out->add_artifact_names(artifact.size() > kSha256Bytes ? artifact.substr(kSha256Bytes) : std::string("executable"));
  }
  out->set_user(spec.user);
}

namespace {

void ToWire(const scheduler::TaskCounters& counters, wire::TaskCounters* out) {
  out->set_records_in(counters.records_in);
  out->set_bytes_in(counters.bytes_in);
  out->set_records_out(counters.records_out);
  out->set_bytes_out(counters.bytes_out);
  out->set_bytes_spilled(counters.bytes_spilled);
}

void ToWire(const scheduler::StageView& stage, wire::StageState* out) {
  out->set_name(stage.name);
  out->set_tasks(stage.tasks);
  out->set_done(stage.done);
  out->set_running(stage.running);
  out->set_lost(stage.lost);
  out->set_failed(stage.failed);
  out->set_ms(stage.ms);
  ToWire(stage.counters, out->mutable_counters());
  out->set_running_permille(stage.running_permille);
}

}  // namespace

scheduler::TaskCounters FromWire(const wire::TaskCounters& c) {
  return {c.records_in(), c.bytes_in(), c.records_out(), c.bytes_out(), c.bytes_spilled()};
}

void ToWire(const scheduler::JobView& view, wire::JobState* out) {
  out->Clear();
  out->set_job(view.job.value);
  out->set_name(view.name);
  out->set_user(view.user);
  out->set_phase(std::string(scheduler::PhaseName(view.phase)));
  out->set_version(view.version);
  if (!view.status.ok()) dag::ToWire(view.status, out->mutable_failure());
  out->set_main_exit(view.main_exit);
  out->set_action(view.action);
  out->set_action_name(view.action_name);
  for (const scheduler::StageView& stage : view.stages) ToWire(stage, out->add_stages());
  out->set_submitted_us(view.submitted_us);
  out->set_started_us(view.started_us);
  out->set_finished_us(view.finished_us);
  for (const scheduler::ActionView& action : view.past) {
    wire::ActionState* w = out->add_past();
    w->set_sequence(action.sequence);
    w->set_name(action.name);
    w->set_plan_text(action.plan_text);
    w->set_published(action.published);
    for (const scheduler::StageView& stage : action.stages) ToWire(stage, w->add_stages());
  }
  out->set_past_forgotten(view.past_forgotten);
  for (const std::string& reason : view.pending_reasons) out->add_pending_reasons(reason);
  out->set_plan_text(view.plan_text);
  out->set_note(view.note);
  out->set_workers_lost(view.workers_lost);
  for (const scheduler::LostWorker& worker : view.lost_workers) {
    wire::LostWorker* lost = out->add_lost_workers();
    lost->set_name(worker.name);
    lost->set_tasks(worker.tasks);
  }
  for (const std::string& argument : view.argv) out->add_argv(argument);
  for (const std::string& folder : view.outputs) out->add_outputs(folder);
}

scheduler::ExecutorExited FromWire(const wire::ExecutorExited& in) {
  scheduler::ExecutorExited out;
  out.executor = ExecutorId{in.executor()};
  out.reason = dag::FromWire(in.reason());
  out.exit_code = in.exit_code();
  out.signal = in.signal();
  for (const wire::TaskCursor& cursor : in.tasks()) {
    out.cursors.push_back({dag::FromWire(cursor.id()), cursor.split(), cursor.offset(), cursor.signal(), cursor.source()});
  }
  return out;
}

Result<scheduler::WorkerRegistered> FromWire(const wire::Register& in, WorkerId id) {
  scheduler::WorkerRegistered out;
  out.worker = id;
  out.name = in.name();
  out.data_address = in.data_address();
  out.slots = in.slots();
  out.glibc = ParseGlibc(in.glibc());
  out.cpu_level = ParseCpuLevel(in.cpu_level());
  if (out.slots == 0 || out.slots > 4096) {
    return Status(Code::kInvalid, "WIRE02", "a worker with " + std::to_string(out.slots) + " slots", "there are 1 to 4096",
                  "start it with --slots");
  }
  if (out.name.empty() || out.name.size() > 256 || out.data_address.empty() || out.data_address.size() > 256) {
    return Status(Code::kInvalid, "WIRE02", "a worker without a name or data address", "both are needed, up to 256 bytes",
                  "run the same version of ropewalk on both sides");
  }
  out.segments.reserve(in.segments_size());
  for (const wire::HeldSegment& held : in.segments()) {
    out.segments.push_back({JobId{held.job()}, dag::FromWire(held.ref()), held.content_hash(), held.records()});
    out.segments.back().ref.location = out.data_address;
  }
  return out;
}

Result<std::optional<scheduler::Event>> FromWire(const wire::FromExecutor& in, ExecutorId executor, JobId job) {
  using Answer = std::optional<scheduler::Event>;
  switch (in.body_case()) {
    case wire::FromExecutor::kHello:
      return Answer(scheduler::ExecutorReady{executor});
    case wire::FromExecutor::kAtAction: {
      ASSIGN_OR_RETURN(dag::ActionPlan plan, dag::FromWire(in.at_action().plan()));
      return Answer(scheduler::ExecutorAtAction{executor, std::move(plan)});
    }
    case wire::FromExecutor::kAtOnce:
      return Answer(scheduler::ExecutorAtOnce{executor, in.at_once().name()});
    case wire::FromExecutor::kOnceComputed:
      return Answer(scheduler::OnceComputed{executor, in.once_computed().name(), in.once_computed().value(),
                                            dag::FromWire(in.once_computed().failure())});
    case wire::FromExecutor::kMainReturned:
      return Answer(scheduler::MainReturned{executor, in.main_returned().exit_code()});
    case wire::FromExecutor::kTaskFinished: {
      const wire::TaskFinished& done = in.task_finished();
      scheduler::TaskFinished out{executor, job, dag::FromWire(done.id()), {}, {}};
      out.result.value = done.value();
      out.result.content_hash = done.content_hash();
      if (done.has_segment()) out.result.segment = dag::FromWire(done.segment());
      out.counters = FromWire(done.counters());
      return Answer(std::move(out));
    }
    case wire::FromExecutor::kTaskFailed: {
      const wire::TaskFailed& failed = in.task_failed();
      Status status = dag::FromWire(failed.failure());
      if (status.ok()) status = Status(Code::kInternal, "WIRE02", "a task failed without a reason");
      return Answer(scheduler::TaskFailed{executor, job, dag::FromWire(failed.id()), std::move(status), failed.cursor_split(),
                                          failed.cursor_offset(), failed.source()});
    }
    case wire::FromExecutor::kFetchFailed:
      return Answer(scheduler::FetchFailed{executor, job, dag::FromWire(in.fetch_failed().id()), dag::FromWire(in.fetch_failed().lost()),
                                           dag::FromWire(in.fetch_failed().failure())});
    case wire::FromExecutor::kGangExchange: {
      const wire::GangExchange& exchange = in.gang_exchange();
      return Answer(
          scheduler::GangExchanged{executor, job, dag::FromWire(exchange.id()), exchange.epoch(), exchange.round(), exchange.value()});
    }
    case wire::FromExecutor::kProgress:
      return Answer(scheduler::TasksProgressed{executor,
                                               {{dag::FromWire(in.progress().id()), FromWire(in.progress().counters()),
                                                 in.progress().line().substr(0, kLineBytesMax), in.progress().reached()}}});
    case wire::FromExecutor::kGangMetrics:
      return Answer();
    case wire::FromExecutor::BODY_NOT_SET:
      break;
  }
  return Status(Code::kInvalid, "WIRE02", "a message of an executor that says nothing", "it is damaged or of a newer version",
                "bring worker and master to one version");
}

std::string Encode(const scheduler::NameDriver&) {
  wire::ToExecutor out;
  out.mutable_become_driver();
  return out.SerializeAsString();
}

std::string Encode(const scheduler::ComputeOnce& order) {
  wire::ToExecutor out;
  out.mutable_compute_once()->set_name(order.name);
  return out.SerializeAsString();
}

std::string Encode(const scheduler::RunTask& order) {
  wire::ToExecutor out;
  wire::RunTask* run = out.mutable_run_task();
  run->set_sequence(order.sequence);
  dag::ToWire(order.id, run->mutable_id());
  for (const dag::TaskInput& input : order.inputs) dag::ToWire(input, run->add_inputs());
  run->set_retry(order.retry);
  run->set_verify(order.verify);
  run->set_copy_parts(order.copy_parts);
  if (order.gang) {
    run->mutable_gang()->set_rank(order.gang->rank);
    run->mutable_gang()->set_ranks(order.gang->ranks);
    run->mutable_gang()->set_epoch(order.gang->epoch);
    run->mutable_gang()->set_machine(order.gang->machine);
    run->mutable_gang()->set_address(order.gang->address);
  }
  return out.SerializeAsString();
}

std::string Encode(const scheduler::EndRank& order) {
  wire::ToExecutor out;
  dag::ToWire(order.id, out.mutable_end_rank()->mutable_id());
  dag::ToWire(order.status, out.mutable_end_rank()->mutable_failure());
  return out.SerializeAsString();
}

std::string Encode(const scheduler::GangGathered& order) {
  wire::ToExecutor out;
  wire::GangGathered* gathered = out.mutable_gang_gathered();
  gathered->set_stage(order.stage.value);
  gathered->set_epoch(order.epoch);
  gathered->set_round(order.round);
  for (const std::string& value : *order.values) gathered->add_values(value);
  return out.SerializeAsString();
}

std::string Encode(const scheduler::CancelTask& order) {
  wire::ToExecutor out;
  dag::ToWire(order.id, out.mutable_cancel_task()->mutable_id());
  return out.SerializeAsString();
}

std::string Encode(const scheduler::PublishAction& order) {
  wire::ToExecutor out;
  wire::PublishAction* publish = out.mutable_publish_action();
  publish->set_sequence(order.sequence);
  if (!order.status.ok()) dag::ToWire(order.status, publish->mutable_failure());
  if (order.values != nullptr)
    for (const std::string& value : *order.values) publish->add_values(value);
  for (StageId stage : order.cut) publish->add_cut(stage.value);
  return out.SerializeAsString();
}

std::string Encode(const scheduler::PublishOnce& order) {
  wire::ToExecutor out;
  wire::PublishOnce* publish = out.mutable_publish_once();
  publish->set_name(order.name);
  publish->set_value(order.value);
  if (!order.status.ok()) dag::ToWire(order.status, publish->mutable_failure());
  return out.SerializeAsString();
}

}  // namespace ropewalk::master
