// Calls that say the same whether their caller waits in them or submits them.
//
// Thread rule: that of the communicator.
#pragma once

#include "mlrunner/collective/communicator.h"

namespace ropewalk::collective::testing {

inline Status SumEitherWay(Communicator& all, const CollectiveCall& call, bool submitted) {
  if (!submitted) return all.AllReduce(call);
  auto handle = all.Submit(call, {});
  return handle.ok() ? all.Wait(*handle) : handle.status();
}

}  // namespace ropewalk::collective::testing
