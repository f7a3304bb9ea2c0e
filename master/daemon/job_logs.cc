#include "master/daemon/job_logs.h"

#include <algorithm>
#include <utility>

namespace ropewalk::master {
namespace {

constexpr std::size_t kLineBytesMax = 4096;
constexpr const char* kFileNames[4] = {"driver.out", "driver.err", "executor.log", "events.jsonl"};
constexpr std::string_view kFullNote = "\n[ropewalk] the log has reached its limit of ", kFullEvent = "{\"event\":\"log_full\"}\n";

// Whole lines are left out that do not fit, so that a full log may be a little shorter than its limit. Nothing that a job says looks like
// the note there: its lines have a number before them, and its events are ours.
bool EndsFull(const LogFile& file, std::string_view note) {
  constexpr std::uint64_t kNotesBytes = 1024;  // the note of Ended() may stand behind it
  const std::uint64_t begin = file.size() - std::min(file.size(), kNotesBytes);
  auto tail = file.Read(begin, kNotesBytes);
  return tail.ok() && tail->find(note) != std::string::npos;
}

}  // namespace

std::optional<LogStream> ParseLogStream(std::string_view name) {
  static constexpr std::string_view kNames[4] = {"driver", "stderr", "executor", "events"};
  for (std::size_t i = 0; i < 4; ++i)
    if (name == kNames[i]) return static_cast<LogStream>(i);
  return std::nullopt;
}

Result<std::unique_ptr<JobLogs>> JobLogs::Open(const std::string& folder, JobLogLimits limits) {
  RETURN_IF_ERROR(MakeFolder(folder));
  std::unique_ptr<JobLogs> logs(new JobLogs(limits));
  for (std::size_t i = 0; i < 4; ++i) {
    ASSIGN_OR_RETURN(logs->files_[i], LogFile::Open(folder + "/" + kFileNames[i]));
  }
  for (const LogStream stream : {LogStream::kDriver, LogStream::kStderr, LogStream::kExecutor, LogStream::kEvents}) {
    const auto i = static_cast<std::size_t>(stream);
    bool full = logs->files_[i]->size() >= logs->LimitOf(stream);
    if (stream == LogStream::kExecutor) full = full || EndsFull(*logs->files_[i], kFullNote);
    if (stream == LogStream::kEvents) full = full || EndsFull(*logs->files_[i], kFullEvent);
    logs->full_[i] = logs->was_full_[i] = full;
  }
  // What the file holds after a restart may not be on the disk yet; the first sync of new output covers it, and showing it loses nothing:
  // a replacement's output is compared with it.
  logs->stdout_begin_ = logs->stdout_length_ = logs->synced_ = logs->Stream(LogStream::kDriver).size();
  return logs;
}

Status JobLogs::AppendBounded(LogStream stream, std::string_view bytes) {
  const auto i = static_cast<std::size_t>(stream);
  LogFile& file = *files_[i];
  const std::uint64_t room = full_[i] || limits_.other_bytes < file.size() ? 0 : limits_.other_bytes - file.size();
  // What the disk does not take is not kept either.
  const auto append = [&](std::string_view text, std::size_t of_the_job) {
    Status status = file.Append(text);
    if (!status.ok()) dropped_[i] += of_the_job;
    return status;
  };
  if (bytes.size() <= room) return append(bytes, bytes.size());
  // Of text what fits; half an event or half a line of an executor would be unreadable.
  const std::size_t keep = stream == LogStream::kStderr ? static_cast<std::size_t>(room) : 0;
  dropped_[i] += bytes.size() - keep;
  if (full_[i]) return {};
  const std::string note = stream == LogStream::kEvents ? std::string(kFullEvent)
                                                        : std::string(kFullNote) + std::to_string(limits_.other_bytes) +
                                                              " bytes (master.job_logs); what comes now is not kept\n";
  Status status = append(std::string(bytes.substr(0, keep)) + note, keep);
  full_[i] = status.ok();
  return status;
}

std::uint64_t JobLogs::LimitOf(LogStream stream) const { return stream == LogStream::kDriver ? limits_.stdout_bytes : limits_.other_bytes; }

// Empty where all was kept. After a restart of the master main says all of its stdout again, so that what is dropped of that is all that
// ever was; what the other streams had lost before, nobody knows.
std::string JobLogs::DroppedNote(LogStream stream, std::uint64_t dropped) const {
  constexpr const char* kNames[4] = {"stdout", "stderr", "the other executors' output", "the event log"};
  const auto i = static_cast<std::size_t>(stream);
  const bool more = was_full_[i] && !(stream == LogStream::kDriver && stdout_said_again_);
  if (dropped == 0 && !more) return "";
  const std::string count = std::to_string(dropped);
  if (stream == LogStream::kEvents)
    return "{\"event\":\"log_dropped\",\"bytes\":" + count + (more ? ",\"more_before_restart\":true}\n" : "}\n");
  const std::string unknown = " before the master was started again";
  if (dropped == 0)
    return std::string("[ropewalk] ") + kNames[i] + " had reached its limit" + unknown +
           "; how much of it was not kept then is not known\n";
  return "[ropewalk] " + count + " bytes of " + kNames[i] + " were not kept" +
         (more ? ", besides what was not kept" + unknown + "\n" : "\n");
}

Status JobLogs::Ended() {
  Status first;
  for (const LogStream stream : {LogStream::kDriver, LogStream::kStderr, LogStream::kExecutor, LogStream::kEvents}) {
    const auto i = static_cast<std::size_t>(stream);
    const std::string note = DroppedNote(stream, std::exchange(dropped_[i], 0));
    was_full_[i] = false;
    if (note.empty()) continue;
    // Stdout is the job's own, to the byte: what is to be said of it stands in stderr. These lines are beyond the limit, and few.
    Status status = Stream(stream == LogStream::kDriver ? LogStream::kStderr : stream).Append(note);
    if (first.ok()) first = std::move(status);
  }
  return first;
}

Status JobLogs::AppendStdout(std::string_view bytes) {
  LogFile& file = Stream(LogStream::kDriver);
  stdout_length_ += bytes.size();
  const std::uint64_t room = limits_.stdout_bytes > file.size() ? limits_.stdout_bytes - file.size() : 0;
  if (bytes.size() <= room) return file.Append(bytes);
  dropped_[0] += bytes.size() - room;
  RETURN_IF_ERROR(file.Append(bytes.substr(0, room)));
  if (std::exchange(full_[0], true)) return {};
  return AppendBounded(LogStream::kStderr, "[ropewalk] the job's stdout has reached its limit of " + std::to_string(limits_.stdout_bytes) +
                                               " bytes (master.job_stdout); what comes now is not kept\n");
}

// `bytes` lie below the stream's length: the job has said this before.
void JobLogs::Compare(ExecutorId executor, Replica& replica, std::uint64_t offset, std::string_view bytes) {
  if (replica.differs) return;
  auto before = Stream(LogStream::kDriver).Read(offset, bytes.size());
  if (!before.ok() || bytes.starts_with(*before)) return;  // shorter where the limit dropped it
  replica.differs = true;
  std::uint64_t at = offset;
  for (std::size_t i = 0; i < before->size() && (*before)[i] == bytes[i]; ++i) ++at;
  if (!difference_) difference_ = {executor, at};
}

// Moves what came of `replica` to where it may go now.
Status JobLogs::Advance(ExecutorId executor, Replica& replica) {
  std::uint64_t begin = replica.kept - replica.ahead.size();
  std::string bytes = std::exchange(replica.ahead, {}) + std::exchange(replica.waiting, {});
  const std::uint64_t old_length = stdout_length_;
  const auto below = static_cast<std::size_t>(std::min<std::uint64_t>(bytes.size(), old_length > begin ? old_length - begin : 0));
  if (below > 0) Compare(executor, replica, begin, std::string_view(bytes).substr(0, below));
  std::string_view beyond = std::string_view(bytes).substr(below);
  begin += below;
  if (executor == driver_) {
    replica.kept = begin + beyond.size();
    stdout_said_again_ |= replica.kept >= stdout_begin_;
    return AppendStdout(beyond);
  }
  const std::size_t keep = std::min<std::size_t>(beyond.size(), limits_.ahead_bytes);
  replica.ahead = beyond.substr(0, keep);
  replica.waiting = beyond.substr(keep);
  replica.kept = begin + keep;
  return {};
}

Result<std::vector<JobLogs::Ack>> JobLogs::AdvanceAll(ExecutorId first) {
  std::vector<Ack> acks;
  const std::uint64_t length = stdout_length_;
  const auto advance = [&](ExecutorId id, Replica& replica) -> Status {
    const std::uint64_t before = replica.kept;
    RETURN_IF_ERROR(Advance(id, replica));
    if (replica.kept > before) acks.push_back({id, replica.kept});
    return {};
  };
  if (auto it = replicas_.find(first); it != replicas_.end()) RETURN_IF_ERROR(advance(first, it->second));
  if (stdout_length_ == length) return acks;
  for (auto& [id, replica] : replicas_)
    if (id != first && !(replica.ahead.empty() && replica.waiting.empty())) RETURN_IF_ERROR(advance(id, replica));
  return acks;
}

Result<std::vector<JobLogs::Ack>> JobLogs::Stdout(ExecutorId executor, std::uint64_t offset, std::string_view bytes) {
  Replica& replica = replicas_[executor];
  const std::uint64_t come = replica.kept + replica.waiting.size();
  if (offset > come) {
    return Status(Code::kInvalid, "MASTER05", "output of executor " + std::to_string(executor.value) + " with a gap",
                  "it continues at " + std::to_string(offset) + " and not at " + std::to_string(come),
                  "bring worker and master to one version; submit the job again");
  }
  if (offset + bytes.size() <= come) return std::vector<Ack>();  // a repetition
  bytes.remove_prefix(static_cast<std::size_t>(come - offset));
  if (executor != driver_) RETURN_IF_ERROR(AppendLines(executor, &replica.out_line, bytes));
  replica.waiting.append(bytes);
  return AdvanceAll(executor);
}

Result<std::vector<JobLogs::Ack>> JobLogs::NameDriver(ExecutorId executor) {
  driver_ = executor;
  (void)replicas_[executor];
  return AdvanceAll(executor);
}

// Whole lines only: pieces of several executors' lines would be unreadable.
Status JobLogs::AppendLines(ExecutorId executor, std::string* line, std::string_view bytes) {
  const std::string prefix = "[" + std::to_string(executor.value) + "] ";
  std::string out;
  while (!bytes.empty()) {
    const std::size_t end = bytes.find('\n');
    line->append(bytes.substr(0, end));
    if (end == std::string_view::npos && line->size() < kLineBytesMax) break;
    out += prefix + *line + "\n";
    line->clear();
    if (end == std::string_view::npos) break;
    bytes.remove_prefix(end + 1);
  }
  return out.empty() ? Status() : AppendBounded(LogStream::kExecutor, out);
}

Status JobLogs::Stderr(ExecutorId executor, std::string_view bytes) {
  if (executor == driver_) return AppendBounded(LogStream::kStderr, bytes);
  return AppendLines(executor, &replicas_[executor].err_line, bytes);
}

Status JobLogs::Event(std::string_view line) {
  std::string text(line);
  text += '\n';
  return AppendBounded(LogStream::kEvents, text);
}

void JobLogs::Exited(ExecutorId executor) {
  auto it = replicas_.find(executor);
  if (it == replicas_.end()) return;
  for (std::string* line : {&it->second.out_line, &it->second.err_line})
    if (!line->empty()) (void)AppendLines(executor, line, "\n");  // the last words without a newline
  replicas_.erase(it);
}

bool JobLogs::TakeDifference(ExecutorId* executor, std::uint64_t* offset) {
  if (!difference_) return false;
  *executor = difference_->first;
  *offset = difference_->second;
  difference_.reset();
  return true;
}

void JobLogs::Synced(std::uint64_t stdout_bytes) { synced_ = std::max(synced_, stdout_bytes); }

std::uint64_t JobLogs::shown(LogStream stream) const { return stream == LogStream::kDriver ? synced_ : file(stream)->size(); }

Result<std::string> JobLogs::Read(LogStream stream, std::uint64_t offset, std::uint64_t bytes_max) const {
  const std::uint64_t end = shown(stream);
  if (offset >= end) return std::string();
  return file(stream)->Read(offset, std::min(bytes_max, end - offset));
}

}  // namespace ropewalk::master
