// Reads one pipe of an executor in its own thread and hands the bytes to the control thread, each once and in order, with their offset.
// While more than a window is not acknowledged nothing is read: an executor that writes without end is held up, not the daemon.
//
// Thread rule: from the loop's thread; handlers are called there and never after the destructor has begun.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/unique_fd.h"
#include "rpc/event_loop.h"

namespace ropewalk::worker {

class OutputReader {
 public:
  OutputReader(UniqueFd pipe, std::uint64_t window_bytes, rpc::EventLoop& loop,
               std::function<void(std::uint64_t offset, std::string data)> on_data, std::function<void()> on_end);
  ~OutputReader();
  OutputReader(const OutputReader&) = delete;
  OutputReader& operator=(const OutputReader&) = delete;

  void Acknowledge(std::uint64_t offset);  // everything below is kept by the master
  void IgnoreWindow();                     // the process is gone: what its pipe holds is read without waiting
  void GiveUp();                           // ends now, whoever still holds the other end of the pipe; on_end follows

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;
};

}  // namespace ropewalk::worker
