// What a binary asks of the machine that runs it, read from its ELF file.
//
// Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

namespace ropewalk::job {

// The highest GLIBC_x.y symbol version that the file at `path` refers to, as 1000 * x + y (2036 is 2.36); 0 when it refers to none. Damaged
// or foreign files: kInvalid ELF01.
Result<std::uint32_t> HighestGlibc(const std::string& path);

// The same for an image in memory, so that damaged ones can be tried.
Result<std::uint32_t> HighestGlibcOfImage(std::string_view image, const std::string& name);

// "2.36" of 2036; "" of 0.
std::string GlibcText(std::uint32_t version);

}  // namespace ropewalk::job
