// PageRank: an ordinary loop around datasets. Input lines: FROM TO (numbers).   page_rank EDGES ITERATIONS OUTPUT
#include <ropewalk/ropewalk.h>

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

using Page = std::uint32_t;

std::pair<Page, Page> ParseEdge(std::string_view line) {
  std::string text(line);
  char* end = nullptr;
  auto from = static_cast<Page>(std::strtoul(text.c_str(), &end, 10));
  return {from, static_cast<Page>(std::strtoul(end, nullptr, 10))};
}

int main(int argc, char** argv) {
  auto job = ropewalk::Init(argc, argv);
  if (argc != 4) return 2;
  auto links = job.ReadLines(argv[1]).Map(ParseEdge).GroupByKey().Cache();  // (page, its targets)
  const auto pages = static_cast<double>(links.Count());

  ropewalk::Dataset<std::pair<Page, double>> ranks = links.MapValues([pages](const std::vector<Page>&) { return 1 / pages; });
  for (int i = 0; i < std::atoi(argv[2]); ++i) {
    ranks =
        links.Join(ranks)
            .FlatMap([](const std::pair<Page, std::pair<std::vector<Page>, double>>& page, ropewalk::Emit<std::pair<Page, double>> emit) {
              const auto& [targets, rank] = page.second;
              emit({page.first, 0.0});  // so that a page without links to it keeps its place
              for (Page target : targets) emit({target, rank / static_cast<double>(targets.size())});
            })
            .ReduceByKey(std::plus<double>())
            .MapValues([pages](double sum) { return 0.15 / pages + 0.85 * sum; });
  }
  ranks.WriteText(argv[3]);
}
