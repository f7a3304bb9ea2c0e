// The lossy forms of a chunk on the wire. A chunk of n numbers is first the headers of its buckets, then the codes of all, packed without
// gaps, the first in the lowest bits.
//
//   min_max   1 to 8 bits; header: f32 minimum, f32 unit = (max − min) / (2^bits − 1); code = ⌊(x − min) / unit + ½⌋. What is constant in a
//             bucket is exact. The error of a number is at most half a unit.
//   sign      1 bit; header: f32 mean of |x|; x̂ = ± that mean. Worth something only with error feedback.
//
// A bucket that holds a NaN or an infinity decodes to NaNs only: a broken step must not look whole. Nothing of it is left for the next.
//
// Thread rule: pure functions on memory that the caller owns.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "mlrunner/collective/plan.h"

namespace ropewalk::collective {

Codec MinMaxCodec(std::int64_t bits, std::int64_t bucket_elements);
Codec SignCodec(std::int64_t bucket_elements);

// COLL12 for a codec that nobody knows, or whose sizes are not those of its name.
Status CheckCodec(const Codec& codec);

// `residual` (may be null): what earlier codes left out; it is added first, and what this one leaves out is put there. EncodedBytes() of
// `out` are written.
void Encode(const Codec& codec, const float* in, std::int64_t count, float* residual, char* out);
void Decode(const Codec& codec, const char* in, std::int64_t count, float* out);

}  // namespace ropewalk::collective
