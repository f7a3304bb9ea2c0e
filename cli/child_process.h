// One daemon as a child of `start dev`.
//
// Thread rule: one thread, with no other thread in the process when Start() forks.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace ropewalk::cli {

class ChildProcess {
 public:
  // `args`: of our own executable. `log_file`: stdout and stderr are appended there.
  ChildProcess(std::string name, std::vector<std::string> args, std::string log_file);
  ~ChildProcess();  // kills it
  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess& operator=(ChildProcess&&) = delete;

  // `kept_fd` != -1: the one descriptor beside the standard ones that the child keeps. kUnavailable DEV01.
  Status Start(int kept_fd = -1);
  void Signal(int signal);
  // True once it has ended; `how` says "exited with 5" or "was killed by signal 9".
  bool Reap(std::string* how);
  bool running() const { return pid_ > 0; }
  pid_t pid() const { return pid_; }
  std::int64_t started_ms() const { return started_ms_; }
  const std::string& name() const { return name_; }
  const std::string& log_file() const { return log_file_; }
  void set_args(std::vector<std::string> args) { args_ = std::move(args); }
  std::string LogTail() const;  // the last lines that it wrote

 private:
  std::string name_;
  std::vector<std::string> args_;
  std::string log_file_;
  pid_t pid_ = -1;
  std::int64_t started_ms_ = 0;
};

}  // namespace ropewalk::cli
