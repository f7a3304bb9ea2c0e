// Each station's readings by time: sorted by (station, time) at once. Input lines: STATION TIME VALUE.   secondary_sort INPUT OUTPUT
#include <ropewalk/ropewalk.h>

#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>

std::pair<std::string_view, std::int64_t> StationAndTime(std::string_view line) {
  std::size_t space = line.find(' ');
  if (space == line.npos) return {line, 0};
  return {line.substr(0, space), std::strtoll(std::string(line.substr(space)).c_str(), nullptr, 10)};
}

int main(int argc, char** argv) {
  auto job = ropewalk::Init(argc, argv);
  if (argc != 3) return 2;
  job.ReadLines(argv[1]).SortBy(StationAndTime).WriteText(argv[2]);
}
