// The line that a built-in job ends with, on stderr: how much it read and wrote, how fast, and where the output lies. Another line says so
// where that is no longer what this job has written.
//
// Thread rule: main's thread.
#pragma once

#include <chrono>
#include <string>

#include "job/jobs/arguments.h"
#include "job/ropewalk.h"

namespace ropewalk::jobs {

class Summary {
 public:
  Summary(Job* job, const Arguments& arguments);
  // After the last action. `records`: what the output's records are called ("different words", "lines", "records").
  void Print(const Written& written, const std::string& records);

 private:
  Job* job_;
  const Arguments& arguments_;
  std::chrono::steady_clock::time_point started_;
};

}  // namespace ropewalk::jobs
