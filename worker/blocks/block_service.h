// Blocks across processes. The daemon's side (Service) listens on a Unix socket for the executors of this machine and on a TCP port
// for readers elsewhere; the executor's side (RemoteBlocks) implements the operator's BlockReader and BlockWriter on top of it.
//
//   executor: builds a segment in pooled private huge pages, has the daemon make room (kReserve), pwrites it into the daemon's memfd, cuts
//   it to its size and seals it; where the daemon has no memory left it hands out a file instead
//   operator memory: one connection of each executor borrows for its tasks and gives back what rests when asked: see MemoryBorrower
//   same machine: the reader gets the descriptor and preads; the daemon never maps what user code could have truncated
//   elsewhere: one TCP request streams extents with sendfile; each extent's checksum travels with it and is verified by the reader
//   Bytes of a segment owned by *another daemon* always go by TCP, also on one machine.
//
// Every connection proves the job's token first; a reader sees segments of its own job only. Leases end with the socket.
//
// Thread rule: Service runs its own few threads; RemoteBlocks may be used from all task threads.
#pragma once

#include <memory>
#include <string>

#include "base/huge_pages.h"
#include "base/ids.h"
#include "base/status.h"
#include "dag/task.h"
#include "worker/blocks/block_store.h"
#include "worker/blocks/task_memory.h"

namespace ropewalk::blocks {

struct ServiceOptions {
  std::string unix_path;                       // made 0600; a stale one is replaced
  std::string listen_address = "127.0.0.1:0";  // loopback only until there is TLS
  std::uint32_t connections_max = 256;         // each has a thread
  std::uint32_t unproven_max = 64;             // of these, without a proven token yet; one more: the oldest of them goes
  std::uint32_t connections_of_job_max = 96;   // so that one job cannot keep the others out
  std::uint32_t leases_of_connection_max = 65536;
  std::int64_t handshake_ms = 3'000;  // a peer that has not proven its token by then is cut off
  std::int64_t request_ms = 5'000;    // nor may a request that has begun take longer to be whole
  std::int64_t idle_ms = 600'000;     // between requests
  std::int64_t send_ms = 60'000;      // a reader that takes nothing for so long is cut off
};

struct ServiceStats {
  std::uint64_t connections = 0, refused_total = 0, served_bytes_total = 0, adopted_bytes_total = 0;
};

class BlockService {
 public:
  // kInvalid BLK30: a path or address that cannot be used (not loopback, too long). kUnavailable BLK31: the address is taken.
  // `store` must outlive the service.
  static Result<std::unique_ptr<BlockService>> Start(ServiceOptions options, BlockStore* store);
  ~BlockService();                   // ends all connections and joins all threads
  std::string data_address() const;  // "host:port" as bound
  void AllowJob(JobId job, std::string token);
  void ForgetJob(JobId job);  // ends its connections and, soon after, its leases; its segments stay
  ServiceStats stats() const;

 private:
  struct Impl;
  explicit BlockService(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

struct RemoteOptions {
  std::string unix_path;     // of this worker's service
  std::string data_address;  // this worker's own address: refs with it (or with none) are local
  JobId job;
  std::string token;
  std::uint64_t read_ahead_bytes = 8ull << 20;          // for each open stream
  std::uint64_t read_ahead_bytes_total = 256ull << 20;  // of all streams: many open streams read ahead less each
  std::uint32_t fetch_threads = 3;
  std::uint32_t attempts_max = 4;  // to reach another daemon, with a pause that doubles between them
  std::int64_t first_retry_ms = 50;
  std::int64_t answer_ms = 30'000;  // how long another daemon may be silent
  // Where tasks take their memory from: it keeps what was lent and not what was not.
  HugePages* pages = &ProcessPages();
};

class RemoteBlocks final : public dag::BlockReader, public dag::BlockWriter {
 public:
  // kUnavailable: no service there; kUnauthenticated: it refuses the token.
  static Result<std::unique_ptr<RemoteBlocks>> Connect(RemoteOptions options);
  ~RemoteBlocks() override;  // streams and writers must be gone; extents may stay
  Result<std::unique_ptr<dag::SegmentWriter>> NewSegment(TaskAttempt producer, std::uint32_t parts) override;
  Result<std::unique_ptr<dag::SegmentWriter>> NewDurableSegment(TaskAttempt producer, std::uint32_t parts) override;
  // Local segments: kDataLoss at once when gone. Others: any failure is met in Next().
  Result<std::unique_ptr<dag::ExtentStream>> Open(const dag::SegmentRef& segment, std::uint32_t first, std::uint32_t count) override;
  TaskMemory& memory();  // what tasks of this process borrow of the daemon

 private:
  struct Impl;
  class Writer;
  explicit RemoteBlocks(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace ropewalk::blocks
