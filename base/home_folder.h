// Where daemons and clients of one user meet without being told: $ROPEWALK_HOME, else $HOME/.ropewalk, else /var/lib/ropewalk.
//
// Thread rule: reads the environment; call it before threads change that (nobody here does).
#pragma once

#include <cstdlib>
#include <string>

namespace ropewalk {

inline std::string HomeFolder() {
  if (const char* home = std::getenv("ROPEWALK_HOME"); home != nullptr && home[0] == '/') return home;
  if (const char* home = std::getenv("HOME"); home != nullptr && home[0] == '/') return std::string(home) + "/.ropewalk";
  return "/var/lib/ropewalk";
}

// The token that a first start writes and that clients read when no --token-file is given.
inline std::string DefaultTokenFile() { return HomeFolder() + "/token"; }

}  // namespace ropewalk
