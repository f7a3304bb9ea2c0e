// A rank's rounds bound to memory and a library: what runs, as Instance does for programs over a transport.
//
//   ASSIGN_OR_RETURN(Rounds rounds, MakeRounds(plan, {.count = n}));        // on every rank, or on one for all
//   ASSIGN_OR_RETURN(auto instance, RoundsInstance::Make(&plan.header, &rounds.ranks[rank], &library));
//   RETURN_IF_ERROR(instance->Bind({in, out}));                             // memory of the library's device, as often as it changes
//   RETURN_IF_ERROR(instance->Start({.channel = 0, .sequence = k}, wake));  // the k-th call of that channel on all ranks
//   ... until *instance->IsDone()
//
// Owner: the caller; the library must outlive it. Thread rule: that of NativeBackend.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "mlrunner/collective/plan.h"
#include "mlrunner/collective/rounds.h"
#include "mlrunner/collective/run/native_backend.h"

namespace ropewalk::collective {

class RoundsInstance {
 public:
  // Header and rounds must outlive it. What the library says of rounds that it cannot run (COLL12), and when there is no room for what
  // lands and for scratch (COLL13).
  static Result<std::unique_ptr<RoundsInstance>> Make(const Header* header, const RankRounds* rounds, NativeBackend* library);
  // Ends what was started and is not done.
  ~RoundsInstance();
  RoundsInstance(const RoundsInstance&) = delete;
  RoundsInstance& operator=(const RoundsInstance&) = delete;

  // Memory of the caller's buffers, in the order of the header's (others null). In place where the plan allows it, and in no other way
  // (COLL10). Not while a call runs.
  Status Bind(std::span<void* const> buffers);
  struct Call {
    std::int32_t channel = 0;
    std::uint64_t sequence = 0;  // within the channel; the same on all ranks
  };
  // Queues all rounds and returns. `wake` as NativeBackend::Start() has it.
  Status Start(const Call& call, const std::function<void()>& wake);
  // Never waits.
  Result<bool> IsDone();
  // Both, and waits. When the library fails it is aborted, and of no more use.
  Status Run(const Call& call);

 private:
  RoundsInstance(const Header* header, const RankRounds* rounds, NativeBackend* library);
  Status CheckPlaces() const;

  const Header* header_;
  const RankRounds* rounds_;
  NativeBackend* library_;
  std::vector<std::int32_t> group_;
  std::vector<void*> memories_;
  NativeCall call_;  // by which the library knows it
  bool is_running_ = false;
};

}  // namespace ropewalk::collective
