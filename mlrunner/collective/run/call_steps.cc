#include "mlrunner/collective/run/call_steps.h"

#include <string_view>

#include "mlrunner/collective/run/choose.h"
#include "mlrunner/collective/simulate.h"

namespace ropewalk::collective {
namespace {

struct Chosen {
  std::string_view algorithm;
  Request request;
};

Chosen ChosenFor(const Communicator& all, const CollectiveCall& call, std::int64_t segment_bytes) {
  Request request{.collective = call.collective,
                  .dtype = call.dtype,
                  .op = call.op,
                  .ranks = all.ranks(),
                  .root = call.root,
                  .peer = call.peer,
                  .deterministic = call.deterministic};
  const Choice choice = Choose(request, call.codec != nullptr, call.count, all.shares_memory(), segment_bytes);
  request.segment_bytes = choice.segment_bytes;
  request.channels = choice.channels;
  if (call.codec != nullptr) request.codecs = {*call.codec};
  if (call.mixing != nullptr) request.mixing = *call.mixing;
  if (call.neighbors != nullptr) request.neighbors = *call.neighbors;
  return {call.algorithm.empty() ? choice.algorithm : call.algorithm, std::move(request)};
}

}  // namespace

Result<std::uint64_t> StepsOf(const Communicator& all, const CollectiveCall& call, std::int64_t segment_bytes) {
  const Chosen chosen = ChosenFor(all, call, segment_bytes);
  ASSIGN_OR_RETURN(RankPlan plan, BuildProgram(chosen.algorithm, chosen.request, all.rank()));
  Sizes sizes{.count = call.count};
  // How much each rank has for each decides about bytes, not about steps.
  if (call.counts != nullptr) sizes.table.resize(static_cast<std::size_t>(all.ranks()) * all.ranks());
  return CountSteps(plan.header, plan.program, sizes);
}

Result<Plan> PlanOf(const Communicator& all, const CollectiveCall& call, std::span<const Algorithm> table, std::int64_t segment_bytes) {
  const Chosen chosen = ChosenFor(all, call, segment_bytes);
  ASSIGN_OR_RETURN(const Algorithm* algorithm, FindAlgorithm(table, chosen.algorithm));
  return BuildPlan(*algorithm, chosen.request);
}

}  // namespace ropewalk::collective
