// Before they train together the ranks look whether they train the same, and rank 0 says from which checkpoint.
//
// Thread rule: pure but for the exchange.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "dag/gang.h"

namespace ropewalk::mlrunner {

// What a rank tells the others.
struct Hello {
  std::uint64_t model = 0;        // fingerprint of what is computed, and of what it begins with
  std::uint64_t data = 0;         // hash of the samples
  std::int64_t resume_from = -1;  // of rank 0: the step of the checkpoint that all go on from; -1: none
};

struct Meeting {
  std::int64_t resume_from = -1;
  std::vector<std::string> machines;  // by rank
  int neighbours = 1;                 // ranks on this machine, this one included
  std::int32_t place = 0;             // of this rank among them
};

// An exchange of all ranks. kUserError TRAIN02: one has another model, or other data, than rank 0.
Result<Meeting> Meet(dag::GangContext& gang, const Hello& mine);

}  // namespace ropewalk::mlrunner
