// Runs a plan in virtual time on base/sim's network, with the interpreter that real runs use: the time, and who sent what. Programs are
// folded first (folded.h), so that ranks which do the same share one.
//
// Thread rule: a pure function.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/sim/network.h"
#include "base/status.h"
#include "mlrunner/collective/algorithms.h"
#include "mlrunner/collective/layout.h"
#include "mlrunner/collective/plan.h"
#include "mlrunner/collective/trace.h"

namespace ropewalk::collective {

class FoldedPrograms;  // folded.h

struct SimulateOptions {
  Sizes sizes;
  sim::NetworkOptions network;
  std::shared_ptr<const sim::Topology> topology;  // given: this one, with a host for each rank at least; `network` is not looked at
  std::vector<std::int32_t> host_of_rank;         // where ranks stand in it, each on a host of its own; empty: rank r on host r
  std::int64_t overhead_ns = 0;                   // of the processor, for each message sent or received
  double reduce_ns_per_byte = 0;                  // for each byte that is folded into another
  double copy_ns_per_byte = 0;                    // for each byte copied or scaled
  double code_ns_per_byte = 0;                    // for each byte encoded or decoded, of the longer form
  std::vector<double> slowness;                   // by rank: what its processor does takes so many times as long; empty: 1
  std::vector<std::int64_t> start_ns;             // when each rank makes its local call; empty: all at 0
  bool trace = false;
};

struct SimulateReport {
  std::int64_t end_ns = 0;                              // the last rank's
  std::vector<std::int64_t> ends_ns;                    // by rank
  std::vector<std::int64_t> sent_bytes, sent_messages;  // by rank
  std::int32_t contributed = 0;                         // eager: ranks whose own call came in time
  std::uint64_t steps = 0;
  Trace trace;
  // What the simulation itself took.
  std::int64_t programs_kept = 0, steps_kept = 0;  // after folding; beside them one program of one rank is held while it is folded
  std::int64_t edges_used = 0;                     // pairs of ranks and channels on which messages went
  std::uint64_t events = 0;
  sim::Network::Counters network;
};

// kInvalid when the plan comes to no end (COLL03), when there is not a program, start and slowness for each rank (COLL02), or when the
// topology is not sound (SIM01), or when ranks have no hosts of their own (COLL02).
Result<SimulateReport> Simulate(const Plan& plan, const SimulateOptions& options);
// Of programs that are folded already, of `header` and `options.sizes`: for who puts one plan on several networks.
Result<SimulateReport> Simulate(const Header& header, const FoldedPrograms& programs, const SimulateOptions& options);
// The same without a plan: each rank's program is written, folded and dropped before the next one's. So thousands of ranks fit where their
// programs would not. Fails as BuildPlan(), too.
Result<SimulateReport> Simulate(std::string_view algorithm, const Request& request, const SimulateOptions& options);
Result<SimulateReport> Simulate(const Algorithm& algorithm, const Request& request, const SimulateOptions& options);

// Steps that the interpreter does in a run of one rank's program, whatever it runs over; loops' own are not counted. So who counts the
// steps of a call can tell whether it went through the interpreter. kInvalid as Layout::Make().
Result<std::uint64_t> CountSteps(const Header& header, const Program& program, const Sizes& sizes);

// What a plan costs by the α-β-γ model, from its steps, without queues: good for comparing, too small where messages wait for each other.
struct CostOptions {
  Sizes sizes;
  double latency_ns = 0, ns_per_byte = 0, reduce_ns_per_byte = 0, overhead_ns = 0;
};
struct Cost {
  std::int64_t rounds = 0;          // the longest chain of messages
  std::int64_t sent_bytes_max = 0;  // of the rank that sends most
  std::int64_t sent_bytes_total = 0;
  std::int64_t sent_messages_max = 0;
  std::int64_t folded_bytes_max = 0;
  std::int64_t scratch_bytes_max = 0;  // memory beyond the caller's
  double ns = 0;
};
Result<Cost> EstimateCost(const Plan& plan, const CostOptions& options);

// The plan as text: what is promised, the buffers, and the steps of one rank.
std::string Explain(const Plan& plan, std::int32_t rank);

}  // namespace ropewalk::collective
