// The version that `ropewalk version` says. One place, fed by CMake.
//
// Thread rule: a constant.
#pragma once

namespace ropewalk::cli {

inline constexpr char kVersion[] = ROPEWALK_VERSION;  // of CMake's project()

}  // namespace ropewalk::cli
