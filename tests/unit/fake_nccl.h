// NCCL's table of functions without NCCL: notes what each rank starts, in which groups, and says where ranks would not have met.
//
// Thread rule: one thread, one FakeNccl at a time (NCCL's groups belong to the thread and name no communicator).
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "mlrunner/gpu/plugin_abi.h"

namespace ropewalk::gpu {

struct FakeNcclRank {
  std::vector<std::vector<std::string>> groups;  // what was started
  std::int32_t error = 0;                        // asynchronous
};

class FakeNccl {
 public:
  FakeNccl() { now_ = this; }
  ~FakeNccl() { now_ = nullptr; }
  FakeNccl(const FakeNccl&) = delete;
  FakeNccl& operator=(const FakeNccl&) = delete;

  int depth = 0;        // of groups
  int fail_after = -1;  // so many collectives are started, the next one fails; -1: none
  bool end_fails = false;

  static const NcclTable& table() {
    static constexpr NcclTable kTable = {
        .make_id = [](NcclId* id) -> std::int32_t { return *id = {}, 0; },
        .connect = [](NcclComm*, std::int32_t, const NcclId*, std::int32_t) -> std::int32_t { return 0; },
        .disconnect = [](NcclComm) -> std::int32_t { return 0; },
        .abort = [](NcclComm) -> std::int32_t { return 0; },
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
  std::int32_t Start(NcclComm comm, std::string what) {
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
    FakeNcclRank* rank = nullptr;
    for (auto& [of, what] : open_) {
      if (of != rank) (rank = of)->groups.emplace_back();
      rank->groups.back().push_back(std::move(what));
    }
    open_.clear();
    return end_fails ? kFailure : 0;
  }

  static inline FakeNccl* now_ = nullptr;
  std::vector<std::pair<FakeNcclRank*, std::string>> open_;
};

}  // namespace ropewalk::gpu
