#include "worker/blocks/buffer_pool.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdlib>
#include <mutex>
#include <new>
#include <vector>

#include "base/forked_child.h"

namespace ropewalk::blocks {
namespace {

constexpr std::size_t kHugeBytes = 2u << 20;
constexpr int kSmallestBits = 12, kClasses = 9;  // 4 KiB ... 1 MiB

std::size_t ClassOf(std::size_t capacity) { return static_cast<std::size_t>(std::countr_zero(capacity) - kSmallestBits); }

}  // namespace

struct BufferPool::Shared {
  explicit Shared(std::uint64_t idle_bytes_max) : idle_bytes_max(idle_bytes_max) {}
  ~Shared() {
    for (auto& list : idle)
      for (std::byte* data : list) std::free(data);
  }
  void Return(std::byte* data, std::size_t capacity) {
    {
      std::lock_guard lock(mutex);
      if (idle_bytes + capacity <= idle_bytes_max) {
        idle[ClassOf(capacity)].push_back(data);
        idle_bytes += capacity;
        return;
      }
    }
    std::free(data);
  }

  std::mutex mutex;
  const std::uint64_t idle_bytes_max;
  std::uint64_t idle_bytes = 0;
  std::array<std::vector<std::byte*>, kClasses> idle;
};

Buffer::~Buffer() {
  if (small_ != nullptr && !IsForkedChild()) std::static_pointer_cast<BufferPool::Shared>(home_)->Return(small_, capacity_);
}

BufferPool::BufferPool(std::uint64_t idle_bytes_max, HugePages& pages)
    : shared_(std::make_shared<Shared>(idle_bytes_max)), pages_(&pages) {}

std::size_t BufferPool::CapacityOf(std::size_t bytes) { return std::bit_ceil(std::max(bytes, std::size_t(1) << kSmallestBits)); }

Buffer BufferPool::Get(std::size_t bytes) {
  if (IsForkedChild()) throw std::bad_alloc();
  Buffer buffer;
  std::size_t capacity = CapacityOf(bytes);
  if (capacity >= kHugeBytes) {
    buffer.huge_ = pages_->Take(capacity);
    buffer.capacity_ = buffer.huge_.bytes();
    return buffer;
  }
  {
    std::lock_guard lock(shared_->mutex);
    auto& list = shared_->idle[ClassOf(capacity)];
    if (!list.empty()) {
      buffer.small_ = list.back();
      list.pop_back();
      shared_->idle_bytes -= capacity;
    }
  }
  if (buffer.small_ == nullptr) buffer.small_ = static_cast<std::byte*>(std::aligned_alloc(64, capacity));
  if (buffer.small_ == nullptr) throw std::bad_alloc();
  buffer.capacity_ = capacity;
  buffer.home_ = shared_;
  return buffer;
}

}  // namespace ropewalk::blocks
