// Rows of random numbers: what UniformAt (philox.h) gives for elements that follow each other.
//
// Thread rule: pure functions.
#pragma once

#include <cstdint>

namespace ropewalk::mlrunner {

// to[i] = UniformAt(key, sample, first + i)
void UniformRow(std::uint64_t key, std::uint64_t sample, std::uint64_t first, std::int64_t n, float* to);

// Dropout of a row with those numbers: x is 0 where its number is below the rate, else multiplied by 1 / (1 - rate).
void DropRow(std::uint64_t key, std::uint64_t sample, std::uint64_t first, float rate, float* x, std::int64_t n);

}  // namespace ropewalk::mlrunner
