// Inside rpc/ only: the Asio side of EventLoop. A concrete executor type, since the erased one costs at every step.
#pragma once

#include <map>
#include <memory>

#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>

#include "rpc/event_loop.h"

namespace ropewalk::rpc {

namespace asio = boost::asio;
using Executor = asio::io_context::executor_type;
using Timer = asio::basic_waitable_timer<std::chrono::steady_clock, asio::wait_traits<std::chrono::steady_clock>, Executor>;
using Signals = asio::basic_signal_set<Executor>;

struct EventLoop::Impl {
  asio::io_context context{1};  // one thread: no locks inside
  std::map<TimerId, std::unique_ptr<Timer>> timers;
  TimerId next_timer = 1;
  std::vector<std::unique_ptr<Signals>> signals;
};

}  // namespace ropewalk::rpc
