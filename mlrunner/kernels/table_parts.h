// Parts of the tables of kernels and of references, one for each file, beside those that kernel.h and reference.h name.
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
