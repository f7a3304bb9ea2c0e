// What a running task may touch. Operators see the world only through a TaskContext: the embedded backend, the cluster
// executor and tests supply the same interfaces, so an operator cannot know where it runs.
//
// A *segment* is the output of one task: numbered parts, each part a list of extents in the order of writing; extents are
// checksummed (XXH3) when they are written and verified when they are read. A hash shuffle has one part for each reducer.
//
// Thread rule: one task, one thread. Block readers and writers of different tasks are independent.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "dag/settings.h"
#include "dag/stage_graph.h"

namespace ropewalk::dag {

class GangContext;

// Where one sealed segment lies.
struct SegmentRef {
  TaskAttempt producer;
  SegmentId segment;
  std::string location;  // the owner's data address; empty: this process
  std::uint64_t bytes = 0;
  friend bool operator==(const SegmentRef&, const SegmentRef&) = default;
};

struct SegmentInfo {
  SegmentId segment;
  std::uint64_t bytes = 0;
  std::uint64_t records = 0;
  std::uint64_t content_hash = 0;  // a function of the extents only: two honest attempts agree
  friend bool operator==(const SegmentInfo&, const SegmentInfo&) = default;
};

// One extent. `bytes` stays valid while `holder` lives (pooled buffer, mapping or the segment itself).
struct Extent {
  std::uint32_t part = 0;
  std::uint64_t records = 0;
  std::span<const std::byte> bytes;
  std::shared_ptr<const void> holder;
};

class ExtentStream {
 public:
  virtual ~ExtentStream() = default;
  // The next extent, or nullopt at the end. kDataLoss when the segment is gone or its checksum is wrong (`what` names the
  // producer), kUnavailable when its owner cannot be reached.
  virtual Result<std::optional<Extent>> Next() = 0;
};

class BlockReader {
 public:
  virtual ~BlockReader() = default;
  // Extents of parts [first, first + count) by part, then by order of writing. Reads ahead by a bounded amount.
  virtual Result<std::unique_ptr<ExtentStream>> Open(const SegmentRef& segment, std::uint32_t first, std::uint32_t count) = 0;
};

class SegmentWriter {
 public:
  virtual ~SegmentWriter() = default;  // without Seal: everything is dropped
  // Adds one extent to `part`. The bytes are copied, unless they begin where the last Room() was. Parts may come in any order; extents of
  // one part keep theirs.
  virtual Status Append(std::uint32_t part, std::span<const std::byte> bytes, std::uint64_t records) = 0;
  // Memory of the segment's own where the next extent, of at most `bytes` bytes, may be built so that Append need not copy it; valid until
  // then. nullptr: there is none, build it elsewhere.
  virtual char* Room([[maybe_unused]] std::size_t bytes) { return nullptr; }
  virtual Result<SegmentInfo> Seal() = 0;
};

class BlockWriter {
 public:
  virtual ~BlockWriter() = default;
  virtual Result<std::unique_ptr<SegmentWriter>> NewSegment(TaskAttempt producer, std::uint32_t parts) = 0;
  // One that, when it is sealed, lies synced on the owner's disk and survives the owner's process.
  virtual Result<std::unique_ptr<SegmentWriter>> NewDurableSegment(TaskAttempt producer, std::uint32_t parts) = 0;
};

// Scratch space of one task for operators that outgrow their memory: append-only run files, gone with the task.
class SpillFile {
 public:
  virtual ~SpillFile() = default;
  virtual Status Append(std::span<const std::byte> bytes) = 0;
  virtual Status FinishWriting() = 0;
  // Up to `out.size()` bytes from `offset`, checksum-verified; 0 at the end.
  virtual Result<std::size_t> ReadAt(std::uint64_t offset, std::span<std::byte> out) = 0;
  virtual std::uint64_t bytes() const = 0;
};

class SpillSpace {
 public:
  virtual ~SpillSpace() = default;
  virtual Result<std::unique_ptr<SpillFile>> Create() = 0;
};

// Which input record is being worked on, so that a crash can name it. One for each slot of an executor; it lies in memory that outlives
// the process (the executor maps the daemon's file of `slots` cursors). Operators write `split`, `offset` (relaxed: for each batch, for
// each record when `precise_cursor`) and SetSource(); the task runner writes who runs in the slot; the executor's crash handler writes
// `signal` in the slot of the thread that crashed, since with several slots the exit status alone does not say whose task it was.
struct RecordCursor {
  std::atomic<std::uint64_t> split{0};   // the task's index in its stage
  std::atomic<std::uint64_t> offset{0};  // byte offset in the file as stored, or the record's index
  std::atomic<std::uint64_t> stage{0};   // 0: the slot is idle
  std::atomic<std::uint32_t> task{0};
  std::atomic<std::uint32_t> attempt{0};
  std::atomic<std::uint32_t> signal{0};  // 0: this slot did not crash; 1 << 16: its code called exit()
  char source[476] = {};                 // path of the file being read, its tail when too long, NUL-terminated; empty: not a file

  void SetSource(std::string_view path) {
    if (path.size() >= sizeof(source)) path.remove_prefix(path.size() - (sizeof(source) - 1));
    std::memcpy(source, path.data(), path.size());
    source[path.size()] = 0;
  }
};
static_assert(sizeof(RecordCursor) == 512, "two processes map it");

struct TaskProgress {
  std::atomic<std::uint64_t> records_in{0};
  std::atomic<std::uint64_t> bytes_in{0};
  std::atomic<std::uint64_t> records_out{0};
  std::atomic<std::uint64_t> bytes_out{0};
  std::atomic<std::uint64_t> bytes_spilled{0};
};

// One StageInput of the stage, resolved for this task.
struct TaskInput {
  StageId stage;
  InputPattern pattern = InputPattern::kAllToAll;
  std::uint32_t first_task = 0;
  std::vector<SegmentRef> segments;  // kAllToAll: of all tasks, in task order. kOneToOne: the one that this task reads
  std::vector<std::string> values;   // kGather: of all tasks, in task order
  std::vector<TaskAttempt> winners;  // kGather: the attempt behind each value
};

// The place of one rank in its gang, given with the order to run it.
struct GangPlace {
  std::uint32_t rank = 0, ranks = 0;
  std::uint32_t epoch = 0;
  std::string machine;  // its worker's name
  std::string address;  // the numeric host under which that one is reached
  friend bool operator==(const GangPlace&, const GangPlace&) = default;
};

struct TaskContext {
  TaskAttempt id;
  const Settings* settings = nullptr;
  std::vector<TaskInput> inputs;  // those of Stage::inputs that this task reads, in that order
  BlockReader* blocks = nullptr;
  BlockWriter* segments = nullptr;
  SpillSpace* spill = nullptr;
  TaskProgress* progress = nullptr;
  RecordCursor* cursor = nullptr;
  bool precise_cursor = false;                   // set for retries: name the record, not the batch
  const std::atomic<bool>* cancelled = nullptr;  // look at it once a batch; then return kCancelled
  GangContext* gang = nullptr;                   // of a rank

  bool Cancelled() const { return cancelled != nullptr && cancelled->load(std::memory_order_relaxed); }
  // The input that reads `stage`; nullptr when the plan has none (our bug).
  const TaskInput* InputOf(StageId stage) const {
    for (const TaskInput& input : inputs)
      if (input.stage == stage) return &input;
    return nullptr;
  }
};

struct TaskResult {
  std::string value;                   // kResult, kFiles, kCommit
  std::optional<SegmentInfo> segment;  // kSegment
  std::uint64_t content_hash = 0;      // what sampled verification compares: of the value, the segment or the file written
};

// Runs one task. User exceptions pass through it; the task runner is the border that catches them.
using StageProgram = std::function<Status(TaskContext&, TaskResult*)>;

}  // namespace ropewalk::dag
