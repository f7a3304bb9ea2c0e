// Words for what user code threw.
//
// Thread rule: pure; called inside a catch block.
#pragma once

#include <string>

namespace ropewalk::task {

// Of the exception that is being handled: "std::runtime_error: bad number", "int", "std::string: text". Safe to show: texts quote records.
//
// What else reaches `catch (...)` is the unwinding of a thread that ends itself (pthread_exit()): that goes on from here, since the process
// aborts where it does not. It is known by having no exception: `catch (abi::__forced_unwind&)` would bind a reference to nothing.
std::string DescribeCurrentException();

}  // namespace ropewalk::task
