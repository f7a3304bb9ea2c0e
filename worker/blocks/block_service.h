// Blocks across processes. The daemon's side (Service) listens on a Unix socket for the executors of this machine and on a TCP port
// for readers elsewhere; the executor's side (RemoteBlocks) implements the operator's BlockReader and BlockWriter on top of it.
//
//   executor: builds a segment in pooled private huge pages, pwrites it into a fresh memfd, seals it, passes the descriptor (SCM_RIGHTS)
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

#include "base/ids.h"
#include "base/status.h"
#include "dag/task.h"
#include "worker/blocks/block_store.h"

namespace ropewalk::blocks {

struct ServiceOptions {
  std::string unix_path;                    // 0600
  std::string listen_address = "127.0.0.1:0";
  std::uint32_t connections_max = 256;
};

class BlockService {
 public:
  static Result<std::unique_ptr<BlockService>> Start(ServiceOptions options, BlockStore* store);
  ~BlockService();
  std::string data_address() const;         // "host:port" as bound
  void AllowJob(JobId job, std::string token);
  void ForgetJob(JobId job);                // ends its connections and leases

 private:
  struct Impl;
  explicit BlockService(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

struct RemoteOptions {
  std::string unix_path;      // of this worker's service
  std::string data_address;   // this worker's own address: refs with it are local
  JobId job;
  std::string token;
  std::uint64_t read_ahead_bytes = 8ull << 20;  // for each open stream
};

class RemoteBlocks final : public dag::BlockReader, public dag::BlockWriter {
 public:
  static Result<std::unique_ptr<RemoteBlocks>> Connect(RemoteOptions options);
  ~RemoteBlocks() override;
  Result<std::unique_ptr<dag::SegmentWriter>> NewSegment(TaskAttempt producer, std::uint32_t parts) override;
  Result<std::unique_ptr<dag::ExtentStream>> Open(const dag::SegmentRef& segment, std::uint32_t first, std::uint32_t count) override;

 private:
  struct Impl;
  explicit RemoteBlocks(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace ropewalk::blocks
