// The watch over the peers: a thread that sleeps on the links to them and learns at once when one dies (its process's end closes the link),
// leaves in order, or fails and says why. It also answers for its rank whoever asks whether that is there.
//
// Owner: a communicator. Thread rule: Tell() from any thread; the functions are called from the thread of this object.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/status.h"
#include "base/unique_fd.h"

namespace ropewalk::collective {

// What a rank says about itself when it is asked.
struct Here {
  bool waits = false;  // its program waits in a call
  // How long ago its program last said that it gets on.
  static constexpr std::uint64_t kNever = ~std::uint64_t{0};
  std::uint64_t worked_ms_ago = kNever;
};

class Links {
 public:
  struct Events {
    std::function<void(const Status& why)> on_failed;  // a peer died (COLL20, names it), or told why it failed
    std::function<void(std::int32_t peer)> on_left;    // its program has ended in order
    std::function<Here()> here;                        // of this rank
    // It is gone, for whatever reason: nothing comes of it any more. After the others.
    std::function<void(std::int32_t peer)> on_over;
  };
  // links[r] is connected to rank r, -1 for this one.
  Links(std::int32_t rank, std::vector<UniqueFd> links, Events events);
  // Tells all that this rank leaves, unless it has failed.
  ~Links();

  // Tells all ranks that this one has failed, and why.
  void TellFailed(const Status& why);

  // What each of the ranks that have not left says within `ms_max`; nothing where its process is stopped or its machine hangs. By rank;
  // that it waits for those that are not asked. Not from the functions above.
  std::vector<std::optional<Here>> Ask(std::int64_t ms_max);

  // By rank: whose link is over.
  std::vector<bool> Over();
  // Gives `word` (a few KiB) to all, and returns by rank what each gave with this number: nothing of those whose links are over without it,
  // and of those in `without`, for whom nobody waits. kDeadlineExceeded (COLL28) when one neither gives nor goes within `ms_max` (0: for
  // ever). Each number once, and in order. Links do that also when their communicator has failed.
  Result<std::vector<std::optional<std::string>>> Meet(std::uint64_t number, const std::string& word, const std::vector<bool>& without,
                                                       std::int64_t ms_max);

 private:
  struct Peer {
    UniqueFd link;
    std::string got;
    bool has_left = false, is_over = false;
  };
  struct Asked {
    bool can_be = true;
    std::optional<Here> answer{};
  };
  void Watch();
  // What came, until the link is over.
  void Hear(std::int32_t peer);
  void Nonsense(std::int32_t peer);
  void End(std::int32_t peer);
  void Tell(std::string_view frame);

  const std::int32_t rank_;
  const Events events_;
  std::vector<Peer> peers_;
  UniqueFd stop_;
  std::mutex tell_mutex_;
  bool has_failed_ = false;
  std::mutex asked_mutex_;
  std::condition_variable answered_;
  std::vector<Asked> asked_;                                           // by rank
  std::vector<bool> over_;                                             // by rank; under the same mutex
  std::map<std::pair<std::uint64_t, std::int32_t>, std::string> met_;  // words that nobody has taken, by number and rank
  std::thread thread_;
};

}  // namespace ropewalk::collective
