// NCCL's table of functions without NCCL: notes what each rank starts, in which groups, and says where ranks would not have met.
//
// Thread rule: one thread, one FakeNccl at a time (NCCL's groups belong to the thread and name no communicator); an abort may come from
// another one while a group hangs.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "mlrunner/gpu/geometry.h"
#include "mlrunner/gpu/plugin_abi.h"

namespace ropewalk::gpu {

struct FakeNcclRank {
  std::vector<std::vector<std::string>> groups;  // what was started
  std::int32_t error = 0;                        // asynchronous
  std::int32_t id = 0, rank = 0;                 // of a communicator that was connected
  bool is_gone = false;                          // disconnected or aborted: it must not be used
};

class FakeNccl {
 public:
  FakeNccl() { now_ = this; }
  ~FakeNccl() { now_ = nullptr; }
  FakeNccl(const FakeNccl&) = delete;
  FakeNccl& operator=(const FakeNccl&) = delete;

  int depth = 0;        // of groups
  int fail_after = -1;  // so many collectives are started, the next one fails; -1: none
  bool end_fails = false, connect_fails = false;
  std::deque<FakeNcclRank> comms;  // that were connected
  int ids = 0, disconnects = 0;
  std::atomic<int> aborts = 0;
  std::atomic<bool> hangs = false, is_hanging = false;  // the end of a group waits for a rank that does not come, until an abort
  int widest_group = 0;                                 // collectives in one
  bool is_misused = false;                              // a communicator was used that had gone

  static const NcclTable& table() {
    static constexpr NcclTable kTable = {
        .make_id = [](NcclId* id) -> std::int32_t { return *id = {}, id->bytes[0] = static_cast<char>(++now_->ids), 0; },
        .connect = [](NcclComm* comm, std::int32_t, const NcclId* id, std::int32_t rank) -> std::int32_t {
          if (now_->connect_fails) return kFailure;
          now_->comms.push_back({.id = id->bytes[0], .rank = rank});
          return *comm = &now_->comms.back(), 0;
        },
        .disconnect = [](NcclComm comm) -> std::int32_t { return ++now_->disconnects, now_->End(comm), 0; },
        .abort = [](NcclComm comm) -> std::int32_t { return ++now_->aborts, now_->End(comm), 0; },
        .async_error = [](NcclComm comm, std::int32_t* error) -> std::int32_t {
          return *error = static_cast<FakeNcclRank*>(comm)->error, 0;
        },
        .group_begin = []() -> std::int32_t { return ++now_->depth, 0; },
        .group_end = [] { return now_->End(); },
        .all_reduce =
            [](const void*, void*, std::size_t count, Element element, Sum sum, NcclComm comm, void*) {
              return now_->Start(comm, "allreduce of " + std::to_string(count) + ", type " + Number(element) + ", sum " + Number(sum));
            },
        .broadcast =
            [](const void*, void*, std::size_t count, Element element, std::int32_t root, NcclComm comm, void*) {
              return now_->Start(comm,
                                 "broadcast of " + std::to_string(count) + ", type " + Number(element) + ", root " + std::to_string(root));
            },
        .reduce =
            [](const void*, void*, std::size_t count, Element element, Sum sum, std::int32_t root, NcclComm comm, void*) {
              return now_->Start(comm, "reduce of " + std::to_string(count) + ", type " + Number(element) + ", sum " + Number(sum) +
                                           ", root " + std::to_string(root));
            },
        .reduce_scatter =
            [](const void*, void*, std::size_t count, Element element, Sum sum, NcclComm comm, void*) {
              return now_->Start(comm, "reduce_scatter of " + std::to_string(count) + ", type " + Number(element) + ", sum " + Number(sum));
            },
        .all_gather = [](const void*, void*, std::size_t count, Element element, NcclComm comm,
                         void*) { return now_->Start(comm, "all_gather of " + std::to_string(count) + ", type " + Number(element)); },
        .send =
            [](const void*, std::size_t count, Element element, std::int32_t peer, NcclComm comm, void*) {
              return now_->Start(comm, "send of " + std::to_string(count) + ", type " + Number(element) + ", to " + std::to_string(peer));
            },
        .receive =
            [](void*, std::size_t count, Element element, std::int32_t peer, NcclComm comm, void*) {
              return now_->Start(comm,
                                 "receive of " + std::to_string(count) + ", type " + Number(element) + ", from " + std::to_string(peer));
            },
        .text = [](std::int32_t code) { return code == kFailure ? "a fake failure" : "no failure"; },
    };
    return kTable;
  }
  static constexpr std::int32_t kFailure = 7;

  // Where the ranks would hang or add what does not belong together: the first group in which one differs from rank 0. Empty: nowhere.
  static std::string Mismatch(const std::vector<FakeNcclRank>& ranks) {
    for (std::size_t rank = 1; rank < ranks.size(); ++rank) {
      const auto &first = ranks[0].groups, &other = ranks[rank].groups;
      for (std::size_t group = 0; group < std::max(first.size(), other.size()); ++group) {
        if (group >= first.size() || group >= other.size() || first[group] != other[group])
          return "rank " + std::to_string(rank) + " differs from rank 0 in group " + std::to_string(group);
      }
    }
    return "";
  }

 private:
  template <class E>
  static std::string Number(E value) {
    return std::to_string(static_cast<int>(value));
  }
  void End(NcclComm comm) {
    is_misused |= static_cast<FakeNcclRank*>(comm)->is_gone;
    static_cast<FakeNcclRank*>(comm)->is_gone = true;
  }
  std::int32_t Start(NcclComm comm, std::string what) {
    is_misused |= static_cast<FakeNcclRank*>(comm)->is_gone;
    if (fail_after == 0) return kFailure;
    if (fail_after > 0) --fail_after;
    if (depth == 0) {
      static_cast<FakeNcclRank*>(comm)->groups.push_back({std::move(what)});
    } else {
      open_.emplace_back(static_cast<FakeNcclRank*>(comm), std::move(what));
    }
    return 0;
  }
  std::int32_t End() {
    if (--depth > 0) return 0;
    widest_group = std::max(widest_group, static_cast<int>(open_.size()));
    FakeNcclRank* rank = nullptr;
    for (auto& [of, what] : open_) {
      if (of != rank) (rank = of)->groups.emplace_back();
      rank->groups.back().push_back(std::move(what));
    }
    open_.clear();
    while (hangs && aborts == 0) {
      is_hanging = true;
      std::this_thread::yield();
    }
    return end_fails || hangs ? kFailure : 0;
  }

  static inline FakeNccl* now_ = nullptr;
  std::vector<std::pair<FakeNcclRank*, std::string>> open_;
};

// The part of a plugin that streams are: work on them ends when the test says so. `context()` is what its functions are called with.
class FakeStreams {
 public:
  Context* context() { return reinterpret_cast<Context*>(this); }
  static const Api& api() {
    static constexpr Api kApi = {
        .abi_version = kAbiVersion,
        .bytes = sizeof(Api),
        .allocate = [](Context* context, std::size_t bytes, void** memory, Message* why) -> Failure {
          if (bytes > Of(context).room_bytes) return why->text[0] = 0, Failure::kOutOfMemory;
          return ++Of(context).allocated, *memory = std::aligned_alloc(64, (bytes + 63) / 64 * 64), Failure::kNone;
        },
        .release = [](Context* context, void* memory) { --Of(context).allocated, std::free(memory); },
        .synchronize = [](Context*, Message*) -> Failure { return Failure::kNone; },
        .is_idle = [](Context* context, void*, std::int32_t* idle, Message* why) -> Failure {
          why->text[0] = 0;
          return *idle = 0, Of(context).is_broken ? Failure::kDevice : Failure::kNone;
        },
        .stream = [](Context*) -> void* { return nullptr; },
        .make_stream = [](Context* context, void** stream, Message*) -> Failure {
          *stream = reinterpret_cast<void*>(++Of(context).made);
          return Of(context).streams.insert(*stream), Failure::kNone;
        },
        .free_stream = [](Context* context, void* stream) { Of(context).streams.erase(stream); },
        .wait_stream = [](Context* context, void* stream, Message*) -> Failure { return Of(context).Wait(stream), Failure::kNone; },
        .notify = [](Context* context, void* stream, void (*call)(void*), void* data, Message*) -> Failure {
          return Of(context).work.push_back({stream, call, data}), Failure::kNone;
        },
        .is_on_device = [](Context* context, const void* memory) -> std::int32_t { return memory == Of(context).host_memory ? 0 : 1; },
        .fold = [](Context* context, void*, const FoldCall* call, Message* why) -> Failure {
          FakeNcclRank* notes = Of(context).notes;
          if (!IsLegal(*call)) return why->text[0] = 0, Failure::kInvalid;
          if (notes != nullptr)
            notes->groups.push_back({"fold of " + std::to_string(call->count) + ", rows " + std::to_string(call->row_count)});
          return Failure::kNone;
        },
    };
    return kApi;
  }
  // The first work on the stream has ended; the first stream is 1. False: there is none.
  bool End(std::uintptr_t stream) {
    auto found = std::find_if(work.begin(), work.end(), [&](const Work& w) { return w.stream == reinterpret_cast<void*>(stream); });
    if (found == work.end()) return false;
    Work ended = *found;
    work.erase(found);
    ended.call(ended.data);
    return true;
  }

  struct Work {
    void* stream;
    void (*call)(void*);
    void* data;
  };
  std::vector<Work> work;
  std::set<void*> streams;
  std::uintptr_t made = 0;
  bool is_broken = false;
  bool work_ends = false;  // all of it, when it is waited for: the communicators were aborted
  bool has_hung = false;   // somebody waited for work that does not end
  const void* host_memory = nullptr;
  FakeNcclRank* notes = nullptr;  // where folds are noted, between the groups
  std::size_t room_bytes = std::size_t{1} << 30;
  int allocated = 0;

 private:
  static FakeStreams& Of(Context* context) { return *reinterpret_cast<FakeStreams*>(context); }
  void Wait(void* stream) {
    while (work_ends && End(reinterpret_cast<std::uintptr_t>(stream))) {
    }
    for (const Work& left : work) has_hung |= left.stream == stream;
  }
};

}  // namespace ropewalk::gpu
