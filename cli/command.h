// The whole command: parses, does, reports. main() is one call of it.
#pragma once

#include <string>
#include <vector>

namespace ropewalk::cli {

// `args` without the program's name. Returns the exit code of docs/cli.md.
int RunCommand(const std::vector<std::string>& args);

}  // namespace ropewalk::cli
