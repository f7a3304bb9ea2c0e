#include "job/jobs/jobs.h"

#include <cstdio>

#include "base/escape.h"

namespace ropewalk::jobs {

Written WordCount(Job& job, const Arguments& a) {
  auto counts = job.ReadLines(a.inputs).FlatMap(Words).CountByKey({.partitions = a.reducers});
  const Written written = counts.WriteText(a.output, {.overwrite = a.overwrite});
  if (a.top == 0) return written;
  // The shuffle's output is still there: only the reduce side runs again. What is printed is for people, on a cluster always through pipes
  // to a terminal that only the submitter knows; the files have the words as they are.
  for (const auto& [word, count] : counts.Top(a.top, [](const std::pair<std::string, std::uint64_t>& c) { return c.second; }))
    std::printf("%12llu %s\n", static_cast<unsigned long long>(count), EscapeForLog(word).c_str());
  return written;
}

}  // namespace ropewalk::jobs
