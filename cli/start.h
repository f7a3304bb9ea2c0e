// `start master`, `start worker`, `start dev`: serve until a signal comes.
//
// Thread rule: once, from main's thread, before any other thread is started.
#pragma once

#include "base/config.h"
#include "base/status.h"
#include "cli/invocation.h"

namespace ropewalk::cli {

Status Start(const Invocation& invocation, const Config& config);

// kInvalid SEC01 where `address` is not loopback: there is no TLS yet, and whoever can connect may try the token.
Status RefuseOpenAddress(const std::string& address);

}  // namespace ropewalk::cli
