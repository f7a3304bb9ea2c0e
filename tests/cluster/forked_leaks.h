// For programs whose children end by exit(): a forked child has none of its parent's other threads, and what only their stacks hold is a
// leak to LeakSanitizer there. It looks for leaks in the parent alone.
//
// Included by the test's own file, once.
#pragma once

#if defined(__SANITIZE_ADDRESS__)

#include "base/home_process.h"

inline const ropewalk::HomeProcess home_of_leaks;
extern "C" int __lsan_is_turned_off() { return home_of_leaks.here() ? 0 : 1; }

#endif
