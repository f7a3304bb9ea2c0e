// `start dev`: a master and workers as child processes on 127.0.0.1, restarted when they die, ended with us.
//
// Thread rule: one thread; it blocks SIGINT, SIGTERM and SIGCHLD and waits for them.
#pragma once

#include <cstdint>
#include <string>

#include "base/config.h"
#include "base/status.h"

namespace ropewalk::cli {

struct DevOptions {
  std::string folder;  // made 0700
  std::string token_file;
  std::uint16_t port = 7077;  // 0: any free one
  std::uint32_t workers = 2;
  std::uint32_t slots = 1;  // of each
  std::uint64_t memory_bytes = 0;
  bool defaults = false;  // clients find address and token without being told
};

Result<DevOptions> DevOptionsOf(const Config& config);

// Returns OK after SIGINT or SIGTERM. kUnavailable DEV01: a daemon does not start, with the end of its log.
Status RunDevCluster(const DevOptions& options);

}  // namespace ropewalk::cli
