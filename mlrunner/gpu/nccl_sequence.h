// NCCL's collectives in the order of their numbers, in groups that are the same on all ranks.
//
// NCCL matches collectives by the order in which ranks start them, and may reorder those of one group. Ranks that start the same ones in
// another order, or in other groups, hang or add up what does not belong together. So nothing here depends on when a call arrives: calls
// carry the numbers that the communicator gave them (rank 0 orders, docs/decisions/0011), and are started in that order without a gap. A
// group ends with the call that says so, or with its kGroupMax-th; both are the same on all ranks when the calls are.
//
//   NcclSequence sequence(table, comm, stream);
//   RETURN_IF_ERROR(sequence.Add({.number = 0, .kind = kAllReduce, ..., .ends_group = false}));   // starts nothing yet
//   RETURN_IF_ERROR(sequence.Add({.number = 1, .kind = kAllReduce, ...}));                        // starts both, as one group
//
// Owner: the caller owns comm and stream, which must outlive it. Thread rule: one thread at a time.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "mlrunner/collective/types.h"
#include "mlrunner/gpu/plugin_abi.h"

namespace ropewalk::mlrunner {

struct NcclCall {
  enum class Kind : std::uint8_t { kAllReduce, kBroadcast, kReduce, kReduceScatter, kAllGather } kind = Kind::kAllReduce;
  std::uint64_t number = 0;
  const void* in = nullptr;  // device memory; broadcast: read by the root only
  void* out = nullptr;       // may be `in`, or where this rank's part lies in the other; reduce: written by the root only
  std::int64_t count = 0;    // elements of the whole vector
  Dtype dtype = Dtype::kF32;
  collective::ReduceOp op = collective::ReduceOp::kSum;
  std::int32_t root = 0;
  std::int32_t rank = 0;                // reduce-scatter, allgather: this rank
  std::span<const std::int32_t> group;  // and whose the parts of the vector are, in the order in which they lie there; alive until Add()
  bool ends_group = true;               // false: it waits for the next, to be started with it
};

gpu::Sum SumOf(collective::ReduceOp op);

class NcclSequence {
 public:
  static constexpr std::size_t kGroupMax = 64, kWaitingMax = 4096;

  NcclSequence(const gpu::NcclTable* table, gpu::NcclComm comm, void* stream) : table_(table), comm_(comm), stream_(stream) {}

  // In any order; numbers begin at 0. All groups that have become whole are started. kInvalid (GPU06): a number that was there already, a
  // type or count that NCCL does not take; kResourceExhausted (GPU06): kWaitingMax calls wait for one that does not come; kUnavailable
  // (GPU06): NCCL has failed, now and for all later calls.
  Status Add(const NcclCall& call);
  // The next number is a call that the caller starts on the stream by itself. kInvalid (GPU06) when it is not the next, or another waits.
  Status Pass(std::uint64_t number);
  // How many have been started: those with smaller numbers.
  std::uint64_t started() const { return started_; }
  std::size_t waiting() const { return waiting_.size(); }

  // How what was started has ended so far: the communicator's own error, or an earlier one. Does not wait.
  Status Check();

 private:
  Status StartWhole();
  Status StartGroup(std::uint64_t end);
  struct Waiting {
    NcclCall call;
    std::vector<std::int32_t> group;
  };
  Status Start(const Waiting& waiting);
  std::int32_t StartParts(const NcclCall& call, std::span<const std::int32_t> group, gpu::Element element);
  Status Fail(std::int32_t code, const std::string& what);

  const gpu::NcclTable* table_;
  gpu::NcclComm comm_;
  void* stream_;
  std::uint64_t started_ = 0;
  std::map<std::uint64_t, Waiting> waiting_;
  Status failed_;
};

}  // namespace ropewalk::mlrunner
