// Where a task says that it stands while it works on something that is no record of its input: what a shuffle brought, values that were
// combined, a run that is sorted. A crash then names that, and not the record of the input that was read last.
//
// Thread rule: one task.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

#include "dag/task.h"

namespace ropewalk::dag {

// Points the cursor (nullptr: there is none) at record `index` of `what`: a few words without a slash, which would look like a path.
inline void StandAt(RecordCursor* cursor, std::string_view what, std::uint64_t index = 0) {
  if (cursor == nullptr) return;
  cursor->offset.store(index, std::memory_order_relaxed);
  cursor->SetSource(what);
}

// Where the cursor stands, to go back to. Nothing goes back by itself: after an exception the cursor says where it was thrown.
class SavedPlace {
 public:
  explicit SavedPlace(RecordCursor* cursor) : cursor_(cursor) {
    if (cursor == nullptr) return;
    offset_ = cursor->offset.load(std::memory_order_relaxed);
    source_ = cursor->source;
  }
  void GoBack() const { StandAt(cursor_, source_, offset_); }

 private:
  RecordCursor* cursor_;
  std::uint64_t offset_ = 0;
  std::string source_;
};

}  // namespace ropewalk::dag
