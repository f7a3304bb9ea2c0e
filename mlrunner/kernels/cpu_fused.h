// Parts of the kernel tables (kernel.h, reference.h) for ops that have headers of their own.
//
// Thread rule: as kernel.h.
#pragma once

#include "mlrunner/kernels/kernel.h"

namespace ropewalk::mlrunner {

void AddAttentionKernels(KernelTable& table);     // graph/attention.h
void AddResidualNormKernels(KernelTable& table);  // graph/residual_norm.h
void AddOptimizerKernels(KernelTable& table);     // graph/optimizers.h: LAMB, Adagrad
void AddRandomKernels(KernelTable& table);        // uniform numbers

// Their references.
void AddAttentionReferences(RefTable& table);
void AddResidualNormReferences(RefTable& table);
void AddOptimizerReferences(RefTable& table);

}  // namespace ropewalk::mlrunner
