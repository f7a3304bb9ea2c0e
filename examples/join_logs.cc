// Visits by country: a log joined with a table. Log lines: USER PAGE. User lines: USER COUNTRY.   join_logs LOG USERS OUTPUT
#include <ropewalk/ropewalk.h>

#include <string_view>
#include <utility>

using Field = std::string_view;

// "USER REST" as (user, rest).
std::pair<Field, Field> Split(Field line) {
  std::size_t space = line.find(' ');
  return {line.substr(0, space), space == line.npos ? Field() : line.substr(space + 1)};
}

int main(int argc, char** argv) {
  auto job = ropewalk::Init(argc, argv);
  if (argc != 4) return 2;
  auto visits = job.ReadLines(argv[1]).Map(Split);
  auto countries = job.ReadLines(argv[2]).Map(Split);
  visits
      .Join(countries)  // (user, (page, country))
      .Map([](const auto& joined) { return joined.second.second; })
      .CountByKey()
      .WriteText(argv[3]);
}
