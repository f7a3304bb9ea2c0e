#include "base/huge_pages.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <new>

#include "base/forked_child.h"

namespace ropewalk {

HugeBuffer::~HugeBuffer() {
  if (pool_ != nullptr && !IsForkedChild()) pool_->Return(data_, bytes_);
}

void HugeBuffer::Grow(std::size_t bytes, std::size_t keep_bytes, HugePages& pool) {
  HugeBuffer bigger = pool.Take(bytes);
  if (keep_bytes > 0) std::memcpy(bigger.data(), data_, keep_bytes);
  *this = std::move(bigger);
}

HugePages::~HugePages() { Trim(); }

HugeBuffer HugePages::Take(std::size_t bytes) {
  if (IsForkedChild()) throw std::bad_alloc();
  int bits = std::max<int>(kSmallestBits, std::bit_width(bytes > 0 ? bytes - 1 : 0));
  if (bits > kLargestBits) throw std::bad_alloc();
  std::size_t size = std::size_t(1) << bits;
  HugeBuffer buffer;
  buffer.pool_ = this;
  buffer.bytes_ = size;
  {
    std::lock_guard lock(mutex_);
    auto& kept = kept_[bits - kSmallestBits];
    used_bytes_ += size;
    if (!kept.empty()) {
      buffer.data_ = kept.back();
      kept.pop_back();
      kept_bytes_ -= size;
      return buffer;
    }
    DropKept();  // `size` is counted as used already
  }
  // mmap aligns to 4 KiB only: map one huge page more and cut both ends off, so that every 2 MiB of the buffer can be one page.
  constexpr std::size_t kHuge = std::size_t(1) << kSmallestBits;
  void* raw = mmap(nullptr, size + kHuge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (raw == MAP_FAILED) {
    std::lock_guard lock(mutex_);
    used_bytes_ -= size;
    buffer.pool_ = nullptr;
    throw std::bad_alloc();
  }
  auto address = reinterpret_cast<std::uintptr_t>(raw);
  std::uintptr_t begin = (address + kHuge - 1) & ~(kHuge - 1);
  if (begin > address) munmap(raw, begin - address);
  if (begin + size < address + size + kHuge) munmap(reinterpret_cast<void*>(begin + size), address + kHuge - begin);
  buffer.data_ = reinterpret_cast<char*>(begin);
  (void)madvise(buffer.data_, size, MADV_HUGEPAGE);  // advice: without it the buffer is only slower
  return buffer;
}

void HugePages::Return(char* data, std::size_t bytes) {
  {
    std::lock_guard lock(mutex_);
    used_bytes_ -= bytes;
    if (kept_bytes_ + bytes <= kept_bytes_max_ && used_bytes_ + kept_bytes_ + bytes <= limit_bytes_) {
      kept_[std::countr_zero(bytes) - kSmallestBits].push_back(data);
      kept_bytes_ += bytes;
      return;
    }
  }
  munmap(data, bytes);
}

std::size_t HugePages::kept_bytes() const {
  std::lock_guard lock(mutex_);
  return kept_bytes_;
}

std::size_t HugePages::used_bytes() const {
  std::lock_guard lock(mutex_);
  return used_bytes_;
}

void HugePages::Trim() {
  std::lock_guard lock(mutex_);
  for (int i = 0; i <= kLargestBits - kSmallestBits; ++i) {
    for (char* data : kept_[i]) munmap(data, std::size_t(1) << (i + kSmallestBits));
    kept_[i].clear();
  }
  kept_bytes_ = 0;
}

void HugePages::Limit(std::size_t bytes) {
  std::lock_guard lock(mutex_);
  limit_bytes_ = bytes;
  DropKept();
}

void HugePages::DropKept() {
  for (int i = kLargestBits - kSmallestBits; i >= 0; --i) {
    while (!kept_[i].empty() && used_bytes_ + kept_bytes_ > limit_bytes_) {
      munmap(kept_[i].back(), std::size_t(1) << (i + kSmallestBits));
      kept_[i].pop_back();
      kept_bytes_ -= std::size_t(1) << (i + kSmallestBits);
    }
  }
}

HugePages& ProcessPages() {
  // Never destroyed: buffers that live in statics or detached threads may come back after main has ended.
  static HugePages* pages = new HugePages();
  return *pages;
}

void Arena::Grow(std::size_t bytes) { buffer_.Grow(std::max(used_ + bytes + kSlackBytes, buffer_.bytes() * 2), used_, *pool_); }

}  // namespace ropewalk
