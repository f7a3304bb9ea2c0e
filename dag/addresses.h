// Which types hold addresses: pointers, references and views of other memory. Their bytes mean nothing in another process, so a record must
// not be one, and a function that tasks run must not carry one.
//
// What can be seen at compile time: a pointer, reference, std::reference_wrapper, basic_string_view, span or initializer_list; an
// error_code, error_condition or type_index; a pair, tuple, array, optional, variant, vector, map or set of such; what std::bind bound; and
// an aggregate (a struct without constructors and private members) one of whose first 64 members or array elements, or bases, is such. What
// cannot be seen: captures of a lambda, private members of other classes, members that are `const T&`, what a union, std::function or a
// smart pointer hides, and what follows an anonymous union.
//
// Also which types hold a union, as far as that can be seen in the same way: which of its bytes are its value only its owner knows.
//
// Thread rule: nothing here runs.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <initializer_list>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <system_error>
#include <tuple>
#include <type_traits>
#include <typeindex>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <variant>
#include <vector>

#include "dag/members.h"

namespace ropewalk::dag {

template <class T>
constexpr bool HoldsAddress();
template <class T>
constexpr bool HoldsUnion();

namespace address_internal {

using member_internal::CountMembers;
using member_internal::kMembersMax;
using member_internal::kTakes;
using member_internal::kTakesList;

// Each initialises a member: of any type, but no `T&`; of a type that holds an address; of one that holds a union; of no type.
struct AnyValue {
  template <class U>
  operator U() const;
};
struct AnAddress {
  template <class U>
    requires(HoldsAddress<U>())
  operator U() const;
};
struct AUnion {
  template <class U>
    requires(HoldsUnion<U>())
  operator U() const;
};
struct Nothing {};

template <class T, std::size_t n, std::size_t i>
constexpr bool IsAddressAt() {
  using Before = std::make_index_sequence<i>;
  using After = std::make_index_sequence<n - 1 - i>;
  return !kTakes<T, Before, AnyValue, After> || (kTakes<T, Before, AnAddress, After> && !kTakes<T, Before, Nothing, After>);
}

template <class T>
constexpr bool InAggregate() {
  constexpr std::size_t n = CountMembers<T>();
  return []<std::size_t... i>(std::index_sequence<i...>) { return (IsAddressAt<T, n, i>() || ...); }(std::make_index_sequence<n>());
}

template <class T, std::size_t n, std::size_t i>
constexpr bool IsUnionAt() {
  using Before = std::make_index_sequence<i>;
  using After = std::make_index_sequence<n - 1 - i>;
  return kTakes<T, Before, AUnion, After> && !kTakes<T, Before, Nothing, After>;
}

template <class T>
constexpr bool UnionInAggregate() {
  constexpr std::size_t n = CountMembers<T, kMembersMax>();
  if constexpr (n < kMembersMax && kTakesList<T, std::make_index_sequence<n>, std::index_sequence<>>) {
    return true;  // a member that nothing initialises: an anonymous union
  } else {
    return []<std::size_t... i>(std::index_sequence<i...>) { return (IsUnionAt<T, n, i>() || ...); }(std::make_index_sequence<n>());
  }
}

// Views of other memory, and classes of the library that are known to keep an address privately.
template <class T>
inline constexpr bool kIsView = false;
template <class C, class Traits>
inline constexpr bool kIsView<std::basic_string_view<C, Traits>> = true;
template <class T, std::size_t n>
inline constexpr bool kIsView<std::span<T, n>> = true;
template <class T>
inline constexpr bool kIsView<std::reference_wrapper<T>> = true;
template <class T>
inline constexpr bool kIsView<std::initializer_list<T>> = true;
template <>
inline constexpr bool kIsView<std::error_code> = true;  // of its category
template <>
inline constexpr bool kIsView<std::error_condition> = true;
template <>
inline constexpr bool kIsView<std::type_index> = true;

// The types that a container or a bound function holds.
template <class T>
struct Held {
  static constexpr bool kAddress = false, kUnion = false, kKnown = false;
};
template <class... A>
struct HeldOf {
  static constexpr bool kAddress = (HoldsAddress<A>() || ...), kUnion = (HoldsUnion<A>() || ...), kKnown = true;
};
template <class A, class B>
struct Held<std::pair<A, B>> : HeldOf<A, B> {};
template <class... A>
struct Held<std::tuple<A...>> : HeldOf<A...> {};
template <class T, std::size_t n>
struct Held<std::array<T, n>> : HeldOf<T> {};
template <class T>
struct Held<std::optional<T>> : HeldOf<T> {};
template <class... A>
struct Held<std::variant<A...>> {
  static constexpr bool kAddress = (HoldsAddress<A>() || ...), kUnion = true, kKnown = true;
};
template <class T, class A>
struct Held<std::vector<T, A>> : HeldOf<T> {};
template <class K, class V, class... More>
struct Held<std::map<K, V, More...>> : HeldOf<K, V> {};
template <class K, class V, class... More>
struct Held<std::unordered_map<K, V, More...>> : HeldOf<K, V> {};
template <class K, class... More>
struct Held<std::set<K, More...>> : HeldOf<K> {};
template <class K, class... More>
struct Held<std::unordered_set<K, More...>> : HeldOf<K> {};
template <template <class> class Bind, class F, class... A>
  requires std::is_bind_expression_v<Bind<F(A...)>>
struct Held<Bind<F(A...)>> : HeldOf<A...> {};  // not of F: a bound function is no address of data

}  // namespace address_internal

template <class T>
constexpr bool HoldsAddress() {
  using U = std::remove_cv_t<T>;
  if constexpr (std::is_pointer_v<U> || std::is_reference_v<U> || address_internal::kIsView<U>) {
    return true;
  } else if constexpr (address_internal::Held<U>::kKnown) {
    return address_internal::Held<U>::kAddress;
  } else if constexpr (std::is_class_v<U> && std::is_aggregate_v<U> && !std::is_empty_v<U>) {
    return address_internal::InAggregate<U>();
  } else {
    return false;
  }
}

template <class T>
constexpr bool HoldsUnion() {
  using U = std::remove_cv_t<T>;
  if constexpr (std::is_union_v<U>) {
    return true;
  } else if constexpr (address_internal::Held<U>::kKnown) {
    return address_internal::Held<U>::kUnion;
  } else if constexpr (std::is_class_v<U> && std::is_aggregate_v<U> && !std::is_empty_v<U>) {
    return address_internal::UnionInAggregate<U>();
  } else {
    return false;
  }
}

}  // namespace ropewalk::dag
