// `ropewalk train torch -- PROGRAM ARGS...`: a program that was written for torchrun, run by the ranks of a gang. Each rank starts it once
// with the variables that torchrun gives to it, and ends it with its gang.
//
//   rank 0 ── a free port ──┐                      MASTER_ADDR, MASTER_PORT   where the programs meet: on rank 0's machine
//   rank 1 ── its machine ──┼─ Exchange ─▶ all     RANK, WORLD_SIZE           in the gang
//   rank 2 ── its machine ──┘                      LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK, GROUP_WORLD_SIZE   on the machine; which one
//                                                  TORCHELASTIC_RESTART_COUNT, _MAX_RESTARTS, _RUN_ID
//   ROPEWALK_REACHED_FILE: the program writes a number that grows into it, the step of a checkpoint say (GangContext::Reached)
//
// Source of the names: torchrun's documentation ("Environment Variables").
//
// Thread rule: RunTorchRank on the rank's thread; any number of ranks may be threads of one process.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/status.h"
#include "dag/gang.h"

namespace ropewalk::launch {

struct TorchJob {
  std::vector<std::string> program;  // with its arguments
  std::int32_t ranks = 1;
  std::int32_t ranks_min = 0;      // dag::GangOptions
  std::int64_t shrink_after = 5;   // seconds
  std::uint32_t restarts_max = 0;  // how often the programs are started anew when one of them fails
  std::string logs;                // a folder for what each rank prints: rank-1.0, of its forming 0; empty: none
  std::string folder;              // where the programs start
};

struct TorchArguments {
  bool help = false;
  TorchJob job;
  std::vector<std::string> argv;  // the call with absolute paths, and Ropewalk's own flags
};

// `args` are main's: [0] the program, [1] "torch". `folder` is what relative paths start from. kInvalid LAUNCH02.
Result<TorchArguments> ParseTorchArguments(const std::vector<std::string>& args, const std::string& folder);
std::string TorchUsage();

// The place of a rank among those whose machines are `machines`, by rank.
struct TorchPlace {
  std::int32_t local_rank = 0, local_ranks = 0;  // on its machine
  std::int32_t machine = 0, machines = 0;        // in the order in which ranks name them
};
TorchPlace PlaceOf(const std::vector<std::string>& machines, std::int32_t rank);

// What the program of this rank gets beside what this process has. `machines`: each rank's machine; `address`, `port`: where they meet.
std::map<std::string, std::string> TorchEnvironment(const TorchJob& job, const dag::GangContext& gang,
                                                    const std::vector<std::string>& machines, const std::string& address,
                                                    const std::string& port, const std::string& run);

// Starts the program and waits for its end; each line that it prints goes to stderr with the rank in front. `run` tells this run from
// others. kUserError LAUNCH01: it cannot be started. LAUNCH03: it has failed, with its last lines. LAUNCH04: no port, no log. What OnLost
// says where the gang is lost or the job cancelled: the program is ended then.
Result<std::string> RunTorchRank(dag::GangContext& gang, const TorchJob& job, const std::string& run);

// The program of `ropewalk train torch`.
int TorchMain(const std::vector<std::string>& args);

}  // namespace ropewalk::launch
