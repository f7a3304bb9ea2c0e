#include "worker/daemon/link.h"

#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

namespace ropewalk::worker {

struct Link::Shared : std::enable_shared_from_this<Shared> {
  Shared(std::unique_ptr<rpc::Channel> channel, rpc::EventLoop& loop, LinkLimits limits)
      : channel(std::move(channel)), loop(loop), limits(limits) {}

  const std::unique_ptr<rpc::Channel> channel;
  rpc::EventLoop& loop;
  const LinkLimits limits;
  // On the loop's thread only:
  std::function<void(rpc::Frame)> on_frame;
  std::function<void(const Status&)> on_end;

  std::mutex mutex;
  std::condition_variable handled, queued;
  std::uint64_t unhandled_bytes = 0, queued_bytes = 0;
  std::deque<std::string> queue;
  bool stopping = false;
  std::thread receiver, sender;

  void End(const Status& status) {
    loop.Post([self = shared_from_this(), status] {
      if (auto on_end = std::exchange(self->on_end, nullptr)) on_end(status);
    });
  }

  void Receive() {
    while (true) {
      auto frame = channel->Receive(-1);
      if (!frame.ok()) return End(frame.status());
      std::uint64_t bytes = frame->payload.size() + 64;
      {
        std::unique_lock lock(mutex);
        handled.wait(lock, [&] { return stopping || unhandled_bytes == 0 || unhandled_bytes + bytes <= limits.received_bytes_max; });
        if (stopping) return;
        unhandled_bytes += bytes;
      }
      loop.Post([self = shared_from_this(), frame = std::make_shared<rpc::Frame>(*std::move(frame)), bytes] {
        {
          std::lock_guard lock(self->mutex);
          self->unhandled_bytes -= bytes;
        }
        self->handled.notify_one();
        if (auto on_frame = self->on_frame) on_frame(std::move(*frame));  // a copy: handling may end the link
      });
    }
  }

  void SendQueued() {
    while (true) {
      std::string payload;
      {
        std::unique_lock lock(mutex);
        queued.wait(lock, [&] { return stopping || !queue.empty(); });
        if (stopping) return;
        payload = std::move(queue.front());
        queue.pop_front();
        queued_bytes -= payload.size();
      }
      if (Status status = channel->Send(rpc::FrameKind::kMessage, payload); !status.ok()) {
        channel->Shutdown();
        return End(status);
      }
    }
  }
};

Link::Link(std::unique_ptr<rpc::Channel> channel, rpc::EventLoop& loop, std::function<void(rpc::Frame)> on_frame,
           std::function<void(const Status&)> on_end, LinkLimits limits)
    : shared_(std::make_shared<Shared>(std::move(channel), loop, limits)) {
  shared_->on_frame = std::move(on_frame);
  shared_->on_end = std::move(on_end);
  shared_->receiver = std::thread([shared = shared_.get()] {
    try {
      shared->Receive();
    } catch (const std::exception& e) {
      shared->End(
          Status(Code::kResourceExhausted, "WORKER15", "a message could not be taken in", e.what(), "give the process more memory"));
    }
  });
  shared_->sender = std::thread([shared = shared_.get()] {
    try {
      shared->SendQueued();
    } catch (const std::exception& e) {
      shared->End(Status(Code::kResourceExhausted, "WORKER15", "a message could not be sent", e.what(), "give the process more memory"));
    }
  });
}

Link::~Link() {
  shared_->on_frame = nullptr;
  shared_->on_end = nullptr;
  {
    std::lock_guard lock(shared_->mutex);
    shared_->stopping = true;
  }
  shared_->handled.notify_all();
  shared_->queued.notify_all();
  shared_->channel->Shutdown();
  shared_->receiver.join();
  shared_->sender.join();
}

bool Link::Send(std::string payload) {
  {
    std::lock_guard lock(shared_->mutex);
    if (!shared_->queue.empty() && shared_->queued_bytes + payload.size() > shared_->limits.queued_bytes_max) {
      shared_->channel->Shutdown();  // the receiver meets the end and tells it
      return false;
    }
    shared_->queued_bytes += payload.size();
    shared_->queue.push_back(std::move(payload));
  }
  shared_->queued.notify_one();
  return true;
}

}  // namespace ropewalk::worker
