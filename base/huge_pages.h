// Memory on huge pages, kept and used again. On some machines the first touch of a 4 KiB page costs more than filling it from another
// machine would, and a huge page costs a hundredth of that for each byte; so operators take their tables, arenas and buffers from here and
// give them back warm.
//
// Owner: ProcessPages() is the one pool that everything shares by default; a test makes its own.
// Thread rule: a pool may be used from all threads; a HugeBuffer and an Arena belong to one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

namespace ropewalk {

class HugePages;

// A block of memory, 2 MiB-aligned, whose bytes are NOT zero: it may have been used before. Move-only; goes back to its pool.
class HugeBuffer {
 public:
  HugeBuffer() = default;
  HugeBuffer(HugeBuffer&& other) noexcept { *this = std::move(other); }
  HugeBuffer& operator=(HugeBuffer&& other) noexcept {
    std::swap(pool_, other.pool_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~HugeBuffer();

  char* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  // A bigger buffer of at least `bytes` that begins with the first `keep_bytes` of this one.
  void Grow(std::size_t bytes, std::size_t keep_bytes, HugePages& pool);

 private:
  friend class HugePages;
  HugePages* pool_ = nullptr;
  char* data_ = nullptr;
  std::size_t bytes_ = 0;
};

class HugePages {
 public:
  explicit HugePages(std::size_t kept_bytes_max = std::size_t(768) << 20) : kept_bytes_max_(kept_bytes_max) {}
  ~HugePages();  // every buffer must have been given back
  HugePages(const HugePages&) = delete;
  HugePages& operator=(const HugePages&) = delete;

  // At least `bytes`, rounded up to a power of two from 2 MiB on. Never fails: throws std::bad_alloc when the system has no memory.
  HugeBuffer Take(std::size_t bytes);

  std::size_t kept_bytes() const;  // resting in the pool
  std::size_t used_bytes() const;  // handed out
  void Trim();                     // gives what rests back to the system
  // From now on what is handed out and what rests together stay below `bytes`, as far as giving back what rests can do it.
  void Limit(std::size_t bytes);

 private:
  friend class HugeBuffer;
  static constexpr int kSmallestBits = 21, kLargestBits = 47;
  void Return(char* data, std::size_t bytes);
  void DropKept();  // as far as the limit wants it; mutex held

  const std::size_t kept_bytes_max_;
  std::size_t limit_bytes_ = ~std::size_t(0);
  mutable std::mutex mutex_;
  std::size_t kept_bytes_ = 0, used_bytes_ = 0;
  std::vector<char*> kept_[kLargestBits - kSmallestBits + 1];
};

HugePages& ProcessPages();

// Appends that are never freed one by one. One contiguous buffer that grows by doubling: what lies in it is named by its offset, and a
// pointer is valid until the next Allocate.
class Arena {
 public:
  explicit Arena(HugePages& pool = ProcessPages()) : pool_(&pool) {}
  // `bytes` rounded up to 8; the result is 8-aligned. The memory is not zero.
  char* Allocate(std::size_t bytes) {
    bytes = (bytes + 7) & ~std::size_t(7);
    if (used_ + bytes + kSlackBytes > buffer_.bytes()) Grow(bytes);
    char* at = buffer_.data() + used_;
    used_ += bytes;
    return at;
  }
  // Makes the next `bytes` of allocations leave pointers valid.
  void Reserve(std::size_t bytes) {
    if (used_ + bytes + kSlackBytes > buffer_.bytes()) Grow(bytes);
  }
  char* data() const { return buffer_.data(); }
  std::size_t used() const { return used_; }
  std::size_t OffsetOf(const char* at) const { return static_cast<std::size_t>(at - buffer_.data()); }
  void Clear() { used_ = 0; }
  // Gives the memory back to the pool.
  void Release() {
    used_ = 0;
    buffer_ = HugeBuffer();
  }

 private:
  static constexpr std::size_t kSlackBytes = 64;  // so that whole words may be read behind the last byte
  void Grow(std::size_t bytes);
  HugePages* pool_;
  HugeBuffer buffer_;
  std::size_t used_ = 0;
};

}  // namespace ropewalk
