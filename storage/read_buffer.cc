#include "storage/read_buffer.h"

#include <sys/mman.h>

#include <cstdint>

namespace ropewalk::storage {
namespace {

// A mapping whose start is aligned to a huge page, or the advice would spare its head.
char* MapHuge(std::size_t bytes) {
  constexpr std::size_t kHuge = 2 << 20;
  void* raw = mmap(nullptr, bytes + kHuge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (raw == MAP_FAILED) return nullptr;
  auto begin = reinterpret_cast<std::uintptr_t>(raw);
  std::uintptr_t aligned = (begin + kHuge - 1) & ~(kHuge - 1);
  if (aligned != begin) munmap(raw, aligned - begin);
  std::uintptr_t end = begin + bytes + kHuge;
  if (end != aligned + bytes) munmap(reinterpret_cast<void*>(aligned + bytes), end - aligned - bytes);
  madvise(reinterpret_cast<void*>(aligned), bytes, MADV_HUGEPAGE);  // only advice: without it the same bytes, slower
  return reinterpret_cast<char*>(aligned);
}

thread_local std::unique_ptr<ReadBuffer> kept;

}  // namespace

ReadBuffer::ReadBuffer() : data_(MapHuge(kBytes)), capacity_(data_ == nullptr ? 0 : kBytes) {}

ReadBuffer::~ReadBuffer() {
  if (data_ != nullptr) munmap(data_, capacity_);
}

bool ReadBuffer::Grow() {
  // mremap moves page tables, not bytes: a line of 100 MB is not copied six times.
  void* moved = mremap(data_, capacity_, capacity_ * 2, MREMAP_MAYMOVE);
  if (moved == MAP_FAILED) return false;
  data_ = static_cast<char*>(moved);
  capacity_ *= 2;
  madvise(data_, capacity_, MADV_HUGEPAGE);
  return true;
}

ReadBuffer::Lease ReadBuffer::Take() {
  if (kept != nullptr) return Lease(kept.release());
  return Lease(new ReadBuffer);
}

void ReadBuffer::Return::operator()(ReadBuffer* buffer) const {
  std::unique_ptr<ReadBuffer> owner(buffer);
  if (kept == nullptr && buffer->data() != nullptr && buffer->capacity() <= kKeptBytesMax) kept = std::move(owner);
}

}  // namespace ropewalk::storage
