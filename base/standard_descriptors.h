// Descriptors 0, 1 and 2 of a process that was started without some of them (`command <&- >&- 2>&-`, a careless daemon).
//
// Thread rule: called once, before anything is opened.
#pragma once

namespace ropewalk {

// Opens those that are closed, so that no file, socket or pipe of ours gets their number and is taken for the standard output. Writing to a
// standard output that was closed goes on to fail.
void OpenStandardDescriptors();

}  // namespace ropewalk
