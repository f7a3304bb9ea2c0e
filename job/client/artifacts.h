// What a submitting process sends: its own executable and the shared libraries that it has loaded, save those of glibc, which belong to the
// machine that runs them.
//
// Thread rule: pure functions of this process and its files.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace ropewalk::job {

struct Artifact {
  std::string path;    // to read it from
  std::string name;    // as the loader looks for it: the file name; for the executable its base name
  std::string sha256;  // 32 raw bytes
  std::uint64_t bytes = 0;
};

struct OwnBinary {
  std::vector<Artifact> artifacts;  // [0] is the executable, the others its libraries in order of name
  std::uint32_t glibc_min = 0;      // 2036 is 2.36
};

// Hashes are kept in the user's cache folder by (device, inode, size, mtime, ctime), so that an unchanged executable is read once.
Result<OwnBinary> DescribeOwnBinary();

}  // namespace ropewalk::job
