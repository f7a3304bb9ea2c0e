// How WriteText writes a record: strings as they are; numbers in the shortest form that reads back; pairs and tuples with tabs between
// their members; vectors and the like with spaces; optional as its value or nothing; other types by their operator<<. A newline follows.
//
// How WriteRecords writes a record: text as its bytes, other types as the bytes of the object in memory; nothing follows.
//
// Thread rule: pure functions.
#pragma once

#include <array>
#include <charconv>
#include <concepts>
#include <iterator>
#include <optional>
#include <ostream>
#include <sstream>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

#include "dag/codec.h"

namespace ropewalk::dag {

namespace format_internal {
template <class T>
concept Tuplelike = requires { std::tuple_size<T>::value; } && !requires(const T& t) { t.begin(); };
template <class T>
concept Ranged = requires(const T& t) {
  t.begin();
  t.end();
};
template <class T>
concept Streamed = requires(std::ostream& out, const T& t) { out << t; };
template <class T>
inline constexpr bool kIsOptional = false;
template <class T>
inline constexpr bool kIsOptional<std::optional<T>> = true;
template <class T>
inline constexpr bool kAlwaysFalse = false;
template <class T>
inline constexpr bool kIsCharArray = false;
template <std::size_t n>
inline constexpr bool kIsCharArray<std::array<char, n>> = true;
}  // namespace format_internal

template <class T>
void FormatTo(std::string* out, const T& value) {
  using namespace format_internal;
  if constexpr (std::is_convertible_v<const T&, std::string_view>) {
    out->append(std::string_view(value));
  } else if constexpr (std::is_same_v<T, bool>) {
    out->append(value ? "true" : "false");
  } else if constexpr (std::is_same_v<T, char>) {
    out->push_back(value);
  } else if constexpr (std::is_arithmetic_v<T>) {
    char buffer[64];
    auto [end, error] = std::to_chars(buffer, buffer + sizeof(buffer), value);
    (void)error;  // 64 bytes hold every number
    out->append(buffer, end);
  } else if constexpr (kIsCharArray<T>) {
    out->append(value.data(), value.size());
  } else if constexpr (kIsOptional<T>) {
    if (value) FormatTo(out, *value);
  } else if constexpr (Streamed<T>) {
    std::ostringstream text;
    text << value;
    out->append(text.view());
  } else if constexpr (Tuplelike<T>) {
    [&]<std::size_t... i>(std::index_sequence<i...>) {
      ((i > 0 ? out->push_back('\t') : void(), FormatTo(out, std::get<i>(value))), ...);
    }(std::make_index_sequence<std::tuple_size<T>::value>());
  } else if constexpr (Ranged<T>) {
    bool first = true;
    for (const auto& element : value) {
      if (!std::exchange(first, false)) out->push_back(' ');
      FormatTo(out, element);
    }
  } else if constexpr (std::is_enum_v<T>) {
    FormatTo(out, +static_cast<std::underlying_type_t<T>>(value));
  } else {
    static_assert(kAlwaysFalse<T>, "WriteText cannot write this type: give it an operator<<, or Map it to a string or a pair first");
  }
}

// The bytes of a record of T, owned.
template <class T, class X>
void AppendBytes(std::string* out, const X& record) {
  static_assert(std::is_same_v<T, std::string> || kPlainBytes<T>,
                "WriteRecords writes std::string, and trivially copyable records without padding or pointers (std::array<char, 100>, "
                "std::uint64_t, packed structs): padding has no value, so the same records would give different files");
  if constexpr (std::is_same_v<T, std::string>) {
    out->append(std::string_view(record));
  } else {
    const T& value = record;
    out->append(reinterpret_cast<const char*>(&value), sizeof(T));
  }
}

}  // namespace ropewalk::dag
