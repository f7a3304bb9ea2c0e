// The two stages of an output folder: parts, then the commit.
#include <cstdio>

#include "dag/plan/actions.h"
#include "storage/output_owner.h"

namespace ropewalk::dag {

void AddOutputStages(PlanNode& action, StageSpec write, const storage::OutputSpec& spec) {
  write.side = 0;
  write.output = StageOutput::kFiles;
  StageSpec commit;
  commit.side = 1;
  commit.output = StageOutput::kCommit;
  commit.tasks = 1;
  commit.operators = "Commit";
  commit.gathers = {StageInput{action.stage_id(0), InputPattern::kGather, 0}};
  StageId files = action.stage_id(0);
  commit.program = [spec, files](TaskContext& context, TaskResult* result) -> Status {
    const TaskInput* parts = context.InputOf(files);
    if (parts == nullptr) return Status(Code::kInternal, "PLAN03", "the commit of " + spec.folder + " has no parts");
    RETURN_IF_ERROR(storage::CommitOutput(spec, parts->values));
    result->value = spec.folder;
    result->content_hash = Checksum64(result->value);
    return {};
  };
  action.AddStage(std::move(write));
  action.AddStage(std::move(commit));
  action.SetOutput({spec.folder, spec.key});
}

storage::OutputSpec CheckedOutput(PlanNode& action, const std::string& folder, bool overwrite) {
  PlanContext& context = *action.context();
  const Settings& settings = context.settings();
  storage::OutputSpec spec;
  spec.folder = folder.starts_with('/') ? folder : settings.work_dir + "/" + folder;
  char number[24];
  std::snprintf(number, sizeof(number), "-%llx", static_cast<unsigned long long>(action.id()));
  spec.key = OutputKeyOf(settings.job, settings.now_us) + number;  // of the job and the action; the same in every replica and attempt
  // In one process the process owns what is written; on a cluster the job outlives each of its processes.
  if (context.backend().in_one_process()) spec.key = storage::OwnedKey(spec.key, storage::ProcessOwner());
  spec.overwrite = overwrite;
  // Through Once: a replica that replays main after the commit must not find its own output in the way.
  context.Once("output:" + std::to_string(context.NextOnce()), [&]() -> Result<std::string> {
    storage::RemoveStaleOutputs(spec);  // first: a killed job may have moved the former output away
    RETURN_IF_ERROR(storage::CheckOutput(spec, context.input_paths()));
    return std::string();
  });
  return spec;
}

}  // namespace ropewalk::dag
