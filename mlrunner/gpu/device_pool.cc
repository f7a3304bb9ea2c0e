#include "mlrunner/gpu/device_pool.h"

#include <algorithm>
#include <bit>

namespace ropewalk::gpu {

std::size_t DevicePool::ClassOf(std::size_t bytes) {
  constexpr std::size_t kLeast = 512;
  if (bytes <= kLeast) return kLeast;
  if (bytes > (std::size_t{1} << 62)) return 0;
  // Eight steps from one power of two to the next, none below 512 bytes (the alignment).
  const std::size_t step = std::max(kLeast, std::bit_floor(bytes - 1) / 8);
  return (bytes + step - 1) / step * step;
}

DevicePool::~DevicePool() {
  Trim();
  for (const auto& [memory, size] : used_) source_->GiveBack(memory);
}

void* DevicePool::Allocate(std::size_t bytes) {
  const std::size_t size = ClassOf(bytes);
  if (size == 0) return nullptr;
  void* memory = nullptr;
  if (auto found = cached_.find(size); found != cached_.end() && !found->second.empty()) {
    memory = found->second.back();
    found->second.pop_back();
    cached_bytes_ -= size;
  } else {
    if (size > bytes_max_ - std::min(bytes_max_, used_bytes_ + cached_bytes_)) Trim();
    if (size > bytes_max_ - std::min(bytes_max_, used_bytes_)) return nullptr;
    memory = source_->Take(size);
    if (memory == nullptr && cached_bytes_ > 0) {
      Trim();
      memory = source_->Take(size);
    }
    if (memory == nullptr) return nullptr;
  }
  used_[memory] = size;
  used_bytes_ += size;
  peak_bytes_ = std::max(peak_bytes_, used_bytes_ + cached_bytes_);
  return memory;
}

bool DevicePool::Release(void* memory) {
  auto found = used_.find(memory);
  if (found == used_.end()) return false;
  const std::size_t size = found->second;
  used_.erase(found);
  used_bytes_ -= size;
  cached_bytes_ += size;
  cached_[size].push_back(memory);
  return true;
}

void DevicePool::Trim() {
  for (auto& [size, pieces] : cached_) {
    for (void* memory : pieces) source_->GiveBack(memory);
  }
  cached_.clear();
  cached_bytes_ = 0;
}

}  // namespace ropewalk::gpu
