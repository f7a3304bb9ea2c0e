// What a job's plan may depend on besides its arguments. Fixed when the job is submitted, equal in every executor, and
// journalled: nothing here is read from the machine that happens to run a task.
#pragma once

#include <cstdint>
#include <string>

#include "base/ids.h"

namespace ropewalk::dag {

struct Settings {
  JobId job;
  std::string name;                              // for people; control bytes are escaped when shown
  std::uint64_t seed = 0;                        // job.Seed(): the root of all random numbers
  std::int64_t now_us = 0;                       // job.Now(): microseconds since 1970 at submission
  std::uint32_t slots = 1;                       // task slots that the plan is made for; later joins do not change it
  std::uint32_t partitions = 0;                  // default number of reduce partitions; 0: chosen from `slots`
  std::uint64_t operator_bytes = 256ull << 20;   // an operator flushes or partitions at this size: a plan constant
  std::uint64_t split_bytes_max = 128ull << 20;  // the largest input split of a splittable file
  std::uint64_t collect_bytes_max = 256ull << 20;
  std::uint32_t user_attempts_max = 4;  // the first try and three retries, then the job fails with the user's message
  bool verify = true;                   // run one sampled task of each stage twice and compare content hashes
  std::string work_dir;                 // the submit folder: relative paths resolve against it
};

}  // namespace ropewalk::dag
