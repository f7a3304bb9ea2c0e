// The watch over the peers: a thread that sleeps on the links to them and learns at once when one dies (its process's end closes the link),
// leaves in order, or fails and says why.
//
// Owner: a communicator. Thread rule: Tell() from any thread; the functions are called from the thread of this object.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/status.h"
#include "base/unique_fd.h"

namespace ropewalk::collective {

class Links {
 public:
  struct Events {
    std::function<void(const Status& why)> on_failed;  // a peer died (COLL20, names it), or told why it failed
    std::function<void(std::int32_t peer)> on_left;    // its program has ended in order
  };
  // links[r] is connected to rank r, -1 for this one.
  Links(std::int32_t rank, std::vector<UniqueFd> links, Events events);
  // Tells all that this rank leaves, unless it has failed.
  ~Links();

  // Tells all ranks that this one has failed, and why.
  void TellFailed(const Status& why);

 private:
  struct Peer {
    UniqueFd link;
    std::string got;
    bool has_left = false, is_over = false;
  };
  void Watch();
  // What came, until the link is over.
  void Hear(std::int32_t peer);
  void Tell(std::string_view frame);

  const std::int32_t rank_;
  const Events events_;
  std::vector<Peer> peers_;
  UniqueFd stop_;
  std::mutex tell_mutex_;
  bool has_failed_ = false;
  std::thread thread_;
};

}  // namespace ropewalk::collective
