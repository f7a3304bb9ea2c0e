// The floor of counting pairs of neighbouring words within a line: FIRST<TAB>SECOND<TAB>COUNT.   floor_bigrams INPUT OUTPUT
#include "bench/floors/floor.h"

namespace {

struct Pair {
  std::string_view first, second;
  bool operator==(const Pair&) const = default;
};

Pair Keep(const Pair& pair, floors::Arena* arena) { return {arena->Copy(pair.first), arena->Copy(pair.second)}; }

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return std::fprintf(stderr, "usage: %s INPUT OUTPUT\n", argv[0]), 2;
  floors::Input input(argv[1]);
  std::vector<floors::CountTable<Pair>> tables(floors::ThreadCount());
  floors::Parallel(static_cast<int>(tables.size()), [&](int t) {
    floors::BatchedCounter<Pair> counter(&tables[t]);
    std::string_view piece = input.Piece(t, static_cast<int>(tables.size()));
    const char *at = piece.data(), *end = at + piece.size();
    std::string_view previous;
    std::uint64_t previous_hash = 0;
    while (true) {
      for (; at < end && floors::IsSpace(*at); ++at)
        if (*at == '\n') previous = {};
      if (at == end) break;
      const char* begin = at;
      std::uint64_t hash = 0x9ae16a3b2f90404full;
      for (; at < end && !floors::IsSpace(*at); ++at) hash = (hash ^ static_cast<unsigned char>(*at)) * 0x100000001b3ull;
      std::string_view word(begin, static_cast<std::size_t>(at - begin));
      if (!previous.empty()) counter.Add(floors::Spread(previous_hash * 31 + hash), Pair{previous, word});
      previous = word;
      previous_hash = hash;
    }
  });
  floors::MergeAndWrite(tables, argv[2], [](const auto& slot, std::string* out) {
    out->append(slot.key.first);
    out->push_back('\t');
    out->append(slot.key.second);
    floors::AppendCount(slot.count, out);
  });
}
