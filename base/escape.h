// Making bytes that others chose (file names, job names, user messages) safe to show: no control byte reaches a terminal or forges a
// log line.
//
// Thread rule: pure functions.
#pragma once

#include <string>
#include <string_view>

namespace ropewalk {

// For logs and error messages: printable ASCII and well-formed UTF-8 stay as they are; control bytes (also the C1 ones in UTF-8),
// backslashes and invalid UTF-8 become \n, \t, \r, \\ or \xHH. Longer than `bytes_max` is cut and ends in "...".
std::string EscapeForLog(std::string_view bytes, std::size_t bytes_max = 4096);

// A JSON string with its quotes. JSON is UTF-8: each byte that is not part of well-formed UTF-8 becomes U+FFFD.
std::string JsonString(std::string_view bytes);

// Length of the well-formed UTF-8 sequence (no overlong form, no surrogate) at the start of `bytes`; 0 when there is none.
std::size_t Utf8Length(std::string_view bytes);

std::string HexString(std::string_view bytes);
// False where `hex` is no even number of hexadecimal digits.
bool ParseHex(std::string_view hex, std::string* bytes);

}  // namespace ropewalk
