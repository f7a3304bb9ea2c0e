#include "mlrunner/data/words.h"

#include <re2/re2.h>

namespace ropewalk::mlrunner {
namespace {

// \s of the original is the Unicode property White_Space; that of RE2 is five characters.
constexpr const char* kWord = R"('s|'t|'re|'ve|'m|'ll|'d| ?\pL+| ?\pN+| ?[^\t-\r\x{85}\pZ\pL\pN]+)";
constexpr const char* kSpace = R"([\t-\r\x{85}\pZ]+)";

// How much of the beginning of `text` it matches, 0: nothing.
std::size_t Matched(const re2::RE2& expression, std::string_view text) {
  const re2::StringPiece piece(text.data(), text.size());
  re2::StringPiece match;
  return expression.Match(piece, 0, piece.size(), re2::RE2::ANCHOR_START, &match, 1) ? match.size() : 0;
}

bool GoesOn(char byte) { return (static_cast<unsigned char>(byte) & 0xc0) == 0x80; }

}  // namespace

Words::Words() : word_(std::make_unique<re2::RE2>(kWord, re2::RE2::Quiet)), space_(std::make_unique<re2::RE2>(kSpace, re2::RE2::Quiet)) {}
Words::~Words() = default;

std::size_t Words::FirstOf(std::string_view text) const {
  const std::string_view window = text.substr(0, kBytesMax);
  if (const std::size_t bytes = Matched(*word_, window); bytes > 0) return bytes;
  const std::size_t bytes = Matched(*space_, window);
  if (bytes == 0) return 1;
  if (bytes == text.size()) return bytes;
  // \s+(?!\S): the last space before a word is left to it, unless there is no other one.
  std::size_t last = bytes - 1;
  while (last > 0 && GoesOn(text[last])) --last;
  return last > 0 ? last : bytes;
}

}  // namespace ropewalk::mlrunner
