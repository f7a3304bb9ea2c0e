// GPT-2's cut of a text into words, across which no byte pairs are merged (Radford et al. 2019; the regular expression of its encoder):
//
//   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
//
//   "it's  2 ropes"  ▸  it | 's | ␣ | ␣2 | ␣ropes
//
// Thread rule: may be used by many threads at once.
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>

namespace re2 {
class RE2;
}

namespace ropewalk::mlrunner {

class Words {
 public:
  // A longer word is cut here, so that what one word costs is bounded.
  static constexpr std::size_t kBytesMax = std::size_t{1} << 20;

  Words();
  ~Words();

  // How many bytes the first word of `text` has, which is not empty: 1 to kBytesMax. A byte that begins no character of UTF-8 is a word of
  // its own, so that every text is the sum of its words.
  std::size_t FirstOf(std::string_view text) const;

 private:
  std::unique_ptr<re2::RE2> word_, space_;
};

}  // namespace ropewalk::mlrunner
