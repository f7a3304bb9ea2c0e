// The floor of finding the distinct lengths of words, one a line.   floor_word_lengths INPUT OUTPUT
#include <set>

#include "bench/floors/floor.h"

int main(int argc, char** argv) {
  if (argc != 3) return std::fprintf(stderr, "usage: %s INPUT OUTPUT\n", argv[0]), 2;
  floors::Input input(argv[1]);
  struct Seen {
    std::uint64_t below_64 = 0;  // bit n: a word of n bytes was there
    std::set<std::size_t> others;
  };
  std::vector<Seen> seen(floors::ThreadCount());
  floors::Parallel(static_cast<int>(seen.size()), [&](int t) {
    Seen mine;
    std::string_view piece = input.Piece(t, static_cast<int>(seen.size()));
    const char *at = piece.data(), *end = at + piece.size();
    while (true) {
      while (at < end && floors::IsSpace(*at)) ++at;
      if (at == end) break;
      const char* begin = at;
      while (at < end && !floors::IsSpace(*at)) ++at;
      auto length = static_cast<std::size_t>(at - begin);
      if (length < 64)
        mine.below_64 |= std::uint64_t{1} << length;
      else
        mine.others.insert(length);
    }
    seen[t] = mine;
  });
  std::set<std::size_t> all;
  for (const Seen& part : seen) {
    all.insert(part.others.begin(), part.others.end());
    for (std::size_t n = 0; n < 64; ++n)
      if (part.below_64 >> n & 1) all.insert(n);
  }
  FILE* out = std::fopen(argv[2], "wb");
  if (out == nullptr) floors::Die(argv[2]);
  for (std::size_t n : all) std::fprintf(out, "%zu\n", n);
  if (std::fclose(out) != 0) floors::Die(argv[2]);
}
