// Words: a word is a maximal run of bytes that are not ASCII white space (space, \t, \n, \v, \f, \r). The one definition for the built-in
// jobs, the examples and user programs.
//
// Thread rule: values.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string_view>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace ropewalk {

namespace text_internal {

inline constexpr std::array<bool, 256> kSpace = [] {
  std::array<bool, 256> table{};
  for (unsigned char c : {' ', '\t', '\n', '\v', '\f', '\r'}) table[c] = true;
  return table;
}();

inline bool IsSpace(char c) { return kSpace[static_cast<unsigned char>(c)]; }

inline const char* SkipSpace(const char* at, const char* end) {
  while (at != end && IsSpace(*at)) ++at;
  return at;
}

// The end of the word that begins at `at`. Most words are short, so the table goes first; 16 bytes at a time follow for long ones.
inline const char* WordEnd(const char* at, const char* end) {
  const char* table_end = end - at > 16 ? at + 16 : end;
  while (at != table_end) {
    if (IsSpace(*at)) return at;
    ++at;
  }
#if defined(__SSE2__)
  const __m128i space = _mm_set1_epi8(' '), tab = _mm_set1_epi8('\t'), four = _mm_set1_epi8(4);
  while (end - at >= 16) {
    __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
    // \t..\r are five neighbours: (byte - '\t') as unsigned is at most 4.
    __m128i offset = _mm_sub_epi8(bytes, tab);
    __m128i control = _mm_cmpeq_epi8(_mm_min_epu8(offset, four), offset);
    int mask = _mm_movemask_epi8(_mm_or_si128(control, _mm_cmpeq_epi8(bytes, space)));
    if (mask != 0) return at + __builtin_ctz(static_cast<unsigned>(mask));
    at += 16;
  }
#endif
  while (at != end && !IsSpace(*at)) ++at;
  return at;
}

}  // namespace text_internal

// Calls `fn(std::string_view word)` for each word of `text`, in order.
template <class Fn>
inline void ForEachWord(std::string_view text, Fn&& fn) {
  const char* at = text.data();
  const char* end = at + text.size();
  while ((at = text_internal::SkipSpace(at, end)) != end) {
    const char* begin = at;
    at = text_internal::WordEnd(at, end);
    fn(std::string_view(begin, static_cast<std::size_t>(at - begin)));
  }
}

// The words of a text as a lazy range of views into it: `for (std::string_view word : Words(line))`, `lines.FlatMap(Words)`.
class WordRange {
 public:
  class Iterator {
   public:
    using value_type = std::string_view;
    using difference_type = std::ptrdiff_t;
    using iterator_category = std::input_iterator_tag;
    using pointer = const std::string_view*;
    using reference = std::string_view;
    Iterator() = default;
    Iterator(const char* at, const char* end) : end_(end) { Find(at); }
    std::string_view operator*() const { return {begin_, static_cast<std::size_t>(word_end_ - begin_)}; }
    Iterator& operator++() {
      Find(word_end_);
      return *this;
    }
    Iterator operator++(int) {
      Iterator before = *this;
      ++*this;
      return before;
    }
    friend bool operator==(const Iterator& a, const Iterator& b) { return a.begin_ == b.begin_; }

   private:
    void Find(const char* at) {
      begin_ = text_internal::SkipSpace(at, end_);
      word_end_ = begin_ == end_ ? end_ : text_internal::WordEnd(begin_, end_);
    }
    const char* begin_ = nullptr;
    const char* word_end_ = nullptr;
    const char* end_ = nullptr;
  };
  explicit WordRange(std::string_view text) : text_(text) {}
  Iterator begin() const { return Iterator(text_.data(), text_.data() + text_.size()); }
  Iterator end() const { return Iterator(text_.data() + text_.size(), text_.data() + text_.size()); }

 private:
  std::string_view text_;
};

struct WordsFunction {
  WordRange operator()(std::string_view text) const { return WordRange(text); }
};
inline constexpr WordsFunction Words;  // an object, so that it can be handed to FlatMap as it is

}  // namespace ropewalk
