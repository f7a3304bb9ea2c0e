#include "worker/task/current_task.h"

#include <fcntl.h>
#include <unistd.h>

#include <utility>

#include "base/escape.h"

namespace ropewalk::task {
namespace {

thread_local const CurrentTask* current_task = nullptr;

// How the record at the cursor begins, or "" where that cannot be told: no file, a compressed one, or a path that was too long to keep.
std::string RecordText(const dag::RecordCursor& cursor) {
  constexpr std::size_t kBytes = 80;
  const std::string_view path = cursor.source;
  if (!path.starts_with('/') || IsCompressed(path)) return "";
  const int fd = ::open(cursor.source, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (fd < 0) return "";
  char bytes[kBytes + 1];
  const ssize_t n = ::pread(fd, bytes, sizeof bytes, static_cast<off_t>(cursor.offset.load(std::memory_order_relaxed)));
  ::close(fd);
  if (n <= 0) return "";
  std::string_view record(bytes, static_cast<std::size_t>(n));
  record = record.substr(0, record.find('\n'));
  const bool cut = record.size() > kBytes;
  return "\"" + EscapeForLog(record.substr(0, kBytes)) + (cut ? "\"..." : "\"");
}

}  // namespace

TaskScope::TaskScope(CurrentTask task) : task_(std::move(task)) { current_task = &task_; }
TaskScope::~TaskScope() { current_task = nullptr; }
const CurrentTask* ThisCurrentTask() { return current_task; }
bool OnTaskThread() { return current_task != nullptr; }

bool IsCompressed(std::string_view path) { return path.ends_with(".gz") || path.ends_with(".zst"); }

std::string PlaceText(const dag::RecordCursor& cursor, bool precise) {
  std::string place = "input split " + std::to_string(cursor.split.load(std::memory_order_relaxed)) + ", ";
  const std::string source = cursor.source, offset = std::to_string(cursor.offset.load(std::memory_order_relaxed));
  // No path: words that say what the offset counts (dag/operators/place.h).
  if (!source.empty() && source.find('/') == std::string::npos)
    return place + (precise ? "record " : "in the batch that starts at record ") + offset + " of " + source;
  if (!source.empty()) place += source + " ";
  place += (precise ? "at offset " : "in the batch that starts at offset ") + offset;
  if (IsCompressed(source)) place += " (decompressed)";
  if (std::string record = precise ? RecordText(cursor) : ""; !record.empty()) place += ": " + record;
  return place;
}

}  // namespace ropewalk::task
