// The two stages of an output folder: parts, then the commit.
#include <unistd.h>

#include <cstdio>

#include "base/bytes.h"
#include "base/job_name.h"
#include "dag/plan/actions.h"
#include "storage/commit_output.h"
#include "storage/output_owner.h"

namespace ropewalk::dag {
namespace {

constexpr std::uint64_t kWrittenVersion = 1;

std::string EncodeWritten(const Written& written) {
  std::string bytes;
  ByteWriter out(&bytes);
  out.Varint(kWrittenVersion);
  out.Varint(written.records);
  out.Varint(written.bytes);
  out.Varint(written.parts);
  return bytes;
}

}  // namespace

Result<Written> DecodeWritten(std::string_view bytes) {
  ByteReader in(bytes);
  const std::uint64_t version = in.Varint();
  Written written;
  written.records = in.Varint();
  written.bytes = in.Varint();
  written.parts = static_cast<std::uint32_t>(in.Varint());
  if (version != kWrittenVersion || !in.ok() || !in.empty()) return DamagedResult("an output folder");
  return written;
}

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
    RETURN_IF_ERROR(storage::CommitOutput(spec, parts->values, context.id.attempt));
    ASSIGN_OR_RETURN(storage::OutputTotals totals, storage::TotalsOf(parts->values));
    result->value = EncodeWritten(Written{totals.records, totals.bytes, static_cast<std::uint32_t>(parts->values.size())});
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
  const bool own = context.backend().in_one_process();
  if (own) spec.key = storage::OwnedKey(spec.key, storage::ProcessOwner());
  spec.writer = own ? "process " + std::to_string(getpid()) : "job " + JobName(settings.job);
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
