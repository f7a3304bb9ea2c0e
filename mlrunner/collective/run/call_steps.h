// What a call runs by: the plan that a communicator takes for it, and how many steps of the interpreter it takes of this rank (by so much
// steps() of its communicator rises). For benches and tests, which show by the steps that nothing is measured or tested that runs beside
// the interpreter, and by the plan how long the call should have taken.
//
// Thread rule: any thread; a pure function of the call, and of ranks and wire of the communicator.
#pragma once

#include <cstdint>
#include <span>

#include "base/status.h"
#include "mlrunner/collective/communicator.h"

namespace ropewalk::collective {

// `segment_bytes`: of the communicator's options, where it has no chooser that knows them; its table must be Algorithms(). COLL10, COLL11
// as the call itself.
Result<std::uint64_t> StepsOf(const Communicator& all, const CollectiveCall& call, std::int64_t segment_bytes = 0);

// Of all ranks. `table`: of the communicator's options.
Result<Plan> PlanOf(const Communicator& all, const CollectiveCall& call, std::span<const Algorithm> table = Algorithms(),
                    std::int64_t segment_bytes = 0);

}  // namespace ropewalk::collective
