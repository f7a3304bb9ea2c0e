// Orders of keys: for each a 64-bit prefix that settles most comparisons without touching the key, and a full three-way comparison.
//
//   NaturalOrder<K>      numbers by value (-0.0 equals 0.0, NaN comes last), strings by their bytes as LC_ALL=C does, pair, tuple, struct,
//                        array
//                        and vector member by member, an empty optional first; a type with its own operator< by that
//   Descending<O>        the reverse of O
//   LessOrder<K, Less>   what the user's Less says
//
// For a ≤ b always Prefix(a) ≤ Prefix(b). kExact: equal prefixes mean equal keys. kBytes: keys are strings compared as bytes.
//
// Thread rule: values; Compare may be called from one thread at a time.
#pragma once

#include <bit>
#include <compare>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <type_traits>
#include <utility>

#include "dag/codec.h"
#include "dag/members.h"

namespace ropewalk::dag {

// The eight bytes of `s` from `skip` on as a big-endian number, zeros behind its end.
inline std::uint64_t BytePrefix(std::string_view s, std::size_t skip = 0) {
  if (s.size() >= skip + 8) [[likely]] {
    std::uint64_t word;
    std::memcpy(&word, s.data() + skip, 8);
    return __builtin_bswap64(word);
  }
  std::uint64_t word = 0;
  for (std::size_t i = skip; i < s.size(); ++i) word |= std::uint64_t(static_cast<unsigned char>(s[i])) << (56 - 8 * (i - skip));
  return word;
}

namespace order_internal {

template <class V>
concept HasLess = requires(const V& a, const V& b) {
  { a < b } -> std::convertible_to<bool>;
};

template <class V>
inline constexpr bool kIsMembers = codec_internal::kIsTuple<V>;

template <class V>
constexpr bool OrderedByMembers() {
  if constexpr (std::is_class_v<V> && std::is_aggregate_v<V>) {
    return member_internal::ComesApart<V>();
  } else {
    return false;
  }
}
template <class V>
inline constexpr bool kOrderedByMembers = OrderedByMembers<V>();

// Three-way comparison of two views of the same type.
template <class V>
int Compare(const V& a, const V& b) {
  if constexpr (std::is_floating_point_v<V>) {
    if (a < b) return -1;
    if (a > b) return 1;
    if (a == b) return 0;
    return int(a != a) - int(b != b);  // NaN behind all numbers
  } else if constexpr (std::is_arithmetic_v<V> || std::is_enum_v<V>) {
    return a < b ? -1 : b < a ? 1 : 0;
  } else if constexpr (std::is_convertible_v<const V&, std::string_view>) {
    std::string_view x = a, y = b;
    int c = std::memcmp(x.data(), y.data(), std::min(x.size(), y.size()));
    return c != 0 ? c : x.size() < y.size() ? -1 : x.size() > y.size() ? 1 : 0;
  } else if constexpr (kIsMembers<V>) {
    return [&]<std::size_t... i>(std::index_sequence<i...>) {
      int c = 0;
      (void)(((c = Compare(std::get<i>(a), std::get<i>(b))) != 0) || ...);
      return c;
    }(std::make_index_sequence<std::tuple_size_v<V>>());
  } else if constexpr (codec_internal::kIs<V, std::optional>) {
    if (!a || !b) return int(bool(a)) - int(bool(b));
    return Compare(*a, *b);
  } else if constexpr (codec_internal::kIs<V, std::vector> || codec_internal::kIsArray<V>) {
    for (std::size_t i = 0; i < a.size() && i < b.size(); ++i)
      if (int c = Compare<typename V::value_type>(a[i], b[i]); c != 0) return c;
    return a.size() < b.size() ? -1 : a.size() > b.size() ? 1 : 0;
  } else if constexpr (HasLess<V>) {
    return a < b ? -1 : b < a ? 1 : 0;
  } else if constexpr (kOrderedByMembers<V>) {
    return Compare(boost::pfr::structure_tie(a), boost::pfr::structure_tie(b));
  } else {
    static_assert(kOrderedByMembers<V>, "Ropewalk cannot order this type: give it an operator<, or sort by a key that has one");
    return 0;
  }
}
template <class... M>
int Compare(const std::tuple<const M&...>& a, const std::tuple<const M&...>& b) {
  return [&]<std::size_t... i>(std::index_sequence<i...>) {
    int c = 0;
    (void)(((c = Compare<M>(std::get<i>(a), std::get<i>(b))) != 0) || ...);
    return c;
  }(std::index_sequence_for<M...>());
}

// Prefixes are left-aligned: kBits of them are used.
template <class V>
struct PrefixOf {
  static constexpr int kBits = 0;
  static constexpr bool kExact = false;
  static std::uint64_t Get(const V&) { return 0; }
};
template <class V>
  requires(std::is_integral_v<V> || std::is_enum_v<V>)
struct PrefixOf<V> {
  static constexpr int kBits = 8 * sizeof(V);
  static constexpr bool kExact = true;
  static std::uint64_t Get(V v) {
    std::uint64_t bits;
    bool is_signed;
    if constexpr (std::is_enum_v<V>) {
      bits = static_cast<std::uint64_t>(static_cast<std::underlying_type_t<V>>(v));
      is_signed = std::is_signed_v<std::underlying_type_t<V>>;
    } else {
      bits = static_cast<std::uint64_t>(v);
      is_signed = std::is_signed_v<V>;
    }
    bits <<= 64 - kBits;
    return is_signed ? bits ^ (std::uint64_t(1) << 63) : bits;
  }
};
template <class V>
  requires(std::is_floating_point_v<V> && sizeof(V) <= 8)
struct PrefixOf<V> {
  static constexpr int kBits = 8 * sizeof(V);
  static constexpr bool kExact = true;
  static std::uint64_t Get(V v) {
    using Bits = std::conditional_t<sizeof(V) == 4, std::uint32_t, std::uint64_t>;
    std::uint64_t bits = std::uint64_t(std::bit_cast<Bits>(codec_internal::CanonicalFloat(v))) << (64 - kBits);
    std::uint64_t used = ~std::uint64_t(0) << (64 - kBits);
    return bits >> 63 ? ~bits & used : bits | (std::uint64_t(1) << 63);
  }
};
template <>
struct PrefixOf<std::string_view> {
  static constexpr int kBits = 64;
  static constexpr bool kExact = false;
  static std::uint64_t Get(std::string_view v) { return BytePrefix(v); }
};
template <class V>
  requires kIsMembers<V>
struct PrefixOf<V> {
  template <std::size_t i>
  using Member = PrefixOf<std::tuple_element_t<i, V>>;
  static constexpr std::size_t kSize = std::tuple_size_v<V>;
  // Members follow one another as long as each is exact and there are bits left.
  template <std::size_t i, int used>
  static constexpr int Bits() {
    if constexpr (i == kSize || used >= 64) {
      return std::min(used, 64);
    } else if constexpr (!Member<i>::kExact) {
      return std::min(used + Member<i>::kBits, 64);
    } else {
      return Bits<i + 1, used + Member<i>::kBits>();
    }
  }
  template <std::size_t i, int used>
  static constexpr bool Exact() {
    if constexpr (i == kSize) {
      return used <= 64;
    } else {
      return Member<i>::kExact && Exact<i + 1, used + Member<i>::kBits>();
    }
  }
  static constexpr int kBits = Bits<0, 0>();
  static constexpr bool kExact = Exact<0, 0>();
  template <std::size_t i, int used>
  static std::uint64_t GetFrom(const V& v) {
    if constexpr (i == kSize || used >= 64) {
      return 0;
    } else {
      std::uint64_t prefix = Member<i>::Get(std::get<i>(v)) >> used;
      if constexpr (Member<i>::kExact) prefix |= GetFrom<i + 1, used + Member<i>::kBits>(v);
      return prefix;
    }
  }
  static std::uint64_t Get(const V& v) { return GetFrom<0, 0>(v); }
};

}  // namespace order_internal

template <class K>
struct NaturalOrder {
  using Key = View<K>;
  static constexpr bool kBytes = std::is_same_v<Key, std::string_view>;
  static constexpr bool kExact = order_internal::PrefixOf<Key>::kExact;
  static constexpr bool kDescending = false;
  std::uint64_t Prefix(const Key& key) const { return order_internal::PrefixOf<Key>::Get(key); }
  int Compare(const Key& a, const Key& b) const { return order_internal::Compare<Key>(a, b); }
};

template <class O>
struct Descending {
  using Key = typename O::Key;
  static constexpr bool kBytes = O::kBytes;
  static constexpr bool kExact = O::kExact;
  static constexpr bool kDescending = !O::kDescending;
  O order{};
  std::uint64_t Prefix(const Key& key) const { return ~order.Prefix(key); }
  int Compare(const Key& a, const Key& b) const { return order.Compare(b, a); }
};

// `less` may take views or owned keys.
template <class K, class Less>
struct LessOrder {
  using Key = View<K>;
  static constexpr bool kBytes = false, kExact = false, kDescending = false;
  Less less{};
  std::uint64_t Prefix(const Key&) const { return 0; }
  int Compare(const Key& a, const Key& b) const {
    if constexpr (std::is_invocable_r_v<bool, const Less&, const Key&, const Key&>) {
      return less(a, b) ? -1 : less(b, a) ? 1 : 0;
    } else {
      K x{}, y{};
      Codec<K>::Assign(&x, a);
      Codec<K>::Assign(&y, b);
      return less(std::as_const(x), std::as_const(y)) ? -1 : less(std::as_const(y), std::as_const(x)) ? 1 : 0;
    }
  }
};

}  // namespace ropewalk::dag
