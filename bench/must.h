// What a bench cannot go on without.
//
// Thread rule: any thread.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <utility>

#include "base/status.h"

namespace ropewalk::bench {

// Ends the process with the error.
inline void Must(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::_Exit(1);
}
template <class T>
T Must(Result<T> result) {
  Must(result.ok() ? Status() : result.status());
  return *std::move(result);
}

}  // namespace ropewalk::bench
