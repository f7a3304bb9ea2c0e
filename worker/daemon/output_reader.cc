#include "worker/daemon/output_reader.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

namespace ropewalk::worker {
namespace {
constexpr std::size_t kChunkBytes = 64u << 10;
}

struct OutputReader::Shared : std::enable_shared_from_this<Shared> {
  Shared(UniqueFd pipe, std::uint64_t window_bytes, rpc::EventLoop& loop)
      : pipe(std::move(pipe)), wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)), window_bytes(window_bytes), loop(loop) {}

  const UniqueFd pipe, wake;
  const std::uint64_t window_bytes;
  rpc::EventLoop& loop;
  std::function<void(std::uint64_t, std::string)> on_data;  // on the loop's thread only
  std::function<void()> on_end;
  std::mutex mutex;
  std::condition_variable changed;
  std::uint64_t read_bytes = 0, acknowledged_bytes = 0;
  bool ignore_window = false, stopping = false;
  std::thread thread;

  void Read() {
    std::string buffer(kChunkBytes, '\0');
    while (true) {
      {
        std::unique_lock lock(mutex);
        changed.wait(lock, [&] { return stopping || ignore_window || read_bytes - acknowledged_bytes < window_bytes; });
        if (stopping) break;
      }
      pollfd watched[2] = {{pipe.get(), POLLIN, 0}, {wake.get(), POLLIN, 0}};
      if (::poll(watched, wake ? 2 : 1, -1) < 0 && errno == EINTR) continue;
      if (watched[1].revents != 0) break;
      ssize_t n = ::read(pipe.get(), buffer.data(), buffer.size());
      if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
      if (n <= 0) break;
      std::uint64_t offset;
      {
        std::lock_guard lock(mutex);
        offset = read_bytes;
        read_bytes += static_cast<std::uint64_t>(n);
      }
      loop.Post([self = shared_from_this(), offset, data = buffer.substr(0, static_cast<std::size_t>(n))]() mutable {
        if (self->on_data) self->on_data(offset, std::move(data));
      });
    }
    loop.Post([self = shared_from_this()] {
      if (auto on_end = std::exchange(self->on_end, nullptr)) on_end();
    });
  }

  void Stop() {
    {
      std::lock_guard lock(mutex);
      stopping = true;
    }
    changed.notify_all();
    std::uint64_t one = 1;
    (void)!::write(wake.get(), &one, sizeof one);
  }
};

OutputReader::OutputReader(UniqueFd pipe, std::uint64_t window_bytes, rpc::EventLoop& loop,
                           std::function<void(std::uint64_t, std::string)> on_data, std::function<void()> on_end)
    : shared_(std::make_shared<Shared>(std::move(pipe), std::max<std::uint64_t>(window_bytes, kChunkBytes), loop)) {
  shared_->on_data = std::move(on_data);
  shared_->on_end = std::move(on_end);
  shared_->thread = std::thread([shared = shared_.get()] { shared->Read(); });
}

OutputReader::~OutputReader() {
  shared_->on_data = nullptr;
  shared_->on_end = nullptr;
  shared_->Stop();
  shared_->thread.join();
}

void OutputReader::Acknowledge(std::uint64_t offset) {
  {
    std::lock_guard lock(shared_->mutex);
    shared_->acknowledged_bytes = std::clamp(offset, shared_->acknowledged_bytes, shared_->read_bytes);
  }
  shared_->changed.notify_all();
}

void OutputReader::IgnoreWindow() {
  {
    std::lock_guard lock(shared_->mutex);
    shared_->ignore_window = true;
  }
  shared_->changed.notify_all();
}

void OutputReader::GiveUp() { shared_->Stop(); }

}  // namespace ropewalk::worker
