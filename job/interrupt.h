// Turns the first SIGINTs or SIGTERMs into calls on a thread of its own, where anything may be done; the one after those kills the process,
// whatever that thread is doing.
//
// Thread rule: made and destroyed on main's thread; the callback runs on the watch's thread.
#pragma once

#include <functional>
#include <memory>

namespace ropewalk::job {

class InterruptWatch {
 public:
  using Callback = std::function<void(int signal, int nth)>;  // nth: 1, 2...
  // At most `calls` of them. A signal that is ignored already (nohup, a background job of a shell) stays ignored.
  explicit InterruptWatch(Callback callback, int calls = 1);
  ~InterruptWatch();  // gives the old handlers back
  InterruptWatch(const InterruptWatch&) = delete;
  InterruptWatch& operator=(const InterruptWatch&) = delete;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ropewalk::job
