// Is an executable a Ropewalk job? `ropewalk run` and `submit` start what they are given, and any other program would simply run here, with
// whatever it does, and look like a job that ended well.
//
// A job is told by its file: linked statically it holds the note that init.cc puts there (it survives strip), linked dynamically it, or a
// library of its own that the loader would find, refers to ropewalk::job::InitProcess.
//
// Thread rule: pure functions of files.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace ropewalk::job {

// OK for a job. kInvalid CLI10 says what the file is instead. `command` is what the user typed ("ropewalk submit").
Status CheckIsJob(const std::string& path, const std::string& command);

// What one ELF image says; damaged and foreign ones: kInvalid ELF01.
struct JobMarks {
  bool marked = false;  // the note, or a dynamic symbol of ours
  std::vector<std::string> needed, run_paths;
};
Result<JobMarks> ReadJobMarks(std::string_view image, const std::string& name);

}  // namespace ropewalk::job
