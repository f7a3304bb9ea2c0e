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

bool Less(const SortItem& a, const SortItem& b) { return a.prefix != b.prefix ? a.prefix < b.prefix : a.place < b.place; }

template <int kBits>
void Radix(SortItem* items, std::size_t count, SortItem* scratch, int shift) {
  constexpr std::size_t kBuckets = std::size_t(1) << kBits;
  std::size_t begin[kBuckets + 1] = {};
  auto digit = [&](const SortItem& item) { return (item.prefix >> shift) & (kBuckets - 1); };
  for (std::size_t i = 0; i < count; ++i) ++begin[digit(items[i]) + 1];
  for (std::size_t b = 0; b < kBuckets; ++b) begin[b + 1] += begin[b];
  std::size_t at[kBuckets];
  std::copy_n(begin, kBuckets, at);
  for (std::size_t i = 0; i < count; ++i) scratch[at[digit(items[i])]++] = items[i];
  std::memcpy(items, scratch, count * sizeof(SortItem));
  if (shift == 0) return;
  for (std::size_t b = 0; b < kBuckets; ++b) {
    std::size_t n = begin[b + 1] - begin[b];
    if (n > 1) SortItems(items + begin[b], n, scratch + begin[b]);
  }
}

std::string_view KeyAt(const char* base, const SortItem& item) {
  const char* at = base + item.offset();
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

void SortItems(SortItem* items, std::size_t count, SortItem* scratch) {
  if (count <= kCompareMax) {
    std::sort(items, items + count, Less);
    return;
  }
  std::uint64_t differs = 0;
  for (std::size_t i = 1; i < count; ++i) differs |= items[i].prefix ^ items[0].prefix;
  if (differs == 0) return;  // the order of places, as it came
  int bits = std::bit_width(differs);
  if (count < 4096) {
    Radix<8>(items, count, scratch, std::max(0, bits - 8));
  } else {
    Radix<11>(items, count, scratch, std::max(0, bits - 11));
  }
}

void SortByteTies(SortItem* items, std::size_t count, SortItem* scratch, const char* base, bool descending) {
  std::vector<Group> groups;  // a stack of our own: keys may share millions of bytes
  PushGroups(items, 0, count, 8, &groups);
  while (!groups.empty()) {
    Group g = groups.back();
    groups.pop_back();
    SortItem* first = items + g.begin;
    if (g.count <= kCompareMax) {
      std::sort(first, first + g.count, [&](const SortItem& a, const SortItem& b) {
        std::string_view x = KeyAt(base, a), y = KeyAt(base, b);
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
      if (i + 8 < g.count) __builtin_prefetch(base + first[i + 8].offset());
      std::string_view key = KeyAt(base, first[i]);
      if (key.size() <= g.depth) {
        ends.push_back({descending ? g.depth - key.size() : key.size(), first[i].place});
        ++ended;
      } else {
        std::uint64_t prefix = BytePrefix(key, g.depth);
        scratch[longer++] = {descending ? ~prefix : prefix, first[i].place};
      }
    }
    std::sort(ends.begin(), ends.end(), Less);
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
