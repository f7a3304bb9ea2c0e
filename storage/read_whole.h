// One file as a whole, for what is not cut into splits: images, a text to learn.
//
// Thread rule: pure but for reading.
#pragma once

#include <cstddef>
#include <string>

#include "base/status.h"

namespace ropewalk::storage {

// The bytes of a file, decompressed when its name ends in .gz or .zst. kNotFound IO01: there is none. kUserError IO02, IO03: unreadable,
// changed meanwhile, damaged; IO05: it is a folder or a pattern of several files, or holds more than `bytes_max`.
Result<std::string> ReadWhole(const std::string& path, std::size_t bytes_max);

}  // namespace ropewalk::storage
