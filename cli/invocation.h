// What the command line said, as plain values. CLI11 (seconds to compile) stays in arguments.cc.
//
// Thread rule: values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/config.h"
#include "base/status.h"
#include "job/options.h"

namespace ropewalk::cli {

struct Invocation {
  std::string verb;  // "run", "submit", "start dev", "job list"...; "": only `text` is to be printed
  std::string text;  // help or version, for stdout
  job::OutputForm output = job::OutputForm::kTable;
  bool output_given = false;                                            // by flag or ROPEWALK_OUTPUT; else the configuration may say it
  std::string config_file;                                              // "": the one in the home folder, where it exists
  std::vector<ConfigEntry> flags;                                       // of configuration keys
  std::vector<std::string> launch;                                      // run, submit, ...: the job's name or path and everything after it
  std::vector<std::pair<std::string, std::string>> launch_environment;  // run, submit: ROPEWALK_... from flags before the name
  std::string job_name;                                                 // j-713; of `job metrics` also a file
  std::uint32_t limit = 100;
  bool follow = false;
  std::string stream;                 // logs: "", driver, stderr, executor, events
  std::optional<std::uint32_t> rank;  // logs, job metrics: of that one only
  std::uint32_t points = 0;           // job metrics: of each series at most; 0: 20 in a table, else all
  std::int64_t timeout_ms = -1;       // job wait; -1: for ever
  int ready_fd = -1;                  // start master: where the address is written once it serves
};

// kInvalid CLI01 names the flag or verb, and the nearest one.
Result<Invocation> ParseArguments(const std::vector<std::string>& args);

// The form that a failure to parse must have: what --output or ROPEWALK_OUTPUT says, as far as it can be made out.
job::OutputForm GuessOutputForm(const std::vector<std::string>& args);
bool ParseOutputForm(const std::string& text, job::OutputForm* form);

}  // namespace ropewalk::cli
