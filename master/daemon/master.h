// The master daemon: the shell around the scheduler core. Sockets and timers become events, decisions become durable, then actions are
// carried out. One control thread; one thread that syncs the journal; one that syncs logs; one that moves artifacts between sockets
// and disk.
//
// Thread rule: RunMaster blocks its caller; it takes SIGTERM and SIGINT over for the process.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/status.h"

namespace ropewalk::master {

struct MasterOptions {
  std::string state_dir;                          // made 0700; journal, artifacts, job logs, secrets
  std::string listen_address = "127.0.0.1:7077";  // loopback only; port 0: any free one
  std::string token_file;                         // "": <state_dir>/token; written 0600 when missing
  std::int64_t heartbeat_ms = 1'000;
  std::int64_t silence_ms = 6'000;                  // a worker that is silent for so long is lost
  std::uint64_t job_output_bytes_max = 1ull << 30;  // of a job's stdout; what is above is not kept, and the job's stderr says so
  std::uint64_t job_log_bytes_max = 64ull << 20;    // of each other stream of a job
  std::uint64_t snapshot_records = 20'000;          // the journal is rewritten as a snapshot after so many records
  std::uint32_t job_folders_max = 1'000;            // logs of the newest jobs are kept
  std::uint64_t artifact_bytes_max = 16ull << 30;   // executables and libraries; those of live jobs are never dropped
  std::uint32_t requests_per_s_max = 2'000;         // of the clients on one machine; four seconds' worth may come at once
  std::function<Status()> sync_log;                 // tests: called before each sync of what jobs print, on the thread that does it
  std::function<void(const std::string& address)> on_listening;  // called once it serves; not set: the address is printed to stdout
};

// Serves until a signal comes. OK after an orderly stop. kUnavailable MASTER01: another master holds the folder (`why` says who);
// kUserError MASTER02: the folder cannot be used; what Server::Start and Journal::Open say; kDataLoss: the journal cannot be read;
// kResourceExhausted or kUserError MASTER03: a decision could not be made durable (nothing was told to anybody that is not).
Status RunMaster(MasterOptions options);

}  // namespace ropewalk::master
