// Parts of the kernel tables (kernel.h, reference.h) for ops that have headers of their own.
//
// Thread rule: as kernel.h.
#pragma once

#include "mlrunner/kernels/kernel.h"

namespace ropewalk::mlrunner {

void AddOptimizerKernels(KernelTable& table);     // graph/optimizers.h: LAMB, Adagrad

// Their references.
void AddOptimizerReferences(RefTable& table);

}  // namespace ropewalk::mlrunner
