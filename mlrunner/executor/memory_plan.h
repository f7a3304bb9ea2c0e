// Memory planning: where buffers lie whose lifetimes are known.
//
// Thread rule: pure functions.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "base/status.h"

namespace ropewalk::mlrunner {

// Alive from instruction `begin` (which writes it) to instruction `end` (which reads it last), both included.
struct Lifetime {
  std::size_t bytes = 0;
  int begin = 0, end = 0;
};

struct MemoryPlan {
  std::vector<std::size_t> offsets;  // of each buffer, multiples of 64
  std::size_t bytes = 0;             // of the arena
};

// Buffers one after the other, each at the lowest place where it meets none that lives at the same time; the smallest plan of four orders:
// by size, by size times lifetime, by lifetime, by begin.
MemoryPlan PlanMemory(const std::vector<Lifetime>& buffers);

// The most bytes that are alive at one instruction: no plan needs less.
std::size_t LowerBound(const std::vector<Lifetime>& buffers);

// Proves that no two buffers that live at the same time share a byte.
Status CheckPlan(const std::vector<Lifetime>& buffers, const MemoryPlan& plan);

}  // namespace ropewalk::mlrunner
