// A library of native collectives for ranks that are threads: it adds up on the processor, and writes down what it was given. It is as
// strict as such libraries are: a rank that comes to a stream's calls in another order, or with another call, is an error.
//
// Owner: the test owns the meeting, each rank its backend. Thread rule: one backend belongs to its rank's driver; the meeting is shared.
#pragma once

#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "mlrunner/collective/run/kernels.h"
#include "mlrunner/collective/run/native_backend.h"

namespace ropewalk::collective::testing {

// Where the ranks of all groups meet.
class LibraryMeeting {
 public:
  using Stream = std::pair<std::vector<std::int32_t>, std::int32_t>;  // group, channel
  struct Arrived {
    std::map<std::int32_t, std::pair<NativeCall, std::function<void()>>> calls;  // by rank
    std::set<std::int32_t> done;
    bool ended = false;
  };
  std::mutex mutex;
  std::map<std::pair<Stream, std::uint64_t>, Arrived> arrived;
  bool skips_the_last = false;  // a broken library, for controls
};

class CpuLibrary : public NativeBackend {
 public:
  CpuLibrary(std::int32_t rank, LibraryMeeting* meeting) : rank_(rank), meeting_(meeting) {}

  Status Check(const NativeCall& call) override {
    if (call.collective == Collective::kAllreduce && !call.group.empty()) return {};
    return Status(Code::kInvalid, "TEST10", "the test's library does allreduce only", "", "");
  }

  Status Start(std::span<const NativeCall> calls, const std::function<void()>& wake) override {
    std::lock_guard lock(meeting_->mutex);
    if (!aborted_.ok()) return aborted_;
    groups.emplace_back();
    for (const NativeCall& call : calls) {
      const auto stream = StreamOf(call);
      if (call.sequence != started_[stream]++) return Status(Code::kInternal, "TEST11", "a call out of its order", "", "");
      groups.back().push_back({stream, call.sequence});
      auto& here = meeting_->arrived[{stream, call.sequence}];
      for (const auto& [rank, other] : here.calls)
        if (other.first.out_count != call.out_count || other.first.op != call.op || other.first.dtype != call.dtype)
          return Status(Code::kInvalid, "TEST12", "rank " + std::to_string(rank) + " calls something else", "", "");
      here.calls[rank_] = {call, wake};
      if (here.calls.size() == call.group.size()) Run(&here);
    }
    return {};
  }

  Result<bool> IsDone(const NativeCall& call) override {
    std::lock_guard lock(meeting_->mutex);
    if (!aborted_.ok()) return aborted_;
    auto& here = meeting_->arrived.at({StreamOf(call), call.sequence});
    if (!here.ended) return false;
    if (!here.done.insert(rank_).second) return Status(Code::kInternal, "TEST13", "asked again", "", "");
    return true;
  }

  void Abort(const Status& why) override {
    std::lock_guard lock(meeting_->mutex);
    if (aborted_.ok()) aborted_ = why;
    // What has begun and not ended is never done: its memory is the caller's again.
    for (auto& [key, here] : meeting_->arrived)
      if (!here.ended) here.calls.erase(rank_);
  }

  // What each Start() was given. Read when nothing runs.
  std::vector<std::vector<std::pair<LibraryMeeting::Stream, std::uint64_t>>> groups;

 private:
  static LibraryMeeting::Stream StreamOf(const NativeCall& call) { return {{call.group.begin(), call.group.end()}, call.channel}; }

  void Run(LibraryMeeting::Arrived* here) {
    const NativeCall& first = here->calls.begin()->second.first;
    std::vector<Row> rows;
    for (std::int32_t rank : first.group) rows.push_back({here->calls.at(rank).first.in, first.dtype, 1});
    if (meeting_->skips_the_last) rows.pop_back();
    const std::size_t bytes = static_cast<std::size_t>(first.out_count) * SizeOf(first.dtype);
    std::vector<char> sum(bytes + 8);
    FoldRows(first.op, AccumulatorOf(first.dtype), rows, 1, first.dtype, sum.data(), first.out_count);
    for (auto& [rank, call] : here->calls) std::memcpy(call.first.out, sum.data(), bytes);
    here->ended = true;
    for (auto& [rank, call] : here->calls) call.second();
  }

  const std::int32_t rank_;
  LibraryMeeting* const meeting_;
  std::map<LibraryMeeting::Stream, std::uint64_t> started_;
  Status aborted_;
};

}  // namespace ropewalk::collective::testing
