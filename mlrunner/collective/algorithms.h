// The algorithms that plans can be built with. Each is one entry of one table: what it declares, the program it writes for a rank, what it
// promises. Without its entry an algorithm does not exist.
//
// Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "base/status.h"
#include "mlrunner/collective/plan.h"
#include "mlrunner/collective/writer.h"

namespace ropewalk::collective {

// How an algorithm's programs let numbers travel.
enum class Codecs : std::uint8_t {
  kNone,      // as they are
  kAdditive,  // in the form of the request's one codec, which is applied at every hop and must allow for that
  kAny,       // in the form of the request's one codec
};

// Whether an algorithm's messages go from rank to rank as the request's order has it.
enum class Follows : std::uint8_t {
  kNothing,
  kRing,   // each to the next one, the last to the first
  kChain,  // each to the next one and back
};

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
  // A request for any other form is refused: it would travel as no one asked for.
  Codecs codecs = Codecs::kNone;
  // An order is refused by algorithms that follow none; and where vectors are folded in deterministic mode, which fixes the ranks' own.
  Follows follows = Follows::kNothing;
};

std::span<const Algorithm> Algorithms();
// kNotFound (COLL11), with all names that `table` has.
Result<const Algorithm*> FindAlgorithm(std::span<const Algorithm> table, std::string_view name);

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

// The same in two parts, for who takes one rank's program after the other and does not keep them all: what all share, once; and the program
// of a rank that the request has.
Result<Header> BuildHeader(const Algorithm& algorithm, const Request& request);
Program BuildProgram(const Algorithm& algorithm, const Header& header, std::int32_t rank);

}  // namespace ropewalk::collective
