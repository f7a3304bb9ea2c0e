// The watch over the peers: a thread that sleeps on the links to them and learns at once when one dies (its process's end closes the link),
// leaves in order, or fails and says why. It also answers for its rank whoever asks whether that is there.
//
// Owner: a communicator. Thread rule: Tell() from any thread; the functions are called from the thread of this object.
#pragma once

#include <condition_variable>
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
    std::function<bool()> is_waiting;                  // whether this rank's program waits in a call; from any thread
  };
  // links[r] is connected to rank r, -1 for this one.
  Links(std::int32_t rank, std::vector<UniqueFd> links, Events events);
  // Tells all that this rank leaves, unless it has failed.
  ~Links();

  // Tells all ranks that this one has failed, and why.
  void TellFailed(const Status& why);

  enum class Answer : std::uint8_t { kNone, kWaits, kElsewhere };
  // What each of the ranks that have not left says within `ms_max`: that its program waits in a call, or is elsewhere; or nothing, because
  // its process is stopped or its machine hangs. By rank; kWaits for those that are not asked. Not from the functions above.
  std::vector<Answer> Ask(std::int64_t ms_max);

 private:
  struct Peer {
    UniqueFd link;
    std::string got;
    bool has_left = false, is_over = false;
  };
  struct Asked {
    bool can_be = true;
    Answer answer = Answer::kNone;
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
  std::mutex asked_mutex_;
  std::condition_variable answered_;
  std::vector<Asked> asked_;  // by rank
  std::thread thread_;
};

}  // namespace ropewalk::collective
