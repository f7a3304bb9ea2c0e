// The worker daemon: registers with the master, owns segments, starts executors through a spawner, and relays between them and the master.
//
//   spawner*          a small single-threaded process, forked before any thread starts; it forks and execs executors
//   link              a channel with a thread for each direction (master, executors)
//   output_reader     an executor's stdout or stderr
//   executor_checks   what an executor may say
//   daemon            the one control thread that holds all state
//
// A worker whose master is gone ends its executors, keeps its segments, and registers again, with a pause that grows to a few seconds.
//
// Thread rule: RunWorker blocks its caller, forks, and takes SIGTERM and SIGINT over for the process: call it before other threads exist.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/ids.h"
#include "base/status.h"

namespace ropewalk::worker {

struct WorkerOptions {
  std::string master_address = "127.0.0.1:7077";
  std::string token_file;                    // the master's; must exist, 0600
  std::string name;                          // for people, unique in the cluster; "": host name and pid
  std::uint32_t slots = 0;                   // threads for tasks; 0: one a processor
  std::uint64_t memory_bytes = 0;            // for segments and operators together; 0: half of the machine's
  std::string state_dir;                     // made 0700; one worker at a time
  std::string data_address = "127.0.0.1:0";  // where other workers read blocks; loopback only
  std::int64_t reconnect_ms_max = 3'000;
  std::int64_t drain_ms_max = 60'000;    // how long SIGTERM waits for running tasks, and for jobs that need what lies here
  std::int64_t silence_ms_max = 30'000;  // an executor that says nothing for so long is ended; 0: never, but for ranks
  std::string job_user;                  // whom executors run as; "": as the worker. Only root can change users
  bool use_cgroups = true;
  std::uint64_t artifact_bytes_max = 16ull << 30;                        // executables and libraries; those of live jobs are never dropped
  std::function<void(WorkerId, const std::string& name)> on_registered;  // after each registration, from the control thread; may be empty
};

// Serves until a signal comes; OK after an orderly stop. SIGTERM drains: no new tasks, running ones finish, segments are served until no
// job needs them, at most drain_ms_max. SIGINT, or any second signal, stops at once. kInvalid WORKER10: options that cannot be.
// kUnavailable WORKER11: another worker uses state_dir. kUserError WORKER12: state_dir cannot be used; WORKER34: there is no such job_user,
// or we are not root. What ReadTokenFile and BlockService::Start say. kUnauthenticated AUTH01, kVersionSkew: the master refuses us for
// good.
Status RunWorker(WorkerOptions options);

}  // namespace ropewalk::worker
