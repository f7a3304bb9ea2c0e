// Somebody else's program as a child of this process: in a process group of its own, with its output read line by line, and ended with all
// that it has started. It dies with the thread that started it, however that ends.
//
// Thread rule: Start, Wait and the destructor on one thread; End from any.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "base/unique_fd.h"

namespace ropewalk::launch {

struct ProgramOptions {
  std::vector<std::string> argv;                   // [0] without a '/' is looked for in PATH, with one from `folder` on
  std::string folder;                              // it starts in
  std::map<std::string, std::string> environment;  // beside what this process has
};

// How a program has ended.
struct ProgramEnd {
  int exit_code = 0;  // where signal is 0
  int signal = 0;
  std::vector<std::string> last_lines;  // of its output, few
  bool ok() const { return signal == 0 && exit_code == 0; }
  std::string Words() const;  // "exited with 3", "was ended by signal 9 (Killed)"
};

class ChildProgram {
 public:
  // kUserError LAUNCH01: there is no such program or folder, or it cannot be started.
  static Result<std::unique_ptr<ChildProgram>> Start(const ProgramOptions& options);
  ~ChildProgram();  // kills it, with all of its group
  ChildProgram(const ChildProgram&) = delete;
  ChildProgram& operator=(const ChildProgram&) = delete;

  // Until it has ended and what is left of its group is gone. `line` gets each line of its stdout and stderr, without the newline; `tick`
  // is called some times a second.
  ProgramEnd Wait(const std::function<void(std::string_view)>& line, const std::function<void()>& tick);
  // SIGTERM to its group, and SIGKILL to what is still there a little later.
  void End() { end_asked_ = true; }

 private:
  ChildProgram(pid_t pid, UniqueFd output) : pid_(pid), output_(std::move(output)) {}
  // False at the end of the output.
  bool Read(const std::function<void(std::string_view)>& line, ProgramEnd* end);

  pid_t pid_;
  UniqueFd output_;
  std::string partial_;  // a line that has not ended
  std::atomic<bool> end_asked_ = false;
};

}  // namespace ropewalk::launch
