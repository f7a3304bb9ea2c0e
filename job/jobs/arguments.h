// What the built-in jobs are called with. Parsed before Init, so that a mistake is told at once and not by a cluster.
//
// Thread rule: values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace ropewalk::jobs {

struct Arguments {
  std::string job;      // wordcount, sort, grep; "help"
  std::string help_of;  // help: the job that it is asked for; "": all
  std::vector<std::string> inputs;
  std::string output;
  bool overwrite = false;
  std::uint32_t reducers = 0;      // 0: chosen
  std::uint32_t top = 0;           // wordcount: print so many words
  bool reverse = false;            // sort
  std::uint32_t record_bytes = 0;  // sort: of records of one length; 0: lines
  std::uint32_t key_offset = 0;    // sort: of the bytes of a record that decide
  std::uint32_t key_bytes = 0;     // sort: 0: all of them
  std::string pattern;             // grep
  bool regex = false;              // grep -E
  bool ignore_case = false;        // grep -i
};

// `args` without Ropewalk's own flags; [0] is the program. kInvalid JOBS01 names the argument.
Result<Arguments> ParseArguments(const std::vector<std::string>& args);

// How a job is called; `program` is argv[0], as the user typed it ("ropewalk run") or this binary's path.
std::string Usage(const std::string& job, const std::string& program);

}  // namespace ropewalk::jobs
