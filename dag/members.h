// What a struct is made of, as far as the compiler can be asked: how many initialisers it takes, and whether Boost.PFR can take it apart
// into members that can be named and referred to one by one. PFR itself cannot be asked: where it fails, compilation ends.
//
// It fails for C arrays (their elements look like members), base classes, anonymous unions and bit-fields. Bit-fields are found in structs
// of up to 16 members; in longer ones the compiler's error names them.
//
// Thread rule: nothing here runs.
#pragma once

#include <cstddef>
#include <tuple>
#include <type_traits>
#include <utility>

#include <boost/pfr/core.hpp>

namespace ropewalk::dag::member_internal {

// Each initialises a member: of any type, also a reference; of a class; a base of T.
struct AnyValueOrReference {
  template <class U>
  operator U&() const;
};
struct AnyClass {
  template <class U>
    requires(std::is_class_v<U>)
  operator U() const;
};
template <class T>
struct AnyBase {
  template <class U>
    requires(std::is_base_of_v<U, T> && !std::is_same_v<U, T>)
  operator U&() const;
};

template <std::size_t>
using Filler = AnyValueOrReference;

template <class T, class Before, class Probe, class After>
inline constexpr bool kTakes = false;
template <class T, std::size_t... before, class Probe, std::size_t... after>
  requires requires { T{Filler<before>()..., Probe(), Filler<after>()...}; }
inline constexpr bool kTakes<T, std::index_sequence<before...>, Probe, std::index_sequence<after...>> = true;

// The same with a list in place of one initialiser: an array takes all its elements from there, any other member is one all the same.
template <class T, class Before, class After>
inline constexpr bool kTakesList = false;
template <class T, std::size_t... before, std::size_t... after>
  requires(
              requires { T{Filler<before>()..., {}, Filler<after>()...}; } ||
              requires { T{Filler<before>()..., {AnyClass()}, Filler<after>()...}; })
inline constexpr bool kTakesList<T, std::index_sequence<before...>, std::index_sequence<after...>> = true;

inline constexpr std::size_t kMembersMax = 64;

// How many initialisers the aggregate takes, elements of arrays counted one by one; an anonymous union ends the count.
template <class T, std::size_t n = (sizeof(T) < kMembersMax ? sizeof(T) : kMembersMax)>
constexpr std::size_t CountMembers() {
  if constexpr (n == 0) {
    return 0;
  } else if constexpr (kTakes<T, std::make_index_sequence<n - 1>, AnyValueOrReference, std::index_sequence<>>) {
    return n;
  } else {
    return CountMembers<T, n - 1>();
  }
}

template <class T, std::size_t n, std::size_t i>
constexpr bool IsArrayAt() {
  return !kTakesList<T, std::make_index_sequence<i>, std::make_index_sequence<n - 1 - i>>;
}

template <class... M>
void TakeReferences(M&...);

// Whether there is a reference to each of the n members: there is none to a bit-field. A std::bool_constant.
#define ROPEWALK_REFERS_TO(...)                                             \
  {                                                                         \
    [[maybe_unused]] auto& [__VA_ARGS__] = t;                               \
    return std::bool_constant<requires { TakeReferences(__VA_ARGS__); }>(); \
  }
template <std::size_t n, class T>
auto RefersToMembers(T& t) {
  if constexpr (n == 1)
    ROPEWALK_REFERS_TO(a)
  else if constexpr (n == 2)
    ROPEWALK_REFERS_TO(a, b)
  else if constexpr (n == 3)
    ROPEWALK_REFERS_TO(a, b, c)
  else if constexpr (n == 4)
    ROPEWALK_REFERS_TO(a, b, c, d)
  else if constexpr (n == 5)
    ROPEWALK_REFERS_TO(a, b, c, d, e)
  else if constexpr (n == 6)
    ROPEWALK_REFERS_TO(a, b, c, d, e, f)
  else if constexpr (n == 7)
    ROPEWALK_REFERS_TO(a, b, c, d, e, f, g)
  else if constexpr (n == 8)
    ROPEWALK_REFERS_TO(a, b, c, d, e, f, g, h)
  else if constexpr (n == 9)
    ROPEWALK_REFERS_TO(a, b, c, d, e, f, g, h, i)
  else if constexpr (n == 10)
    ROPEWALK_REFERS_TO(a, b, c, d, e, f, g, h, i, j)
  else if constexpr (n == 11)
    ROPEWALK_REFERS_TO(a, b, c, d, e, f, g, h, i, j, k)
  else if constexpr (n == 12)
    ROPEWALK_REFERS_TO(a, b, c, d, e, f, g, h, i, j, k, l)
  else if constexpr (n == 13)
    ROPEWALK_REFERS_TO(a, b, c, d, e, f, g, h, i, j, k, l, m)
  else if constexpr (n == 14)
    ROPEWALK_REFERS_TO(a, b, c, d, e, f, g, h, i, j, k, l, m, o)
  else if constexpr (n == 15)
    ROPEWALK_REFERS_TO(a, b, c, d, e, f, g, h, i, j, k, l, m, o, p)
  else if constexpr (n == 16)
    ROPEWALK_REFERS_TO(a, b, c, d, e, f, g, h, i, j, k, l, m, o, p, q)
  else
    return std::true_type();
}
#undef ROPEWALK_REFERS_TO

template <class Members>
inline constexpr bool kHasArray = false;
template <class... M>
inline constexpr bool kHasArray<std::tuple<M&...>> = (std::is_array_v<M> || ...);

// Whether PFR can take the aggregate apart.
template <class T>
constexpr bool ComesApart() {
  constexpr std::size_t n = CountMembers<T>();
  if constexpr (n == 0) {
    return std::is_empty_v<T>;
  } else if constexpr (kTakes<T, std::index_sequence<>, AnyBase<T>, std::make_index_sequence<n - 1>>) {
    return false;
  } else if constexpr (n < kMembersMax && kTakesList<T, std::make_index_sequence<n>, std::index_sequence<>>) {
    return false;  // a member that nothing initialises, which is an anonymous union; or more members than bytes, which are bit-fields
  } else if constexpr ([]<std::size_t... i>(std::index_sequence<i...>) {
                         return (IsArrayAt<T, n, i>() || ...);
                       }(std::make_index_sequence<n>())) {
    return false;
  } else if constexpr (!decltype(RefersToMembers<n>(std::declval<T&>()))::value) {
    return false;
  } else {
    return !kHasArray<decltype(boost::pfr::structure_tie(std::declval<T&>()))>;  // of one element: it looks like that element
  }
}

}  // namespace ropewalk::dag::member_internal
