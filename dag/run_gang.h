// Runs a gang (gang.h) as an action of the job.
//
//   Result<std::string> sum = ropewalk::RunGang(job, "sum", 4, [](ropewalk::GangContext& gang) -> Result<std::string> {
//     ASSIGN_OR_RETURN(std::vector<std::string> all, gang.Exchange(Mine(gang.rank())));
//     return Sum(all);
//   });
//
// Thread rule: main's thread.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"
#include "dag/gang.h"
#include "dag/plan/node.h"

namespace ropewalk::dag {

class Session;

struct GangOptions {
  std::uint64_t placement_timeout_ms = 5 * 60'000;  // how long it may wait for its slots before the job fails; 0: as long as it takes
  bool spread = false;                              // over as many machines as there are, else on as few as have room
  std::uint32_t attempts_max = 3;   // formings that end by an error of the program (crashes: 2 at least) before the job fails, and
  std::uint32_t restarts_max = 20;  // that may be lost for reasons not the program's: both since the gang got farther (Reached)
  // 0: all ranks or none. Else it is formed with fewer, so many at least, where there has been no room for all for `shrink_after_ms`; and
  // anew with more ranks when there is room for them and it next says that it got farther (Reached). Each forming has ranks 0 to ranks()-1.
  std::uint32_t ranks_min = 0;
  std::uint64_t shrink_after_ms = 5'000;
};

// Rank 0's bytes. `name` is for people. The program runs once on each rank of each forming and should begin where an earlier forming got
// to; what it captures is copied for each rank and must be the same in every replica of main. kUserError GANG08 for a number of ranks that
// cannot be. Any other failure ends the job as that of every action does, and is returned so that main can tidy up and say so.
Result<std::string> RunGang(Session& job, const std::string& name, std::uint32_t ranks, GangProgram program, GangOptions options = {},
                            Site site = Site::Here());

}  // namespace ropewalk::dag
