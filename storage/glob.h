// Patterns over file names, on bytes: '*' any run, '?' one character (a whole UTF-8 sequence where there is one), '[abc]' '[a-z]' '[!a]'
// one byte of a set, '\' makes the next byte literal. A '[' that is never closed is literal. None of them matches '/'. A component that is
// "**" stands for any number of folders, none too.
//
// Thread rule: pure functions.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "base/status.h"

namespace ropewalk::storage {

// Whether the pattern matches the whole of one name. Time is at most |pattern| x |name|.
bool GlobMatch(std::string_view pattern, std::string_view name);
bool HasGlobCharacters(std::string_view text);

// Calls `found` for every existing path that the absolute `pattern` matches, in byte order component by component. In each component an
// existing name wins over the pattern. "**" does not follow links to folders, and with it a path may be found twice. Names that begin with
// '.' or '_' are matched only by a pattern that begins with the same byte; others are counted in `skipped_hidden`. IO02 for a folder
// that cannot be read.
Status GlobExpand(const std::string& pattern, std::uint64_t* skipped_hidden, const std::function<Status(const std::string& path)>& found);

}  // namespace ropewalk::storage
