// Random data and settings under which an operator is compared with a plain in-memory model.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/local_backend.h"

namespace ropewalk::dag {

using Pair = std::pair<std::string, std::int64_t>;
using Pairs = std::vector<Pair>;

template <class T>
std::vector<T> Sorted(std::vector<T> v) {
  std::sort(v.begin(), v.end());
  return v;
}

inline Pairs RandomPairs(std::mt19937_64& random) {
  Pairs pairs(random() % 4000);
  std::uint64_t keys = 1 + random() % (random() % 2 ? 10 : 2000);
  for (Pair& p : pairs)
    p = {std::string(random() % 3 * 20, 'k') + std::to_string(random() % keys), static_cast<std::int64_t>(random() % 100) - 50};
  return pairs;
}

// Runs `body(job, data, random)` for partitions 1, 2, 5, 8, each with its own random data and order.
template <class Body>
void ForPartitions(Body body) {
  std::uint64_t seed =
      std::getenv("ROPEWALK_TEST_SEED") ? std::strtoull(std::getenv("ROPEWALK_TEST_SEED"), nullptr, 10) : std::random_device()();
  for (std::uint32_t partitions : {1, 2, 5, 8}) {
    SCOPED_TRACE("ROPEWALK_TEST_SEED=" + std::to_string(seed) + " partitions " + std::to_string(partitions));
    std::mt19937_64 random(seed + partitions);
    LocalBackend backend(partitions);
    backend.shuffle_seed = seed | 1;
    backend.random_.seed(seed);
    backend.durable = random() % 2;
    // Small memory now and then: flushing and spilling must not change what comes out.
    if (random() % 2) backend.options.operator_bytes = 16u << 10;
    Session job = backend.NewSession();
    body(job, RandomPairs(random), random);
  }
}

}  // namespace ropewalk::dag
