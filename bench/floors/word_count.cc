// The floor of word count.   floor_word_count INPUT OUTPUT
#include "bench/floors/floor.h"

int main(int argc, char** argv) {
  if (argc != 3) return std::fprintf(stderr, "usage: %s INPUT OUTPUT\n", argv[0]), 2;
  floors::Input input(argv[1]);
  std::vector<floors::CountTable<std::string_view>> tables(floors::ThreadCount());
  floors::Parallel(static_cast<int>(tables.size()), [&](int t) {
    floors::BatchedCounter<std::string_view> counter(&tables[t]);
    std::string_view piece = input.Piece(t, static_cast<int>(tables.size()));
    const char *at = piece.data(), *end = at + piece.size();
    while (true) {
      while (at < end && floors::IsSpace(*at)) ++at;
      if (at == end) break;
      const char* begin = at;
      std::uint64_t hash = 0x9ae16a3b2f90404full;
      for (; at < end && !floors::IsSpace(*at); ++at) hash = (hash ^ static_cast<unsigned char>(*at)) * 0x100000001b3ull;
      counter.Add(floors::Spread(hash), std::string_view(begin, static_cast<std::size_t>(at - begin)));
    }
  });
  floors::MergeAndWrite(tables, argv[2], [](const auto& slot, std::string* out) {
    out->append(slot.key);
    floors::AppendCount(slot.count, out);
  });
}
