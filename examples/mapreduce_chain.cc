// Two MapReduces in a row, nothing written in between: how many words occur once, twice, ...?   mapreduce_chain INPUT OUTPUT
#include <ropewalk/ropewalk.h>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

using Counted = std::pair<std::string, std::uint64_t>;      // word, how often
using Frequency = std::pair<std::uint64_t, std::uint64_t>;  // how often, how many words
using Plus = std::plus<std::uint64_t>;

void WordsOfLine(std::string_view line, ropewalk::Emit<std::pair<std::string_view, std::uint64_t>> emit) {
  for (std::string_view word : ropewalk::Words(line)) emit({word, 1});
}

void FrequencyOfWord(const Counted& counted, ropewalk::Emit<Frequency> emit) { emit({counted.second, 1}); }

std::uint64_t Total(ropewalk::Values<std::uint64_t>& values) {
  std::uint64_t sum = 0;
  for (std::uint64_t value : values) sum += value;
  return sum;
}

Counted CountedWord(const std::string& word, ropewalk::Values<std::uint64_t>& ones) { return {word, Total(ones)}; }

Frequency CountedTimes(std::uint64_t times, ropewalk::Values<std::uint64_t>& ones) { return {times, Total(ones)}; }

int main(int argc, char** argv) {
  auto job = ropewalk::Init(argc, argv);
  if (argc != 3) return 2;
  auto counts = ropewalk::MapReduce(job.ReadLines(argv[1]), WordsOfLine, Plus(), CountedWord);
  ropewalk::MapReduce(counts, FrequencyOfWord, Plus(), CountedTimes, argv[2]);
}
