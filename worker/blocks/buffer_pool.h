// Reused buffers for block bytes. The first touch of a fresh page is the dearest thing about moving bytes on many machines, so memory is
// kept and handed out again: from 2 MiB up in huge pages, below that in power-of-two classes of ordinary memory.
//
// A buffer keeps its pool's memory alive, so it may outlive the pool object.
//
// Thread rule: BufferPool: any thread. Buffer: one owner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

namespace ropewalk::blocks {

class BufferPool;

class Buffer {
 public:
  Buffer() = default;
  Buffer(Buffer&& other) noexcept
      : home_(std::move(other.home_)), data_(std::exchange(other.data_, nullptr)), capacity_(std::exchange(other.capacity_, 0)) {}
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer();
  std::byte* data() const { return data_; }
  std::size_t capacity() const { return capacity_; }
  explicit operator bool() const { return data_ != nullptr; }

 private:
  friend class BufferPool;
  std::shared_ptr<void> home_;
  std::byte* data_ = nullptr;
  std::size_t capacity_ = 0;
};

class BufferPool {
 public:
  // At most `idle_bytes_max` of unused memory is kept; more goes back to the system.
  explicit BufferPool(std::uint64_t idle_bytes_max = 256ull << 20);
  // At least `bytes` bytes with undefined content. Throws std::bad_alloc as operator new does.
  Buffer Get(std::size_t bytes);
  // The capacity that Get(bytes) gives: what a budget has to count.
  static std::size_t CapacityOf(std::size_t bytes);
  std::uint64_t idle_bytes() const;

 private:
  friend class Buffer;
  struct Shared;
  std::shared_ptr<Shared> shared_;
};

}  // namespace ropewalk::blocks
