#include "cli/job_view.h"

#include <algorithm>
#include <optional>

#include "base/escape.h"
#include "base/job_name.h"
#include "cli/print.h"
#include "dag/wire/wire.h"
#include "job/progress.h"
#include "job/report.h"
#include "proto/client.pb.h"

namespace ropewalk::cli {
namespace {

std::string Name(const wire::JobState& job) { return JobName(JobId{job.job()}); }

// From submission to the end, or to now while the job runs. Nothing where a journal of an older version tells that it ended but not when.
std::optional<std::int64_t> RunningMs(const wire::JobState& job, std::int64_t now_us) {
  if (job.submitted_us() == 0 || (IsOver(job) && job.finished_us() == 0)) return std::nullopt;
  return ((job.finished_us() != 0 ? job.finished_us() : now_us) - job.submitted_us()) / 1000;
}

std::string RunningTime(const wire::JobState& job, std::int64_t now_us) {
  std::optional<std::int64_t> ms = RunningMs(job, now_us);
  return ms ? HumanDuration(*ms) : "-";
}

std::string Progress(const wire::JobState& job) {
  if (IsOver(job)) return "-";
  std::uint64_t tasks = 0, done = 0;
  for (const wire::StageState& stage : job.stages()) tasks += stage.tasks(), done += stage.done();
  return tasks == 0 ? "-" : std::to_string(done) + "/" + std::to_string(tasks);
}

// How much of a stage is done, running tasks by what they have read of their inputs.
std::uint64_t Percent(const wire::StageState& stage) {
  if (stage.tasks() == 0) return 100;
  return std::min<std::uint64_t>(100,
                                 (std::uint64_t{stage.done()} * 1000 + stage.running_permille()) / (std::uint64_t{stage.tasks()} * 10));
}

std::string StagesTable(const google::protobuf::RepeatedPtrField<wire::StageState>& stages) {
  std::vector<std::vector<std::string>> rows;
  for (const wire::StageState& stage : stages) {
    const wire::TaskCounters& c = stage.counters();
    rows.push_back({std::to_string(stage.done()) + "/" + std::to_string(stage.tasks()), std::to_string(Percent(stage)) + "%",
                    std::to_string(stage.running()), std::to_string(stage.lost()), std::to_string(stage.failed()),
                    std::to_string(c.records_in()), job::HumanBytes(static_cast<double>(c.bytes_in())), std::to_string(c.records_out()),
                    job::HumanBytes(static_cast<double>(c.bytes_spilled())), HumanDuration(static_cast<std::int64_t>(stage.ms())),
                    EscapeForLog(stage.name())});
  }
  return Table({"DONE", "", "RUNNING", "LOST", "FAILED", "RECORDS", "READ", "RECORDS OUT", "SPILLED", "TIME", "STAGE"}, rows);
}

std::string StageJson(const wire::StageState& stage) {
  const wire::TaskCounters& c = stage.counters();
  auto number = [](std::uint64_t value) { return static_cast<std::int64_t>(value); };
  return JsonObject()
      .Text("name", stage.name())
      .Number("tasks", stage.tasks())
      .Number("done", stage.done())
      .Number("running", stage.running())
      .Number("lost", stage.lost())
      .Number("failed", stage.failed())
      .Number("percent", number(Percent(stage)))
      .Number("ms", number(stage.ms()))
      .Number("records_in", number(c.records_in()))
      .Number("bytes_in", number(c.bytes_in()))
      .Number("records_out", number(c.records_out()))
      .Number("bytes_out", number(c.bytes_out()))
      .Number("bytes_spilled", number(c.bytes_spilled()))
      .str();
}

std::string StagesJson(const google::protobuf::RepeatedPtrField<wire::StageState>& stages) {
  std::vector<std::string> items;
  for (const wire::StageState& stage : stages) items.push_back(StageJson(stage));
  return JsonArray(items);
}

// For reading: what a shell would take apart stands in quotes.
std::string Arguments(const wire::JobState& job) {
  std::string text;
  for (const std::string& argument : job.argv()) {
    std::string shown = EscapeForLog(argument, 200);
    const bool ours = text.empty() && shown.starts_with("ropewalk ");  // as the user typed it
    if (ours) {
      text = shown;
      continue;
    }
    if (shown.empty() || shown.find_first_of(" \t\"'$`*?[]{}()<>|&;#~!") != std::string::npos) shown = "'" + shown + "'";
    text += (text.empty() ? "" : " ") + shown;
  }
  return text;
}

// A line for each worker that the job lost.
std::string Losses(const wire::JobState& job, const std::string& label) {
  std::string text;
  std::uint64_t shown = static_cast<std::uint64_t>(job.lost_workers_size());
  if (job.workers_lost() > shown) text += label + std::to_string(job.workers_lost() - shown) + " workers before these\n";
  for (const wire::LostWorker& worker : job.lost_workers()) text += label + job::LossText(worker.name(), worker.tasks()) + "\n";
  return text;
}

std::string JobJson(const wire::JobState& job, std::int64_t now_us) {
  JsonObject out;
  out.Text("job", Name(job)).Text("name", job.name()).Text("user", job.user()).Text("phase", job.phase());
  out.Number("submitted_us", job.submitted_us()).Number("started_us", job.started_us()).Number("finished_us", job.finished_us());
  if (std::optional<std::int64_t> ms = RunningMs(job, now_us)) out.Number("duration_ms", *ms);
  out.Number("main_exit", job.main_exit()).Number("action", static_cast<std::int64_t>(job.action())).Text("action_name", job.action_name());
  if (!job.note().empty()) out.Text("note", job.note());
  std::vector<std::string> reasons, arguments, outputs, lost;
  for (const std::string& argument : job.argv()) arguments.push_back(JsonString(argument));
  for (const std::string& folder : job.outputs()) outputs.push_back(JsonString(folder));
  for (const wire::LostWorker& worker : job.lost_workers())
    lost.push_back(JsonObject().Text("name", worker.name()).Number("tasks", worker.tasks()).str());
  out.Raw("arguments", JsonArray(arguments)).Raw("outputs", JsonArray(outputs));
  out.Number("workers_lost", static_cast<std::int64_t>(job.workers_lost())).Raw("lost_workers", JsonArray(lost));
  for (const std::string& reason : job.pending_reasons()) reasons.push_back(JsonString(reason));
  out.Raw("stages", StagesJson(job.stages())).Raw("pending_reasons", JsonArray(reasons));
  Status end = IsOver(job) ? EndOf(job) : Status();
  if (!end.ok()) {
    std::string error = job::ErrorJson(end);  // {"error":{...}}: its inside
    out.Raw("error", error.substr(9, error.size() - 10));
  }
  return out.str();
}

}  // namespace

bool IsOver(const wire::JobState& job) { return job.phase() == "succeeded" || job.phase() == "failed" || job.phase() == "cancelled"; }

Status EndOf(const wire::JobState& job) {
  if (job.phase() == "succeeded") return {};
  Status failure = dag::FromWire(job.failure());
  if (!failure.ok()) return failure;
  if (job.phase() == "cancelled") return Status(Code::kCancelled, "JOB01", "job " + Name(job) + " was cancelled");
  return Status(Code::kUserError, "JOB02", "main of job " + Name(job) + " returned " + std::to_string(job.main_exit()),
                "a job whose main does not return 0 has failed", "`ropewalk logs " + Name(job) + "` shows what it said");
}

std::string ShowJobs(const wire::JobList& jobs, job::OutputForm form, std::int64_t now_us) {
  std::vector<std::vector<std::string>> rows;
  std::vector<std::string> objects;
  for (const wire::JobState& job : jobs.jobs()) {
    rows.push_back({Name(job), job.phase(), Progress(job), HumanTime(job.submitted_us()), RunningTime(job, now_us),
                    EscapeForLog(job.user(), 32), EscapeForLog(job.name(), 64)});
    objects.push_back(JobJson(job, now_us));
  }
  return Listing(form, "jobs", {"JOB", "PHASE", "TASKS", "SUBMITTED", "TIME", "USER", "NAME"}, rows, objects);
}

std::string ShowJob(const wire::JobState& job, job::OutputForm form, std::int64_t now_us) {
  if (form != job::OutputForm::kTable) return JobJson(job, now_us) + "\n";
  std::string out = "job        " + Name(job) + "  " + EscapeForLog(job.name()) + "\nphase      " + job.phase() + "\nuser       " +
                    EscapeForLog(job.user()) + "\nsubmitted  " + HumanTime(job.submitted_us()) + "\nstarted    " +
                    HumanTime(job.started_us()) + "\nfinished   " + HumanTime(job.finished_us()) + "\ntime       " +
                    RunningTime(job, now_us) + "\n";
  if (job.argv_size() > 0) out += "arguments  " + Arguments(job) + "\n";
  for (const std::string& folder : job.outputs()) out += "output     " + EscapeForLog(folder) + "\n";
  if (IsOver(job))
    out += "exit code  " + std::to_string(ExitCode(EndOf(job).code())) +
           (job.main_exit() != 0 ? " (main returned " + std::to_string(job.main_exit()) + ")\n" : "\n");
  out += Losses(job, "lost       ");
  if (job.action() != 0) out += "action     " + std::to_string(job.action()) + "  " + EscapeForLog(job.action_name()) + "\n";
  if (!job.note().empty()) out += "rank 0     " + EscapeForLog(job.note()) + "\n";
  for (const std::string& reason : job.pending_reasons()) out += "waits for  " + EscapeForLog(reason) + "\n";
  if (job.stages_size() > 0) out += "\n" + StagesTable(job.stages());
  Status end = IsOver(job) ? EndOf(job) : Status();
  if (!end.ok()) out += "\n" + end.ToString() + "\n";
  return out + "more: `ropewalk explain " + Name(job) + "`, `ropewalk logs " + Name(job) + "`\n";
}

std::string ShowWorkers(const wire::WorkerList& workers, job::OutputForm form) {
  std::string unlimited;  // lines of those that cannot limit jobs
  std::vector<std::vector<std::string>> rows;
  std::vector<std::string> objects;
  for (const wire::WorkerState& worker : workers.workers()) {
    const std::string id = WorkerName(WorkerId{worker.worker()}), name = EscapeForLog(worker.name(), 64);
    rows.push_back({name, EscapeForLog(worker.state(), 32), std::to_string(worker.busy()) + "/" + std::to_string(worker.slots()),
                    job::HumanBytes(static_cast<double>(worker.memory_bytes())),
                    job::HumanBytes(static_cast<double>(worker.blocks_bytes())), EscapeForLog(worker.address(), 64), id});
    objects.push_back(JsonObject()
                          .Text("worker", id)
                          .Text("name", worker.name())
                          .Text("address", worker.address())
                          .Text("state", worker.state())
                          .Number("slots", worker.slots())
                          .Number("busy", worker.busy())
                          .Number("memory_bytes", static_cast<std::int64_t>(worker.memory_bytes()))
                          .Number("blocks_bytes", static_cast<std::int64_t>(worker.blocks_bytes()))
                          .Number("lent_bytes", static_cast<std::int64_t>(worker.lent_bytes()))
                          .Number("spilled_bytes_total", static_cast<std::int64_t>(worker.spilled_bytes_total()))
                          .Number("executor_pss_bytes_max", static_cast<std::int64_t>(worker.executor_pss_bytes_max()))
                          .Text("limits", worker.limits())
                          .str());
    if (worker.limits().starts_with("no "))
      unlimited += name + ": " + EscapeForLog(worker.limits(), 200) + "; jobs there have rlimits only\n";
  }
  std::string out = Listing(form, "workers", {"WORKER", "STATE", "BUSY", "MEMORY", "BLOCKS", "ADDRESS", "ID"}, rows, objects);
  return form == job::OutputForm::kTable ? out + unlimited : out;
}

std::string ShowPlan(const wire::JobState& job, job::OutputForm form) {
  if (form != job::OutputForm::kTable) {
    std::vector<std::string> reasons, past;
    for (const std::string& reason : job.pending_reasons()) reasons.push_back(JsonString(reason));
    for (const wire::ActionState& action : job.past())
      past.push_back(JsonObject()
                         .Number("action", static_cast<std::int64_t>(action.sequence()))
                         .Text("action_name", action.name())
                         .Raw("complete", action.published() ? "true" : "false")
                         .Text("plan", action.plan_text())
                         .Raw("stages", StagesJson(action.stages()))
                         .str());
    return JsonObject()
               .Text("job", Name(job))
               .Text("phase", job.phase())
               .Number("action", static_cast<std::int64_t>(job.action()))
               .Text("action_name", job.action_name())
               .Text("plan", job.plan_text())
               .Raw("stages", StagesJson(job.stages()))
               .Raw("past", JsonArray(past))
               .Number("past_forgotten", static_cast<std::int64_t>(job.past_forgotten()))
               .Raw("pending_reasons", JsonArray(reasons))
               .str() +
           "\n";
  }
  std::string out = Name(job) + " " + job.phase() +
                    (job.action() == 0 ? "" : ", action " + std::to_string(job.action()) + " " + EscapeForLog(job.action_name())) + "\n";
  if (job.past_forgotten() > 0)
    out += std::to_string(job.past_forgotten()) + " earlier action" + (job.past_forgotten() == 1 ? " is" : "s are") + " not kept\n";
  for (const wire::ActionState& action : job.past()) {
    out += action.plan_text();
    if (out.back() != '\n') out += '\n';
    if (!action.published()) out += "  (the job ended in it)\n";
    if (action.stages_size() > 0) out += StagesTable(action.stages());
  }
  if (!job.plan_text().empty()) {
    out += job.plan_text();
    if (out.back() != '\n') out += '\n';
    if (job.stages_size() > 0) out += StagesTable(job.stages());
  } else if (job.past_size() == 0) {
    out += IsOver(job) ? "no plan is kept: its main reached no action, or an older version journalled its end\n"
                       : "no plan yet: its main has not reached an action\n";
  }
  out += Losses(job, "");
  for (const std::string& reason : job.pending_reasons()) out += "waits for: " + EscapeForLog(reason) + "\n";
  return out;
}

}  // namespace ropewalk::cli
