// The floor of counting log lines "HOST HOUR STATUS PATH" by the struct {host, hour, status}.   floor_visits INPUT OUTPUT
#include "bench/floors/floor.h"

int main(int argc, char** argv) {
  if (argc != 3) return std::fprintf(stderr, "usage: %s INPUT OUTPUT\n", argv[0]), 2;
  floors::Input input(argv[1]);
  std::vector<floors::CountTable<std::uint64_t>> tables(floors::ThreadCount());
  floors::Parallel(static_cast<int>(tables.size()), [&](int t) {
    floors::BatchedCounter<std::uint64_t> counter(&tables[t]);
    std::string_view piece = input.Piece(t, static_cast<int>(tables.size()));
    const char *at = piece.data(), *end = at + piece.size();
    auto number = [&] {
      std::uint64_t value = 0;
      for (; at < end && *at >= '0' && *at <= '9'; ++at) value = value * 10 + static_cast<std::uint64_t>(*at - '0');
      if (at < end && *at == ' ') ++at;
      return value;
    };
    while (at < end) {
      std::uint64_t host = number(), hour = number(), status = number();
      std::uint64_t key = host << 32 | hour << 16 | status;
      counter.Add(floors::Spread(key * 0x9e3779b97f4a7c15ull), key);
      const void* newline = std::memchr(at, '\n', static_cast<std::size_t>(end - at));
      at = newline == nullptr ? end : static_cast<const char*>(newline) + 1;
    }
  });
  floors::MergeAndWrite(tables, argv[2], [](const auto& slot, std::string* out) {
    out->append(std::to_string(slot.key >> 32)).push_back('\t');
    out->append(std::to_string(slot.key >> 16 & 0xffff)).push_back('\t');
    out->append(std::to_string(slot.key & 0xffff));
    floors::AppendCount(slot.count, out);
  });
}
