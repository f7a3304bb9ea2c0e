// The watch over the peers: a thread that sleeps on the links to them and learns at once when one dies (its process's end closes the link),
// leaves in order, or fails and says why. It also answers for its rank whoever asks whether that is there, and what it is at. And over it
// ranks agree on what is to come after a failure, or otherwise: links outlive the failure of their communicator.
//
// Owner: a communicator. Thread rule: TellFailed() from any thread, Ask() and Listen() from one at a time, Agree() from one at a time; the
// functions are called from the thread of this object.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/status.h"
#include "base/unique_fd.h"
#include "mlrunner/collective/run/activity.h"
#include "mlrunner/collective/run/agreement.h"

namespace ropewalk::collective {

class Links {
 public:
  struct Events {
    std::function<void(const Status& why)> on_failed;  // a peer died (COLL20, names it), or told why it failed
    std::function<void(std::int32_t peer)> on_left;    // its program has ended in order
    std::function<Activity()> activity;                // what this rank is at; from any thread
    // It is gone, for whatever reason: nothing comes of it any more. After the others.
    std::function<void(std::int32_t peer)> on_over;
    // A peer has given up what follows from the agreement that is the last one here, too.
    std::function<void(std::int32_t peer)> on_given_up;
  };
  // links[r] is connected to rank r, -1 for this one. `begin_ms_max`: within so much its peers have links, too.
  Links(std::int32_t rank, std::vector<UniqueFd> links, std::int64_t begin_ms_max, Events events);
  // Tells all that this rank leaves, unless it has failed.
  ~Links();

  // Tells all ranks that this one has failed, and why.
  void TellFailed(const Status& why);

  // What each of the ranks that have not left says to this question within `ms_max` of this rank's own time, in which it is not stopped
  // itself; nothing where its process is stopped or its machine hangs. By rank; that it waits for those that are not asked. Not from the
  // functions above.
  std::vector<std::optional<Activity>> Ask(std::int64_t ms_max);

  // By rank: whose link is over.
  std::vector<bool> Over();
  // What the ranks agree on that each of them says: the same on all who live. All make the same calls in the same order. Nobody waits for
  // those in `without`, the same on all. On all ranks, with the names of those that are missed: kDeadlineExceeded (COLL28) when one
  // neither came nor went within `ms_max` (0: for ever) of the call of the one that gathers the words, kUnavailable (COLL28) when its
  // process did not answer for `silence_ms` (0: never). kInvalid (COLL30) for more than `word_bytes_max()`, which nobody hears.
  Result<std::vector<std::optional<std::string>>> Agree(std::string word, const std::vector<bool>& without, std::int64_t ms_max,
                                                        std::int64_t silence_ms);
  std::size_t word_bytes_max() const;
  // Tells all that what follows from the last agreement cannot be done, so that nobody waits for this rank in it; and whether one has said
  // so. Until the next agreement.
  void GiveUp();
  bool IsGivenUp();

  // Asks all that have not left whether they are there, and waits for nothing: they should have answered by the next call. Returns how long
  // each has not, by rank. `since_ms`: of this rank's own time since the last call; 0: the first one of a wait, what was before is
  // forgotten. However often it is called, a peer that does not answer is owed kUnansweredMax questions, no more.
  std::vector<std::int64_t> Listen(std::int64_t since_ms);

  // A link has room for more frames than these and what else is said to a peer that is stopped.
  static constexpr int kUnansweredMax = 8;

 private:
  struct Peer {
    UniqueFd link;
    std::string got;
    bool has_left = false, is_over = false;
  };
  struct Asked {
    bool can_be = true;
    std::optional<Activity> answer{};  // to the last Ask()
    int unanswered = 0;                // questions since it was heard
    bool was_heard = false;            // since the last Listen()
    bool has_begun = false;            // it was heard at all: before that it may still be connecting to others
    std::int64_t silent_ms = 0;
  };
  void Watch();
  // What came, until the link is over.
  void Hear(std::int32_t peer);
  void Nonsense(std::int32_t peer);
  void End(std::int32_t peer);
  void Tell(std::string_view frame);
  static void TellOne(Peer& peer, std::string_view frame);
  // In full, though they may be long; who takes nothing for a while is cut off. Under the agreements' mutex, so that they stay in order.
  void Send(const Agreements::Messages& messages);

  const std::int32_t rank_;
  const std::int64_t begin_ms_max_;
  const Events events_;
  std::vector<Peer> peers_;
  UniqueFd stop_;
  std::mutex tell_mutex_;
  bool has_failed_ = false;
  std::mutex asked_mutex_;
  std::condition_variable answered_;
  std::uint64_t questions_ = 0, last_ask_ = 0;  // how many there were; which of them was the last of Ask()
  std::vector<Asked> asked_;                    // by rank
  std::vector<bool> over_;                      // by rank; under the same mutex
  std::mutex agreed_mutex_;                     // before the one for telling
  std::condition_variable agreed_;
  Agreements agreements_;
  std::uint64_t next_agreement_ = 0, given_up_ = 0;  // given_up_ == next_agreement_: one has given up what follows from the last
  std::thread thread_;
};

}  // namespace ropewalk::collective
