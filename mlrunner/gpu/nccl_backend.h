// The native steps of collective plans by NCCL: a communicator and a stream of the device for each of the plan's streams, so that none
// waits for another, and within each the calls by their numbers (nccl_sequence.h).
//
// Allreduce and broadcast over all ranks, on vectors in device memory. NCCL's kernels wait for each other on the device: streams that run
// at the same time need room on it for all of them.
//
// Owner: whoever makes the collective communicator; it must outlive that. Thread rule: that of NativeBackend.
#pragma once

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
  Result<bool> IsDone(const collective::NativeCall& call) override;
  void Abort(const Status& why) override;

 private:
  struct Begun;
  struct Stream;
  NcclBackend(const NcclMeans& means, std::int32_t ranks);
  Status MakeStream(std::int32_t channel, std::int32_t rank, const gpu::NcclId& id);
  Stream* Find(const collective::NativeCall& call) const;
  Status CheckMemory(const collective::NativeCall& call) const;
  Status Aborted();

  const NcclMeans means_;
  const std::int32_t ranks_;
  std::vector<std::unique_ptr<Stream>> streams_;  // const once connected
  std::mutex abort_mutex_;                        // one Abort() at a time
  std::mutex nccl_mutex_;                         // NCCL's communicators: no call after they were aborted
  std::mutex why_mutex_;
  Status why_;  // not OK: aborted
};

}  // namespace ropewalk::mlrunner
