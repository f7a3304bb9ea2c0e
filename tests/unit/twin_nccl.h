// Devices and NCCL without a GPU, for ranks that are threads: device memory is the host's, folds are the kernels' arithmetic, and what is
// queued on a stream is done at once, by the thread that queues it. Bytes really move between ranks, and under NCCL's rules:
//
//   - a send waits for its receive and a receive for its send; nothing lies between them;
//   - the transfers of a group go on together, and its end waits for all of them; outside of a group each waits by itself;
//   - of two ranks the n-th send of one is the n-th receive of the other, whatever is meant.
//
// Ranks that wait for each other are found at once, without a clock: when each of them waits or has ended, and no two halves fit.
//
// Owner: the test; one at a time. Thread rule: each rank's calls by one thread of its own.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "mlrunner/gpu/geometry.h"
#include "mlrunner/gpu/maths.h"
#include "mlrunner/gpu/plugin_abi.h"

namespace ropewalk::gpu {

class TwinNccl {
 public:
  explicit TwinNccl(std::int32_t ranks) : ranks_(ranks), waiting_(static_cast<std::size_t>(ranks)), ended_(ranks, false) { now_ = this; }
  ~TwinNccl() { now_ = nullptr; }
  TwinNccl(const TwinNccl&) = delete;
  TwinNccl& operator=(const TwinNccl&) = delete;

  static const NcclTable& table() {
    static constexpr NcclTable kTable = {
        .make_id = [](NcclId* id) -> std::int32_t {
          std::lock_guard lock(now_->mutex_);
          return *id = {}, id->bytes[0] = static_cast<char>(++now_->ids_), 0;
        },
        .connect = [](NcclComm* comm, std::int32_t, const NcclId* id, std::int32_t rank) -> std::int32_t {
          std::lock_guard lock(now_->mutex_);
          now_->comms_.push_back({id->bytes[0], rank});
          return *comm = &now_->comms_.back(), 0;
        },
        .disconnect = [](NcclComm) -> std::int32_t { return 0; },
        .abort = [](NcclComm) -> std::int32_t { return now_->Fail("aborted"), 0; },
        .async_error = [](NcclComm, std::int32_t* error) -> std::int32_t { return *error = 0, 0; },
        .group_begin = []() -> std::int32_t { return ++depth_, 0; },
        .group_end = []() -> std::int32_t { return --depth_ > 0 ? 0 : now_->Run(); },
        .all_reduce = [](const void* in, void* out, std::size_t count, Element element, Sum sum, NcclComm comm,
                         void*) { return Add({Kind::kAllReduce, in, out, count, element, sum, 0}, comm); },
        .broadcast = [](const void* in, void* out, std::size_t count, Element element, std::int32_t root, NcclComm comm,
                        void*) { return Add({Kind::kBroadcast, in, out, count, element, Sum::kSum, root}, comm); },
        .reduce = [](const void* in, void* out, std::size_t count, Element element, Sum sum, std::int32_t root, NcclComm comm,
                     void*) { return Add({Kind::kReduce, in, out, count, element, sum, root}, comm); },
        .reduce_scatter = [](const void* in, void* out, std::size_t count, Element element, Sum sum, NcclComm comm,
                             void*) { return Add({Kind::kReduceScatter, in, out, count, element, sum, 0}, comm); },
        .all_gather = [](const void* in, void* out, std::size_t count, Element element, NcclComm comm,
                         void*) { return Add({Kind::kAllGather, in, out, count, element, Sum::kSum, 0}, comm); },
        .send = [](const void* in, std::size_t count, Element element, std::int32_t peer, NcclComm comm,
                   void*) { return Add({Kind::kSend, in, nullptr, count, element, Sum::kSum, peer}, comm); },
        .receive = [](void* out, std::size_t count, Element element, std::int32_t peer, NcclComm comm,
                      void*) { return Add({Kind::kReceive, nullptr, out, count, element, Sum::kSum, peer}, comm); },
        .text = [](std::int32_t code) { return code == 0 ? "no failure" : now_->why_.c_str(); },
    };
    return kTable;
  }
  static constexpr std::int32_t kFailure = 9;

  static const Api& api() {
    static constexpr Api kApi = {
        .abi_version = kAbiVersion,
        .bytes = sizeof(Api),
        .allocate = [](Context*, std::size_t bytes, void** memory, Message*) -> Failure {
          *memory = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
          return std::memset(*memory, kGarbage, bytes), Failure::kNone;
        },
        .release = [](Context*, void* memory) { std::free(memory); },
        .synchronize = [](Context*, Message*) { return Failure::kNone; },
        .is_idle = [](Context*, void*, std::int32_t* idle, Message*) { return *idle = 1, Failure::kNone; },
        .stream = [](Context*) -> void* { return nullptr; },
        .make_stream = [](Context*, void** stream, Message*) { return *stream = nullptr, Failure::kNone; },
        .free_stream = [](Context*, void*) {},
        .wait_stream = [](Context*, void*, Message*) { return Failure::kNone; },
        .notify = [](Context*, void*, void (*call)(void*), void* data, Message*) { return call(data), Failure::kNone; },
        .is_on_device = [](Context*, const void* memory) -> std::int32_t { return memory != nullptr ? 1 : 0; },
        .fold = [](Context*, void*, const FoldCall* call, Message* why) { return Fold(*call, why); },
    };
    return kApi;
  }
  // All that a kernel does, element by element.
  static Failure Fold(const FoldCall& call, Message* why) {
    why->text[0] = 0;
    if (!IsLegal(call)) return Failure::kInvalid;
    if (IsCopy(call)) {
      if (call.count > 0) std::memmove(call.out, call.rows[0].data, static_cast<std::size_t>(call.count * SizeOf(call.element)));
      return Failure::kNone;
    }
    auto all = [&]<class A>(A) {
      for (std::int64_t i = 0; i < call.count; ++i) FoldElement<A>(call, call.rows, i);
    };
    switch (call.accumulator) {
      case Element::kF64:
        all(double{});
        break;
      case Element::kI32:
        all(std::int32_t{});
        break;
      case Element::kI64:
        all(std::int64_t{});
        break;
      case Element::kU8:
        all(std::uint8_t{});
        break;
      default:
        all(float{});
    }
    return Failure::kNone;
  }

  // Runs `body` as all ranks, each on a thread of its own.
  void OnAllRanks(const std::function<void(std::int32_t rank)>& body) {
    std::vector<std::thread> threads;
    for (std::int32_t rank = 0; rank < ranks_; ++rank)
      threads.emplace_back([this, rank, &body] {
        body(rank);
        std::lock_guard lock(mutex_);
        ended_[static_cast<std::size_t>(rank)] = true;
        FindDeadlock();
      });
    for (std::thread& thread : threads) thread.join();
  }
  // Why calls fail: a deadlock, halves that do not fit, an abort; the first of them. Empty: nothing failed. When nothing runs.
  const std::string& why() const { return why_; }
  std::int64_t moved_bytes = 0;  // from rank to rank by sends
  int widest_group = 0;

 private:
  enum class Kind { kSend, kReceive, kAllReduce, kBroadcast, kReduce, kReduceScatter, kAllGather };
  struct Comm {
    std::int32_t id = 0, rank = 0;
  };
  struct Work {
    Kind kind;
    const void* in;
    void* out;
    std::size_t count;
    Element element;
    Sum sum;
    std::int32_t peer;  // or root
    Comm* comm = nullptr;
    bool done = false;
    std::size_t Bytes() const { return count * static_cast<std::size_t>(SizeOf(element)); }
  };
  static constexpr int kGarbage = 0xa5;

  static std::int32_t Add(Work work, NcclComm comm) {
    work.comm = static_cast<Comm*>(comm);
    open_.push_back(work);
    return depth_ > 0 ? 0 : now_->Run();
  }

  // What this thread has opened, until it is over.
  std::int32_t Run() {
    std::vector<Work> group = std::exchange(open_, {});
    if (group.empty()) return 0;
    std::unique_lock lock(mutex_);
    widest_group = std::max(widest_group, static_cast<int>(group.size()));
    const auto rank = static_cast<std::size_t>(group[0].comm->rank);
    // A receive may store at any time of its group.
    for (Work& work : group)
      if (work.kind == Kind::kReceive) std::memset(work.out, kGarbage, work.Bytes());
    waiting_[rank] = &group;
    Match();
    FindDeadlock();
    changed_.wait(lock, [&] { return !why_.empty() || IsDone(group); });
    waiting_[rank] = nullptr;
    return IsDone(group) ? 0 : kFailure;
  }

  static bool IsDone(const std::vector<Work>& group) {
    return std::all_of(group.begin(), group.end(), [](const Work& work) { return work.done; });
  }
  void Fail(const std::string& why) {
    std::lock_guard lock(mutex_);
    FailLocked(why);
  }
  void FailLocked(const std::string& why) {
    if (why_.empty()) why_ = why;
    changed_.notify_all();
  }
  void FindDeadlock() {
    std::string waiters;
    for (std::int32_t rank = 0; rank < ranks_; ++rank) {
      const auto* group = waiting_[static_cast<std::size_t>(rank)];
      if (ended_[static_cast<std::size_t>(rank)]) continue;
      if (group == nullptr || IsDone(*group)) return;  // it goes on
      waiters += " " + std::to_string(rank);
    }
    if (!waiters.empty()) FailLocked("deadlock of ranks" + waiters);
  }

  // The first of a rank's group that is not done, of a kind and with a peer.
  Work* First(std::int32_t rank, Kind kind, std::int32_t id, std::int32_t peer) {
    auto* group = waiting_[static_cast<std::size_t>(rank)];
    if (group == nullptr) return nullptr;
    for (Work& work : *group)
      if (!work.done && work.kind == kind && work.comm->id == id && work.peer == peer) return &work;
    return nullptr;
  }
  Work* FirstCollective(std::int32_t rank, std::int32_t id) {
    auto* group = waiting_[static_cast<std::size_t>(rank)];
    if (group == nullptr) return nullptr;
    for (Work& work : *group)
      if (!work.done && work.kind != Kind::kSend && work.kind != Kind::kReceive && work.comm->id == id) return &work;
    return nullptr;
  }

  // Everything that can be done, by whoever came last.
  void Match() {
    for (bool moved = true; moved && why_.empty();) {
      moved = false;
      for (std::int32_t id = 1; id <= ids_; ++id) {
        moved = MeetAll(id) || moved;
        for (std::int32_t from = 0; from < ranks_; ++from)
          for (std::int32_t to = 0; to < ranks_; ++to) {
            Work *send = First(from, Kind::kSend, id, to), *receive = First(to, Kind::kReceive, id, from);
            if (send == nullptr || receive == nullptr) continue;
            if (send->count != receive->count || send->element != receive->element)
              return FailLocked("ranks " + std::to_string(from) + " and " + std::to_string(to) + " mean different messages");
            std::memcpy(receive->out, send->in, send->Bytes());
            moved_bytes += static_cast<std::int64_t>(send->Bytes());
            send->done = receive->done = moved = true;
          }
      }
    }
    changed_.notify_all();
  }

  // A collective that all ranks have come to.
  bool MeetAll(std::int32_t id) {
    std::vector<Work*> all;
    for (std::int32_t rank = 0; rank < ranks_; ++rank) {
      Work* work = FirstCollective(rank, id);
      if (work == nullptr) return false;
      all.push_back(work);
    }
    const Work& first = *all[0];
    for (const Work* work : all)
      if (work->kind != first.kind || work->count != first.count || work->element != first.element || work->peer != first.peer)
        return FailLocked("ranks mean different collectives"), false;
    const bool sums = first.kind == Kind::kAllReduce || first.kind == Kind::kReduce || first.kind == Kind::kReduceScatter;
    const bool has_parts = first.kind == Kind::kReduceScatter || first.kind == Kind::kAllGather;
    const std::size_t each = first.Bytes();
    std::vector<char> whole(has_parts ? each * all.size() : each);
    if (sums) {
      std::vector<FoldRow> rows;
      for (const Work* work : all) rows.push_back({work->in, 1, work->element});
      const bool is_half = first.element == Element::kF16 || first.element == Element::kBF16;
      Message why;
      Fold({.sum = first.sum,
            .accumulator = is_half ? Element::kF32 : first.element,
            .element = first.element,
            .row_count = static_cast<std::int32_t>(rows.size()),
            .rows = rows.data(),
            .scale = 1,
            .count = static_cast<std::int64_t>(whole.size()) / SizeOf(first.element),
            .out = whole.data()},
           &why);
    } else {
      for (std::size_t i = 0; i < all.size(); ++i) {
        const bool gives = first.kind == Kind::kAllGather || static_cast<std::int32_t>(i) == first.peer;
        if (gives && each > 0) std::memcpy(whole.data() + (has_parts ? i * each : 0), all[i]->in, each);
      }
    }
    for (std::size_t i = 0; i < all.size(); ++i) {
      all[i]->done = true;
      const bool gets = first.kind != Kind::kReduce || static_cast<std::int32_t>(i) == first.peer;
      const std::size_t bytes = first.kind == Kind::kAllGather ? whole.size() : each;
      if (gets && bytes > 0) std::memcpy(all[i]->out, whole.data() + (first.kind == Kind::kReduceScatter ? i * each : 0), bytes);
    }
    return true;
  }

  static inline TwinNccl* now_ = nullptr;
  static inline thread_local int depth_ = 0;
  static inline thread_local std::vector<Work> open_;

  const std::int32_t ranks_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::int32_t ids_ = 0;
  std::deque<Comm> comms_;
  std::vector<std::vector<Work>*> waiting_;  // by rank: the group whose end it waits for
  std::vector<bool> ended_;
  std::string why_;
};

}  // namespace ropewalk::gpu
