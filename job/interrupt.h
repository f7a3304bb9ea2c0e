// Turns the first SIGINT or SIGTERM into a call on a thread of its own, where anything may be done; the second one kills the process, since
// the handler is gone by then.
//
// Thread rule: made and destroyed on main's thread; the callback runs on the watch's thread.
#pragma once

#include <functional>
#include <memory>

namespace ropewalk::job {

class InterruptWatch {
 public:
  using Callback = std::function<void(int signal)>;
  // A signal that is ignored already (nohup, a background job of a shell) stays ignored.
  explicit InterruptWatch(Callback callback);
  ~InterruptWatch();  // gives the old handlers back
  InterruptWatch(const InterruptWatch&) = delete;
  InterruptWatch& operator=(const InterruptWatch&) = delete;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ropewalk::job
