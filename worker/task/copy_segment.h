// The program of a task that copies a segment: it reads all of the one that it is given and makes one of the same parts and extents on this
// worker's disk. The content hash of the copy is that of the original.
//
// Thread rule: as StageProgram.
#pragma once

#include <cstdint>

#include "dag/task.h"

namespace ropewalk::task {

dag::StageProgram CopySegment(std::uint32_t parts);

}  // namespace ropewalk::task
