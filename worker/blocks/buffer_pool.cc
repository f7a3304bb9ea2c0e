#include "worker/blocks/buffer_pool.h"

#include <sys/mman.h>

#include <bit>
#include <cstdlib>
#include <map>
#include <mutex>
#include <new>
#include <vector>

namespace ropewalk::blocks {
namespace {

constexpr std::size_t kHugePage = 2u << 20;
constexpr std::size_t kSmallest = 4u << 10;

bool IsHuge(std::size_t capacity) { return capacity >= kHugePage; }

std::byte* Allocate(std::size_t capacity) {
  if (!IsHuge(capacity)) {
    void* p = std::aligned_alloc(64, capacity);
    if (p == nullptr) throw std::bad_alloc();
    return static_cast<std::byte*>(p);
  }
  // Over-allocate to align: an unaligned range would get huge pages only in its middle.
  std::size_t padded = capacity + kHugePage;
  void* raw = ::mmap(nullptr, padded, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (raw == MAP_FAILED) throw std::bad_alloc();
  auto start = reinterpret_cast<std::uintptr_t>(raw);
  std::uintptr_t aligned = (start + kHugePage - 1) / kHugePage * kHugePage;
  if (aligned > start) ::munmap(raw, aligned - start);
  if (std::size_t rest = start + padded - (aligned + capacity); rest > 0) ::munmap(reinterpret_cast<void*>(aligned + capacity), rest);
  // Advice only: without huge pages the bytes are the same, just slower.
  (void)::madvise(reinterpret_cast<void*>(aligned), capacity, MADV_HUGEPAGE);
  return reinterpret_cast<std::byte*>(aligned);
}

void Release(std::byte* data, std::size_t capacity) {
  if (IsHuge(capacity)) {
    ::munmap(data, capacity);
  } else {
    std::free(data);
  }
}

}  // namespace

struct BufferPool::Shared {
  explicit Shared(std::uint64_t idle_bytes_max) : idle_bytes_max(idle_bytes_max) {}
  ~Shared() {
    for (auto& [capacity, list] : idle)
      for (std::byte* data : list) Release(data, capacity);
  }
  void Return(std::byte* data, std::size_t capacity) {
    {
      std::lock_guard lock(mutex);
      if (idle_bytes + capacity <= idle_bytes_max) {
        idle[capacity].push_back(data);
        idle_bytes += capacity;
        return;
      }
    }
    Release(data, capacity);
  }

  std::mutex mutex;
  const std::uint64_t idle_bytes_max;
  std::uint64_t idle_bytes = 0;
  std::map<std::size_t, std::vector<std::byte*>> idle;
};

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (this != &other) {
    this->~Buffer();
    new (this) Buffer(std::move(other));
  }
  return *this;
}

Buffer::~Buffer() {
  if (data_ != nullptr) std::static_pointer_cast<BufferPool::Shared>(home_)->Return(data_, capacity_);
}

BufferPool::BufferPool(std::uint64_t idle_bytes_max) : shared_(std::make_shared<Shared>(idle_bytes_max)) {}

std::size_t BufferPool::CapacityOf(std::size_t bytes) {
  if (bytes <= kSmallest) return kSmallest;
  if (bytes <= kHugePage) return std::bit_ceil(bytes);
  return (bytes + kHugePage - 1) / kHugePage * kHugePage;
}

Buffer BufferPool::Get(std::size_t bytes) {
  Buffer buffer;
  buffer.capacity_ = CapacityOf(bytes);
  {
    std::lock_guard lock(shared_->mutex);
    auto at = shared_->idle.find(buffer.capacity_);
    if (at != shared_->idle.end() && !at->second.empty()) {
      buffer.data_ = at->second.back();
      at->second.pop_back();
      shared_->idle_bytes -= buffer.capacity_;
    }
  }
  if (buffer.data_ == nullptr) buffer.data_ = Allocate(buffer.capacity_);
  buffer.home_ = shared_;
  return buffer;
}

std::uint64_t BufferPool::idle_bytes() const {
  std::lock_guard lock(shared_->mutex);
  return shared_->idle_bytes;
}

}  // namespace ropewalk::blocks
