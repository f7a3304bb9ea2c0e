// How a job's process is told what to be: flags of ours, taken out of argv, over environment variables.
//
//   --master HOST:PORT   ROPEWALK_MASTER       submit there and follow; without it main runs in this process
//   --token-file FILE    ROPEWALK_TOKEN_FILE   default: the token of the home folder (base/home_folder.h)
//   --detach             ROPEWALK_DETACH=1     print the job's id and leave
//   --name TEXT          ROPEWALK_NAME         default: the program's file name
//   --threads N          ROPEWALK_THREADS      embedded: default all cores
//   --memory BYTES       ROPEWALK_MEMORY       embedded: of shuffle data; more goes to disk. 512M, 4G; default half of the machine's
//   --partitions N       ROPEWALK_PARTITIONS   reduce partitions where the program names none
//   --verify=on|off      ROPEWALK_VERIFY       run a sample of tasks twice and compare
//                        ROPEWALK_OUTPUT       table, json or jsonl: how errors and summaries are printed
//                        ROPEWALK_QUIET        1: nothing of progress and end on stderr; errors are told all the same
//                        ROPEWALK_EVENT_LOG    embedded: file to append the event log to
//                        ROPEWALK_METRICS      embedded: file in which what ranks measure is kept; `ropewalk job metrics FILE` shows it
//                        ROPEWALK_ENV          names of further variables that executors get: A,B,C
//                        ROPEWALK_EXECUTOR_FD  set by workers: this process is an executor
//
// ROPEWALK_JOB__THREADS and its like mean the same as the short names, which win (base/known_names.h has them all).
//
// Thread rule: values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"

namespace ropewalk::job {

enum class OutputForm : std::uint8_t { kTable = 0, kJson = 1, kJsonLines = 2 };

// Less than a single task of the smallest operators needs, and its segments (dag/operator_memory.h).
inline constexpr std::uint64_t kMemoryBytesLeast = 16ull << 20;

struct JobOptions {
  std::string master;
  std::string token_file;
  bool detach = false;
  std::string name;
  std::uint32_t threads = 0;         // 0: all cores
  std::uint64_t memory_bytes = 0;    // 0: half of the machine's
  std::uint64_t operator_bytes = 0;  // Settings::operator_bytes; 0: chosen from the memory of the workers
  std::uint32_t partitions = 0;
  bool verify = true;
  OutputForm output = OutputForm::kTable;
  bool quiet = false;
  std::string event_log, metrics;
  std::vector<std::string> environment_names;
  std::optional<int> executor_fd;
};

using Getenv = std::function<const char*(const char*)>;

// Takes our flags out of `args` (up to a "--", which stays) and reads the environment. `args[0]` is the program. kInvalid CFG01 names the
// flag or variable; it also refuses flags for this process (--threads, --memory) beside --master. An executor's
// arguments are left alone: its client took them out already.
Result<JobOptions> TakeOptions(std::vector<std::string>* args, const Getenv& environment);

// What the environment alone says, for who has no options at hand: the defaults where it says nothing, or what Init refuses.
JobOptions EnvironmentOptions(const Getenv& environment);

// Whether this process is an executor: what its program was told was checked where it was submitted.
bool IsExecutor();

// Of this process's environment: in which form errors are told before there are options.
OutputForm FormOfErrors();

// For programs of ours that look at their arguments before Init(): fails with what Init() would refuse of them and of the environment, so
// that it is told before anything is started or sent. An executor's are right.
Status CheckOptions(std::vector<std::string> args);

// "--threads" and the others.
std::vector<std::string> OptionFlags();

// If args[*at] is one of them it goes to `passed`; so does its value where that is the next word, on which *at stands then.
bool PassOption(const std::vector<std::string>& args, std::size_t* at, std::vector<std::string>* passed);

// 536870912 of "512M": decimal digits and at most one of K, M, G, T (powers of 1024, "MiB" and "MB" too); nullopt for anything else.
std::optional<std::uint64_t> ParseBytes(const std::string& text);

}  // namespace ropewalk::job
