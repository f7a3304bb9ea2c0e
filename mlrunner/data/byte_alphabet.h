// The characters that stand for bytes in GPT-2's vocabulary files: printable ones for themselves, the others (space, control bytes, halves
// of characters) for U+0100 and what follows. A space is 'Ġ', a line feed 'Ċ'.
//
// Thread rule: pure functions and constants.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace ropewalk::mlrunner {

// The bytes in the order in which they have the ids 0 to 255 in GPT-2's vocabulary: first those that stand for themselves.
const std::array<std::uint8_t, 256>& BytesOfAlphabet();

// `bytes` as they are spelt in the files, in UTF-8.
std::string SpellBytes(std::string_view bytes);

// The reverse. False, and `bytes` undefined: a character in `spelt` that stands for no byte, or what is no UTF-8.
bool BytesOfSpelling(std::string_view spelt, std::string* bytes);

}  // namespace ropewalk::mlrunner
