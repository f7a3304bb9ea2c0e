// Which lengths do words have?   word_lengths INPUT OUTPUT
#include <ropewalk/ropewalk.h>

#include <string_view>

int main(int argc, char** argv) {
  auto job = ropewalk::Init(argc, argv);
  if (argc != 3) return 2;
  job.ReadLines(argv[1]).FlatMap(ropewalk::Words).Map([](std::string_view word) { return word.size(); }).Distinct().WriteText(argv[2]);
}
