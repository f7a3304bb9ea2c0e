// From errno to Status: one place that decides which failure of the operating system is whose fault.
//
// Thread rule: pure functions.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"

namespace ropewalk::storage {

// "/data/a b.txt" in quotes, control bytes escaped: how a path stands in a message.
std::string QuotedPath(std::string_view path);

// `what` names the file and, where there is one, the byte offset. kResourceExhausted: disk, quota, descriptors or memory are used up;
// kUnavailable: the device failed (EIO, ESTALE, timeouts), another try or machine may do; kNotFound: no such path; else kUserError.
Status IoError(int error_number, std::string tag, std::string what);

}  // namespace ropewalk::storage
