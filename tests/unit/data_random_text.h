// Random texts whose characters' classes are known because each is drawn from a pool of one class.
//
// Thread rule: as the Random that is given.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/random.h"

namespace ropewalk::mlrunner::testing {

enum class CharacterClass : std::uint8_t { kLetter, kNumber, kSpace, kOther };
struct Character {
  CharacterClass kind;
  std::string utf8;
};

inline std::string Utf8Of(std::uint32_t c) {
  std::string text;
  if (c < 0x80) return std::string(1, static_cast<char>(c));
  if (c < 0x800) {
    text += static_cast<char>(0xc0 | c >> 6);
  } else {
    if (c < 0x10000) {
      text += static_cast<char>(0xe0 | c >> 12);
    } else {
      text += static_cast<char>(0xf0 | c >> 18);
      text += static_cast<char>(0x80 | (c >> 12 & 0x3f));
    }
    text += static_cast<char>(0x80 | (c >> 6 & 0x3f));
  }
  return text + static_cast<char>(0x80 | (c & 0x3f));
}

// Small pools come as often as large ones, so that apostrophes meet letters and spaces meet spaces.
inline Character RandomCharacter(Random& random) {
  struct Pool {
    CharacterClass kind;
    std::uint32_t first, last;
  };
  using enum CharacterClass;
  static constexpr Pool kPools[] = {{kLetter, 'a', 'z'},         {kLetter, 'a', 'e'},
                                    {kLetter, 's', 't'},         {kLetter, 'l', 'm'},
                                    {kLetter, 'A', 'Z'},         {kLetter, 0xc0, 0xd6},
                                    {kLetter, 0x3b1, 0x3c9},     {kLetter, 0x410, 0x44f},
                                    {kLetter, 0x5d0, 0x5ea},     {kLetter, 0x4e00, 0x9fa5},
                                    {kLetter, 0xac00, 0xd7a3},   {kLetter, 0x1d400, 0x1d454},
                                    {kLetter, 0x20000, 0x2a6d6}, {kLetter, 0xaa, 0xaa},
                                    {kLetter, 0x2b0, 0x2c1},     {kNumber, '0', '9'},
                                    {kNumber, 0xb2, 0xb3},       {kNumber, 0x660, 0x669},
                                    {kNumber, 0x2160, 0x2182},   {kNumber, 0x1d7ce, 0x1d7ff},
                                    {kNumber, 0xbc, 0xbe},       {kSpace, ' ', ' '},
                                    {kSpace, ' ', ' '},          {kSpace, '\t', '\r'},
                                    {kSpace, 0x85, 0x85},        {kSpace, 0xa0, 0xa0},
                                    {kSpace, 0x2000, 0x200a},    {kSpace, 0x2028, 0x2029},
                                    {kSpace, 0x3000, 0x3000},    {kSpace, 0x1680, 0x1680},
                                    {kOther, '\'', '\''},        {kOther, '\'', '\''},
                                    {kOther, '!', '/'},          {kOther, 0, 8},
                                    {kOther, 0x1c, 0x1f},        {kOther, 0x300, 0x36f},
                                    {kOther, 0x1f600, 0x1f64f},  {kOther, 0x200b, 0x200d},
                                    {kOther, 0xfe00, 0xfe0f},    {kOther, 0x7f, 0x84},
                                    {kOther, 0xe000, 0xe010},    {kOther, 0x20ac, 0x20ac}};
  const Pool& pool = kPools[random.Below(sizeof kPools / sizeof kPools[0])];
  return {pool.kind, Utf8Of(static_cast<std::uint32_t>(random.Between(pool.first, pool.last)))};
}

inline std::vector<Character> RandomCharacters(Random& random, std::size_t count) {
  std::vector<Character> characters;
  for (std::size_t i = 0; i < count; ++i) characters.push_back(RandomCharacter(random));
  return characters;
}

inline std::string TextOf(const std::vector<Character>& characters) {
  std::string text;
  for (const Character& c : characters) text += c.utf8;
  return text;
}

inline std::string RandomBytes(Random& random, std::size_t count) {
  std::string bytes;
  for (std::size_t i = 0; i < count; ++i) bytes += static_cast<char>(random.Below(random.OneIn(2) ? 256 : 128));
  return bytes;
}

}  // namespace ropewalk::mlrunner::testing
