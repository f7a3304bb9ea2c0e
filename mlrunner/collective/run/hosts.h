// Where ranks are, for whoever reads a failure and has to look there.
//
// Thread rule: pure functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace ropewalk::collective {

// By rank: `"worker-3" (10.0.0.7)`.
using Hosts = std::vector<std::string>;

// Both may be anything.
std::string HostOf(std::string_view machine, std::string_view address);

// Adds where the ranks are that the status names, each once, and not again what it says already. As it is, if it names none of them.
Status WithHosts(const Status& why, const Hosts& hosts);

// `why` and one thing more that is to be known about it.
Status WithReason(const Status& why, std::string_view more);

}  // namespace ropewalk::collective
