// Words for what user code threw.
//
// Thread rule: pure; called inside a catch block.
#pragma once

#include <string>

namespace ropewalk::task {

// Lets the unwinding of a thread that ends itself (pthread_exit()) go on, and does nothing else. It reaches `catch (...)` too, and where it
// is not passed on there the process aborts. It is known by having no exception: `catch (abi::__forced_unwind&)` would bind a reference to
// nothing.
void PassOnForcedUnwind();

// Of the exception that is being handled: "std::runtime_error: bad number", "int", "std::string: text". Safe to show: texts quote records.
std::string DescribeCurrentException();

}  // namespace ropewalk::task
