// What of the GPU's side can be decided and computed without one: the memory pool, launches, the form of products, halves, folds.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <map>
#include <tuple>
#include <vector>

#include "base/random.h"
#include "mlrunner/gpu/device_pool.h"
#include "mlrunner/gpu/geometry.h"
#include "mlrunner/gpu/kernels.h"
#include "mlrunner/gpu/maths.h"
#include "mlrunner/types/half.h"

namespace ropewalk::gpu {
namespace {

// Hands out addresses; fails when `room` is used up.
class Addresses : public DeviceMemory {
 public:
  explicit Addresses(std::size_t room) : room_(room) {}
  void* Take(std::size_t bytes) override {
    ++takes;
    if (bytes > room_) return nullptr;
    room_ -= bytes;
    next_ += bytes;
    out[reinterpret_cast<void*>(next_)] = bytes;
    return reinterpret_cast<void*>(next_);
  }
  void GiveBack(void* memory) override {
    auto found = out.find(memory);
    ASSERT_NE(found, out.end());
    room_ += found->second;
    out.erase(found);
  }
  std::map<void*, std::size_t> out;
  int takes = 0;

 private:
  std::size_t room_;
  std::uintptr_t next_ = 4096;
};

TEST(DevicePool, ClassesHoldWhatIsAskedForAndWasteAnEighth) {
  std::size_t last = 0;
  for (std::size_t bytes = 0; bytes < 100'000; ++bytes) {
    const std::size_t size = DevicePool::ClassOf(bytes);
    ASSERT_GE(size, bytes);
    ASSERT_GE(size, last);
    ASSERT_EQ(size % 512, 0u) << bytes;
    ASSERT_LE(size - bytes, std::max<std::size_t>(512, bytes / 8)) << bytes;
    ASSERT_EQ(DevicePool::ClassOf(size), size);
    last = size;
  }
  EXPECT_EQ(DevicePool::ClassOf(~std::size_t{0}), 0u);
  EXPECT_EQ(DevicePool::ClassOf(std::size_t{1} << 62), std::size_t{1} << 62);
}

TEST(DevicePool, KeepsWhatIsGivenBackAndMakesRoom) {
  Addresses device(10'240);
  DevicePool pool(&device, 8'192);
  void* a = pool.Allocate(4096);
  void* b = pool.Allocate(1000);
  ASSERT_NE(a, nullptr);
  ASSERT_NE(b, nullptr);
  EXPECT_TRUE(pool.Release(a));
  EXPECT_FALSE(pool.Release(a));
  EXPECT_EQ(pool.Allocate(4000), a);
  EXPECT_EQ(device.takes, 2);
  EXPECT_TRUE(pool.Release(a));
  // 1024 in use and 4096 kept: 6144 are within the limit without what is kept.
  void* c = pool.Allocate(6144);
  ASSERT_NE(c, nullptr);
  EXPECT_EQ(pool.cached_bytes(), 0u);
  EXPECT_EQ(pool.Allocate(2048), nullptr) << "beyond the limit";
  EXPECT_TRUE(pool.Release(c));
  EXPECT_FALSE(pool.Release(nullptr));
  EXPECT_EQ(pool.used_bytes(), 1024u);
  EXPECT_EQ(pool.peak_bytes(), 7168u);
}

// The limit is above what the device has: its refusal empties the cache.
TEST(DevicePool, AsksTheDeviceAgainWithoutWhatItKeeps) {
  Addresses device(8'192);
  DevicePool pool(&device, ~std::size_t{0});
  void* a = pool.Allocate(5000);
  EXPECT_TRUE(pool.Release(a));
  EXPECT_NE(pool.Allocate(8192), nullptr);
  EXPECT_EQ(pool.cached_bytes(), 0u);
  EXPECT_EQ(pool.Allocate(512), nullptr);
  EXPECT_EQ(pool.used_bytes(), 8192u);
}

TEST(DevicePool, NeverHandsOutAPieceTwice) {
  const std::uint64_t seed = 20261130;
  SCOPED_TRACE(seed);
  Random random(seed);
  Addresses device(1 << 20);
  {
    DevicePool pool(&device, 900'000);
    std::map<void*, std::size_t> mine;
    std::size_t used = 0;
    for (int i = 0; i < 20'000; ++i) {
      if (mine.empty() || random.Below(2) == 0) {
        const std::size_t bytes = random.Below(1 << random.Below(17));
        void* memory = pool.Allocate(bytes);
        if (memory == nullptr) {
          EXPECT_GT(used + DevicePool::ClassOf(bytes), 900'000u) << "refused with room left";
          continue;
        }
        ASSERT_TRUE(mine.emplace(memory, DevicePool::ClassOf(bytes)).second);
        ASSERT_GE(device.out.at(memory), bytes);
        used += DevicePool::ClassOf(bytes);
      } else {
        auto gone = std::next(mine.begin(), static_cast<std::ptrdiff_t>(random.Below(mine.size())));
        used -= gone->second;
        ASSERT_TRUE(pool.Release(gone->first));
        mine.erase(gone);
      }
      ASSERT_EQ(pool.used_bytes(), used);
      ASSERT_LE(pool.used_bytes() + pool.cached_bytes(), 900'000u);
    }
    EXPECT_GT(mine.size(), 0u);
  }
  EXPECT_TRUE(device.out.empty()) << "what was not given back goes with the pool";
}

TEST(Launches, EachElementHasOneThread) {
  for (std::int64_t count : {1, 255, 256, 257, 1'000'000, 3'000'000, 100'000'000}) {
    const Launch launch = ElementLaunch(count);
    const std::int64_t threads = static_cast<std::int64_t>(launch.blocks) * launch.threads;
    EXPECT_LE(launch.blocks, 4096u);
    EXPECT_TRUE(threads >= count || launch.blocks == 4096u) << count;
    EXPECT_LT(threads - count, 256) << count << ": blocks without work";
  }
  for (std::int64_t width : {1, 10, 32, 33, 1000, 50'257}) {
    const Launch launch = RowLaunch(7, width);
    EXPECT_EQ(launch.blocks, 7u);
    EXPECT_EQ(launch.threads & (launch.threads - 1), 0u) << "the fold in pairs needs a power of two";
    EXPECT_TRUE(launch.threads >= 32 && launch.threads <= 1024);
  }
  EXPECT_LE(RowLaunch(std::int64_t{1} << 40, 10).blocks, 1u << 20);
  EXPECT_EQ(RowLaunch(0, 10).blocks, 1u);
}

TEST(Products, BecomeBatchesOfMatrices) {
  using mlrunner::AsMatMul;
  MatMulShape s = {};
  // One matrix for all rows of a batch: one tall product.
  ASSERT_TRUE(AsMatMul({4, 5, 7}, {7, 3}, {4, 5, 3}, false, false, &s));
  EXPECT_EQ(std::tuple(s.batch, s.m, s.n, s.k, s.stride_a, s.stride_b), std::tuple(1, 20, 3, 7, 0, 0));
  ASSERT_TRUE(AsMatMul({4, 7, 5}, {7, 3}, {4, 5, 3}, true, false, &s));
  EXPECT_EQ(std::tuple(s.batch, s.m, s.n, s.k, s.stride_a, s.stride_b), std::tuple(4, 5, 3, 7, 35, 0));
  ASSERT_TRUE(AsMatMul({5, 7}, {4, 3, 7}, {4, 5, 3}, false, true, &s));
  EXPECT_EQ(std::tuple(s.batch, s.m, s.n, s.k, s.stride_a, s.stride_b), std::tuple(4, 5, 3, 7, 0, 21));
  ASSERT_TRUE(AsMatMul({2, 2, 5, 7}, {2, 2, 7, 3}, {2, 2, 5, 3}, false, false, &s));
  EXPECT_EQ(std::tuple(s.batch, s.m, s.n, s.k, s.stride_a, s.stride_b), std::tuple(4, 5, 3, 7, 35, 21));
  ASSERT_TRUE(AsMatMul({1, 5, 7}, {7, 3}, {1, 5, 3}, false, false, &s));
  EXPECT_EQ(s.batch, 1);
  // What is no batch.
  EXPECT_FALSE(AsMatMul({2, 1, 5, 7}, {1, 3, 7, 3}, {2, 3, 5, 3}, false, false, &s));
  EXPECT_FALSE(AsMatMul({2, 3, 5, 7}, {1, 3, 7, 3}, {2, 3, 5, 3}, false, false, &s));
  EXPECT_FALSE(AsMatMul({0, 7}, {7, 3}, {0, 3}, false, false, &s));
  EXPECT_FALSE(AsMatMul({5, 0}, {0, 3}, {5, 3}, false, false, &s));
  EXPECT_FALSE(IsLegal({Element::kF64, 0, 0, 1, 1, 1, 1, 0, 0}));
  EXPECT_FALSE(IsLegal({Element::kF32, 0, 0, 2, 1, 1, 3, 1, 0})) << "matrices that overlap";
}

TEST(BFloat16, RoundsAsTheReference) {
  for (std::uint32_t high = 0; high < 0x10000; ++high) {
    const auto bits = static_cast<std::uint16_t>(high);
    const float x = ToFloat(BFloat16{bits});
    const std::uint16_t back = FromFloat<BFloat16>(x).bits;
    if (std::isnan(x)) {
      ASSERT_TRUE(std::isnan(ToFloat(BFloat16{back})));
      continue;
    }
    ASSERT_EQ(back, bits);
    // Below, at and above the middle to the next.
    for (std::uint32_t low : {0x0001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      const std::uint32_t all = high << 16 | low;
      float y;
      std::memcpy(&y, &all, sizeof y);
      if (std::isnan(y)) {
        ASSERT_TRUE(std::isnan(ToFloat(FromFloat<BFloat16>(y)))) << all;
      } else {
        ASSERT_EQ(ToFloat(FromFloat<BFloat16>(y)), mlrunner::RoundTo(mlrunner::Dtype::kBF16, y)) << all;
      }
    }
  }
}

// To the last bit, of every f16, of the middle between two, and of what lies on either side of it.
TEST(Float16, ConvertsAsTheReference) {
  for (std::uint32_t all = 0; all < 65536; ++all) {
    const auto bits = static_cast<std::uint16_t>(all);
    const float x = ToFloat(Float16{bits}), reference = mlrunner::F16ToFloat(bits);
    ASSERT_EQ(std::memcmp(&x, &reference, sizeof x), 0) << all;
    const float middle = (x + ToFloat(Float16{static_cast<std::uint16_t>(bits + 1)})) / 2;
    for (float y : {x, middle, std::nextafterf(middle, -INFINITY), std::nextafterf(middle, INFINITY), x * 3.7F, x * 1e-5F})
      ASSERT_EQ(FromFloat<Float16>(y).bits, mlrunner::FloatToF16(y)) << all << " " << y;
  }
}

TEST(Folds, WhatIsNoneIsRefused) {
  const float number = 1;
  std::vector<FoldRow> rows(kFoldRowsMax + 1, FoldRow{&number, 1, Element::kF32});
  const FoldCall good = {Sum::kSum, Element::kF32, Element::kBF16, kFoldRowsMax, rows.data(), .5, 1, nullptr};
  EXPECT_TRUE(IsLegal(good));
  for (int wrong = 0; wrong < 7; ++wrong) {
    FoldCall call = good;
    if (wrong == 0) call.row_count = kFoldRowsMax + 1;
    if (wrong == 1) call.row_count = 0;
    if (wrong == 2) call.count = -1;
    if (wrong == 3) call.sum = Sum::kAvg;
    if (wrong == 4) call.element = Element::kF64;
    if (wrong == 5) call.accumulator = Element::kF64;
    if (wrong == 6) call.accumulator = Element::kBF16;
    EXPECT_FALSE(IsLegal(call)) << wrong;
  }
  FoldRow whole{&number, 1, Element::kI32};
  FoldCall call = {Sum::kSum, Element::kI32, Element::kI32, 1, &whole, 1, 1, nullptr};
  EXPECT_TRUE(IsLegal(call) && IsCopy(call));
  call.scale = .5;
  EXPECT_FALSE(IsLegal(call)) << "a mean of whole numbers";
  call.scale = 1;
  whole.scale = 2;
  EXPECT_FALSE(IsLegal(call) || IsCopy(call));
}

}  // namespace
}  // namespace ropewalk::gpu
