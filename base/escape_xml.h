// Text in XML and SVG: what would be markup is written out.
//
// Thread rule: a pure function.
#pragma once

#include <string>
#include <string_view>

namespace ropewalk {

// For character data and for attributes in double quotes. Control characters, which XML has no way to write, become '?'.
std::string EscapeXml(std::string_view text);

}  // namespace ropewalk
