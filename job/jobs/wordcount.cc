#include "job/jobs/jobs.h"

#include <cstdio>

namespace ropewalk::jobs {

Written WordCount(Job& job, const Arguments& a) {
  auto counts = job.ReadLines(a.inputs).FlatMap(Words).CountByKey({.partitions = a.reducers});
  const Written written = counts.WriteText(a.output, {.overwrite = a.overwrite});
  if (a.top == 0) return written;
  // The shuffle's output is still there: only the reduce side runs again.
  for (const auto& [word, count] : counts.Top(a.top, [](const std::pair<std::string, std::uint64_t>& c) { return c.second; }))
    std::printf("%12llu %s\n", static_cast<unsigned long long>(count), word.c_str());
  return written;
}

}  // namespace ropewalk::jobs
