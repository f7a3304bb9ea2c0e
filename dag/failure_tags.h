// Tags of failures that the scheduler answers in their own way. They say who fails; what they are called is told to people, so it stays.
//
// Thread rule: values.
#pragma once

namespace ropewalk::dag {

// A task's code could not get the memory it asked for (std::bad_alloc): other machines have no more.
inline constexpr char kOutOfMemoryTag[] = "MEM01";

}  // namespace ropewalk::dag
