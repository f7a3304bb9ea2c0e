#include "mlrunner/collective/run/native_desk.h"

#include <algorithm>
#include <string>

namespace ropewalk::collective {

Status NativeDesk::Check(const NativeCall& call) {
  if (backend_ != nullptr) return backend_->Check(call);
  return Status(Code::kInvalid, "COLL12", "a native " + std::string(Name(call.collective)) + " cannot be run",
                "this communicator has no library for such steps",
                "give it one (CommunicatorOptions::native), or choose another algorithm");
}

Status NativeDesk::Start(std::span<NativeCall> calls) {
  for (NativeCall& call : calls) {
    auto& streams = next_[call.channel];
    auto same = std::find_if(streams.begin(), streams.end(), [&](const auto& stream) {
      // A root may stand first in one call and not in the next: the ranks are the same.
      return std::is_permutation(stream.first.begin(), stream.first.end(), call.group.begin(), call.group.end());
    });
    if (same == streams.end()) same = streams.emplace(std::vector<std::int32_t>(call.group.begin(), call.group.end()), 0).first;
    call.sequence = same->second++;
  }
  return backend_->Start(calls, [transport = transport_] { transport->Ring(); });
}

}  // namespace ropewalk::collective
