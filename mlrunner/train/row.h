// The record of one sample of a dataset, as the ranks of a training read it (rows.h): its label, and its features as they lie in memory.
//
// Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace ropewalk::mlrunner {

std::string EncodeRow(std::int64_t label, std::span<const float> features);

}  // namespace ropewalk::mlrunner
