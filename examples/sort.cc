// The lines in byte order.   sort INPUT OUTPUT
#include <ropewalk/ropewalk.h>

#include <string_view>

int main(int argc, char** argv) {
  auto job = ropewalk::Init(argc, argv);
  if (argc != 3) return 2;
  job.ReadLines(argv[1]).SortBy([](std::string_view line) { return line; }).WriteText(argv[2]);
}
