// Every configuration key and every environment variable that anything of Ropewalk reads, in one place: whoever adds one adds it here. So a
// misspelt one is refused by jobs, daemons and the command alike, with the nearest name, instead of silently meaning the default.
//
// Thread rule: constants.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/config.h"
#include "base/status.h"

namespace ropewalk {

// Keys of flags, ROPEWALK_SECTION__KEY and the TOML file, by section: client, master, worker, dev, job, command.
const std::vector<ConfigKey>& KnownKeys();

// A variable without a section: the short name of a key, or one that is no key.
struct KnownVariable {
  const char* name;
  const char* key;  // the first key that it sets; "": it sets none
  const char* help;
};
std::span<const KnownVariable> KnownVariables();

// kInvalid SPEC01 names the first variable of ours that nothing reads, and the nearest one. Those whose names begin with ROPEWALK_TEST_,
// ROPEWALK_SIM_ or ROPEWALK_BENCH_ belong to our tests and benchmarks. `environment`: "NAME=value", others' variables are passed over.
Status CheckVariables(std::span<const std::string> environment);
// Of this process.
Status CheckVariables();

}  // namespace ropewalk
