// The native steps of collective plans by NCCL: a communicator and a stream of the device for each of the plan's streams, so that none
// waits for another, and within each the calls by their numbers (nccl_sequence.h).
//
// Allreduce, reduce-scatter, allgather, broadcast and reduce over all ranks; and plans that were made into rounds, all of whose folds and
// groups are queued on the stream at once. Vectors lie in device memory, and hold their numbers when the call is started. NCCL's kernels
// wait for each other on the device: streams that run at the same time need room on it for all of them.
//
// Owner: whoever makes the collective communicator; it must outlive that. Thread rule: that of NativeBackend.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "mlrunner/collective/run/native_backend.h"
#include "mlrunner/gpu/nccl_sequence.h"
#include "mlrunner/gpu/plugin_abi.h"

namespace ropewalk::mlrunner {

// What it stands on; all must outlive it.
struct NcclMeans {
  const gpu::Api* api = nullptr;
  gpu::Context* context = nullptr;
  const gpu::NcclTable* nccl = nullptr;
};

struct NcclRanks {
  std::int32_t rank = 0, ranks = 1;
  std::vector<std::int32_t> channels = {0, 2, 4, 6};  // the first of each lane of a communicator: a native allreduce has one
  // Gives every rank the bytes of all, by rank, as a Rendezvous does. Called once.
  std::function<Result<std::vector<std::string>>(std::string mine)> exchange;
};

class NcclBackend : public collective::NativeBackend {
 public:
  // Blocks until all ranks have come. GPU06 for what NCCL says, GPU04 for what the device says.
  static Result<std::unique_ptr<NcclBackend>> Connect(const NcclMeans& means, const NcclRanks& ranks);
  // Ends what was begun and is not done.
  ~NcclBackend() override;

  Status Check(const collective::NativeCall& call) override;
  Status Start(std::span<const collective::NativeCall> calls, const std::function<void()>& wake) override;
  Status CheckRounds(const collective::NativeRounds& call) override;
  Status StartRounds(const collective::NativeRounds& call, const std::function<void()>& wake) override;
  Result<void*> Allocate(std::size_t bytes) override;
  void Free(void* memory) override;
  Result<bool> IsDone(const collective::NativeCall& call) override;
  void Abort(const Status& why) override;

 private:
  struct Begun;
  struct Stream;
  NcclBackend(const NcclMeans& means, std::int32_t rank, std::int32_t ranks);
  Status MakeStream(std::int32_t channel, std::int32_t rank, const gpu::NcclId& id);
  Stream* Find(std::int32_t channel) const;
  bool IsAll(std::span<const std::int32_t> group) const;
  // Runs `calls` as one group.
  Status Group(const std::function<Status()>& calls);
  Status StartFold(const collective::NativeRounds& call, const collective::RoundFold& fold, Stream* stream);
  Status StartGroup(const collective::NativeRounds& call, const collective::Round& round, Stream* stream);
  Status TellTheEnd(Stream* stream, std::uint64_t sequence, const std::function<void()>& wake);
  Status CheckParts(const collective::NativeCall& call) const;
  Status CheckMemory(const collective::NativeCall& call) const;
  Status Aborted();

  const NcclMeans means_;
  const std::int32_t rank_, ranks_;
  std::vector<std::unique_ptr<Stream>> streams_;  // const once connected
  std::mutex abort_mutex_;                        // one Abort() at a time
  std::mutex nccl_mutex_;                         // NCCL's communicators: no call after they were aborted
  std::mutex why_mutex_;
  Status why_;  // not OK: aborted
};

}  // namespace ropewalk::mlrunner
