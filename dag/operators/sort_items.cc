#include "dag/operators/sort_items.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string_view>
#include <vector>

#include "dag/operators/order.h"

namespace ropewalk::dag {
namespace {

constexpr std::size_t kCompareMax = 96;  // fewer items than these are sorted by comparing

// An object, which std::sort inlines as it does not a function.
struct Less {
  bool operator()(const SortItem& a, const SortItem& b) const { return a.prefix != b.prefix ? a.prefix < b.prefix : a.place < b.place; }
};

// Sorts `items`; the result is left in `other` when `to_other`, else in `items`: each level of the radix moves the items from one array to
// the other.
void SortBetween(SortItem* items, std::size_t count, SortItem* other, bool to_other);

template <int kBits>
void Radix(SortItem* items, std::size_t count, SortItem* other, bool to_other, int shift) {
  constexpr std::size_t kBuckets = std::size_t(1) << kBits;
  std::size_t begin[kBuckets + 1] = {};
  auto digit = [&](const SortItem& item) { return (item.prefix >> shift) & (kBuckets - 1); };
  for (std::size_t i = 0; i < count; ++i) ++begin[digit(items[i]) + 1];
  for (std::size_t b = 0; b < kBuckets; ++b) begin[b + 1] += begin[b];
  std::size_t at[kBuckets];
  std::copy_n(begin, kBuckets, at);
  for (std::size_t i = 0; i < count; ++i) other[at[digit(items[i])]++] = items[i];
  if (shift == 0) {
    if (!to_other) std::memcpy(items, other, count * sizeof(SortItem));
    return;
  }
  for (std::size_t b = 0; b < kBuckets; ++b) SortBetween(other + begin[b], begin[b + 1] - begin[b], items + begin[b], !to_other);
}

void SortBetween(SortItem* items, std::size_t count, SortItem* other, bool to_other) {
  if (count > kCompareMax) {
    std::uint64_t differs = 0;
    for (std::size_t i = 1; i < count; ++i) differs |= items[i].prefix ^ items[0].prefix;
    if (differs != 0) {
      int bits = std::bit_width(differs);
      return count < 4096 ? Radix<8>(items, count, other, to_other, std::max(0, bits - 8))
                          : Radix<11>(items, count, other, to_other, std::max(0, bits - 11));
    }
    // The order of places, as it came.
  } else if (count > 1) {
    std::sort(items, items + count, Less());
  }
  if (to_other && count > 0) std::memcpy(other, items, count * sizeof(SortItem));
}

std::string_view KeyAt(const SortArena& records, const SortItem& item) {
  const char* at = records.At(item.offset());
  std::uint64_t size = 0;
  for (int shift = 0;; shift += 7) {
    auto byte = static_cast<unsigned char>(*at++);
    size |= std::uint64_t(byte & 0x7f) << shift;
    if (byte < 0x80) return {at, size};
  }
}

struct Group {
  std::size_t begin, count;
  std::size_t depth;  // bytes that all keys of the group share, zeros behind their ends included
};

// The groups of equal prefixes among sorted items.
void PushGroups(const SortItem* items, std::size_t begin, std::size_t count, std::size_t depth, std::vector<Group>* groups) {
  for (std::size_t i = 0; i < count;) {
    std::size_t j = i + 1;
    while (j < count && items[begin + j].prefix == items[begin + i].prefix) ++j;
    if (j - i > 1) groups->push_back({begin + i, j - i, depth});
    i = j;
  }
}

}  // namespace

void SortItems(SortItem* items, std::size_t count, SortItem* scratch) { SortBetween(items, count, scratch, false); }

void SortByteTies(SortItem* items, std::size_t count, SortItem* scratch, const SortArena& records, bool descending) {
  std::vector<Group> groups;  // a stack of our own: keys may share millions of bytes
  PushGroups(items, 0, count, 8, &groups);
  while (!groups.empty()) {
    Group g = groups.back();
    groups.pop_back();
    SortItem* first = items + g.begin;
    if (g.count <= kCompareMax) {
      std::sort(first, first + g.count, [&](const SortItem& a, const SortItem& b) {
        std::string_view x = KeyAt(records, a), y = KeyAt(records, b);
        std::size_t skip = std::min({g.depth, x.size(), y.size()});
        int c = x.substr(skip).compare(y.substr(skip));
        // One key ended inside what they share (zeros): it is the lesser one, or they are equal.
        if (skip < g.depth && x.size() != y.size()) c = x.size() < y.size() ? -1 : 1;
        if (c != 0) return descending ? c > 0 : c < 0;
        return a.place < b.place;
      });
      continue;
    }
    // Keys that have ended: they differ by their length only, and lie before (descending: behind) all longer ones.
    std::size_t ended = 0, longer = 0;
    std::vector<SortItem> ends;
    for (std::size_t i = 0; i < g.count; ++i) {
      if (i + 8 < g.count) __builtin_prefetch(records.At(first[i + 8].offset()));
      std::string_view key = KeyAt(records, first[i]);
      if (key.size() <= g.depth) {
        ends.push_back({descending ? g.depth - key.size() : key.size(), first[i].place});
        ++ended;
      } else {
        std::uint64_t prefix = BytePrefix(key, g.depth);
        scratch[longer++] = {descending ? ~prefix : prefix, first[i].place};
      }
    }
    std::sort(ends.begin(), ends.end(), Less());
    SortItem* to_longer = descending ? first : first + ended;
    std::copy_n(scratch, longer, to_longer);
    std::copy(ends.begin(), ends.end(), descending ? first + longer : first);
    SortItems(to_longer, longer, scratch);
    PushGroups(items, static_cast<std::size_t>(to_longer - items), longer, g.depth + 8, &groups);
  }
}

void SortTies(SortItem* items, std::size_t count, const void* context, SortItemLess less) {
  for (std::size_t i = 0; i < count;) {
    std::size_t j = i + 1;
    while (j < count && items[j].prefix == items[i].prefix) ++j;
    if (j - i > 1) {
      std::stable_sort(items + i, items + j, [&](const SortItem& a, const SortItem& b) { return less(context, a, b); });
    }
    i = j;
  }
}

}  // namespace ropewalk::dag
