#include "job/jobs/jobs.h"

namespace ropewalk::jobs {

void Sort(Job& job, const Arguments& a) {
  job.ReadLines(a.inputs).Sort({.descending = a.reverse, .partitions = a.reducers}).WriteText(a.output, {.overwrite = a.overwrite});
}

}  // namespace ropewalk::jobs
