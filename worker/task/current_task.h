// The task that a thread runs just now and where it stands in its input, for messages about code that ends more than its task.
//
// Thread rule: each thread has its own.
#pragma once

#include <string>
#include <string_view>

#include "dag/task.h"

namespace ropewalk::task {

struct CurrentTask {
  dag::RecordCursor* cursor = nullptr;
  std::string name;      // `task 3 of "ReadLines > Map (x.cc:8)"`, safe to show
  bool precise = false;  // the cursor names the record, not the batch that it is in
};

// While it lives, this thread runs that task.
class TaskScope {
 public:
  explicit TaskScope(CurrentTask task);
  ~TaskScope();
  TaskScope(const TaskScope&) = delete;
  TaskScope& operator=(const TaskScope&) = delete;

 private:
  const CurrentTask task_;
};

// Of the calling thread; nullptr: it runs none. Handlers of signals may ask.
const CurrentTask* ThisCurrentTask();
// Whether this thread runs an attempt just now.
bool OnTaskThread();

// "input split 3, /data/x at offset 17: "how the record begins"".
std::string PlaceText(const dag::RecordCursor& cursor, bool precise);
// Then the cursor's offset is in what is decompressed.
bool IsCompressed(std::string_view path);

}  // namespace ropewalk::task
