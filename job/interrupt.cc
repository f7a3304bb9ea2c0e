#include "job/interrupt.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <thread>
#include <utility>

namespace ropewalk::job {
namespace {

// A signal handler has no other way to reach its object. -1: no watch.
std::atomic<int> wake_fd{-1};
std::atomic<int> calls_left{0};
// A child that was forked meanwhile shares the pipe, and a signal of its own is no word to its parent.
std::atomic<pid_t> watching_process{0};

constexpr int kSignals[] = {SIGINT, SIGTERM};
constexpr char kStop = 0;

void OnSignal(int signal) {
  int saved = errno;
  if (getpid() != watching_process.load(std::memory_order_relaxed) || calls_left.fetch_sub(1, std::memory_order_relaxed) <= 0) {
    ::signal(signal, SIG_DFL);
    raise(signal);  // delivered when this handler returns
  } else if (int fd = wake_fd.load(std::memory_order_relaxed); fd >= 0) {
    char byte = static_cast<char>(signal);
    [[maybe_unused]] ssize_t written = write(fd, &byte, 1);
  }
  errno = saved;
}

}  // namespace

struct InterruptWatch::Impl {
  Callback callback;
  int read_fd = -1, write_fd = -1;
  struct sigaction old[2] = {};
  std::thread thread;

  void Wait() {
    for (int nth = 1;; ++nth) {
      char byte = kStop;
      ssize_t n;
      do n = read(read_fd, &byte, 1);
      while (n < 0 && errno == EINTR);
      if (n != 1 || byte == kStop) return;
      callback(byte, nth);
    }
  }
};

InterruptWatch::InterruptWatch(Callback callback, int calls) : impl_(std::make_unique<Impl>()) {
  impl_->callback = std::move(callback);
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return;  // out of descriptors: signals keep their default
  impl_->read_fd = ends[0];
  impl_->write_fd = ends[1];
  calls_left.store(calls, std::memory_order_relaxed);
  watching_process.store(getpid(), std::memory_order_relaxed);
  wake_fd.store(impl_->write_fd, std::memory_order_relaxed);
  impl_->thread = std::thread([impl = impl_.get()] { impl->Wait(); });
  for (int i = 0; i < 2; ++i) {
    struct sigaction action = {};
    action.sa_handler = OnSignal;
    action.sa_flags = SA_RESTART;
    sigemptyset(&action.sa_mask);
    sigaction(kSignals[i], nullptr, &impl_->old[i]);
    if (impl_->old[i].sa_handler != SIG_IGN) sigaction(kSignals[i], &action, nullptr);
  }
}

InterruptWatch::~InterruptWatch() {
  if (impl_->read_fd < 0) return;
  for (int i = 0; i < 2; ++i) sigaction(kSignals[i], &impl_->old[i], nullptr);
  wake_fd.store(-1, std::memory_order_relaxed);
  if (impl_->thread.get_id() == std::this_thread::get_id()) {
    impl_->thread.detach();
    impl_.release();  // the thread still uses it, and the process is about to end
    return;
  }
  [[maybe_unused]] ssize_t written = write(impl_->write_fd, &kStop, 1);
  impl_->thread.join();
  close(impl_->read_fd);
  close(impl_->write_fd);
}

}  // namespace ropewalk::job
