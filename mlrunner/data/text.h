// A text as characters: each sample is a stretch of it, and the label of each place is the character that comes next.
//
// Thread rule: functions on files.
#pragma once

#include <cstdint>
#include <string>

#include "mlrunner/data/samples.h"

namespace ropewalk::mlrunner {

// The vocabulary are the bytes that occur in the text, in their order. Samples are stretches of `length` characters, side by side; the last
// `held_out` of the text (0 to 1) is held out. Plain or compressed files. kUserError DATA04: too short for one sample on each side.
Result<DataSet> LoadText(const std::string& path, std::int64_t length, double held_out);

}  // namespace ropewalk::mlrunner
