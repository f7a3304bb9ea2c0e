#pragma once

namespace ropewalk::cli {

inline constexpr char kVersion[] = ROPEWALK_VERSION;  // of CMake's project()

}  // namespace ropewalk::cli
