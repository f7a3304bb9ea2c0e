// Every single-step mutation of plans: whatever a naive interpreter can make go wrong, the prover must refuse.
//
// Thread rule: one thread.
#pragma once

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "mlrunner/collective/check/check.h"
#include "tests/unit/collective_brute.h"
#include "tests/unit/collective_plans.h"

namespace ropewalk::collective::testing {

inline Sizes SizesOf(const Plan& plan, std::int64_t count) {
  Sizes sizes{.count = count};
  const std::int32_t ranks = plan.header.request.ranks;
  for (std::int32_t i = 0; i < ranks * ranks; ++i) sizes.table.push_back((i * 7 + 3) % 4);
  return sizes;
}

inline bool MayAlias(const Plan& plan) {
  for (const Buffer& buffer : plan.header.buffers)
    if (buffer.may_alias != kNone) return true;
  return false;
}

// What some schedule does wrong; empty when none does.
inline std::string FaultOf(const Plan& plan, std::int64_t count, std::uint64_t seed, int schedules) {
  for (int i = 0; i < schedules; ++i)
    for (bool in_place : {false, true}) {
      if (in_place && !MayAlias(plan)) continue;
      Brute brute(plan, {.sizes = SizesOf(plan, count), .in_place = in_place, .seed = seed + i, .by_priority = i % 3 != 0});
      if (std::string fault = brute.Run(); !fault.empty()) return fault + (in_place ? " (in place)" : "");
    }
  return "";
}

inline Status Proof(const Plan& plan, std::int64_t count) {
  for (bool in_place : {false, true}) {
    if (in_place && !MayAlias(plan)) continue;
    auto report = Check(plan, {.sizes = SizesOf(plan, count), .in_place = in_place});
    if (!report.ok()) return report.status();
  }
  return {};
}

struct Mutant {
  std::string what;
  Plan plan;
};

// Step numbers within the channel after `from` moved by `by`; dependencies on a step that is gone go, too.
inline void Renumber(Program* program, std::int32_t channel, std::int32_t from, std::int32_t by) {
  Channel& mine = program->channels[channel];
  for (std::int32_t s = 0; s < mine.step_count; ++s) {
    Step& step = program->steps[mine.first_step + s];
    if (IsLoop(step.op) && step.jump >= from) step.jump += by;
  }
  for (Dependency& dependency : program->dependencies)
    if (dependency.channel == channel && dependency.step >= from) dependency.step = std::max(0, dependency.step + by);
  for (std::size_t c = channel + 1; c < program->channels.size(); ++c) program->channels[c].first_step += by;
}

inline void Drop(Program* program, std::int32_t channel, std::int32_t at) {
  Channel& mine = program->channels[channel];
  program->steps.erase(program->steps.begin() + mine.first_step + at);
  --mine.step_count;
  Renumber(program, channel, at + 1, -1);
}

inline void Duplicate(Program* program, std::int32_t channel, std::int32_t at) {
  Channel& mine = program->channels[channel];
  Step copy = program->steps[mine.first_step + at];
  program->steps.insert(program->steps.begin() + mine.first_step + at, copy);
  ++mine.step_count;
  Renumber(program, channel, at + 1, 1);
}

inline void ForEachMutant(const Plan& plan, const std::function<void(const Mutant&)>& visit) {
  auto with = [&](const std::string& what, const std::function<void(Plan*)>& change) {
    Mutant mutant{what, plan};
    change(&mutant.plan);
    visit(mutant);
  };
  const std::int32_t ranks = plan.header.request.ranks;
  for (std::int32_t rank = 0; rank < ranks; ++rank) {
    const Program& program = plan.programs[rank];
    const std::string where = "rank " + std::to_string(rank);
    for (std::size_t e = 0; e < program.edges.size(); ++e)
      with(where + " one slot fewer, edge " + std::to_string(e), [&](Plan* p) { --p->programs[rank].edges[e].slots; });
    for (std::size_t d = 0; d < program.dependencies.size(); ++d)
      with(where + " dependency " + std::to_string(d) + " dropped", [&](Plan* p) { p->programs[rank].dependencies[d].lag = 1000; });
    for (std::size_t c = 0; c < program.channels.size(); ++c) {
      const auto channel = static_cast<std::int32_t>(c);
      const Channel& mine = program.channels[c];
      for (std::int32_t s = 0; s < mine.step_count; ++s) {
        const std::int32_t index = mine.first_step + s;
        const Step& step = program.steps[index];
        if (IsLoop(step.op)) continue;
        const std::string here = where + " channel " + std::to_string(c) + " step " + std::to_string(s) + " " + std::string(Name(step.op));
        with(here + " dropped", [&](Plan* p) { Drop(&p->programs[rank], channel, s); });
        with(here + " duplicated", [&](Plan* p) { Duplicate(&p->programs[rank], channel, s); });
        if (s + 1 < mine.step_count && !IsLoop(program.steps[index + 1].op))
          with(here + " swapped with the next",
               [&](Plan* p) { std::swap(p->programs[rank].steps[index], p->programs[rank].steps[index + 1]); });
        if (step.to != kNone && ranks > 2)
          with(here + " to another peer", [&](Plan* p) {
            Step& changed = p->programs[rank].steps[index];
            do changed.to = (changed.to + 1) % ranks;
            while (changed.to == rank);
          });
        if (step.threshold > 0) with(here + " waits for one less", [&](Plan* p) { --p->programs[rank].steps[index].threshold; });
        for (std::int32_t chunk = 0; chunk < static_cast<std::int32_t>(program.chunks.size()); ++chunk) {
          if (step.dst != kNone && chunk != step.dst && chunk % 3 == s % 3)
            with(here + " into chunk " + std::to_string(chunk), [&](Plan* p) { p->programs[rank].steps[index].dst = chunk; });
          if (step.remote != kNone && chunk != step.remote)
            with(here + " at remote chunk " + std::to_string(chunk), [&](Plan* p) { p->programs[rank].steps[index].remote = chunk; });
        }
        for (std::int32_t o = 0; o < step.operand_count; ++o) {
          const std::int32_t operand = step.first_operand + o;
          for (std::int32_t chunk = 0; chunk < static_cast<std::int32_t>(program.chunks.size()); ++chunk)
            if (chunk != program.operands[operand].chunk && chunk % 3 == s % 3)
              with(here + " operand " + std::to_string(o) + " from chunk " + std::to_string(chunk),
                   [&](Plan* p) { p->programs[rank].operands[operand].chunk = chunk; });
          if (program.operands[operand].peer != kNone && ranks > 2)
            with(here + " operand " + std::to_string(o) + " from another peer", [&](Plan* p) {
              std::int32_t& peer = p->programs[rank].operands[operand].peer;
              do peer = (peer + 1) % ranks;
              while (peer == rank);
            });
          if (step.operand_count > 1 && o == step.operand_count - 1)
            with(here + " without its last operand", [&](Plan* p) { --p->programs[rank].steps[index].operand_count; });
        }
      }
    }
  }
}

// N = 13: parts of unequal length, several segments.
inline void ExpectMutantsRefused(const std::vector<Case>& cases) {
  const std::int64_t count = 13;
  const char* given = std::getenv("ROPEWALK_SEED");
  const std::uint64_t seed = given != nullptr ? std::strtoull(given, nullptr, 10) : 20261129;
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  int mutants = 0, refused = 0, harmless = 0, strict = 0;
  std::map<std::string, int> by_tag;
  for (const Case& one : cases) {
    if (one.algorithm.starts_with("native")) continue;  // one step that belongs to a library
    auto plan = BuildPlan(one.algorithm, one.request);
    ASSERT_TRUE(plan.ok()) << plan.status().ToString();
    ASSERT_EQ(FaultOf(*plan, count, seed, 30), "") << Name(one);
    Status proof = Proof(*plan, count);
    ASSERT_TRUE(proof.ok()) << Name(one) << "\n" << proof.ToString();
    ForEachMutant(*plan, [&](const Mutant& mutant) {
      ++mutants;
      Status status = Proof(mutant.plan, count);
      if (!status.ok()) {
        ++refused;
        ++by_tag[status.tag()];
        // How often the prover is stricter than what a few schedules can show, on a sample.
        if (mutants % 16 == 0 && status.tag() != "COLL02" && FaultOf(mutant.plan, count, seed, 9).empty()) ++strict;
        return;
      }
      std::string fault = FaultOf(mutant.plan, count, seed, 30);
      EXPECT_EQ(fault, "") << Name(one) << ": " << mutant.what << " is accepted, but goes wrong";
      ++harmless;
    });
  }
  std::printf("%d mutants, %d refused, %d harmless; of a sixteenth of the refused, %d went right in 9 schedules\n", mutants, refused,
              harmless, strict);
  for (const auto& [tag, times] : by_tag) std::printf("  %s %d\n", tag.c_str(), times);
  EXPECT_GE(mutants, 200);
  EXPECT_GE(refused, 200);
}

}  // namespace ropewalk::collective::testing
