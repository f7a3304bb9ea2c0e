// Loops that are compiled for several processors.
//
// Thread rule: macros.
#pragma once

// The same loop compiled for several instruction sets, chosen when the program starts, by what the processor can do: `arch=` with the name
// of a model would be chosen on just that model. All clones give the same bits by their own arithmetic (CMakeLists.txt: -ffp-contract=off),
// since replicas may update on unlike processors; what libm does (log, pow) may differ. Sanitizers cannot run such choosers that early.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__x86_64__)
#define ROPEWALK_CLONES
#else
#define ROPEWALK_CLONES __attribute__((target_clones("default", "arch=x86-64-v3", "arch=x86-64-v4")))
#endif
// A function that such loops call. Only when it must does the compiler put one into a clone for another instruction set, and a loop in
// which a call is left is not vectorised. (So no std::bit_cast in it, which is a function of its own.)
#define ROPEWALK_IN_CLONES __attribute__((always_inline)) inline
