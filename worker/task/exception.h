// Words for what user code threw.
//
// Thread rule: pure; called inside a catch block.
#pragma once

#include <string>

namespace ropewalk::task {

// Of the exception that is being handled: "std::runtime_error: bad number", "int", "std::string: text". Safe to show: texts quote records.
std::string DescribeCurrentException();

}  // namespace ropewalk::task
