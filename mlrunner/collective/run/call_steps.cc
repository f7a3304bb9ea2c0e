#include "mlrunner/collective/run/call_steps.h"

#include "mlrunner/collective/run/chooser.h"
#include "mlrunner/collective/simulate.h"

namespace ropewalk::collective {
namespace {

Chosen ChosenFor(const Communicator& all, const CollectiveCall& call, std::int64_t segment_bytes) {
  const Chooser* chooser = all.chooser();
  Chosen chosen = chooser != nullptr ? chooser->For(call) : ChooseFor(call, all.ranks(), all.shares_memory(), segment_bytes);
  if (call.codec != nullptr) chosen.request.codecs = {*call.codec};
  if (call.mixing != nullptr) chosen.request.mixing = *call.mixing;
  if (call.neighbors != nullptr) chosen.request.neighbors = *call.neighbors;
  chosen.request.nodes = all.nodes();
  return chosen;
}

}  // namespace

Result<std::uint64_t> StepsOf(const Communicator& all, const CollectiveCall& call, std::int64_t segment_bytes) {
  Chosen chosen = ChosenFor(all, call, segment_bytes);
  ASSIGN_OR_RETURN(const Algorithm* algorithm, FindAlgorithm(Algorithms(), chosen.algorithm));
  chosen.request.order = OrderOf(all.orders(), *algorithm, chosen.request);
  ASSIGN_OR_RETURN(RankPlan plan, BuildProgram(*algorithm, chosen.request, all.rank()));
  Sizes sizes{.count = call.count};
  // How much each rank has for each decides about bytes, not about steps.
  if (call.counts != nullptr) sizes.table.resize(static_cast<std::size_t>(all.ranks()) * all.ranks());
  return CountSteps(plan.header, plan.program, sizes);
}

Result<Plan> PlanOf(const Communicator& all, const CollectiveCall& call, std::span<const Algorithm> table, std::int64_t segment_bytes) {
  Chosen chosen = ChosenFor(all, call, segment_bytes);
  ASSIGN_OR_RETURN(const Algorithm* algorithm, FindAlgorithm(table, chosen.algorithm));
  chosen.request.order = OrderOf(all.orders(), *algorithm, chosen.request);
  return BuildPlan(*algorithm, chosen.request);
}

}  // namespace ropewalk::collective
