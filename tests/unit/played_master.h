// A master that a test plays: clients connect to it, and what it answers is the test's.
//
// Thread rule: made and destroyed by the test's thread; answers on a thread of its own.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "proto/client.pb.h"
#include "rpc/event_loop.h"
#include "rpc/server.h"
#include "tests/unit/rpc_fixture.h"

namespace ropewalk::rpc {

class PlayedMaster : public ServerHandler {
 public:
  // One that is silent takes requests and answers none.
  explicit PlayedMaster(const std::string& address = "127.0.0.1:0", bool silent = false) : silent_(silent) {
    ServerOptions options;
    options.listen_address = address;
    options.token = kTestToken;
    options.roles["client"] = {};
    auto started = Server::Start(loop_, std::move(options), this);
    EXPECT_TRUE(started.ok()) << started.status().ToString();
    server_ = *std::move(started);
    address_ = server_->address();
    thread_ = std::thread([this] { loop_.Run(); });
  }
  ~PlayedMaster() override {
    loop_.Stop();
    thread_.join();
  }
  const std::string& address() const { return address_; }
  std::atomic<int> requests{0};
  std::function<void(const wire::ClientRequest&, wire::ClientResponse*)> answer;  // set before the first request; none: empty answers

  void OnConnected(ConnectionId, const Peer&) override {}
  void OnDisconnected(ConnectionId, const Status&) override {}
  void OnFrame(ConnectionId id, Frame frame) override {
    ++requests;
    wire::ClientRequest request;
    wire::ClientResponse response;
    ASSERT_TRUE(request.ParseFromString(frame.payload));
    response.set_id(request.id());
    if (answer) answer(request, &response);
    if (!silent_) server_->Send(id, FrameKind::kResponse, response.SerializeAsString());
  }

 private:
  const bool silent_;
  EventLoop loop_;
  std::unique_ptr<Server> server_;
  std::string address_;
  std::thread thread_;
};

}  // namespace ropewalk::rpc
