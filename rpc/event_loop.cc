#include "rpc/event_loop.h"

#include <chrono>
#include <utility>

#include <glog/logging.h>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>

#include "base/monotonic.h"
#include "rpc/asio_loop.h"

namespace ropewalk::rpc {
namespace {

void WaitForSignal(Signals* set, const std::shared_ptr<std::function<void(int)>>& handler) {
  set->async_wait([set, handler](const boost::system::error_code& error, int signal) {
    if (error) return;
    (*handler)(signal);
    WaitForSignal(set, handler);
  });
}

}  // namespace

EventLoop::EventLoop() : impl_(std::make_unique<Impl>()) {}
EventLoop::~EventLoop() = default;

void EventLoop::Run() {
  auto guard = asio::make_work_guard(impl_->context);
  // The border for exceptions of libraries: nothing of ours throws, and a daemon does not die of one lost handler.
  while (true) {
    try {
      impl_->context.run();
      break;
    } catch (const std::exception& error) {
      LOG(ERROR) << "an exception reached the event loop: " << error.what();
    }
  }
  impl_->context.restart();
}

void EventLoop::Stop() { impl_->context.stop(); }

void EventLoop::Post(std::function<void()> work) { asio::post(impl_->context, std::move(work)); }

EventLoop::TimerId EventLoop::At(std::int64_t time_ms, std::function<void()> work) {
  const TimerId id = impl_->next_timer++;
  const std::chrono::steady_clock::time_point at{std::chrono::milliseconds(time_ms)};
  auto timer = std::make_unique<Timer>(impl_->context.get_executor(), at);
  timer->async_wait([this, id, work = std::move(work)](const boost::system::error_code& error) {
    // A cancelled timer may already be on its way to run: its entry says whether it still counts.
    if (error || impl_->timers.erase(id) == 0) return;
    work();
  });
  impl_->timers.emplace(id, std::move(timer));
  return id;
}

EventLoop::TimerId EventLoop::After(std::int64_t delay_ms, std::function<void()> work) { return At(NowMs() + delay_ms, std::move(work)); }

void EventLoop::Cancel(TimerId timer) { impl_->timers.erase(timer); }

void EventLoop::OnSignals(const std::vector<int>& signals, std::function<void(int)> handler) {
  auto set = std::make_unique<Signals>(impl_->context.get_executor());
  for (int signal : signals) {
    boost::system::error_code error;
    set->add(signal, error);
    CHECK(!error) << "signal " << signal << ": " << error.message();
  }
  WaitForSignal(set.get(), std::make_shared<std::function<void(int)>>(std::move(handler)));
  impl_->signals.push_back(std::move(set));
}

std::int64_t EventLoop::NowMs() { return MonotonicMs(); }

}  // namespace ropewalk::rpc
