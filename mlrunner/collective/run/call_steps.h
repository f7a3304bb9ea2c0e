// How many steps of the interpreter a call takes of this rank: by so much steps() of its communicator rises. For benches and tests, which
// show by it that nothing is measured or tested that runs beside the interpreter.
//
// Thread rule: any thread; a pure function of the call, and of ranks and wire of the communicator.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "mlrunner/collective/communicator.h"

namespace ropewalk::collective {

// `segment_bytes`: of the communicator's options, whose table must be Algorithms(). COLL10, COLL11 as the call itself.
Result<std::uint64_t> StepsOf(const Communicator& all, const CollectiveCall& call, std::int64_t segment_bytes = 0);

}  // namespace ropewalk::collective
