// The border around what main gives to Once(): whatever it throws ends the job as the user's error, in every backend alike.
//
// Thread rule: main's thread.
#pragma once

#include <functional>
#include <string>

#include "base/status.h"

namespace ropewalk::job {

// The value, or why there is none: a Status of `compute` as it is, an exception as kUserError USER02 with its type and message.
Result<std::string> ComputeOnceValue(const std::string& name, const std::function<Result<std::string>()>& compute);

}  // namespace ropewalk::job
