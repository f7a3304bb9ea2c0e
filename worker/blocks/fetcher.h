// Reads segments that other worker daemons own: TCP connections kept and used again, a few threads that fetch ahead, and streams that hold
// a bounded window each. Every extent is verified before it is handed out; a damaged one is fetched once more before the segment counts as
// lost.
//
// Thread rule: any thread; one stream, one thread.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/home_process.h"
#include "base/unique_fd.h"
#include "dag/task.h"
#include "worker/blocks/block_service.h"
#include "worker/blocks/buffer_pool.h"
#include "worker/blocks/wire.h"

namespace ropewalk::blocks {

// Connects within `timeout_ms`; kUnavailable (BLK40) names the address.
Result<UniqueFd> ConnectTcp(const std::string& address, std::int64_t timeout_ms);

class Fetcher {
 public:
  Fetcher(RemoteOptions options, BufferPool pool);
  ~Fetcher();  // streams must be gone; what is being fetched is given up
  std::unique_ptr<dag::ExtentStream> Open(const dag::SegmentRef& segment, std::uint32_t first, std::uint32_t count);

 private:
  friend class FetchStream;
  struct Window {  // extents [begin, end) of the stream's entries, one behind the other in `buffer`
    std::shared_ptr<Buffer> buffer;
    std::size_t begin = 0, end = 0;
  };
  // What a stream and the fetch in progress for it share.
  struct Fetch {
    dag::SegmentRef ref;
    std::uint32_t first = 0, count = 0;
    // Touched by the fetching thread while `busy`, by the stream otherwise.
    bool opened = false;
    std::vector<ExtentEntry> entries;
    std::size_t next = 0;  // the first entry that was not fetched

    std::mutex mutex;
    std::condition_variable changed;
    bool busy = false, abandoned = false;
    std::unique_ptr<Result<Window>> ready;
  };

  void Start(std::shared_ptr<Fetch> fetch);
  void Work();
  Result<Window> FetchWindow(Fetch& fetch);
  Result<Window> TryOnce(Fetch& fetch, std::uint64_t window_bytes, int fd);
  Result<UniqueFd> Connection(const std::string& address, bool* reused);
  void GiveBack(const std::string& address, UniqueFd fd);
  bool Pause(std::int64_t ms);  // false: stop at once
  std::uint64_t WindowBytes();

  const RemoteOptions options_;
  BufferPool pool_;
  std::mutex mutex_;
  std::condition_variable queued_;   // work, or the end
  std::condition_variable closing_;  // for pauses: apart, so that a pausing thread never takes the wake-up that is meant for an idle one
  bool stopping_ = false;
  std::uint64_t open_streams_ = 0;
  std::deque<std::shared_ptr<Fetch>> queue_;  // one entry for each open stream at most
  std::unordered_map<std::string, std::vector<UniqueFd>> idle_;
  std::vector<int> in_use_;           // so that the end can wake threads that wait for bytes
  std::vector<std::thread> threads_;  // started when first needed
  const HomeProcess home_;
};

}  // namespace ropewalk::blocks
