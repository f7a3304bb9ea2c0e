// The records of one run of a sort, in the order of arrival, each named by its offset. Made of chunks that stay where they are: nothing is
// copied when it grows, and a task that sorts little touches little memory.
//
// Thread rule: one task.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/huge_pages.h"

namespace ropewalk::dag {

class SortArena {
 public:
  explicit SortArena(HugePages* pages) : pages_(pages) {}

  // Memory for one record, and the offset that At() finds it by. A record does not straddle chunks: the end of one may be skipped.
  char* Allocate(std::size_t bytes, std::uint64_t* offset) {
    if (bytes >= left_) [[unlikely]]
      NewChunk(bytes);
    char* at = at_;
    *offset = used_;
    at_ += bytes;
    left_ -= bytes;
    used_ += bytes;
    return at;
  }
  const char* At(std::uint64_t offset) const { return chunks_[offset >> kChunkBits] + (offset & (kChunkBytes - 1)); }
  // Where the next record would begin: bytes allocated so far, and skipped.
  std::uint64_t used() const { return used_; }
  // Forgets all records; the memory goes back to its pool, warm.
  void Clear();

 private:
  static constexpr int kChunkBits = 21;
  static constexpr std::size_t kChunkBytes = std::size_t(1) << kChunkBits;
  void NewChunk(std::size_t bytes);

  HugePages* pages_;
  char* at_ = nullptr;
  std::size_t left_ = 0;
  std::uint64_t used_ = 0;
  std::vector<const char*> chunks_;  // base of offsets [i << kChunkBits, (i + 1) << kChunkBits); a long record has several in a row
  std::vector<HugeBuffer> buffers_;
};

}  // namespace ropewalk::dag
