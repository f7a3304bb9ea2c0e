// A channel with a thread for each direction, so that a peer that sends too much or reads too little never blocks the control thread.
//
// What was received and not yet handled is bounded (the receiver waits); so is what is queued to be sent (the link ends).
//
// Thread rule: everything from the loop's thread; the handlers are called there too, and never after the destructor has begun.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/status.h"
#include "rpc/channel.h"
#include "rpc/event_loop.h"

namespace ropewalk::worker {

struct LinkLimits {
  std::uint64_t received_bytes_max = 16ull << 20;  // not handled yet
  std::uint64_t queued_bytes_max = 128ull << 20;   // not sent yet
};

class Link {
 public:
  Link(std::unique_ptr<rpc::Channel> channel, rpc::EventLoop& loop, std::function<void(rpc::Frame)> on_frame,
       std::function<void(const Status&)> on_end, LinkLimits limits = {});
  ~Link();  // what is queued is dropped
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  // Queues a kMessage. False: the link has ended or its peer reads too slowly (then it ends now, and on_end says so).
  bool Send(std::string payload);

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;
};

}  // namespace ropewalk::worker
