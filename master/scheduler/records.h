// The journal's records: decisions that a restarted master cannot find out again, and what finished tasks made (in order, unsynced).
//
//   record = version u8 | kind u8 | fields        little-endian, varints, sized strings; a reader refuses what is longer or shorter
//
// A kind's number is never used twice. A new field means a new kind or a new version of all: fields of a later version stand at the end of
// their record, and a record of an earlier one leaves them at their defaults.
//
// Thread rule: values.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "master/scheduler/scheduler.h"

namespace ropewalk::scheduler {

// Version 2: the end of a job has its times and its last plans. Version 3: its arguments, output folders and lost workers.
inline constexpr std::uint8_t kRecordVersion = 3;

struct CountersRecord {  // ids below these were or may have been given out
  std::uint64_t job_next = 1;
  std::uint64_t executors_reserved = 1;
};
struct JobAcceptedRecord {
  JobSpec spec;
};
struct AttemptsRecord {
  JobId job;
  std::uint32_t reserved = 0;
};
struct OnceRecord {
  JobId job;
  std::string name;
  std::string value;
};
struct TaskDoneRecord {  // unsynced
  JobId job;
  std::uint64_t sequence = 0;  // 0: the stage makes segments
  TaskAttempt id;
  std::uint64_t hash = 0;
  bool has_value = false;
  std::string value;
};
struct TasksForgottenRecord {  // unsynced: made from content that has changed
  JobId job;
  std::uint64_t sequence = 0;
  StageId stage;
  std::vector<std::uint32_t> tasks;
};
struct VerifiedRecord {
  JobId job;
  std::uint64_t sequence = 0;
  StageId stage;
};  // unsynced
struct WinnersRecord {  // of a kFiles stage, before its commit runs; pins the stages that the files came from
  JobId job;
  std::uint64_t sequence = 0;
  StageId stage;
  std::vector<TaskDoneRecord> tasks;
  std::vector<StageId> pinned;
};
struct ActionPublishedRecord {
  JobId job;
  std::uint64_t sequence = 0;
  std::uint64_t fingerprint = 0;
  std::string name;
  std::vector<std::string> values;
  std::vector<StageId> pinned;
};
struct RetiredRecord {
  JobId job;
  std::vector<StageId> stages;
};  // unsynced
struct JobFinishedRecord {
  JobId job;
  std::string submit_key, name, user;  // a snapshot drops the rest of the job
  std::int64_t submitted_us = 0;
  std::uint32_t code = 0;
  std::string tag, what, why, fix;
  std::int32_t main_exit = 0;
  std::uint64_t actions_done = 0;
  std::int64_t started_us = 0, finished_us = 0;  // from version 2 on; 0: not known
  std::vector<ActionView> past;
  std::vector<std::string> argv, outputs;  // from version 3 on, as those below
  std::uint64_t workers_lost = 0;
  std::vector<LostWorker> lost_workers;
};

struct CutRecord {  // comes before the action's publication, which gives it to main
  JobId job;
  std::uint64_t sequence = 0;
  std::vector<StageId> stages;
};
struct CutsUndoneRecord {  // all copies of a cut stage were lost: main is replayed with its whole lineage
  JobId job;
};  // unsynced
struct GangRecord {  // before a gang is formed, and with the numbers of all earlier formings of the job used up
  JobId job;
  std::uint64_t sequence = 0;
  StageId stage;  // 0: of none that is still to be done
  std::uint32_t epoch_next = 0;
  std::uint32_t failures = 0;
  std::uint32_t restarts = 0;
};

using Record =
    std::variant<CountersRecord, JobAcceptedRecord, AttemptsRecord, OnceRecord, TaskDoneRecord, TasksForgottenRecord, VerifiedRecord,
                 WinnersRecord, ActionPublishedRecord, RetiredRecord, JobFinishedRecord, CutRecord, CutsUndoneRecord, GangRecord>;

std::string Encode(const Record& record);
// kDataLoss JRN01 for bytes that no Encode() made, kVersionSkew JRN02 for a newer version's.
Result<Record> Decode(std::string_view bytes);

}  // namespace ropewalk::scheduler
