// Requests to the master that survive its restart: a lost connection is made anew and the request sent again. Every client request may be
// repeated (a submit carries its key, chunks their offsets), so nothing happens twice.
//
// Thread rule: one thread a link.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/status.h"

namespace ropewalk::wire {  // proto/client.pb.h, for .cc files only
class ClientRequest;
class ClientResponse;
}  // namespace ropewalk::wire
namespace ropewalk::rpc {
class Channel;
}

namespace ropewalk::job {

struct MasterLinkOptions {
  std::string address;  // "host:port"
  std::string token;
  int first_connect_ms = 3'000;  // a master that never answered: probably the wrong address
  int reconnect_ms = 120'000;    // one that did answer may be restarting
  int answer_ms = 30'000;        // silence on a connection that stands; long polls add their wait
  // Told once a call, in its thread, when the master does not answer: how long it will be asked again.
  std::function<void(int patience_ms)> on_waiting;
};

class MasterLink {
 public:
  explicit MasterLink(MasterLinkOptions options);
  ~MasterLink();

  // The answer; a `failure` in it comes as its Status. `wait_ms` is how long the master itself may take before it answers (long polls).
  // kUnavailable NET02 when it cannot be reached for too long.
  Result<wire::ClientResponse> Call(wire::ClientRequest* request, std::uint32_t wait_ms = 0);

  // Counts new connections: artifacts have to be asked for again after one, since it may be another master's.
  int connections() const { return connections_; }

 private:
  Status Connect();
  Result<wire::ClientResponse> CallOnce(const std::string& bytes, std::uint64_t id, std::uint32_t wait_ms);

  MasterLinkOptions options_;
  std::unique_ptr<rpc::Channel> channel_;
  std::uint64_t last_id_ = 0;
  int connections_ = 0;
};

}  // namespace ropewalk::job
