// GPT-2's cut of texts into words: known answers, and a slow scanner of characters whose classes are known.
#include "mlrunner/data/words.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/unit/data_random_text.h"

namespace ropewalk::mlrunner {
namespace {

using testing::Character;
using testing::CharacterClass;

std::vector<std::string> Cut(std::string_view text) {
  Words words;
  std::vector<std::string> cut;
  while (!text.empty()) {
    const std::size_t bytes = words.FirstOf(text);
    EXPECT_GE(bytes, 1u);
    EXPECT_LE(bytes, text.size());
    if (bytes < 1 || bytes > text.size()) return cut;
    cut.emplace_back(text.substr(0, bytes));
    text.remove_prefix(bytes);
  }
  return cut;
}

TEST(Words, AreGpt2s) {
  using Expected = std::vector<std::string>;
  EXPECT_EQ(Cut("Hello world"), (Expected{"Hello", " world"}));
  EXPECT_EQ(Cut("it's, we'll I'd they've you're I'm don't"),
            (Expected{"it", "'s", ",", " we", "'ll", " I", "'d", " they", "'ve", " you", "'re", " I", "'m", " don", "'t"}));
  EXPECT_EQ(Cut("IT'S"), (Expected{"IT", "'", "S"})) << "contractions are lower case";
  EXPECT_EQ(Cut(" 's 'x"), (Expected{" '", "s", " '", "x"})) << "a space takes the apostrophe with it";
  EXPECT_EQ(Cut("'stop"), (Expected{"'s", "top"}));
  EXPECT_EQ(Cut("x2y 34 $5.00"), (Expected{"x", "2", "y", " 34", " $", "5", ".", "00"}));
  EXPECT_EQ(Cut("a  b"), (Expected{"a", " ", " b"}));
  EXPECT_EQ(Cut("a \n\n b"), (Expected{"a", " \n\n", " b"}));
  EXPECT_EQ(Cut("a\n\nb"), (Expected{"a", "\n", "\n", "b"}));
  EXPECT_EQ(Cut("a\nb"), (Expected{"a", "\n", "b"}));
  EXPECT_EQ(Cut("a \t "), (Expected{"a", " \t "})) << "at the end all of them";
  EXPECT_EQ(Cut(" "), Expected{" "});
  EXPECT_EQ(Cut(""), Expected{});
  // Not only ASCII: a no-break space is a space and no ' ', an accent of its own is no letter, superscripts are numbers.
  EXPECT_EQ(Cut("a\u00a0b"), (Expected{"a", "\u00a0", "b"}));
  EXPECT_EQ(Cut("a \u3000b"), (Expected{"a", " ", "\u3000", "b"}));
  EXPECT_EQ(Cut("caf\u00e9 cafe\u0301"), (Expected{"caf\u00e9", " cafe", "\u0301"}));
  EXPECT_EQ(Cut("m\u00b2 \u2167"), (Expected{"m", "\u00b2", " \u2167"}));
  EXPECT_EQ(Cut("\u65e5\u672c\u8a9e\u3002 \U0001f600!"), (Expected{"\u65e5\u672c\u8a9e", "\u3002", " \U0001f600!"}));
  EXPECT_EQ(Cut("\x1c\v\x85 x"), (Expected{"\x1c", "\v", "\x85", " x"}))
      << "U+001C is no space to Unicode, U+000B is; 85 alone is no UTF-8";
}

// The regular expression by hand, one alternative after the other.
std::size_t SlowFirst(const std::vector<Character>& text, std::size_t at) {
  auto kind = [&](std::size_t i) { return text[i].kind; };
  for (const char* contraction : {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"}) {
    std::size_t i = 0;
    while (contraction[i] != 0 && at + i < text.size() && text[at + i].utf8 == std::string(1, contraction[i])) ++i;
    if (contraction[i] == 0) return i;
  }
  for (CharacterClass wanted : {CharacterClass::kLetter, CharacterClass::kNumber, CharacterClass::kOther}) {
    for (std::size_t skipped : {1, 0}) {  // ` ?` is greedy
      if (skipped == 1 && text[at].utf8 != " ") continue;
      std::size_t end = at + skipped;
      while (end < text.size() && kind(end) == wanted) ++end;
      if (end > at + skipped) return end - at;
    }
  }
  std::size_t end = at;
  while (end < text.size() && kind(end) == CharacterClass::kSpace) ++end;
  return end == text.size() || end - at == 1 ? end - at : end - at - 1;
}

TEST(Words, AreThoseOfASlowScanner) {
  const std::uint64_t seed = ::testing::UnitTest::GetInstance()->random_seed() + 11;
  SCOPED_TRACE("seed " + std::to_string(seed));
  Random random(seed);
  for (int round = 0; round < 400; ++round) {
    const std::vector<Character> characters = testing::RandomCharacters(random, random.Below(120));
    std::vector<std::string> expected;
    for (std::size_t at = 0; at < characters.size();) {
      const std::size_t count = SlowFirst(characters, at);
      std::string word;
      for (std::size_t i = 0; i < count; ++i) word += characters[at + i].utf8;
      expected.push_back(word);
      at += count;
    }
    ASSERT_EQ(Cut(testing::TextOf(characters)), expected) << testing::TextOf(characters);
  }
}

TEST(Words, AnyBytesAreTheSumOfTheirWords) {
  const std::uint64_t seed = ::testing::UnitTest::GetInstance()->random_seed() + 12;
  SCOPED_TRACE("seed " + std::to_string(seed));
  Random random(seed);
  for (int round = 0; round < 300; ++round) {
    const std::string bytes = testing::RandomBytes(random, random.Below(200));
    std::string sum;
    for (const std::string& word : Cut(bytes)) sum += word;
    ASSERT_EQ(sum, bytes);
  }
}

TEST(Words, AnEndlessOneIsCut) {
  for (const char* piece : {"a", " ", "\u00e9", "\xff", "!"}) {
    std::string text;
    while (text.size() < Words::kBytesMax + 1000) text += piece;
    std::size_t longest = 0, sum = 0;
    Words words;
    for (std::string_view rest = text; !rest.empty() && sum < 3 * Words::kBytesMax;) {
      const std::size_t bytes = words.FirstOf(rest);
      longest = std::max(longest, bytes);
      sum += bytes;
      rest.remove_prefix(bytes);
      if (bytes == 1 && sum > 100) return;  // bytes that are no characters
    }
    EXPECT_EQ(sum, text.size());
    EXPECT_LE(longest, Words::kBytesMax);
    EXPECT_GE(longest, Words::kBytesMax - 1);
  }
}

}  // namespace
}  // namespace ropewalk::mlrunner
