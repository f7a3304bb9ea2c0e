// The token file: whoever can read it may submit jobs, which means running code as the daemons' user. So it is ours, mode 0600, 32 random
// bytes in hex. (ReadTokenFile is declared in channel.h, for clients.)
#pragma once

#include <string>

#include "base/status.h"

namespace ropewalk::rpc {

// Reads the token, or writes a fresh one when there is no such file (synced before it is returned; two that start at once end with the
// same). kUnauthenticated AUTH02: others may read it; kUserError AUTH03: cannot be written.
Result<std::string> ReadOrCreateTokenFile(const std::string& path);

}  // namespace ropewalk::rpc
