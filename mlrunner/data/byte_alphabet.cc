#include "mlrunner/data/byte_alphabet.h"

#include <cstddef>

namespace ropewalk::mlrunner {
namespace {

constexpr std::uint32_t kFirstOther = 0x100, kOthers = 68;

bool IsPrintable(std::uint32_t byte) { return (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae; }

struct Alphabet {
  std::array<std::uint8_t, 256> order{};
  std::array<std::uint32_t, 256> character{};  // by byte
  Alphabet() {
    std::size_t next = 0;
    std::uint32_t other = kFirstOther;
    for (const bool printable : {true, false}) {
      for (std::uint32_t byte = 0; byte < 256; ++byte) {
        if (IsPrintable(byte) != printable) continue;
        order[next++] = static_cast<std::uint8_t>(byte);
        character[byte] = printable ? byte : other++;
      }
    }
  }
};
const Alphabet& TheAlphabet() {
  static const Alphabet alphabet;
  return alphabet;
}

}  // namespace

const std::array<std::uint8_t, 256>& BytesOfAlphabet() { return TheAlphabet().order; }

std::string SpellBytes(std::string_view bytes) {
  std::string spelt;
  for (char c : bytes) {
    const std::uint32_t character = TheAlphabet().character[static_cast<std::uint8_t>(c)];
    if (character < 0x80) {
      spelt += static_cast<char>(character);
    } else {  // all are below U+0800
      spelt += static_cast<char>(0xc0 | character >> 6);
      spelt += static_cast<char>(0x80 | (character & 0x3f));
    }
  }
  return spelt;
}

bool BytesOfSpelling(std::string_view spelt, std::string* bytes) {
  constexpr std::size_t kPrintable = 256 - kOthers;
  bytes->clear();
  for (std::size_t at = 0; at < spelt.size(); ++at) {
    std::uint32_t character = static_cast<std::uint8_t>(spelt[at]);
    if (character >= 0x80) {
      if (character < 0xc2 || character > 0xdf || at + 1 == spelt.size()) return false;
      const std::uint32_t second = static_cast<std::uint8_t>(spelt[++at]);
      if ((second & 0xc0) != 0x80) return false;
      character = (character & 0x1f) << 6 | (second & 0x3f);
    }
    if (character < 0x100 && IsPrintable(character)) {
      *bytes += static_cast<char>(character);
    } else if (character >= kFirstOther && character < kFirstOther + kOthers) {
      *bytes += static_cast<char>(TheAlphabet().order[kPrintable + (character - kFirstOther)]);
    } else {
      return false;
    }
  }
  return true;
}

}  // namespace ropewalk::mlrunner
