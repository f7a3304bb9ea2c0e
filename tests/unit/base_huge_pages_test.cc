#include "base/huge_pages.h"

#include <gtest/gtest.h>

#include <cstring>
#include <new>
#include <string_view>

namespace ropewalk {
namespace {

TEST(HugePages, BuffersComeBackAndAreBounded) {
  HugePages pages(8 << 20);
  char* first;
  {
    HugeBuffer buffer = pages.Take(3 << 20);
    EXPECT_EQ(buffer.bytes(), 4u << 20);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.data()) % (2 << 20), 0u);
    EXPECT_EQ(pages.used_bytes(), 4u << 20);
    first = buffer.data();
    std::memset(first, 1, buffer.bytes());
  }
  EXPECT_EQ(pages.kept_bytes(), 4u << 20);
  HugeBuffer again = pages.Take(4 << 20);
  EXPECT_EQ(again.data(), first);
  std::memcpy(again.data(), "keep", 4);
  again.Grow(16 << 20, 4, pages);
  EXPECT_EQ(std::string_view(again.data(), 4), "keep");
  again = HugeBuffer();
  EXPECT_EQ(pages.used_bytes(), 0u);
  EXPECT_LE(pages.kept_bytes(), 8u << 20);  // 16 MiB went back to the system
  EXPECT_THROW((void)pages.Take(std::size_t(1) << 60), std::bad_alloc);
}

TEST(Arena, KeepsWhatLiesInItWhenItGrows) {
  HugePages pages;
  Arena arena(pages);
  std::size_t first = arena.OffsetOf(arena.Allocate(5));
  std::memcpy(arena.data() + first, "first", 5);
  for (int i = 0; i < 100; ++i) std::memset(arena.Allocate(100'001), i, 100'001);
  EXPECT_EQ(std::string_view(arena.data() + first, 5), "first");
  EXPECT_EQ(arena.used(), 8u + 100 * 100'008);
  arena.Reserve(1 << 20);
  char* at = arena.Allocate(8);
  for (int i = 1; i < 1 << 17; ++i) ASSERT_EQ(arena.Allocate(8), at + 8 * i) << "reserved room must not move";
  arena.Release();
  EXPECT_EQ(pages.used_bytes(), 0u);
}

}  // namespace
}  // namespace ropewalk
