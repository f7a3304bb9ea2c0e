// Memory of tasks that run in the process of the block store: the embedded backend's.
//
// Owner: whoever owns store and runner; ends after the runner and before the store. Thread rule: any thread.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "worker/blocks/block_store.h"
#include "worker/blocks/task_memory.h"

namespace ropewalk::blocks {

class LocalMemory final : public TaskMemory {
 public:
  explicit LocalMemory(BlockStore& store);
  ~LocalMemory() override;
  Status Take(std::uint64_t bytes, const std::atomic<bool>& cancelled) override;
  void Give(std::uint64_t bytes) override;
  void Wake() override;

 private:
  void Granted(std::uint64_t ask, std::uint64_t bytes);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::uint64_t, bool> waiting_;  // ask -> granted
  std::uint64_t next_ask_ = 1;
  std::unique_ptr<MemoryBorrower> borrower_;  // last: its handler uses the rest
};

}  // namespace ropewalk::blocks
