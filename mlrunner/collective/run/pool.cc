#include "mlrunner/collective/run/pool.h"

#include <algorithm>
#include <iterator>
#include <new>

namespace ropewalk::collective {
namespace {

constexpr std::size_t kAlign = 64;
// More than any machine has, and sums of such do not wrap.
constexpr std::size_t kBytesMax = std::size_t{1} << 60;
// Huge pages come in these; smaller requests share one.
constexpr std::size_t kGrowBytesMin = std::size_t{4} << 20;

}  // namespace

Pool::Pool(char* memory, std::size_t bytes) { free_[memory] = bytes / kAlign * kAlign; }

char* Pool::Take(std::size_t bytes) {
  for (auto it = free_.begin(); it != free_.end(); ++it) {
    if (it->second < bytes) continue;
    char* at = it->first;
    const std::size_t rest = it->second - bytes;
    free_.erase(it);
    if (rest > 0) free_[at + bytes] = rest;
    used_[at] = bytes;
    return at;
  }
  return nullptr;
}

char* Pool::Allocate(std::size_t bytes) {
  std::lock_guard lock(mutex_);
  if (bytes > kBytesMax) return nullptr;
  bytes = std::max(kAlign, (bytes + kAlign - 1) / kAlign * kAlign);
  if (char* at = Take(bytes); at != nullptr || !grows_) return at;
  try {
    owned_.push_back(ProcessPages().Take(std::max(bytes, kGrowBytesMin)));
  } catch (const std::bad_alloc&) {
    return nullptr;  // the process has no memory: whoever asked says so
  }
  GiveBack(owned_.back().data(), owned_.back().bytes());
  return Take(bytes);
}

void Pool::GiveBack(char* memory, std::size_t bytes) {
  auto next = free_.upper_bound(memory);
  if (next != free_.end() && memory + bytes == next->first) {
    bytes += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    auto before = std::prev(next);
    if (before->first + before->second == memory) {
      before->second += bytes;
      return;
    }
  }
  free_[memory] = bytes;
}

void Pool::Free(char* memory) {
  std::lock_guard lock(mutex_);
  auto found = used_.find(memory);
  if (found == used_.end()) return;
  const std::size_t bytes = found->second;
  used_.erase(found);
  GiveBack(memory, bytes);
}

}  // namespace ropewalk::collective
