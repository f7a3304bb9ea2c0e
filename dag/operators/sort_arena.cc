#include "dag/operators/sort_arena.h"

#include <algorithm>

namespace ropewalk::dag {

void SortArena::NewChunk(std::size_t bytes) {
  const std::size_t chunks =
      std::max<std::size_t>((bytes + kChunkBytes - 1) >> kChunkBits, 1);  // At() needs one for a record of no bytes, too
  buffers_.push_back(pages_->Take(chunks << kChunkBits));
  used_ = chunks_.size() << kChunkBits;
  at_ = buffers_.back().data();
  left_ = chunks << kChunkBits;
  for (std::size_t i = 0; i < chunks; ++i) chunks_.push_back(at_ + (i << kChunkBits));
}

void SortArena::Clear() {
  chunks_.clear();
  buffers_.clear();
  at_ = nullptr;
  left_ = 0;
  used_ = 0;
}

}  // namespace ropewalk::dag
