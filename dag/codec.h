// How values of user types become bytes and come back.
//
// Codec<T> exists for: arithmetic types and enums; std::string; std::pair, tuple, array, vector, optional, map, set and their unordered
// kin; trivially copyable types without padding and pointers (their own bytes); aggregate structs (field by field, through Boost.PFR);
// other trivially copyable types without pointers (their own bytes with zeros as padding; as values only, since nobody can see whether
// their bytes are equal when they are: a C array in a struct, a base class, private floats; no unions and std::variants, since nobody can
// see which of their bytes are their value); and types with a codec of their own, which is two functions in the type's namespace:
//
//     void RopewalkEncode(const Point& point, ropewalk::ByteWriter& out);
//     void RopewalkDecode(ropewalk::ByteReader& in, Point& point);       // `in` holds exactly what was encoded; a short one gives zeros
//
// Three faces of a type:  T, what the user named;  Owned<T>, what may be kept (string_view becomes string);  View<T>, the flow type in
// which records travel between operators: strings inside pair, tuple and optional are string_views into the bytes they were read from,
// everything else is owned.
//
// Keys are compared and hashed as bytes, so WriteKey makes equal keys equal bytes: -0.0 becomes 0.0, every NaN the same one, unordered
// containers are written in the order of their bytes. Values keep their bits.
//
// Decoding never reads beyond its bytes and never throws: a ByteReader that is not ok() afterwards tells damage. It allocates no more than
// a small multiple of the bytes there are.
//
// Thread rule: values.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include <boost/pfr/core.hpp>

#include "base/bytes.h"
#include "base/status.h"
#include "dag/addresses.h"
#include "dag/members.h"

namespace ropewalk::dag {

// The value that takes no room: Distinct is an aggregation of Nothing, a sort of lines carries Nothing besides its key.
struct Nothing {
  friend constexpr bool operator==(Nothing, Nothing) { return true; }
  friend constexpr bool operator<(Nothing, Nothing) { return false; }
};

namespace codec_internal {

template <class T, template <class...> class Template>
inline constexpr bool kIs = false;
template <template <class...> class Template, class... A>
inline constexpr bool kIs<Template<A...>, Template> = true;

template <class T>
inline constexpr bool kIsArray = false;
template <class T, std::size_t n>
inline constexpr bool kIsArray<std::array<T, n>> = true;

template <class T>
inline constexpr bool kIsMap = kIs<T, std::map> || kIs<T, std::unordered_map>;
template <class T>
inline constexpr bool kIsSet = kIs<T, std::set> || kIs<T, std::unordered_set>;
template <class T>
inline constexpr bool kIsUnordered = kIs<T, std::unordered_map> || kIs<T, std::unordered_set>;
template <class T>
inline constexpr bool kIsTuple = kIs<T, std::pair> || kIs<T, std::tuple>;

template <class T>
concept HasUserCodec = requires(const T& from, T& to, ByteWriter& out, ByteReader& in) {
  RopewalkEncode(from, out);
  RopewalkDecode(in, to);
};

template <class T>
inline constexpr bool kIsString = std::is_same_v<T, std::string>;

// Its own bytes. Views of other memory, and structs that hold pointers or views, are trivially copyable too, and must not slip through.
template <class T>
constexpr bool IsRaw() {
  if constexpr (HasUserCodec<T>) {
    return false;
  } else if constexpr (std::is_class_v<T>) {
    if constexpr (std::is_trivially_copyable_v<T> && std::has_unique_object_representations_v<T> && !std::is_empty_v<T> && !kIsTuple<T> &&
                  !kIsArray<T> && !kIs<T, std::optional>) {
      return !HoldsAddress<T>() && !HoldsUnion<T>();
    } else {
      return false;
    }
  } else {
    return (std::is_arithmetic_v<T> && !std::is_same_v<T, long double>) || std::is_enum_v<T>;
  }
}
template <class T>
inline constexpr bool kIsRaw = IsRaw<T>();

// Field by field.
template <class T>
constexpr bool IsStruct() {
  if constexpr (HasUserCodec<T> || kIsRaw<T> || !std::is_class_v<T> || !std::is_aggregate_v<T> || kIsArray<T> ||
                std::is_same_v<T, Nothing>) {
    return false;
  } else {
    return member_internal::ComesApart<T>();
  }
}
template <class T>
inline constexpr bool kIsStruct = IsStruct<T>();

// Its bytes, with padding set to zero: what is trivially copyable and cannot be looked into.
template <class T>
constexpr bool IsPadded() {
  if constexpr (std::is_same_v<T, long double>) {
    return true;
  } else if constexpr (!std::is_class_v<T> || !std::is_trivially_copyable_v<T> || HasUserCodec<T> || kIsRaw<T> || kIsStruct<T> ||
                       kIsTuple<T> || kIsArray<T> || kIs<T, std::optional> || std::is_same_v<T, Nothing>) {
    return false;
  } else {
    return !HoldsAddress<T>() && !HoldsUnion<T>();
  }
}
template <class T>
inline constexpr bool kIsPadded = IsPadded<T>();

template <class T>
struct Storable;
template <class Tuple>
struct StorableMembers;
template <class... T>
struct StorableMembers<std::tuple<T...>> : std::bool_constant<(Storable<T>::value && ...)> {};
template <class A, class B>
struct StorableMembers<std::pair<A, B>> : std::bool_constant<Storable<A>::value && Storable<B>::value> {};

template <class T>
struct Storable {
  static constexpr bool Compute() {
    if constexpr (std::is_const_v<T> || std::is_reference_v<T> || std::is_pointer_v<T>) {
      return false;
    } else if constexpr (HasUserCodec<T> || kIsRaw<T> || kIsPadded<T> || kIsString<T> || std::is_same_v<T, Nothing>) {
      return true;
    } else if constexpr (kIsTuple<T>) {
      return StorableMembers<T>::value;
    } else if constexpr (kIsMap<T>) {
      return Storable<typename T::key_type>::value && Storable<typename T::mapped_type>::value;
    } else if constexpr (kIsSet<T> || kIsArray<T> || kIs<T, std::vector> || kIs<T, std::optional>) {
      return Storable<typename T::value_type>::value;
    } else if constexpr (kIsStruct<T>) {
      return StorableMembers<decltype(boost::pfr::structure_to_tuple(std::declval<const T&>()))>::value;
    } else {
      return false;
    }
  }
  static constexpr bool value = Compute();
};

// Whether equal values of the storable type can be told by their bytes.
template <class T>
constexpr bool IsKey();
template <class Tuple>
inline constexpr bool kKeyMembers = false;
template <class... M>
inline constexpr bool kKeyMembers<std::tuple<M...>> = (IsKey<M>() && ...);
template <class A, class B>
inline constexpr bool kKeyMembers<std::pair<A, B>> = IsKey<A>() && IsKey<B>();
template <class T>
constexpr bool IsKey() {
  if constexpr (kIsPadded<T>) {
    return std::is_same_v<T, long double>;
  } else if constexpr (HasUserCodec<T> || kIsRaw<T>) {
    return true;
  } else if constexpr (kIsTuple<T>) {
    return kKeyMembers<T>;
  } else if constexpr (kIsMap<T>) {
    return IsKey<typename T::key_type>() && IsKey<typename T::mapped_type>();
  } else if constexpr (kIsSet<T> || kIsArray<T> || kIs<T, std::vector> || kIs<T, std::optional>) {
    return IsKey<typename T::value_type>();
  } else if constexpr (kIsStruct<T>) {
    return kKeyMembers<decltype(boost::pfr::structure_to_tuple(std::declval<const T&>()))>;
  } else {
    return true;
  }
}

// Whether values of the type, and those inside it, can be made before they are read.
template <class T>
constexpr bool HasDefaults() {
  if constexpr (kIsMap<T>) {
    return HasDefaults<typename T::key_type>() && HasDefaults<typename T::mapped_type>();
  } else if constexpr (kIsSet<T> || kIs<T, std::vector> || kIs<T, std::optional>) {
    return HasDefaults<typename T::value_type>();
  } else {
    return std::is_default_constructible_v<T>;
  }
}
template <class T>
inline constexpr bool kHasDefaults = HasDefaults<T>();

// Bytes of an object that are its value and nothing else: no padding. Wider than kIsRaw by floats.
template <class T>
constexpr bool HasPlainBytes();
template <class Tuple>
inline constexpr bool kPlainMembers = false;
template <class... M>
inline constexpr bool kPlainMembers<std::tuple<M...>> = (HasPlainBytes<M>() && ...);
template <class Tuple>
inline constexpr std::size_t kMembersBytes = 0;
template <class... M>
inline constexpr std::size_t kMembersBytes<std::tuple<M...>> = (std::size_t(0) + ... + sizeof(M));
template <class T>
constexpr bool HasPlainBytes() {
  if constexpr (kIsRaw<T>) {
    return true;
  } else if constexpr (kIsArray<T>) {
    return HasPlainBytes<typename T::value_type>() && sizeof(T) == std::tuple_size_v<T> * sizeof(typename T::value_type);
  } else if constexpr (kIsStruct<T> && std::is_trivially_copyable_v<T> && !std::is_empty_v<T> && Storable<T>::value) {
    using Members = decltype(boost::pfr::structure_to_tuple(std::declval<const T&>()));
    return kPlainMembers<Members> && kMembersBytes<Members> == sizeof(T);
  } else {
    return false;
  }
}

template <class T>
struct OwnedOf {
  using type = T;
};
template <>
struct OwnedOf<std::string_view> {
  using type = std::string;
};
template <>
struct OwnedOf<const char*> {
  using type = std::string;
};
template <>
struct OwnedOf<char*> {
  using type = std::string;
};
template <class A, class B>
struct OwnedOf<std::pair<A, B>> {
  using type = std::pair<typename OwnedOf<std::remove_cv_t<A>>::type, typename OwnedOf<std::remove_cv_t<B>>::type>;
};
template <class... A>
struct OwnedOf<std::tuple<A...>> {
  using type = std::tuple<typename OwnedOf<std::remove_cv_t<A>>::type...>;
};
template <class T, class A>
struct OwnedOf<std::vector<T, A>> {
  using type = std::vector<typename OwnedOf<T>::type>;
};
template <class T>
struct OwnedOf<std::optional<T>> {
  using type = std::optional<typename OwnedOf<T>::type>;
};
template <class T, std::size_t n>
struct OwnedOf<std::array<T, n>> {
  using type = std::array<typename OwnedOf<T>::type, n>;
};

template <class T>
T CanonicalFloat(T x) {
  if (x == 0) return 0;
  return x == x ? x : std::numeric_limits<T>::quiet_NaN();
}

inline std::size_t VarintBytes(std::uint64_t n) { return n < 0x80 ? 1 : (std::bit_width(n) + 6) / 7; }
inline char* WriteVarint(std::uint64_t n, char* at) {
  for (; n >= 0x80; n >>= 7) *at++ = static_cast<char>(n | 0x80);
  *at++ = static_cast<char>(n);
  return at;
}

// memcpy for the short lengths that keys have: two overlapping moves instead of a call.
inline void CopyShort(char* to, const char* from, std::size_t n) {
  if (n > 32) {
    std::memcpy(to, from, n);
  } else if (n >= 16) {
    __builtin_memcpy(to, from, 16);
    __builtin_memcpy(to + n - 16, from + n - 16, 16);
  } else if (n >= 8) {
    std::uint64_t a, b;
    __builtin_memcpy(&a, from, 8);
    __builtin_memcpy(&b, from + n - 8, 8);
    __builtin_memcpy(to, &a, 8);
    __builtin_memcpy(to + n - 8, &b, 8);
  } else if (n >= 4) {
    std::uint32_t a, b;
    __builtin_memcpy(&a, from, 4);
    __builtin_memcpy(&b, from + n - 4, 4);
    __builtin_memcpy(to, &a, 4);
    __builtin_memcpy(to + n - 4, &b, 4);
  } else if (n > 0) {
    to[0] = from[0];
    to[n / 2] = from[n / 2];
    to[n - 1] = from[n - 1];
  }
}

// The same for lengths that lines have.
inline void CopyLine(char* to, const char* from, std::size_t n) {
  if (n <= 256)
    for (; n > 32; n -= 32, to += 32, from += 32) __builtin_memcpy(to, from, 32);
  CopyShort(to, from, n);
}

}  // namespace codec_internal

// True for the types that a dataset may hold.
template <class T>
concept Storable = codec_internal::Storable<T>::value;
// True for those of them that may be keys of a shuffle: equal ones have equal bytes.
template <class T>
inline constexpr bool kKey = codec_internal::IsKey<T>();
// True for those whose object in memory is nothing but their value: what WriteRecords writes.
template <class T>
inline constexpr bool kPlainBytes = codec_internal::HasPlainBytes<T>();

template <class T>
using Owned = typename codec_internal::OwnedOf<std::remove_cvref_t<T>>::type;

// What each Codec<T> has (X: T, its view, or what converts to it):
//   View                          the flow type of T
//   kFixed, kFixedBytes           every value takes the same number of bytes
//   kBytesMin                     the least number of bytes of a value
//   kKeyDiffers                   WriteKey may write other bytes than Write
//   Size(x)                       bytes that Write(x, ...) and WriteKey(x, ...) will write
//   Write(x, at), WriteKey(x, at) writes at `at`, returns the end
//   Skip(reader)                  reads over one value
//   Read(reader, View*)           a view into the reader's bytes
//   ReadOwned(reader, T*)         an owned value; reuses the room that *T has
//   Assign(T*, view)              an owned copy of a view; reuses the room that *T has
//   AddHeap(t, heap)              adds roughly what `t` holds besides sizeof(T); a function of the value only
//   kHeapDeep                     AddHeap looks at every element of a container
struct Heap {
  std::size_t bytes = 0;
  std::size_t visits = 0;  // elements that were looked at
};

template <class T>
struct Codec {
  static_assert(
      codec_internal::Storable<T>::value,
      "Ropewalk cannot store this type in a dataset. It takes arithmetic types, enums, std::string, pair, tuple, array, vector, "
      "optional, map, set, structs whose members are all of these kinds and public, other trivially copyable types, and types "
      "with RopewalkEncode and RopewalkDecode. Pointers, references and string_view members are refused: keep a std::string, or an index; "
      "unions and std::variant are refused, since nobody can see which member is in use: write RopewalkEncode and RopewalkDecode.");
};

template <class T>
using View = typename Codec<Owned<T>>::View;

template <class T>
  requires codec_internal::kIsRaw<T>
struct Codec<T> {
  using View = T;
  static constexpr bool kFixed = true;
  static constexpr std::size_t kFixedBytes = sizeof(T), kBytesMin = sizeof(T);
  static constexpr bool kKeyDiffers = std::is_floating_point_v<T>;
  template <class X>
  static constexpr std::size_t Size(const X&) {
    return sizeof(T);
  }
  static char* Write(const T& x, char* at) {
    std::memcpy(at, &x, sizeof(T));
    return at + sizeof(T);
  }
  static char* WriteKey(const T& x, char* at) {
    if constexpr (kKeyDiffers) {
      return Write(codec_internal::CanonicalFloat(x), at);
    } else {
      return Write(x, at);
    }
  }
  static void Skip(ByteReader& in) { in.Raw(sizeof(T)); }
  static void Read(ByteReader& in, T* x) {
    if constexpr (std::is_same_v<T, bool>) {
      *x = in.Fixed<std::uint8_t>() != 0;  // a damaged byte must not make a bool that is neither
    } else {
      std::string_view bytes = in.Raw(sizeof(T));
      if (bytes.size() == sizeof(T)) std::memcpy(static_cast<void*>(x), bytes.data(), sizeof(T));
    }
  }
  static void ReadOwned(ByteReader& in, T* x) { Read(in, x); }
  static void Assign(T* to, const T& from) { *to = from; }
  static constexpr bool kHeapDeep = false;
  static void AddHeap(const T&, Heap*) {}
};

template <class T>
  requires codec_internal::kIsPadded<T>
struct Codec<T> {
  using View = T;
  static constexpr bool kFixed = true;
  static constexpr std::size_t kFixedBytes = sizeof(T), kBytesMin = sizeof(T);
  static constexpr bool kKeyDiffers = std::is_floating_point_v<T>;
  template <class X>
  static constexpr std::size_t Size(const X&) {
    return sizeof(T);
  }
  static char* Write(const T& x, char* at) {
    // What padding holds is an accident: two attempts of a task would write different bytes.
    alignas(T) char bytes[sizeof(T)];
    std::memcpy(bytes, static_cast<const void*>(&x), sizeof(T));
#if __has_builtin(__builtin_clear_padding)
    __builtin_clear_padding(reinterpret_cast<T*>(bytes));
#endif
    std::memcpy(at, bytes, sizeof(T));
    return at + sizeof(T);
  }
  static char* WriteKey(const T& x, char* at) {
    if constexpr (kKeyDiffers) {
      return Write(codec_internal::CanonicalFloat(x), at);
    } else {
      return Write(x, at);
    }
  }
  static void Skip(ByteReader& in) { in.Raw(sizeof(T)); }
  static void Read(ByteReader& in, T* x) {
    std::string_view bytes = in.Raw(sizeof(T));
    if (bytes.size() == sizeof(T)) std::memcpy(static_cast<void*>(x), bytes.data(), sizeof(T));
  }
  static void ReadOwned(ByteReader& in, T* x) { Read(in, x); }
  static void Assign(T* to, const T& from) { *to = from; }
  static constexpr bool kHeapDeep = false;
  static void AddHeap(const T&, Heap*) {}
};

template <>
struct Codec<Nothing> {
  using View = Nothing;
  static constexpr bool kFixed = true;
  static constexpr std::size_t kFixedBytes = 0, kBytesMin = 0;
  static constexpr bool kKeyDiffers = false;
  static constexpr std::size_t Size(Nothing) { return 0; }
  static char* Write(Nothing, char* at) { return at; }
  static char* WriteKey(Nothing, char* at) { return at; }
  static void Skip(ByteReader&) {}
  static void Read(ByteReader&, Nothing*) {}
  static void ReadOwned(ByteReader&, Nothing*) {}
  static void Assign(Nothing*, Nothing) {}
  static constexpr bool kHeapDeep = false;
  static void AddHeap(Nothing, Heap*) {}
};

template <>
struct Codec<std::string> {
  using View = std::string_view;
  static constexpr bool kFixed = false;
  static constexpr std::size_t kFixedBytes = 0, kBytesMin = 1;
  static constexpr bool kKeyDiffers = false;
  static std::size_t Size(std::string_view x) { return codec_internal::VarintBytes(x.size()) + x.size(); }
  static char* Write(std::string_view x, char* at) {
    at = codec_internal::WriteVarint(x.size(), at);
    codec_internal::CopyShort(at, x.data(), x.size());
    return at + x.size();
  }
  static char* WriteKey(std::string_view x, char* at) { return Write(x, at); }
  static void Skip(ByteReader& in) { in.Sized(); }
  static void Read(ByteReader& in, std::string_view* x) { *x = in.Sized(); }
  static void ReadOwned(ByteReader& in, std::string* x) { x->assign(in.Sized()); }
  static void Assign(std::string* to, std::string_view from) { to->assign(from); }
  static constexpr bool kHeapDeep = false;
  static void AddHeap(const std::string& x, Heap* heap) { heap->bytes += x.size(); }
};

namespace codec_internal {

// Members one after another: pair, tuple.
template <class T, class V, class... M>
struct TupleCodec {
  using View = V;
  static constexpr bool kFixed = (Codec<M>::kFixed && ...);
  static constexpr std::size_t kFixedBytes = kFixed ? (std::size_t(0) + ... + Codec<M>::kFixedBytes) : 0;
  static constexpr std::size_t kBytesMin = (std::size_t(0) + ... + Codec<M>::kBytesMin);
  static constexpr bool kKeyDiffers = (Codec<M>::kKeyDiffers || ...);
  using Indices = std::index_sequence_for<M...>;

  template <class X>
  static std::size_t Size(const X& x) {
    if constexpr (kFixed) return kFixedBytes;
    return Fold(Indices(),
                [&]<std::size_t... i>(std::index_sequence<i...>) { return (std::size_t(0) + ... + Codec<M>::Size(std::get<i>(x))); });
  }
  template <class X>
  static char* Write(const X& x, char* at) {
    return Fold(Indices(), [&]<std::size_t... i>(std::index_sequence<i...>) {
      ((at = Codec<M>::Write(std::get<i>(x), at)), ...);
      return at;
    });
  }
  template <class X>
  static char* WriteKey(const X& x, char* at) {
    return Fold(Indices(), [&]<std::size_t... i>(std::index_sequence<i...>) {
      ((at = Codec<M>::WriteKey(std::get<i>(x), at)), ...);
      return at;
    });
  }
  static void Skip(ByteReader& in) { (Codec<M>::Skip(in), ...); }
  static void Read(ByteReader& in, V* x) {
    Fold(Indices(), [&]<std::size_t... i>(std::index_sequence<i...>) { (Codec<M>::Read(in, &std::get<i>(*x)), ...); });
  }
  static void ReadOwned(ByteReader& in, T* x) {
    Fold(Indices(), [&]<std::size_t... i>(std::index_sequence<i...>) { (Codec<M>::ReadOwned(in, &std::get<i>(*x)), ...); });
  }
  static void Assign(T* to, const V& from) {
    Fold(Indices(), [&]<std::size_t... i>(std::index_sequence<i...>) { (Codec<M>::Assign(&std::get<i>(*to), std::get<i>(from)), ...); });
  }
  static constexpr bool kHeapDeep = (Codec<M>::kHeapDeep || ...);
  static void AddHeap(const T& x, Heap* heap) {
    Fold(Indices(), [&]<std::size_t... i>(std::index_sequence<i...>) { (Codec<M>::AddHeap(std::get<i>(x), heap), ...); });
  }

 private:
  template <class I, class F>
  static decltype(auto) Fold(I indices, F f) {
    return f(indices);
  }
};

// What containers and structs share: their view is the owned value itself.
template <class T, class Derived>
struct OwnedCodec {
  using View = T;
  static constexpr bool kFixed = false;
  static constexpr std::size_t kFixedBytes = 0, kBytesMin = 1;
  static void Read(ByteReader& in, T* x) { Derived::ReadOwned(in, x); }
  static void Assign(T* to, const T& from) { *to = from; }
};

// How many elements of at least `bytes_min` may still follow; more is damage.
inline std::size_t CountOf(ByteReader& in, std::size_t bytes_min) {
  std::uint64_t n = in.Varint();
  std::uint64_t n_max = bytes_min > 0 ? in.remaining() / bytes_min : std::uint64_t(1) << 30;
  if (n > n_max) {
    in.Raw(in.remaining() + 1);  // marks the reader as failed
    return 0;
  }
  return static_cast<std::size_t>(n);
}

}  // namespace codec_internal

template <class A, class B>
  requires(Storable<A> && Storable<B>)
struct Codec<std::pair<A, B>>
    : codec_internal::TupleCodec<std::pair<A, B>, std::pair<typename Codec<A>::View, typename Codec<B>::View>, A, B> {};

template <class... A>
  requires(Storable<A> && ...)
struct Codec<std::tuple<A...>> : codec_internal::TupleCodec<std::tuple<A...>, std::tuple<typename Codec<A>::View...>, A...> {};

template <class T>
  requires Storable<T>
struct Codec<std::optional<T>> {
  using View = std::optional<typename Codec<T>::View>;
  static constexpr bool kFixed = false;
  static constexpr std::size_t kFixedBytes = 0, kBytesMin = 1;
  static constexpr bool kKeyDiffers = Codec<T>::kKeyDiffers;
  template <class X>
  static std::size_t Size(const X& x) {
    return x ? 1 + Codec<T>::Size(*x) : 1;
  }
  template <class X>
  static char* Write(const X& x, char* at) {
    *at++ = x ? 1 : 0;
    return x ? Codec<T>::Write(*x, at) : at;
  }
  template <class X>
  static char* WriteKey(const X& x, char* at) {
    *at++ = x ? 1 : 0;
    return x ? Codec<T>::WriteKey(*x, at) : at;
  }
  static void Skip(ByteReader& in) {
    if (in.Fixed<std::uint8_t>() != 0) Codec<T>::Skip(in);
  }
  static void Read(ByteReader& in, View* x) {
    if (in.Fixed<std::uint8_t>() == 0) return x->reset();
    if (!*x) x->emplace();
    Codec<T>::Read(in, &**x);
  }
  static void ReadOwned(ByteReader& in, std::optional<T>* x) {
    if (in.Fixed<std::uint8_t>() == 0) return x->reset();
    if (!*x) x->emplace();
    Codec<T>::ReadOwned(in, &**x);
  }
  static void Assign(std::optional<T>* to, const View& from) {
    if (!from) return to->reset();
    if (!*to) to->emplace();
    Codec<T>::Assign(&**to, *from);
  }
  static constexpr bool kHeapDeep = Codec<T>::kHeapDeep;
  static void AddHeap(const std::optional<T>& x, Heap* heap) {
    if (x) Codec<T>::AddHeap(*x, heap);
  }
};

template <class T, std::size_t n>
  requires Storable<T>
struct Codec<std::array<T, n>> : codec_internal::OwnedCodec<std::array<T, n>, Codec<std::array<T, n>>> {
  using Array = std::array<T, n>;
  static constexpr bool kFixed = Codec<T>::kFixed;
  static constexpr std::size_t kFixedBytes = n * Codec<T>::kFixedBytes, kBytesMin = n * Codec<T>::kBytesMin;
  static constexpr bool kKeyDiffers = Codec<T>::kKeyDiffers;
  static std::size_t Size(const Array& x) {
    if constexpr (kFixed) return kFixedBytes;
    std::size_t bytes = 0;
    for (const T& e : x) bytes += Codec<T>::Size(e);
    return bytes;
  }
  static char* Write(const Array& x, char* at) {
    for (const T& e : x) at = Codec<T>::Write(e, at);
    return at;
  }
  static char* WriteKey(const Array& x, char* at) {
    for (const T& e : x) at = Codec<T>::WriteKey(e, at);
    return at;
  }
  static void Skip(ByteReader& in) {
    for (std::size_t i = 0; i < n; ++i) Codec<T>::Skip(in);
  }
  static void ReadOwned(ByteReader& in, Array* x) {
    for (T& e : *x) Codec<T>::ReadOwned(in, &e);
  }
  static constexpr bool kHeapDeep = Codec<T>::kHeapDeep;
  static void AddHeap(const Array& x, Heap* heap) {
    if constexpr (!Codec<T>::kFixed)
      for (const T& e : x) Codec<T>::AddHeap(e, heap);
  }
};

template <class T, class A>
  requires Storable<T>
struct Codec<std::vector<T, A>> : codec_internal::OwnedCodec<std::vector<T, A>, Codec<std::vector<T, A>>> {
  using Vector = std::vector<T, A>;
  static constexpr bool kBulk = codec_internal::kIsRaw<T> && !std::is_same_v<T, bool>;  // one copy for all elements
  static constexpr bool kKeyDiffers = Codec<T>::kKeyDiffers;
  static std::size_t Size(const Vector& x) {
    std::size_t bytes = codec_internal::VarintBytes(x.size());
    if constexpr (Codec<T>::kFixed) return bytes + x.size() * Codec<T>::kFixedBytes;
    for (const auto& e : x) bytes += Codec<T>::Size(e);
    return bytes;
  }
  static char* Write(const Vector& x, char* at) {
    at = codec_internal::WriteVarint(x.size(), at);
    if constexpr (kBulk) {
      if (!x.empty()) std::memcpy(at, x.data(), x.size() * sizeof(T));
      return at + x.size() * sizeof(T);
    } else {
      for (const auto& e : x) at = Codec<T>::Write(e, at);
      return at;
    }
  }
  static char* WriteKey(const Vector& x, char* at) {
    if constexpr (!kKeyDiffers) return Write(x, at);
    at = codec_internal::WriteVarint(x.size(), at);
    for (const auto& e : x) at = Codec<T>::WriteKey(e, at);
    return at;
  }
  static void Skip(ByteReader& in) {
    std::size_t n = codec_internal::CountOf(in, Codec<T>::kBytesMin);
    if constexpr (Codec<T>::kFixed) {
      in.Raw(n * Codec<T>::kFixedBytes);
    } else {
      for (; n > 0 && in.ok(); --n) Codec<T>::Skip(in);
    }
  }
  static void ReadOwned(ByteReader& in, Vector* x) {
    std::size_t n = codec_internal::CountOf(in, Codec<T>::kBytesMin);
    if constexpr (kBulk) {
      std::string_view bytes = in.Raw(n * sizeof(T));
      x->resize(bytes.size() / sizeof(T));
      if (!bytes.empty()) std::memcpy(static_cast<void*>(x->data()), bytes.data(), bytes.size());
    } else if constexpr (std::is_same_v<T, bool>) {
      x->clear();
      for (; n > 0 && in.ok(); --n) x->push_back(in.Fixed<std::uint8_t>() != 0);
    } else {
      // Element by element, so that a damaged count cannot ask for more than what follows it can fill.
      if (x->size() > n) x->resize(n);
      for (std::size_t i = 0; i < n && in.ok(); ++i) {
        if (i == x->size()) x->emplace_back();
        Codec<T>::ReadOwned(in, &(*x)[i]);
      }
    }
  }
  static constexpr bool kHeapDeep = !Codec<T>::kFixed;
  static void AddHeap(const Vector& x, Heap* heap) {
    heap->bytes += x.size() * sizeof(T);
    if constexpr (kHeapDeep) {
      heap->visits += x.size();
      for (const T& e : x) Codec<T>::AddHeap(e, heap);
    }
  }
};

template <class T>
  requires((codec_internal::kIsMap<T> || codec_internal::kIsSet<T>) && codec_internal::Storable<T>::value)
struct Codec<T> : codec_internal::OwnedCodec<T, Codec<T>> {
  static constexpr bool kMap = codec_internal::kIsMap<T>;
  using Key = typename T::key_type;
  static constexpr bool MappedKeyDiffers() {
    if constexpr (kMap) return Codec<typename T::mapped_type>::kKeyDiffers;
    return false;
  }
  static constexpr bool kKeyDiffers = Codec<Key>::kKeyDiffers || MappedKeyDiffers();

  static std::size_t Size(const T& x) {
    std::size_t bytes = codec_internal::VarintBytes(x.size());
    for (const auto& e : x) bytes += ElementSize(e);
    return bytes;
  }
  static char* Write(const T& x, char* at) { return WriteAll<false>(x, at); }
  static char* WriteKey(const T& x, char* at) { return WriteAll<true>(x, at); }
  static void Skip(ByteReader& in) {
    std::size_t n = codec_internal::CountOf(in, Codec<Key>::kBytesMin);
    for (; n > 0 && in.ok(); --n) {
      Codec<Key>::Skip(in);
      if constexpr (kMap) Codec<typename T::mapped_type>::Skip(in);
    }
  }
  static void ReadOwned(ByteReader& in, T* x) {
    x->clear();
    std::size_t n = codec_internal::CountOf(in, Codec<Key>::kBytesMin);
    for (; n > 0 && in.ok(); --n) {
      Key key{};
      Codec<Key>::ReadOwned(in, &key);
      if constexpr (kMap) {
        typename T::mapped_type value{};
        Codec<typename T::mapped_type>::ReadOwned(in, &value);
        if (in.ok()) x->insert_or_assign(std::move(key), std::move(value));
      } else if (in.ok()) {
        x->insert(std::move(key));
      }
    }
  }
  static constexpr bool MappedFixed() {
    if constexpr (kMap) return Codec<typename T::mapped_type>::kFixed;
    return true;
  }
  static constexpr bool kHeapDeep = !(Codec<Key>::kFixed && MappedFixed());
  static void AddHeap(const T& x, Heap* heap) {
    heap->bytes += x.size() * (sizeof(typename T::value_type) + 48);
    if constexpr (kHeapDeep) {
      heap->visits += x.size();
      for (const auto& e : x) {
        if constexpr (kMap) {
          Codec<Key>::AddHeap(e.first, heap);
          Codec<typename T::mapped_type>::AddHeap(e.second, heap);
        } else {
          Codec<Key>::AddHeap(e, heap);
        }
      }
    }
  }

 private:
  static std::size_t ElementSize(const typename T::value_type& e) {
    if constexpr (kMap) {
      return Codec<Key>::Size(e.first) + Codec<typename T::mapped_type>::Size(e.second);
    } else {
      return Codec<Key>::Size(e);
    }
  }
  template <bool kAsKey>
  static char* WriteElement(const typename T::value_type& e, char* at) {
    if constexpr (kMap) {
      using Mapped = Codec<typename T::mapped_type>;
      at = kAsKey ? Codec<Key>::WriteKey(e.first, at) : Codec<Key>::Write(e.first, at);
      return kAsKey ? Mapped::WriteKey(e.second, at) : Mapped::Write(e.second, at);
    } else {
      return kAsKey ? Codec<Key>::WriteKey(e, at) : Codec<Key>::Write(e, at);
    }
  }
  template <bool kAsKey>
  static char* WriteAll(const T& x, char* at) {
    at = codec_internal::WriteVarint(x.size(), at);
    if constexpr (!codec_internal::kIsUnordered<T>) {
      for (const auto& e : x) at = WriteElement<kAsKey>(e, at);
      return at;
    } else {
      // The order of an unordered container is an accident of its history; bytes must be a function of the value.
      char* const begin = at;
      std::vector<std::size_t> ends;
      ends.reserve(x.size());
      for (const auto& e : x) ends.push_back(static_cast<std::size_t>((at = WriteElement<kAsKey>(e, at)) - begin));
      const std::string written(begin, at);
      std::vector<std::string_view> elements;
      elements.reserve(ends.size());
      for (std::size_t from = 0; std::size_t end : ends) {
        elements.push_back(std::string_view(written).substr(from, end - from));
        from = end;
      }
      std::sort(elements.begin(), elements.end());
      at = begin;
      for (std::string_view e : elements) {
        codec_internal::CopyShort(at, e.data(), e.size());
        at += e.size();
      }
      return at;
    }
  }
};

namespace codec_internal {

template <class T, class Tuple>
struct StructCodec;
template <class T, class... M>
struct StructCodec<T, std::tuple<M...>> : OwnedCodec<T, StructCodec<T, std::tuple<M...>>> {
  static constexpr bool kFixed = (Codec<M>::kFixed && ...);
  static constexpr std::size_t kFixedBytes = kFixed ? (std::size_t(0) + ... + Codec<M>::kFixedBytes) : 0;
  static constexpr std::size_t kBytesMin = (std::size_t(0) + ... + Codec<M>::kBytesMin);
  static constexpr bool kKeyDiffers = (Codec<M>::kKeyDiffers || ...);
  static std::size_t Size(const T& x) {
    if constexpr (kFixed) return kFixedBytes;
    std::size_t bytes = 0;
    boost::pfr::for_each_field(x, [&]<class F>(const F& field) { bytes += Codec<F>::Size(field); });
    return bytes;
  }
  static char* Write(const T& x, char* at) {
    boost::pfr::for_each_field(x, [&]<class F>(const F& field) { at = Codec<F>::Write(field, at); });
    return at;
  }
  static char* WriteKey(const T& x, char* at) {
    boost::pfr::for_each_field(x, [&]<class F>(const F& field) { at = Codec<F>::WriteKey(field, at); });
    return at;
  }
  static void Skip(ByteReader& in) { (Codec<M>::Skip(in), ...); }
  static void ReadOwned(ByteReader& in, T* x) {
    boost::pfr::for_each_field(*x, [&]<class F>(F& field) { Codec<F>::ReadOwned(in, &field); });
  }
  static constexpr bool kHeapDeep = (Codec<M>::kHeapDeep || ...);
  static void AddHeap(const T& x, Heap* heap) {
    boost::pfr::for_each_field(x, [&]<class F>(const F& field) { Codec<F>::AddHeap(field, heap); });
  }
};

}  // namespace codec_internal

template <class T>
  requires(codec_internal::kIsStruct<T> && codec_internal::Storable<T>::value)
struct Codec<T> : codec_internal::StructCodec<T, decltype(boost::pfr::structure_to_tuple(std::declval<const T&>()))> {};

namespace codec_internal {
// What this thread's Size() calls of users' codecs have encoded for the Write() calls that follow, by the address of the value.
inline std::unordered_map<const void*, std::string>& Encoded() {
  thread_local std::unordered_map<const void*, std::string> encoded;
  return encoded;
}
}  // namespace codec_internal

// A user's own codec: its bytes behind their length, so that they can be skipped. Each value is encoded once: a codec that gives more bytes
// the second time would write beyond the room that was made for the first.
template <class T>
  requires codec_internal::HasUserCodec<T>
struct Codec<T> : codec_internal::OwnedCodec<T, Codec<T>> {
  static constexpr bool kKeyDiffers = false;  // the author of the codec answers for "equal keys, equal bytes"
  static std::size_t Size(const T& x) {
    std::string bytes = Bytes(x);
    std::size_t size = Codec<std::string>::Size(bytes);
    codec_internal::Encoded()[&x] = std::move(bytes);
    return size;
  }
  static char* Write(const T& x, char* at) {
    auto encoded = codec_internal::Encoded().extract(&x);
    if (encoded.empty()) throw std::logic_error("a value with a codec of its own is written without having been measured");
    return Codec<std::string>::Write(encoded.mapped(), at);
  }
  static char* WriteKey(const T& x, char* at) { return Write(x, at); }
  static void Skip(ByteReader& in) { in.Sized(); }
  static void ReadOwned(ByteReader& in, T* x) {
    ByteReader own(in.Sized());
    if (in.ok()) RopewalkDecode(own, *x);
    if (!own.ok()) in.Raw(in.remaining() + 1);
  }
  static constexpr bool kHeapDeep = true;
  static void AddHeap(const T& x, Heap* heap) {
    const std::size_t bytes = Bytes(x).size();
    heap->bytes += bytes;
    heap->visits += 1 + bytes / 16;
  }

 private:
  static std::string Bytes(const T& x) {
    std::string bytes;
    ByteWriter writer(&bytes);
    RopewalkEncode(x, writer);
    return bytes;
  }
};

// Whole values at once, for places where speed does not matter: results, broadcasts, tests.
template <class T, class X>
void EncodeTo(const X& x, std::string* out) {
  std::size_t before = out->size();
  out->resize(before + Codec<T>::Size(x));
  Codec<T>::Write(x, out->data() + before);
}
template <class T, class X>
std::string Encode(const X& x) {
  std::string out;
  EncodeTo<T>(x, &out);
  return out;
}
template <class T, class X>
std::string EncodeKey(const X& x) {
  std::string out(Codec<T>::Size(x), '\0');
  Codec<T>::WriteKey(x, out.data());
  return out;
}
// kDataLoss (CODEC01) when `bytes` is not exactly one value.
template <class T>
Result<T> Decode(std::string_view bytes) {
  ByteReader in(bytes);
  T value{};
  Codec<T>::ReadOwned(in, &value);
  if (!in.ok() || !in.empty()) {
    return Status(Code::kDataLoss, "CODEC01", "a stored value of " + std::to_string(bytes.size()) + " bytes is damaged",
                  "its bytes do not decode", "run the producer again");
  }
  return value;
}

}  // namespace ropewalk::dag
