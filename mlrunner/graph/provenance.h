// Provenance: where an op comes from. Survives every pass; strategies choose by it (layers to stages, roles to precisions, modules to
// devices).
//
// Thread rule: values.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace ropewalk::mlrunner {

enum class Phase : std::uint8_t { kForward, kBackward, kRecompute, kUpdate };
enum class Role : std::uint8_t { kCompute, kParameter, kActivation, kGradient, kOptimizer, kCommunication, kStatistic };

constexpr std::string_view Name(Phase phase) {
  switch (phase) {
    case Phase::kForward:
      return "forward";
    case Phase::kBackward:
      return "backward";
    case Phase::kRecompute:
      return "recompute";
    case Phase::kUpdate:
      return "update";
  }
  return "?";
}

constexpr std::string_view Name(Role role) {
  switch (role) {
    case Role::kCompute:
      return "compute";
    case Role::kParameter:
      return "parameter";
    case Role::kActivation:
      return "activation";
    case Role::kGradient:
      return "gradient";
    case Role::kOptimizer:
      return "optimizer";
    case Role::kCommunication:
      return "communication";
    case Role::kStatistic:
      return "statistic";
  }
  return "?";
}

// A place in the user's source. `file` is a literal.
struct Location {
  const char* file = "";
  int line = 0;
};

struct Provenance {
  std::string module;  // "block2/attention"
  Role role = Role::kCompute;
  Phase phase = Phase::kForward;
  std::int32_t layer = -1;        // -1: before, between or after the layers
  std::int32_t micro_batch = -1;  // set where a pass unrolls micro-batches into one graph; else instances are the executor's
  Location where;
};

}  // namespace ropewalk::mlrunner
