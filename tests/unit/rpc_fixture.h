// A server on a free loopback port with its loop in a thread, for the rpc tests.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "rpc/channel.h"
#include "rpc/event_loop.h"
#include "rpc/server.h"

namespace ropewalk::rpc {

inline constexpr char kTestToken[] = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

// Answers each request with its own payload; counts what it sees.
class EchoServer : public ServerHandler {
 public:
  explicit EchoServer(ServerOptions options = {}) {
    options.listen_address = "127.0.0.1:0";
    if (options.token.empty()) options.token = kTestToken;
    if (options.roles.empty()) options.roles["client"] = RoleLimits{.message_bytes_max = kMessageBytesMax};
    auto started = Server::Start(loop_, std::move(options), this);
    EXPECT_TRUE(started.ok()) << started.status().ToString();
    server_ = *std::move(started);
    address_ = server_->address();
    thread_ = std::thread([this] { loop_.Run(); });
  }
  ~EchoServer() override {
    loop_.Stop();
    thread_.join();
    server_.reset();
  }
  const std::string& address() const { return address_; }
  // Runs `work` on the loop and waits for it.
  void OnLoop(const std::function<void(Server&)>& work) {
    std::atomic<bool> done{false};
    loop_.Post([&] {
      work(*server_);
      done = true;
      done.notify_one();
    });
    done.wait(false);
  }
  Server::Stats stats() {
    Server::Stats out;
    OnLoop([&](Server& server) { out = server.stats(); });
    return out;
  }
  std::vector<std::string> closed_reasons() {
    std::lock_guard lock(mutex_);
    return closed_;
  }

  std::atomic<int> connected{0}, frames{0}, disconnected{0};
  std::atomic<ConnectionId> last{0};

  void OnConnected(ConnectionId id, const Peer&) override {
    last = id;
    ++connected;
  }
  void OnFrame(ConnectionId id, Frame frame) override {
    ++frames;
    if (frame.kind == FrameKind::kRequest) server_->Send(id, FrameKind::kResponse, frame.payload);
  }
  void OnDisconnected(ConnectionId, const Status& reason) override {
    std::lock_guard lock(mutex_);
    closed_.push_back(reason.ToString());
    ++disconnected;
  }

 private:
  EventLoop loop_;
  std::unique_ptr<Server> server_;
  std::string address_;
  std::thread thread_;
  std::mutex mutex_;
  std::vector<std::string> closed_;
};

// Looks again and again until `holds` or ten seconds are over; for what another thread is about to do.
inline bool Eventually(const std::function<bool()>& holds) {
  for (int i = 0; i < 10'000; ++i) {
    if (holds()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return holds();
}

}  // namespace ropewalk::rpc
