#include "base/forked_child.h"

#include <pthread.h>

#include <mutex>

namespace ropewalk {

namespace internal {
std::atomic<bool> forked_child{false};
}

void NoteForks() {
  static std::once_flag once;
  // Where there is no memory for the handler, children are what they were: mostly lucky.
  std::call_once(once, [] {
    [[maybe_unused]] int error = pthread_atfork(nullptr, nullptr, [] { internal::forked_child.store(true, std::memory_order_relaxed); });
  });
}

}  // namespace ropewalk
