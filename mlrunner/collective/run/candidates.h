// The ways in which a call could be run, as plans: what chooser.h takes the fastest of, and what benches hold its choice against.
//
// Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "mlrunner/collective/algorithms.h"
#include "mlrunner/collective/link_model.h"
#include "mlrunner/collective/link_order.h"
#include "mlrunner/collective/plan.h"
#include "mlrunner/collective/run/choose.h"

namespace ropewalk::collective {

// What all ranks of a communicator know of it.
struct Ground {
  std::int32_t ranks = 1;
  bool shares_memory = false;
  std::int64_t segment_bytes = 0;  // of its options; 0: by the wire
  std::span<const Algorithm> algorithms = Algorithms();
  Nodes nodes;
  Orders orders;
};

struct Candidate {
  Choice choice;
  Plan plan;
};

// What a plan is built from when it is asked for, or proposed here.
Request RequestOf(const Request& asked, const Choice& choice, const Ground& ground);

// Every algorithm that can do what is asked for by a plain call, in a few sizes of segments and with one channel and two; those that would
// be the same plan once. Of each algorithm the usual segments on one channel come first. In deterministic mode these are
// left folds only, and hierarchical ones are among them where there are several nodes of several ranks each. `asked`: collective, dtype,
// operation, root and deterministic mode count.
std::vector<Candidate> CandidatesFor(const Request& asked, const Ground& ground);

// What a call takes, by predicted time. kResourceExhausted (COLL13) where its scratch is more than may be chosen: a rank must not run out
// of memory for what nobody asked for.
inline constexpr std::int64_t kChosenScratchBytesMax = 16 << 20;
Result<double> NsOf(const LinkModel& model, const Candidate& candidate, std::int64_t count);

// Why a call that has no more than its vectors cannot run by the plan: it needs a window, a library, counts, or an instance of its own.
// Empty: it can.
std::string WhyNoPlainCall(const Plan& plan);

}  // namespace ropewalk::collective
