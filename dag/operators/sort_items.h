// Sorting what stands for records: an order-preserving prefix and the record's place. Knows no user type, so it is compiled once.
//
// Thread rule: pure functions on the caller's memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "dag/operators/sort_arena.h"

namespace ropewalk::dag {

// One record in a buffer of fewer than 2^40 bytes. Records are appended, so the order of places is the order of arrival.
struct SortItem {
  static constexpr std::uint64_t kSizeBits = 24, kLong = (1u << kSizeBits) - 1;
  std::uint64_t prefix;
  std::uint64_t place;  // offset << 24 | size; size kLong: at least that long, to be read from the record itself
  std::uint64_t offset() const { return place >> kSizeBits; }
  std::uint64_t size() const { return place & kLong; }
  static std::uint64_t Place(std::uint64_t offset, std::uint64_t size) { return offset << kSizeBits | (size < kLong ? size : kLong); }
};

// By (prefix, place). `items` must be in the order of places; `scratch` has room for as many. Radix from the highest bit that differs.
void SortItems(SortItem* items, std::size_t count, SortItem* scratch);

// Items whose prefixes are the first eight bytes of their keys (complemented when `descending`), sorted by SortItems: orders those with
// equal prefixes by the rest of their keys, then by place. A record begins with its key as Codec<std::string> writes it.
// Prefixes are spoiled.
void SortByteTies(SortItem* items, std::size_t count, SortItem* scratch, const SortArena& records, bool descending);

// Items sorted by SortItems: orders those with equal prefixes by `less(context, a, b)`, then by place. The caller's type is behind a
// pointer, because sorting code is long and there are many types.
using SortItemLess = bool (*)(const void* context, const SortItem& a, const SortItem& b);
void SortTies(SortItem* items, std::size_t count, const void* context, SortItemLess less);

}  // namespace ropewalk::dag
