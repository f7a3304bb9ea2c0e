// Where the native steps of a rank's instances are numbered and handed to the library: those that became ready together in one group.
//
// Owner: whoever owns the transport; it must outlive the instances. Thread rule: of the driver, but for Abort().
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "base/status.h"
#include "mlrunner/collective/run/native_backend.h"
#include "mlrunner/collective/run/transport.h"

namespace ropewalk::collective {

class NativeDesk {
 public:
  // `backend` may be null: then Check() refuses. Both must outlive it.
  NativeDesk(NativeBackend* backend, Transport* transport) : backend_(backend), transport_(transport) {}

  // COLL12 without a library; what the library says otherwise.
  Status Check(const NativeCall& call);
  // Gives each its number in its stream, and begins them.
  Status Start(std::span<NativeCall> calls);
  Result<bool> IsDone(const NativeCall& call) { return backend_->IsDone(call); }
  // From any thread.
  void Abort(const Status& why) {
    if (backend_ != nullptr) backend_->Abort(why);
  }

 private:
  NativeBackend* const backend_;
  Transport* const transport_;
  std::map<std::int32_t, std::map<std::vector<std::int32_t>, std::uint64_t>> next_;  // by channel and group
};

}  // namespace ropewalk::collective
