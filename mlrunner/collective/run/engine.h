// What a communicator does: takes calls in, lets rank 0 order what was submitted, drives all instances of this rank over one transport.
//
// Lanes are sets of channels. Lane 0 is for the blocking call; on the others submitted calls run side by side, where rank 0's orders put
// them. One channel more carries what ranks say about submitted calls: a rank tells rank 0 of each, rank 0 tells all which begins where.
// The last one carries one-sided work: once there are windows the thread of this object does what peers ask for, while nobody waits here.
//
// Owner: a communicator. Thread rule: any thread may call. One at a time drives: the one whose blocking call or wait it is, otherwise the
// thread of this object; state that says "of the driver" belongs to it.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/status.h"
#include "mlrunner/collective/run/activity.h"
#include "mlrunner/collective/run/call_label.h"
#include "mlrunner/collective/run/instance.h"
#include "mlrunner/collective/run/instance_cache.h"
#include "mlrunner/collective/run/submit_order.h"
#include "mlrunner/collective/run/transport.h"

namespace ropewalk::collective {

// A call on its way.
struct Submission {
  Instance* instance = nullptr;
  CallLabel label;
  std::int64_t priority = 0, bytes = 0;
  std::uint64_t number = 0;
  std::int64_t* received = nullptr;  // all-to-all-v: takes what each rank had for this one
  std::atomic<bool> is_done{false};
  Status status;  // once it is done
};

class Engine {
 public:
  static constexpr std::int32_t kLanes = 3;           // for submitted calls
  static constexpr std::int32_t kChannelsOfLane = 2;  // what a plan may have
  static constexpr std::int32_t kControl = (1 + kLanes) * kChannelsOfLane;
  static constexpr std::int32_t kOneSided = kControl + 1;  // frames of one-sided work
  static constexpr std::int32_t kChannels = kOneSided + 1;

  // What a rank waits for in vain.
  struct Stall {
    CallLabel call;
    bool has_begun = true;  // false: not all ranks have submitted it, or rank 0 has not ordered it
    std::vector<std::int32_t> ranks;
    std::int64_t waited_ms = 0;
    // Whether the same is missed, for however long.
    bool IsSame(const Stall& other) const {
      return call.fingerprint == other.call.fingerprint && call.sequence == other.call.sequence && has_begun == other.has_begun &&
             ranks == other.ranks;
    }
  };
  struct Timeout {
    std::int64_t ms = 0;  // 0: none
    // Who is to blame; OK: nobody yet, somebody gets on. It may ask the peers, which takes a while.
    std::function<Status(const Stall&)> verdict;
    // Called twice a second while nothing moves, whatever `ms` says: not OK when a peer has been silent for too long. It waits for nothing.
    // `since_ms`: since the last call; 0: the first one of this wait.
    std::function<Status(const Stall&, std::int64_t since_ms)> listen;
  };
  // `on_failed` is called once, from the driver, when this rank's transport fails, with what `listen` said, or with what `verdict` said
  // when nothing has moved after it either.
  Engine(std::int32_t rank, std::int32_t ranks, std::int64_t credit_bytes, Transport* transport, OneSided* one_sided, InstanceCache* cache,
         std::function<void(const Status&)> on_failed, Timeout timeout);
  ~Engine();
  // Whether a thread of the program waits for a call.
  bool IsWaitedFor() const { return callers_.load() > 0; }
  // What its calls are at, for peers that wait for them. From any thread.
  Activity activity() const;
  // While the library works for a call that is not taken in yet: peers may wait for it.
  class Preparing {
   public:
    explicit Preparing(Engine* engine) : engine_(engine) { engine_->preparing_.fetch_add(1); }
    ~Preparing() { engine_->preparing_.fetch_sub(1); }
    Preparing(const Preparing&) = delete;
    Preparing& operator=(const Preparing&) = delete;

   private:
    Engine* const engine_;
  };
  // From now on there is somebody to serve at any time.
  void ServePeers();
  // Drives no more for nobody. Before that rank 0 says the orders that it owes: its peers may have calls in which it took no part.
  void Stop();

  // To the end; the calling thread drives.
  Status Run(Instance* instance, CallLabel label);
  // `received`: null, or a place for one number from each rank, filled before it is done.
  Result<std::shared_ptr<Submission>> Submit(Instance* instance, CallLabel label, std::int64_t priority, std::int64_t bytes,
                                             std::int64_t* received);
  Status Wait(Submission* submission);
  // Until nothing that was submitted is under way, well or not. Nobody submits meanwhile.
  void Drain();
  // Everything that runs and all that comes ends with `why` (the first one counts). True for the first.
  bool Fail(const Status& why);
  bool has_failed() const { return has_failed_.load(std::memory_order_acquire); }

  std::uint64_t steps() const { return steps_.load(std::memory_order_relaxed); }

 private:
  // From a rank to rank 0: it has submitted call `number`, and what that is. From rank 0: that begins on `lane`.
  struct Message {
    std::uint64_t number = 0;
    std::int64_t priority = 0;
    std::int32_t lane = 0, unused = 0;
    CallLabel label;
  };
  struct Lane {
    std::shared_ptr<Submission> running;
    std::deque<std::uint64_t> ordered;  // that begin there when what runs has ended
  };

  // Whether there is something to do for nobody in particular.
  bool HasWork() const { return outstanding_.load() > 0 || unsaid_.load() > 0 || (serves_.load() && !has_failed_.load()); }
  // A thread that wants something of the driver comes; it drives until it has it, or another one does; it leaves.
  std::unique_lock<std::mutex> Want();
  void Drive(std::unique_lock<std::mutex>* lock, const std::atomic<bool>& is_done);
  void Leave(std::unique_lock<std::mutex>* lock);
  template <class IsDone>
  void DriveUntil(const IsDone& is_done);
  void DriveForNobody();
  struct Watch {
    std::uint32_t looks = 0, looks_between = 1;  // since the last look at the clock; how many are to be
    std::int64_t clock_ms = 0, looked_at_ms = 0;
    std::uint64_t moved = 0;
    // Since something moved: own time, of which the peers were given so much; the time since they were asked whether they are there.
    std::int64_t waited_ms = 0, postponed_ms = 0, unasked_ms = 0;
    bool has_asked = false;
    Status verdict;  // on `judged`; not OK: what it fails with, if it stands still there now, too
    Stall judged;
  };
  void LookForStall(Watch* watch);
  // Grows with each step of a call of this rank that is done, and each byte of a message that moves for one.
  std::uint64_t Moved();
  std::uint64_t MovedInMessages() const;
  Stall WhatStalls(std::int64_t waited_ms) const;
  // Of the driver. One look at everything; false: nothing can go on.
  bool Step();
  bool TakeIn();
  void Begin(std::int32_t lane);
  Outcome Advance(Submission* submission);
  void End(Submission* submission, const Status& status);
  void EndAll();
  // A failure as it is told to the one who made this call.
  Status At(const CallLabel& label, const Status& why) const;

  bool Talk();
  bool HearOfSubmitted();
  bool HearOrders();
  bool Order();
  bool SendWhatWaits();
  const Message* Hear(std::int32_t peer);
  void Say(std::int32_t peer, const Message& message);
  // Rank 0: one more rank has submitted it.
  void Count(std::uint64_t number);
  void Compare(std::int32_t peer, const CallLabel& theirs, const CallLabel& mine);

  const std::int32_t rank_, ranks_;
  Transport* const transport_;
  OneSided* const one_sided_;
  InstanceCache* const cache_;
  const std::function<void(const Status&)> on_failed_;
  const Timeout timeout_;

  std::mutex mutex_;
  std::condition_variable changed_;
  bool has_driver_ = false, stop_ = false;
  std::atomic<bool> serves_{false};
  std::vector<std::shared_ptr<Submission>> inbox_;
  Submission* blocking_next_ = nullptr;
  std::uint64_t submitted_ = 0, called_ = 0;
  Status failure_;
  std::atomic<bool> has_failed_{false}, has_news_{false};
  std::atomic<int> callers_{0};          // threads that want to drive
  std::atomic<int> outstanding_{0};      // submissions that are not done
  std::atomic<int> unsaid_{0};           // messages about submissions that wait for room on their way to a peer
  std::atomic<bool> own_drives_{false};  // the thread of this object is the driver
  std::atomic<std::uint64_t> steps_{0};
  // For activity(); one writes: the driver.
  std::atomic<std::uint64_t> looks_{0}, counted_steps_{0};
  std::atomic<bool> is_in_step_{false};
  std::atomic<int> preparing_{0};

  // Of the driver:
  Submission* blocking_ = nullptr;
  std::map<std::uint64_t, std::shared_ptr<Submission>> pending_;  // not begun, by number
  std::array<Lane, kLanes> lanes_;
  std::vector<std::int32_t> by_urgency_;      // lanes with a call, the most urgent first
  std::vector<std::deque<Message>> to_say_;   // by rank
  std::vector<char*> said_memory_;            // by rank: a place for each message that may be on its way
  std::vector<std::uint64_t> said_;           // by rank: messages posted
  std::vector<Message> landing_;              // by rank
  std::uint64_t taken_in_ = 0, ordered_ = 0;  // own submissions; orders heard
  // Of rank 0's driver: by rank, how many calls it has submitted; by call, how many ranks have it, and what those say who were earlier.
  std::vector<std::uint64_t> heard_;
  std::map<std::uint64_t, std::int32_t> have_it_;
  std::map<std::uint64_t, std::vector<std::pair<std::int32_t, CallLabel>>> heard_of_;
  SubmitOrder order_;

  std::thread thread_;
};

}  // namespace ropewalk::collective
