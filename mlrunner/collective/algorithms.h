// The algorithms that plans can be built with. Each is one entry of one table: what it declares, the program it writes for a rank, what it
// promises. Without its entry an algorithm does not exist.
//
// Thread rule: pure functions.
#pragma once

#include <span>
#include <string_view>

#include "base/status.h"
#include "mlrunner/collective/plan.h"
#include "mlrunner/collective/writer.h"

namespace ropewalk::collective {

struct Algorithm {
  std::string_view name;
  Collective collective;
  bool deterministic;  // keeps the left fold over the ranks
  // Buffers, scales, channels, counters; refuses what the algorithm cannot do.
  Status (*declare)(Header* header);
  // The program of one rank.
  void (*write)(Writer& writer);
  // What is true afterwards.
  void (*promise)(PostWriter& post);
};

std::span<const Algorithm> Algorithms();

// kNotFound, with all names; kInvalid when the algorithm cannot do what is asked for (COLL10).
Result<Plan> BuildPlan(std::string_view algorithm, const Request& request);
// The same with an algorithm of the caller's own, which no table knows.
Result<Plan> BuildPlan(const Algorithm& algorithm, const Request& request);

// Only what one rank needs to run.
struct RankPlan {
  Header header;
  Program program;
};
Result<RankPlan> BuildProgram(std::string_view algorithm, const Request& request, std::int32_t rank);
Result<RankPlan> BuildProgram(const Algorithm& algorithm, const Request& request, std::int32_t rank);

}  // namespace ropewalk::collective
