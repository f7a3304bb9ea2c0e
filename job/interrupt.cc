#include "job/interrupt.h"

#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <thread>

namespace ropewalk::job {
namespace {

// A signal handler has no other way to reach its object. -1: no watch.
std::atomic<int> wake_fd{-1};

constexpr int kSignals[] = {SIGINT, SIGTERM};

void OnSignal(int signal) {
  int saved = errno;
  std::uint64_t value = static_cast<std::uint64_t>(signal);
  int fd = wake_fd.load(std::memory_order_relaxed);
  if (fd >= 0) {
    [[maybe_unused]] ssize_t written = write(fd, &value, sizeof value);
  }
  errno = saved;
}

}  // namespace

struct InterruptWatch::Impl {
  Callback callback;
  int fd = -1;
  struct sigaction old[2] = {};
  std::thread thread;

  void Wait() {
    std::uint64_t value = 0;
    while (read(fd, &value, sizeof value) < 0 && errno == EINTR) {
    }
    constexpr std::uint64_t kStop = 1u << 20;
    if (value < kStop) callback(static_cast<int>(value));
  }
};

InterruptWatch::InterruptWatch(Callback callback) : impl_(std::make_unique<Impl>()) {
  impl_->callback = std::move(callback);
  impl_->fd = eventfd(0, EFD_CLOEXEC);
  if (impl_->fd < 0) return;  // out of descriptors: signals keep their default
  wake_fd.store(impl_->fd, std::memory_order_relaxed);
  impl_->thread = std::thread([impl = impl_.get()] { impl->Wait(); });
  for (int i = 0; i < 2; ++i) {
    struct sigaction action = {};
    action.sa_handler = OnSignal;
    action.sa_flags = static_cast<int>(SA_RESETHAND | SA_RESTART);
    sigemptyset(&action.sa_mask);
    sigaction(kSignals[i], nullptr, &impl_->old[i]);
    if (impl_->old[i].sa_handler != SIG_IGN) sigaction(kSignals[i], &action, nullptr);
  }
}

InterruptWatch::~InterruptWatch() {
  if (impl_->fd < 0) return;
  for (int i = 0; i < 2; ++i) sigaction(kSignals[i], &impl_->old[i], nullptr);
  std::uint64_t stop = 1u << 20;
  [[maybe_unused]] ssize_t written = write(impl_->fd, &stop, sizeof stop);
  if (impl_->thread.get_id() == std::this_thread::get_id()) {
    impl_->thread.detach();
  } else {
    impl_->thread.join();
  }
  wake_fd.store(-1, std::memory_order_relaxed);
  close(impl_->fd);
}

}  // namespace ropewalk::job
