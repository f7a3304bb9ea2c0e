// What the states of a training begin with where somebody brings it: a family (Learnt::first_values), or a file (model.first_values).
// A checkpoint that is gone on from wins over both.
//
// Thread rule: pure but for the file system.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"
#include "mlrunner/executor/executor.h"
#include "mlrunner/graph/graph.h"
#include "mlrunner/train/family.h"
#include "storage/file_system.h"

namespace ropewalk::mlrunner {

// Puts into `values` what the file at `path` has for the parameters and statistics of `graph`: a safetensors file with exactly these names
// and shapes, whose floating-point numbers of another width are converted; or a checkpoint of ours, of which what belongs to an optimiser
// is left out. kUserError TRAIN11: names that are missing, superfluous or of another shape, all of them. TENS*, CKPT*: as those who read
// such files.
Status ReadFirstValues(storage::FileSystem& files, const std::string& path, const Graph& graph, FirstValues* values);

// Puts them into `states`, in the type of each state, of a state that is cut over ranks the slice of `rank`. kUserError TRAIN11: a value
// that has another shape than its state, or no state.
Status SetFirstValues(const FirstValues& values, const Graph& graph, std::int32_t rank, StateStore* states);

// Of names and numbers: ranks that begin at different ones find out by it. 0: there are none.
std::uint64_t Hash(const FirstValues& values);

}  // namespace ropewalk::mlrunner
