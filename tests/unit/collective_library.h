// A library of native collectives for ranks that are threads: it adds up on the processor, and writes down what it was given. It is as
// strict as such libraries are: a rank that comes to a stream's calls in another order, or with another call, is an error.
//
// Owner: the test owns the meeting, each rank its backend. Thread rule: one backend belongs to its rank's driver; the meeting is shared.
#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <iterator>
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
    const Collective does[] = {Collective::kAllreduce, Collective::kReduceScatter, Collective::kAllgather, Collective::kBroadcast,
                               Collective::kReduce};
    if (std::find(std::begin(does), std::end(does), call.collective) != std::end(does) && !call.group.empty()) return {};
    return Status(Code::kInvalid, "TEST10", "the test's library does no such thing", "", "");
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
        if (Whole(other.first) != Whole(call) || other.first.collective != call.collective || other.first.op != call.op ||
            other.first.dtype != call.dtype)
          return Status(Code::kInvalid, "TEST12", "rank " + std::to_string(rank) + " calls something else", "", "");
      here.calls[rank_] = {call, wake};
      if (here.calls.size() == call.group.size()) Run(&here);
    }
    return {};
  }

  Status CheckRounds(const NativeRounds&) override {
    return Status(Code::kInvalid, "TEST15", "the test's library has no sends and receives", "", "");
  }
  Status StartRounds(const NativeRounds& call, const std::function<void()>&) override { return CheckRounds(call); }
  Result<void*> Allocate(std::size_t) override { return CheckRounds({}); }
  void Free(void*) override {}

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
  static LibraryMeeting::Stream StreamOf(const NativeCall& call) {
    LibraryMeeting::Stream stream{{call.group.begin(), call.group.end()}, call.channel};
    std::sort(stream.first.begin(), stream.first.end());
    return stream;
  }

  // Elements of the vector that the ranks speak of.
  static std::int64_t Whole(const NativeCall& call) { return std::max(call.in_count, call.out_count); }

  void Run(LibraryMeeting::Arrived* here) {
    const NativeCall& first = here->calls.begin()->second.first;
    const std::size_t size = SizeOf(first.dtype);
    std::vector<char> whole(static_cast<std::size_t>(Whole(first)) * size + 8);
    std::size_t at = 0;
    if (Folds(first.collective)) {
      std::vector<Row> rows;
      for (std::int32_t rank : first.group) rows.push_back({here->calls.at(rank).first.in, first.dtype, 1});
      if (meeting_->skips_the_last) rows.pop_back();
      FoldRows(first.op, AccumulatorOf(first.dtype), rows, 1, first.dtype, whole.data(), Whole(first));
    } else {
      for (std::int32_t rank : first.group) {
        const NativeCall& call = here->calls.at(rank).first;
        const std::size_t bytes = static_cast<std::size_t>(call.in_count) * size;
        if (bytes > 0) std::memcpy(whole.data() + at, call.in, bytes);
        at += bytes;
        if (first.collective == Collective::kBroadcast) break;
      }
      at = 0;
    }
    for (std::int32_t rank : first.group) {
      const NativeCall& call = here->calls.at(rank).first;
      const std::size_t bytes = static_cast<std::size_t>(call.out_count) * size;
      if (bytes > 0) std::memcpy(call.out, whole.data() + at, bytes);
      if (first.collective == Collective::kReduceScatter) at += bytes;
      if (first.collective == Collective::kReduce) break;
    }
    here->ended = true;
    for (auto& [rank, call] : here->calls) call.second();
  }

  const std::int32_t rank_;
  LibraryMeeting* const meeting_;
  std::map<LibraryMeeting::Stream, std::uint64_t> started_;
  Status aborted_;
};

}  // namespace ropewalk::collective::testing
