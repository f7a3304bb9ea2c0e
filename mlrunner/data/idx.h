// IDX files, the form of MNIST and its successors: a magic number that says type and rank, the dimensions, the bytes.
//
// Thread rule: pure functions on files.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace ropewalk::mlrunner {

struct IdxBytes {
  std::vector<std::int64_t> dims;
  std::string bytes;  // as many as the product of dims
};

// A file of unsigned bytes, plain or .gz. kUserError DATA01: it is no such file, or is longer or shorter than its dimensions say.
Result<IdxBytes> ReadIdx(const std::string& path);

}  // namespace ropewalk::mlrunner
