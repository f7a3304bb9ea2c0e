// Loops over a row of n floats, compiled for several instruction sets (clones.h). Results may lie where an operand does.
//
// Thread rule: pure functions.
#pragma once

#include <cstdint>

namespace ropewalk::mlrunner {

// Of no elements: -inf and 0. Of a maximum, what is not a number wins and stays, as in the reference.
float MaxOf(const float* x, std::int64_t n);
float SumOf(const float* x, std::int64_t n);
float DotOf(const float* x, const float* y, std::int64_t n);
float SumExpOf(const float* x, float shift, std::int64_t n);  // of exp(x - shift)

void ExpOf(const float* x, float shift, float* y, std::int64_t n);                     // y = exp(x - shift)
void ScaledExpOf(const float* x, float shift, float scale, float* y, std::int64_t n);  // y = exp(x - shift) * scale
void Shift(const float* x, float shift, float* y, std::int64_t n);                     // y = x - shift
void Scale(float* y, float scale, std::int64_t n);
void AddTo(float* y, const float* x, std::int64_t n);
void LargerTo(float* y, const float* x, std::int64_t n);
void SoftmaxGradOf(const float* y, const float* g, float dot, float* dx, std::int64_t n);     // dx = y * (g - dot)
void Normalise(float* y, float scale, const float* gain, const float* bias, std::int64_t n);  // y = y * scale * gain + bias
// What a row of a layer norm gives to the sums dgain and dbias, and what its own gradient is made of.
void NormGradParts(const float* x, const float* gain, const float* g, float mean, float rstd, float* hat, float* scaled, float* dgain,
                   float* dbias, std::int64_t n);
void NormGradOf(const float* hat, const float* scaled, float rstd, float sum, float dot, float* dx, std::int64_t n);

}  // namespace ropewalk::mlrunner
