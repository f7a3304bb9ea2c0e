// A library that brings collectives of its own, and sends and receives (NCCL): what `native` steps are handed to, and whole plans that were
// made into rounds (rounds.h). The machine keeps the order of steps and knows when one may start; how the bytes move is the library's
// affair.
//
//   A call belongs to a stream: the ranks of `group`, in whatever order, on channel `channel`. Calls of one stream are numbered from 0 on,
//   start in this order, and are the same on all ranks of the group; between streams there is no order, and ranks may reach them in
//   different ones. So a library that wants one order for each of its communicators needs a communicator for each stream.
//
// Owner: whoever makes the communicator (CommunicatorOptions::native); it must outlive it. Thread rule: Start() and IsDone() are called by
// one thread at a time, Check() by those that make calls, beside it, Abort() from any. `wake` of a call may be called until Abort() has
// returned or IsDone() has said yes, and not after.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "base/status.h"
#include "mlrunner/collective/plan.h"
#include "mlrunner/collective/rounds.h"
#include "mlrunner/collective/types.h"

namespace ropewalk::collective {

struct NativeCall {
  Collective collective = Collective::kAllreduce;  // or kReduceScatter, kAllgather, kBroadcast, kReduce
  Dtype dtype = Dtype::kF32;
  ReduceOp op = ReduceOp::kSum;  // never kAvg: plans scale in a step of their own
  std::span<const std::int32_t>
      group;  // ranks, in the plan's order: the first is the root of a broadcast or reduce; alive until the call is done
  std::int32_t channel = 0;
  std::uint64_t sequence = 0;  // within the stream
  // Where the library finds them: device memory is as good as any, nobody else looks at it. They may be the same.
  const void* in = nullptr;
  void* out = nullptr;
  std::int64_t in_count = 0, out_count = 0;  // elements of this rank
};

// A rank's rounds bound to memory: one call of its stream, whose folds and groups all follow each other without anybody's help.
struct NativeRounds {
  const RankRounds* rounds = nullptr;  // as `memories`, alive until the call is done
  ReduceOp op = ReduceOp::kSum;
  Dtype accumulator = Dtype::kF32;
  std::span<const std::int32_t> group;  // all ranks
  std::int32_t channel = 0;
  std::uint64_t sequence = 0;
  std::span<void* const> memories;  // as the rounds name them
};

class NativeBackend {
 public:
  virtual ~NativeBackend() = default;

  // Whether such calls can be run; asked when a plan is made ready, before anything moves. Only collective, dtype, op and group are set.
  virtual Status Check(const NativeCall& call) = 0;

  // Begins calls that became ready together, of different streams, as one group: none of them may have to wait for the end of another.
  // Returns without waiting. `wake` is to be called, from any thread, when one of them may be done; it may be called too often.
  virtual Status Start(std::span<const NativeCall> calls, const std::function<void()>& wake) = 0;

  // Whether such rounds can be run, on memory that Allocate() and the caller give; asked before anything moves. Neither memory nor sequence
  // is set.
  virtual Status CheckRounds(const NativeRounds& call) = 0;
  // As Start(), for a call of that kind; it counts among the calls of its stream, and IsDone() tells its end.
  virtual Status StartRounds(const NativeRounds& call, const std::function<void()>& wake) = 0;
  // Memory that the library reads and writes, where messages land; aligned to 64 bytes. kResourceExhausted (COLL13). Called by the thread
  // that makes calls; given back when no call uses it.
  virtual Result<void*> Allocate(std::size_t bytes) = 0;
  virtual void Free(void* memory) = 0;

  // Whether the call that has this group, channel and sequence is done: `in` is read, `out` is written. Never waits. After it has said yes
  // it is not asked again.
  virtual Result<bool> IsDone(const NativeCall& call) = 0;

  // A rank is lost, or something failed. When it returns, nothing reads or writes the memory of calls that were begun, whatever the other
  // ranks do; what is begun later fails with `why`. May be called again.
  virtual void Abort(const Status& why) = 0;
};

}  // namespace ropewalk::collective
