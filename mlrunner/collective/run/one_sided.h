// One-sided work of a rank: the windows that it has, the counters that its peers raise, and what it does to theirs.
//
//   memory is shared     put, get and accumulate are done at once, by the one who asks, in the peer's mapped window
//   it is not            they travel as frames and are done by whoever drives the peer (its engine's own thread, while nobody waits there);
//                        what was put is acknowledged, and a flush waits for that
//
// Counters are always raised by frames, behind what was put before. They belong to one call: the n-th that began on a lane, which is the
// same call on all ranks. What comes for a later call is kept, what comes for one that is over is dropped.
//
// Where nothing but an access itself orders accesses (relaxed windows, accumulates), a window has a lock, which nobody waits for: who does
// not get it looks again later, so that the loss of its holder is found like any other.
//
// Do all mean the same? What is raised, and what travels, says of which call it is. A blocking call by windows is compared with the call
// of the same number on the rank that hears of it, be it one with windows or without, so that ranks at different calls find out although
// they exchange no messages. Relaxed calls are not counted, for ranks may make more or fewer of them; instead the first to touch a relaxed
// window writes before it what it is for, and whoever comes after it for something else fails.
//
// Bounds. Over frames at most kAskedMax puts, accumulates and gets of a rank are under way to a peer, which together are no longer than
// kAskedBytesMax (one alone may be); the next one waits in its step until the peer has answered. So no more than that waits here to go to a
// peer: what this rank asks of it, kAskedMax answers with as many bytes of windows, and kToldMax frames in all before a step that raises a
// counter waits, too. What comes in is always taken, whatever waits to go out, so ranks that ask each other never wait for each other in a
// circle; and a peer that asks for more at once than it may is an error (COLL27).
//
// Wire: a frame of 128 bytes as one message on a channel of its own, then the payload as another.
//
// Owner: whoever owns the transport. Thread rule: of the driver, but for windows, which may be made from any thread.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "base/status.h"
#include "mlrunner/collective/interpreter.h"
#include "mlrunner/collective/plan.h"
#include "mlrunner/collective/run/call_label.h"
#include "mlrunner/collective/run/transport.h"

namespace ropewalk::collective {

class OneSided {
 public:
  static constexpr std::size_t kAskedMax = 16, kToldMax = 64;
  static constexpr std::int64_t kAskedBytesMax = std::int64_t{16} << 20;

  // `channel` of the transport is its own, and the last one.
  OneSided(std::int32_t rank, std::int32_t ranks, Transport* transport, std::int32_t channel);
  ~OneSided();

  // ---- windows: all ranks make the same ones in the same order ----
  struct Place {
    std::uint64_t place = 0;
    std::int64_t bytes = 0;
  };
  // The next number. Zeroed memory of the transport; kResourceExhausted COLL13, and then no number is used.
  Result<std::int32_t> AddWindow(std::size_t bytes);
  // Takes back the one that was added last, before its places are set: a rank had no room for its own.
  void DropWindow(std::int32_t window);
  Place PlaceOf(std::int32_t window) const;
  // Where the window lies on each rank; before anything is done to it.
  Status SetPlaces(std::int32_t window, std::span<const Place> places);
  bool IsOurs(std::int32_t window, const char* memory) const;
  char* MemoryOf(std::int32_t window) const;
  std::int64_t BytesOf(std::int32_t window) const;

  // ---- calls ----
  // The blocking call that this rank begins, be it one with windows or not.
  void SetBlocking(const CallLabel& label);
  // The next call with counters of this lane; what is left of those before is dropped.
  std::uint64_t Begin(std::int32_t lane, const CallLabel& label);
  struct Call {
    std::int32_t lane = 0;
    std::uint64_t number = 0;
  };
  std::int64_t CountOf(const Call& call, std::int32_t counter) const;
  // Fails (status()) when a rank that has still to raise one of the call's counters has left. `raises`: how often each raises any in a run.
  void MissWhoLeft(const Call& call, std::span<const std::int64_t> raises);
  // Ranks that have still to raise one of the call's counters.
  std::vector<std::int32_t> Missing(const Call& call, std::span<const std::int64_t> raises) const;
  // kBlocked: not now, too much waits to go there.
  Outcome Notify(const Call& call, std::int32_t peer, std::int32_t counter, const CallLabel& label);
  // Tells a peer that will be waited for, and that may hear of the call by nothing else before.
  void Announce(const Call& call, std::int32_t peer, const CallLabel& label);

  // A put, get or accumulate, all of it checked against the window.
  struct Work {
    Op op = Op::kPut;
    std::int32_t lane = 0, channel = 0, peer = 0, window = 0;
    std::int64_t offset_bytes = 0, bytes = 0;  // of the peer's window
    const char* from = nullptr;                // put, accumulate: read until the work is done
    char* into = nullptr;                      // get: written until the work is done
    bool relaxed = false;
    Dtype dtype = Dtype::kF32, accumulator = Dtype::kF32;
    ReduceOp fold = ReduceOp::kSum;
  };
  // A call begins that uses this relaxed window, also where this rank neither puts nor reads: all ranks count its first use.
  void Use(std::int32_t window, std::int32_t lane) { OrderOf(window, lane); }
  // kDone: it is done, or on its way; kBlocked: not now; kFailed: status(). `label`: of the call that it is a part of.
  Outcome Do(const Work& work, const CallLabel& label);
  // Whether what this channel of the lane did to the peer is done.
  bool IsDone(std::int32_t lane, std::int32_t channel, std::int32_t peer);
  // Whether nothing of this lane is on its way, and all frames are out.
  bool IsIdle(std::int32_t lane) const;
  // A rank's own read of a relaxed window, as one access: kDone: now, until Unlock(); kBlocked: not now; kFailed: status().
  Outcome Lock(std::int32_t window, std::int32_t lane, const CallLabel& label);
  void Unlock(std::int32_t window);

  // Takes what came, does it, answers, sends what waits. True when something moved.
  bool Serve();
  // Frames that wait to go to this peer.
  std::size_t waiting(std::int32_t peer) const { return peers_[peer].out.size(); }
  // How far work has got that travels, in bytes that moved and answers that came: this rank's own, and, of the peers', that of ordered
  // calls, for which this rank waits in its turn. What peers do to relaxed windows is their affair. From any thread.
  struct Progress {
    std::uint64_t ordered = 0, relaxed = 0;
  };
  Progress progress() const { return {moved_[0].load(std::memory_order_relaxed), moved_[1].load(std::memory_order_relaxed)}; }
  // Whether a peer has still to answer something.
  bool waits_for(std::int32_t peer) const { return !peers_[peer].asked.empty(); }
  // Whether ordered work of a peer is being done to a window at this moment. From any thread.
  bool is_applying() const { return is_applying_.load(std::memory_order_relaxed); }
  // How often this rank did not get a window's lock because another one was there. From any thread.
  std::uint64_t refused() const { return refused_.load(std::memory_order_relaxed); }
  const Status& status() const { return status_; }

 private:
  enum class Kind : std::uint32_t { kPut = 1, kAccumulate, kGet, kGot, kDone, kNotify, kCall };
  struct Frame {
    Kind kind = Kind::kNotify;
    std::int32_t window = 0;
    std::int64_t offset_bytes = 0, bytes = 0;
    std::int32_t lane = 0, channel = 0, counter = 0;
    std::uint8_t dtype = 0, accumulator = 0, fold = 0, relaxed = 0;
    std::uint64_t call = 0;
    std::uint32_t order = 0, spare[3] = {};
    CallLabel label;
  };
  static_assert(sizeof(Frame) == 128);
  struct Out {
    Frame frame;
    const char* payload = nullptr;
    std::vector<char> owned;  // the payload, if nobody else keeps it
    bool frame_is_out = false;
  };
  enum Side : std::uint8_t { kOrdered, kRelaxed, kNotOurs };  // whose progress it is
  struct Peer {
    Frame landing, frame;
    bool has_frame = false;    // and its payload is still to come
    std::vector<char> staged;  // of a payload: a window is written in one go
    std::deque<Out> out;
    std::size_t answers = 0;              // of those in `out`
    std::int64_t answers_bytes = 0;       // of their payloads
    char* frames = nullptr;               // a place for each message that may be on its way
    std::vector<std::vector<char>> kept;  // payloads of answers, by place
    bool keeps = false;                   // any of them
    std::uint64_t posted = 0;
    // Of what goes out: bytes so far; the last message that is this side's progress, and whether it may be under way.
    std::uint64_t bytes_out = 0;
    std::array<std::uint64_t, 2> last_message{};
    std::array<bool, 2> is_on_its_way{};
    std::deque<Work> asked;  // that it has not answered, in the order in which it will
    std::int64_t asked_bytes = 0;
    CallLabel ahead;  // the latest blocking call that it is at, and this rank is not yet
  };
  struct Head {  // before a window's memory
    std::atomic<std::uint32_t> holder, wanted;
    // What relaxed calls use the window for: 1 + the rank that came first, 0: none yet; then the others never change.
    std::atomic<std::uint32_t> first;
    std::uint32_t order;  // 1 + how many relaxed windows blocking calls of that rank had begun with before; 0: not said
    CallLabel kind;
  };
  struct Window {
    char* memory = nullptr;
    std::int64_t bytes = 0;
    std::vector<Place> places;  // by rank
    std::vector<char*> mapped;  // by rank; null: by frames
  };
  struct Raised {
    std::vector<std::int64_t> counts;                        // by counter
    std::vector<std::int64_t> by_rank;                       // of all counters
    std::vector<std::pair<std::int32_t, CallLabel>> labels;  // of those that came before the call began here
  };
  struct Lane {
    std::uint64_t begun = 0;
    CallLabel label;
    std::map<std::uint64_t, Raised> raised;
  };

  static constexpr std::size_t kHeadBytes = 128;
  static_assert(sizeof(Head) <= kHeadBytes);
  static constexpr std::size_t kRecent = 64;
  static Head* HeadOf(char* window) { return reinterpret_cast<Head*>(window - kHeadBytes); }
  bool TryLock(Head* head);
  void Unlock(Head* head);
  const Window* Find(std::int32_t window) const;
  void Raise(std::int32_t from, const Frame& frame);
  // Compares a blocking call of a peer with this rank's of that number.
  void Meet(std::int32_t peer, const CallLabel& theirs);
  // Of a relaxed window that a blocking call uses: by its first use.
  std::uint32_t OrderOf(std::int32_t window, std::int32_t lane);
  // With the window's lock, where it is mapped: whether `rank` may touch it.
  bool IsOfKind(Head* head, std::int32_t window, std::int32_t rank, std::uint32_t order, const CallLabel& label);
  void FailByKind(const Head& head, std::int32_t window, std::int32_t rank, const CallLabel& label);
  void Apply(const Work& work, char* at);
  bool TakeOne(std::int32_t peer);
  bool TakePayload(std::int32_t peer);
  void Answer(std::int32_t peer, Out answer);
  // What was asked first is done.
  void Answered(std::int32_t peer);
  bool IsGood(std::int32_t peer, const Frame& frame);
  bool SendOut(std::int32_t peer);
  static Side SideOf(bool is_own, bool is_relaxed) { return !is_relaxed ? kOrdered : is_own ? kRelaxed : kNotOurs; }
  void Count(Side side, std::uint64_t bytes);
  // What has gone out to the peer since the last time.
  void CountOut(std::int32_t peer);
  // Whether there is memory for the frames to this peer.
  bool HasFrames(std::int32_t peer);
  void Fail(std::int32_t peer, const char* what);
  void Lost(std::int32_t peer);

  const std::int32_t rank_, ranks_, channel_;
  Transport* const transport_;
  mutable std::mutex mutex_;  // of the list of windows; a window does not change once its places are set
  std::deque<Window> windows_;
  std::vector<Peer> peers_;
  std::map<std::int32_t, Lane> lanes_;
  std::map<std::tuple<std::int32_t, std::int32_t, std::int32_t>, std::int64_t> under_way_;  // (lane, channel, peer)
  std::atomic<std::uint64_t> refused_{0};
  std::array<std::atomic<std::uint64_t>, 2> moved_{};  // by side; one writes: the driver
  std::atomic<bool> is_applying_{false};
  // Own blocking calls, by number modulo kRecent.
  std::vector<CallLabel> recent_;
  // Relaxed windows, by their first use in a blocking call.
  std::vector<std::int32_t> in_order_;
  Status status_;
};

}  // namespace ropewalk::collective
