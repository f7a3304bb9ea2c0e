// Elements of any type as doubles, and back: how the reference, literals and first values of states meet buffers.
//
// Thread rule: pure functions.
#pragma once

#include <span>

#include "mlrunner/types/dtype.h"

namespace ropewalk::mlrunner {

// `in` has values.size() elements of `dtype`, side by side; halves, integers and booleans become the doubles that they are.
void ToDoubles(Dtype dtype, const void* in, std::span<double> values);
// Into room for as many elements. Floats are rounded to nearest, integers as saturate.h says, booleans are whether a value is not 0.
void FromDoubles(Dtype dtype, std::span<const double> values, void* out);

}  // namespace ropewalk::mlrunner
