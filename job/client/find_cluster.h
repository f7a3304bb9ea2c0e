// Is there a cluster to talk to? What a newcomer needs to hear first is how to start one, not what is wrong with a token.
//
// Thread rule: pure functions of the network and the file; TokenFor may block for a second.
#pragma once

#include <string>

#include "base/status.h"

namespace ropewalk::job {

// The token in `token_file`, to be shown to the master at `address`. Where neither the file exists nor anything listens there, no cluster
// was started: kUnavailable NET04 says how to start one. kInvalid NET02 for an address that is none. Else what ReadTokenFile says.
Result<std::string> TokenFor(const std::string& address, const std::string& token_file);

// The hint for an address at which nobody answers.
std::string HowToStart(const std::string& address);

}  // namespace ropewalk::job
