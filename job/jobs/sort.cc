#include "job/jobs/jobs.h"

namespace ropewalk::jobs {
namespace {

Written SortRecords(Job& job, const Arguments& a, const SortByOptions& order, const WriteOptions& write) {
  auto records = job.ReadRecords(a.inputs, {.bytes = a.record_bytes});
  if (a.key_bytes == 0 || a.key_bytes == a.record_bytes) return records.Sort(order).WriteRecords(a.output, write);
  std::size_t offset = a.key_offset, bytes = a.key_bytes;
  return records.SortBy([offset, bytes](std::string_view record) { return record.substr(offset, bytes); }, order)
      .WriteRecords(a.output, write);
}

}  // namespace

Written Sort(Job& job, const Arguments& a) {
  SortByOptions order{.descending = a.reverse, .partitions = a.reducers};
  WriteOptions write{.overwrite = a.overwrite};
  if (a.record_bytes != 0) return SortRecords(job, a, order, write);
  return job.ReadLines(a.inputs).Sort(order).WriteText(a.output, write);
}

}  // namespace ropewalk::jobs
