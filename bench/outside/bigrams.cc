// How often does each pair of neighbouring words of a line occur?   bigrams INPUT OUTPUT
#include <ropewalk/ropewalk.h>

#include <string_view>
#include <utility>

using Bigram = std::pair<std::string_view, std::string_view>;

int main(int argc, char** argv) {
  auto job = ropewalk::Init(argc, argv);
  if (argc != 3) return 2;
  job.ReadLines(argv[1])
      .FlatMap([](std::string_view line, ropewalk::Emit<Bigram> emit) {
        std::string_view previous;
        for (std::string_view word : ropewalk::Words(line)) {
          if (!previous.empty()) emit({previous, word});
          previous = word;
        }
      })
      .CountByValue()
      .WriteText(argv[2]);
}
