#include "job/client/master_link.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "base/monotonic.h"
#include "dag/wire/wire.h"
#include "job/client/find_cluster.h"
#include "proto/client.pb.h"
#include "rpc/channel.h"

namespace ropewalk::job {
namespace {

constexpr int kConnectMs = 5'000, kFirstDelayMs = 20, kDelayMaxMs = 1'000;
constexpr int kSayAtDelayMs = 16 * kFirstDelayMs;  // after a third of a second: a restart is seldom faster

}  // namespace

MasterLink::MasterLink(MasterLinkOptions options) : options_(std::move(options)) {}
MasterLink::~MasterLink() = default;

Status MasterLink::Connect() {
  if (channel_ != nullptr) return Status();
  ASSIGN_OR_RETURN(channel_, rpc::Channel::Connect(options_.address, options_.token, "client", std::min(kConnectMs, options_.answer_ms)));
  ++connections_;
  return Status();
}

Result<wire::ClientResponse> MasterLink::CallOnce(const std::string& bytes, std::uint64_t id, std::uint32_t wait_ms) {
  RETURN_IF_ERROR(Connect());
  RETURN_IF_ERROR(channel_->Send(rpc::FrameKind::kRequest, bytes));
  for (;;) {
    ASSIGN_OR_RETURN(rpc::Frame frame, channel_->Receive(options_.answer_ms + static_cast<int>(wait_ms)));
    wire::ClientResponse response;
    if (!response.ParseFromString(frame.payload)) return Status(Code::kDataLoss, "NET03", "the master's answer cannot be read");
    if (response.id() == id) return response;
  }
}

Result<wire::ClientResponse> MasterLink::Call(wire::ClientRequest* request, std::uint32_t wait_ms) {
  request->set_id(++last_id_);
  std::string bytes = request->SerializeAsString();
  const std::int64_t begin_ms = MonotonicMs();
  for (int delay_ms = kFirstDelayMs;; delay_ms = std::min(2 * delay_ms, kDelayMaxMs)) {
    Result<wire::ClientResponse> response = CallOnce(bytes, request->id(), wait_ms);
    Status status = response.ok() ? dag::FromWire(response->failure()) : response.status();
    if (status.ok()) return response;
    bool passing = status.code() == Code::kUnavailable ||
                   (!response.ok() && (status.code() == Code::kDataLoss || status.code() == Code::kDeadlineExceeded));
    if (!response.ok()) channel_.reset();
    if (!passing) return status;
    // As it stands now: a master that was lost within the first call, a long poll perhaps, has answered a connection before.
    const int patience_ms = connections_ == 0 ? options_.first_connect_ms : options_.reconnect_ms;
    if (delay_ms == kSayAtDelayMs && options_.on_waiting) options_.on_waiting(patience_ms);
    if (MonotonicMs() + delay_ms > begin_ms + patience_ms) {
      return Status(Code::kUnavailable, "NET02", "the master at " + options_.address + " cannot be reached",
                    status.what() + (status.why().empty() ? "" : ": " + status.why()),
                    connections_ == 0 ? HowToStart(options_.address) : "start it again, or wait until somebody has; then try again");
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(delay_ms));
  }
}

}  // namespace ropewalk::job
