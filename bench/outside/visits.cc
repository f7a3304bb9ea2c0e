// Visits by host, hour and status: a struct as key. Input lines: HOST HOUR STATUS PATH.   visits INPUT OUTPUT
#include <ropewalk/ropewalk.h>

#include <charconv>
#include <cstdint>
#include <string_view>
#include <tuple>
#include <utility>

struct Visit {
  std::uint32_t host = 0;
  std::uint8_t hour = 0;
  std::uint16_t status = 0;
};

Visit Parse(std::string_view line) {
  Visit visit;
  const char *at = line.data(), *end = at + line.size();
  at = std::from_chars(at, end, visit.host).ptr + 1;
  at = std::from_chars(at, end, visit.hour).ptr + 1;
  std::from_chars(at, end, visit.status);
  return visit;
}

int main(int argc, char** argv) {
  auto job = ropewalk::Init(argc, argv);
  if (argc != 3) return 2;
  job.ReadLines(argv[1])
      .Map(Parse)
      .CountByKey()
      .Map([](const std::pair<Visit, std::uint64_t>& counted) {
        const auto& [visit, count] = counted;
        return std::tuple(visit.host, int{visit.hour}, visit.status, count);
      })
      .WriteText(argv[2]);
}
