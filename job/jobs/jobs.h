// The built-in jobs. Each is what a user would write, and gives what it has written.
//
// Thread rule: main's thread.
#pragma once

#include "job/jobs/arguments.h"
#include "job/ropewalk.h"

namespace ropewalk::jobs {

// word<TAB>count for each word of the input; with `top`, the commonest are printed too.
Written WordCount(Job& job, const Arguments& a);

// The lines in byte order (LC_ALL=C) over part-00000, part-00001...; with `record_bytes` records of that many bytes, any bytes, in the
// order of their keys, those with equal keys in the order of the input: the binary form of TeraSort.
Written Sort(Job& job, const Arguments& a);

// The lines that hold the pattern, in their order within each part.
Written Grep(Job& job, const Arguments& a);
// kInvalid JOBS02 says what is wrong with the pattern.
Status CheckPattern(const Arguments& a);

}  // namespace ropewalk::jobs
