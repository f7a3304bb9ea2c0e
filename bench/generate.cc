// Makes the inputs of the benches; the same arguments give the same bytes everywhere.
//
//   generate text BYTES WORDS OUT       words drawn by Zipf's law (exponent 1) from WORDS different ones, ten a line
//   generate lines COUNT OUT            lines of 100 bytes: a random printable key of 10, a running number, filling
//   generate visits COUNT HOSTS OUT     log lines "HOST HOUR STATUS PATH"; a few hosts are far more frequent than the others
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

namespace {

class Random {  // xoshiro256**, seeded by splitmix64
 public:
  explicit Random(std::uint64_t seed) {
    for (std::uint64_t& s : state_) {
      std::uint64_t z = (seed += 0x9e3779b97f4a7c15ull);
      z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
      z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
      s = z ^ (z >> 31);
    }
  }
  std::uint64_t Next() {
    auto rotate = [](std::uint64_t x, int k) { return x << k | x >> (64 - k); };
    std::uint64_t result = rotate(state_[1] * 5, 7) * 9, shifted = state_[1] << 17;
    state_[2] ^= state_[0];
    state_[3] ^= state_[1];
    state_[1] ^= state_[2];
    state_[0] ^= state_[3];
    state_[2] ^= shifted;
    state_[3] = rotate(state_[3], 45);
    return result;
  }
  std::uint64_t Below(std::uint64_t n) { return static_cast<std::uint64_t>(static_cast<unsigned __int128>(Next()) * n >> 64); }
  double Unit() { return static_cast<double>(Next() >> 11) * 0x1p-53; }

 private:
  std::uint64_t state_[4];
};

// Ranks 0 .. n-1 with probability ~ 1 / (rank + 1), by rejection from the inverse of the integral (Hoermann and Derflinger, 1996).
class Zipf {
 public:
  explicit Zipf(std::uint64_t n) : low_(Integral(1.5) - 1), width_(Integral(static_cast<double>(n) + 0.5) - low_), n_(n) {}
  std::uint64_t Draw(Random& random) const {
    while (true) {
      double u = low_ + random.Unit() * width_, x = std::exp(u);
      auto k = static_cast<std::uint64_t>(x + 0.5);
      if (k < 1) k = 1;
      if (k > n_) k = n_;
      if (u >= Integral(static_cast<double>(k) + 0.5) - 1 / static_cast<double>(k)) return k - 1;
    }
  }

 private:
  static double Integral(double x) { return std::log(x); }
  double low_, width_;
  std::uint64_t n_;
};

class Output {
 public:
  explicit Output(const char* path) : file_(std::fopen(path, "wb")), path_(path) {
    if (file_ == nullptr) Fail();
    std::setvbuf(file_, nullptr, _IOFBF, 4 << 20);
  }
  void Put(std::string_view bytes) {
    if (fwrite_unlocked(bytes.data(), 1, bytes.size(), file_) != bytes.size()) Fail();
    bytes_ += bytes.size();
  }
  std::uint64_t bytes() const { return bytes_; }
  void Close() {
    if (std::fclose(file_) != 0) Fail();
  }

 private:
  [[noreturn]] void Fail() {
    std::perror(path_);
    std::exit(1);
  }
  FILE* file_;
  const char* path_;
  std::uint64_t bytes_ = 0;
};

// Different words of letters; frequent ones are short, as in a language.
std::vector<std::string> Vocabulary(std::uint64_t words, Random& random) {
  std::vector<std::string> all;
  std::unordered_set<std::string> seen;
  while (all.size() < words) {
    std::size_t rank = all.size(), base = rank < 30 ? 2 : rank < 700 ? 3 : rank < 20'000 ? 5 : 7;
    std::string word(base + random.Below(base < 4 ? 3 : 5), ' ');
    for (char& letter : word) letter = static_cast<char>('a' + random.Below(26));
    word.push_back(' ');
    if (seen.insert(word).second) all.push_back(std::move(word));
  }
  return all;
}

void Text(std::uint64_t bytes, std::uint64_t words, const char* path) {
  Random random(20'261'129);
  std::vector<std::string> vocabulary = Vocabulary(words, random);
  Zipf zipf(words);
  Output out(path);
  for (int column = 0; out.bytes() < bytes; column = (column + 1) % 10) {
    std::string_view word = vocabulary[zipf.Draw(random)];
    if (column < 9) {
      out.Put(word);
    } else {
      out.Put(word.substr(0, word.size() - 1));
      out.Put("\n");
    }
  }
  out.Put("\n");
  out.Close();
}

void Lines(std::uint64_t count, const char* path) {
  Random random(7);
  Output out(path);
  char line[101];
  for (std::uint64_t i = 0; i < count; ++i) {
    for (int k = 0; k < 10; ++k) line[k] = static_cast<char>(' ' + random.Below(95));
    std::snprintf(line + 10, 33, "%032lx", i);
    std::memset(line + 42, static_cast<int>('A' + i % 26), 57);
    line[99] = '\n';
    out.Put({line, 100});
  }
  out.Close();
}

void Visits(std::uint64_t count, std::uint64_t hosts, const char* path) {
  constexpr int kStatus[] = {200, 200, 200, 200, 200, 304, 404, 500};
  Random random(99);
  Zipf zipf(hosts);
  Output out(path);
  char line[96];
  for (std::uint64_t i = 0; i < count; ++i) {
    int n = std::snprintf(line, sizeof line, "%lu %lu %d /page/%lu\n", zipf.Draw(random), random.Below(24), kStatus[random.Below(8)],
                          random.Below(5000));
    out.Put({line, static_cast<std::size_t>(n)});
  }
  out.Close();
}

}  // namespace

int main(int argc, char** argv) {
  std::string_view kind = argc > 1 ? argv[1] : "";
  auto number = [&](int i) { return std::strtoull(argv[i], nullptr, 10); };
  if (kind == "text" && argc == 5 && number(3) > 0) return Text(number(2), number(3), argv[4]), 0;
  if (kind == "lines" && argc == 4) return Lines(number(2), argv[3]), 0;
  if (kind == "visits" && argc == 5 && number(3) > 0) return Visits(number(2), number(3), argv[4]), 0;
  std::fprintf(stderr, "usage: %s text BYTES WORDS OUT | lines COUNT OUT | visits COUNT HOSTS OUT\n", argv[0]);
  return 2;
}
