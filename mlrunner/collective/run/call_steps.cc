#include "mlrunner/collective/run/call_steps.h"

#include "mlrunner/collective/run/choose.h"
#include "mlrunner/collective/simulate.h"

namespace ropewalk::collective {

Result<std::uint64_t> StepsOf(const Communicator& all, const CollectiveCall& call, std::int64_t segment_bytes) {
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
  ASSIGN_OR_RETURN(RankPlan plan, BuildProgram(call.algorithm.empty() ? choice.algorithm : call.algorithm, request, all.rank()));
  Sizes sizes{.count = call.count};
  // How much each rank has for each decides about bytes, not about steps.
  if (call.counts != nullptr) sizes.table.resize(static_cast<std::size_t>(all.ranks()) * all.ranks());
  return CountSteps(plan.header, plan.program, sizes);
}

}  // namespace ropewalk::collective
