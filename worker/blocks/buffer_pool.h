// Reused buffers for block bytes. The first touch of a fresh page is the dearest thing about moving bytes on many machines, so memory is
// kept and handed out again: from 2 MiB up in the process's huge pages (base/huge_pages.h), below that in power-of-two classes of ordinary
// memory. A buffer keeps what it needs of its pool alive, so it may outlive the pool object.
//
// Thread rule: BufferPool: any thread; copies share their memory. Buffer: one owner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "base/huge_pages.h"

namespace ropewalk::blocks {

class BufferPool;

class Buffer {
 public:
  Buffer() = default;
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(home_, other.home_);
    std::swap(small_, other.small_);
    std::swap(huge_, other.huge_);
    std::swap(capacity_, other.capacity_);
    return *this;
  }
  ~Buffer();
  std::byte* data() const { return small_ != nullptr ? small_ : reinterpret_cast<std::byte*>(huge_.data()); }
  std::size_t capacity() const { return capacity_; }  // bytes; 0: no buffer

 private:
  friend class BufferPool;
  std::shared_ptr<void> home_;  // of small_
  std::byte* small_ = nullptr;
  HugeBuffer huge_;
  std::size_t capacity_ = 0;
};

class BufferPool {
 public:
  // At most `idle_bytes_max` of unused small buffers is kept; more goes back to the system.
  explicit BufferPool(std::uint64_t idle_bytes_max = 64ull << 20, HugePages& pages = ProcessPages());
  // At least `bytes` bytes with undefined content. Throws std::bad_alloc as operator new does.
  Buffer Get(std::size_t bytes);
  // The capacity that Get(bytes) gives: what a budget has to count.
  static std::size_t CapacityOf(std::size_t bytes);

 private:
  friend class Buffer;
  struct Shared;
  std::shared_ptr<Shared> shared_;
  HugePages* pages_;
};

}  // namespace ropewalk::blocks
