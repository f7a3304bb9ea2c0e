// The executor's end of the connection over which it borrows memory for its tasks. What a task gave back rests here, warm in the process's
// huge pages, until the daemon asks for it.
//
// Thread rule: any thread; one own thread reads.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "base/status.h"
#include "base/unique_fd.h"
#include "worker/blocks/block_service.h"
#include "worker/blocks/task_memory.h"

namespace ropewalk::blocks {

// kInvalid BLK30: the path is too long. kUnavailable BLK43: nobody listens there.
Result<UniqueFd> ConnectUnix(const std::string& path, std::int64_t timeout_ms);

class MemoryLink final : public TaskMemory {
 public:
  static Result<std::unique_ptr<MemoryLink>> Connect(const RemoteOptions& options);
  ~MemoryLink() override;  // no Take() may be waiting
  std::uint64_t id() const { return id_; }

  Status Take(std::uint64_t bytes, const std::atomic<bool>& cancelled) override;
  void Give(std::uint64_t bytes) override;
  void Wake() override;

 private:
  MemoryLink(UniqueFd fd, std::uint64_t id, HugePages* pages);
  void Read();
  void GiveBackResting();
  void Send(std::uint32_t kind, std::uint64_t first,
            std::uint64_t second = 0);  // with the mutex held: messages keep the order of the books

  const UniqueFd fd_;
  const std::uint64_t id_;
  HugePages* const pages_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::uint64_t, bool> waiting_;  // ask -> granted
  std::uint64_t next_ask_ = 1;
  std::uint64_t in_use_bytes_ = 0, resting_bytes_ = 0;
  bool gone_ = false;
  std::thread reader_;
};

}  // namespace ropewalk::blocks
