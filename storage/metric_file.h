// A metric history that outlives its process: a file that grows by what comes, and is written anew, with the history alone, when most of it
// has been merged since. Nothing is decided by it and nobody is promised it, so it is not synced: a process that is killed loses nothing,
// a machine that loses its power the last seconds.
//
//   "ropewalk-metrics-1\n", then records:  length u32 │ Checksum64 of the bytes u64 │ Encode(Metrics), `length` bytes
//
// A record that is torn or damaged ends the file: what came before it counts.
//
// Owner: the caller. Thread rule: one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/status.h"
#include "storage/file_system.h"
#include "storage/metric_history.h"

namespace ropewalk::storage {

// kNotFound METRIC02: there is none. kInvalid METRIC03: the file is no such one. METRIC02 with the code of what was met: unreadable.
Result<MetricHistory> ReadMetricFile(FileSystem& files, const std::string& path, MetricHistory::Limits limits = {});

class MetricFile {
 public:
  // Goes on from what lies there. `files` must outlive it. As ReadMetricFile, but for a file that is not there yet.
  static Result<std::unique_ptr<MetricFile>> Open(FileSystem& files, std::string path, MetricHistory::Limits limits = {});

  // METRIC02: it is in the history, and not on the disk; the next call tries to bring all of it there.
  Status Add(const Metrics& metrics);
  const MetricHistory& history() const { return history_; }

 private:
  MetricFile(FileSystem& files, std::string path, MetricHistory history);
  Status WriteAnew();
  FileSystem& files_;
  const std::string path_;
  MetricHistory history_;
  std::unique_ptr<WritableFile> file_;  // null: it has to be written anew
  std::uint64_t bytes_ = 0, bytes_when_new_ = 0;
};

}  // namespace ropewalk::storage
