// Which documents hold each word? Input lines: DOCUMENT<TAB>TEXT. Output lines: WORD<TAB>DOCUMENT DOCUMENT...   inverted_index INPUT OUTPUT
#include <ropewalk/ropewalk.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

using Posting = std::pair<std::string_view, std::string_view>;  // word, document

int main(int argc, char** argv) {
  auto job = ropewalk::Init(argc, argv);
  if (argc != 3) return 2;
  job.ReadLines(argv[1])
      .FlatMap([](std::string_view line, ropewalk::Emit<Posting> emit) {
        std::size_t tab = line.find('\t');
        if (tab == line.npos) return;
        for (std::string_view word : ropewalk::Words(line.substr(tab))) emit({word, line.substr(0, tab)});
      })
      .Distinct()
      .GroupByKey()
      .MapValues([](std::vector<std::string> documents) {
        std::sort(documents.begin(), documents.end());
        return documents;
      })
      .WriteText(argv[2]);
}
