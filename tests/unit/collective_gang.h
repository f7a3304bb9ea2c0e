// A gang whose ranks are threads of this process: what they exchange goes through memory.
//
// Thread rule: every rank calls from its own thread.
#pragma once

#include <gtest/gtest.h>

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "mlrunner/collective/communicator.h"

namespace ropewalk::collective::testing {

class Meeting {
 public:
  explicit Meeting(std::int32_t ranks) : ranks_(ranks), said_(ranks) {}

  std::vector<std::string> Exchange(std::int32_t rank, std::string mine) {
    std::unique_lock lock(mutex_);
    said_[rank] = std::move(mine);
    const std::uint64_t round = round_;
    if (++here_ == ranks_) {
      given_ = said_;
      here_ = 0;
      ++round_;
      all_here_.notify_all();
    } else {
      all_here_.wait(lock, [&] { return round_ != round; });
    }
    return given_;
  }
  void Barrier(std::int32_t rank) { Exchange(rank, ""); }
  Rendezvous Of(std::int32_t rank, std::uint32_t epoch = 0) {
    return {.rank = rank, .ranks = ranks_, .epoch = epoch, .machine = "here", .exchange = [this, rank](std::string mine) {
              return Result<std::vector<std::string>>(Exchange(rank, std::move(mine)));
            }};
  }

 private:
  const std::int32_t ranks_;
  std::mutex mutex_;
  std::condition_variable all_here_;
  std::vector<std::string> said_, given_;
  std::int32_t here_ = 0;
  std::uint64_t round_ = 0;
};

// Runs `body` on each rank of a connected gang.
inline void WithRanks(std::int32_t ranks, const CommunicatorOptions& options, const std::function<void(Communicator&, Meeting&)>& body) {
  Meeting meeting(ranks);
  std::vector<std::thread> threads;
  for (std::int32_t rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      auto connected = Communicator::Connect(meeting.Of(rank), options);
      ASSERT_TRUE(connected.ok()) << connected.status().ToString();
      body(**connected, meeting);
    });
  for (std::thread& thread : threads) thread.join();
}

inline CommunicatorOptions Over(Wire wire) { return {.wire = wire, .pool_bytes = std::size_t{64} << 20}; }

}  // namespace ropewalk::collective::testing
