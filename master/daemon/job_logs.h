// What a job says, as files below <state>/jobs/<job>/: its stdout (driver.out) and stderr (driver.err), the output of its other executors
// (executor.log, each line with the executor's number) and the event log (events.jsonl). All are bounded.
//
// Stdout is one stream although its driver may be replaced: every executor runs the same main, so each one's stdout is the same stream.
// What an executor writes below the length of driver.out is compared and dropped; what the driver writes beyond it is appended; what
// another executor writes beyond it is kept (bounded) until the driver gets there or the executor becomes the driver. Output is
// acknowledged when it is kept and little of the stream is not synced; an executor that runs too far ahead is not acknowledged and so
// waits.
//
// Owner: the master. Thread rule: one thread; the Sync() of a file may run on another.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "master/daemon/files.h"

namespace ropewalk::master {

enum class LogStream : std::uint8_t { kDriver = 0, kStderr = 1, kExecutor = 2, kEvents = 3 };
std::optional<LogStream> ParseLogStream(std::string_view name);  // "driver", "stderr", "executor", "events"

struct JobLogLimits {
  std::uint64_t stdout_bytes = 1ull << 30;
  std::uint64_t other_bytes = 64ull << 20;  // of each other stream
  std::uint64_t ahead_bytes = 4ull << 20;   // of stdout that an executor may be ahead of the driver
};

class JobLogs {
 public:
  static Result<std::unique_ptr<JobLogs>> Open(const std::string& folder, JobLogLimits limits);

  struct Ack {
    ExecutorId executor;
    std::uint64_t offset = 0;  // of its stdout: everything below is kept
  };
  // Each returns the executors whose stdout has been kept further than before. Errors are the disk's: the job's output is then incomplete.
  Result<std::vector<Ack>> Stdout(ExecutorId executor, std::uint64_t offset, std::string_view bytes);
  Result<std::vector<Ack>> NameDriver(ExecutorId executor);
  Status Stderr(ExecutorId executor, std::string_view bytes);
  Status Event(std::string_view line);
  void Exited(ExecutorId executor);
  // Nothing more will come: says behind each stream of which something was not kept how much that was, as far as it is known. Once.
  Status Ended();

  ExecutorId driver() const { return driver_; }
  // True once: an executor's stdout differed from what was shown.
  bool TakeDifference(ExecutorId* executor, std::uint64_t* offset);

  // driver.out is shown only as far as it was synced.
  const std::shared_ptr<LogFile>& file(LogStream stream) const { return files_[static_cast<std::size_t>(stream)]; }
  void Synced(std::uint64_t stdout_bytes);
  std::uint64_t shown(LogStream stream) const;
  Result<std::string> Read(LogStream stream, std::uint64_t offset, std::uint64_t bytes_max) const;

 private:
  struct Replica {
    std::uint64_t kept = 0;          // of its stdout
    std::string ahead;               // bytes [kept - ahead.size(), kept), all beyond driver.out when they came
    std::string waiting;             // came, beyond ahead_bytes, not acknowledged
    std::string out_line, err_line;  // not yet ended by a newline
    bool differs = false;
  };
  explicit JobLogs(JobLogLimits limits) : limits_(limits) {}
  std::uint64_t LimitOf(LogStream stream) const;
  LogFile& Stream(LogStream stream) { return *files_[static_cast<std::size_t>(stream)]; }
  Status Advance(ExecutorId executor, Replica& replica);
  Status AppendStdout(std::string_view bytes);
  Status AppendBounded(LogStream stream, std::string_view bytes);
  std::string DroppedNote(LogStream stream, std::uint64_t dropped) const;
  Status AppendLines(ExecutorId executor, std::string* line, std::string_view bytes);
  void Compare(ExecutorId executor, Replica& replica, std::uint64_t offset, std::string_view bytes);
  Result<std::vector<Ack>> AdvanceAll(ExecutorId first);

  JobLogLimits limits_;
  std::shared_ptr<LogFile> files_[4];
  std::uint64_t stdout_length_ = 0;  // of the stream, also what the limit made us drop
  std::uint64_t synced_ = 0;
  std::uint64_t dropped_[4] = {};  // bytes that were not kept, in this life of the master
  bool full_[4] = {};
  bool was_full_[4] = {};           // when it was opened: an earlier life of the master may have dropped some, too
  std::uint64_t stdout_begin_ = 0;  // bytes of stdout that were there when it was opened
  bool stdout_said_again_ = false;  // the driver has come that far: what follows is all that was ever dropped
  ExecutorId driver_;
  std::map<ExecutorId, Replica> replicas_;
  std::optional<std::pair<ExecutorId, std::uint64_t>> difference_;
};

}  // namespace ropewalk::master
