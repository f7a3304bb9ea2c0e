// Ranks that are threads, with an NcclBackend each, over the twin of NCCL.
//
// Thread rule: one thread calls; it starts and joins the others.
#pragma once

#include <gtest/gtest.h>

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "mlrunner/gpu/nccl_backend.h"
#include "tests/unit/twin_nccl.h"

namespace ropewalk::collective::testing {

class TwinGang {
 public:
  explicit TwinGang(std::int32_t ranks) : twin(ranks), ranks_(ranks) {}

  void OnAllRanks(const std::function<void(std::int32_t rank, mlrunner::NcclBackend& backend)>& body) {
    twin.OnAllRanks([&](std::int32_t rank) {
      auto connected = mlrunner::NcclBackend::Connect(
          {&gpu::TwinNccl::api(), nullptr, &gpu::TwinNccl::table()},
          {.rank = rank, .ranks = ranks_, .channels = {0}, .exchange = [&](std::string mine) { return Exchange(rank, std::move(mine)); }});
      ASSERT_TRUE(connected.ok()) << connected.status().ToString();
      body(rank, **connected);
    });
  }
  gpu::TwinNccl twin;

 private:
  Result<std::vector<std::string>> Exchange(std::int32_t rank, std::string mine) {
    std::unique_lock lock(mutex_);
    if (rank == 0) {
      first_ = std::move(mine);
      is_there_ = true;
      come_.notify_all();
    }
    come_.wait(lock, [&] { return is_there_; });
    return std::vector<std::string>{first_, ""};
  }
  const std::int32_t ranks_;
  std::mutex mutex_;
  std::condition_variable come_;
  std::string first_;
  bool is_there_ = false;
};

}  // namespace ropewalk::collective::testing
