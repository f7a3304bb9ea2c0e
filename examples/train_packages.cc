// Which section does a Debian package belong to? Its description says something, and so do the packages that it depends on. Compares who
// knows the commonest section only, who knows words only, and graph networks over the dependencies, by packages that are not trained on.
//
//   apt-cache dumpavail > packages.txt
//   train_packages packages.txt [SEEDS] [EPOCHS]
#include <ropewalk/train.h>

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace mlrunner = ropewalk::mlrunner;
using mlrunner::NodeModel;

constexpr std::size_t kWords = 256;  // the commonest ones of all descriptions: a package has them or not

struct Package {
  std::string section;
  std::vector<std::string> needs;  // names, of alternatives all
  std::set<std::string> words;
};

// "libc6 (>= 2.34), default-mta | mail-transport-agent" -> the three names.
void AddNames(std::string_view relations, std::vector<std::string>* names) {
  while (!relations.empty()) {
    const std::size_t begin = std::min(relations.find_first_not_of(' '), relations.size());
    const std::size_t end = std::min(relations.find_first_of(",|"), relations.size());
    const std::string_view name = relations.substr(begin, std::min(relations.find_first_of(" (:[,|", begin), end) - begin);
    if (!name.empty()) names->emplace_back(name);
    relations.remove_prefix(std::min(end + 1, relations.size()));
  }
}

void AddWords(std::string_view text, std::set<std::string>* words) {
  std::string word;
  for (const char c : std::string(text) + ' ') {
    if (std::isalpha(static_cast<unsigned char>(c)) != 0) {
      word += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    } else {
      if (word.size() > 1) words->insert(word);
      word.clear();
    }
  }
}

// Stanzas with an empty line between; of two with the same name the first.
std::map<std::string, Package> Read(std::istream& file) {
  std::map<std::string, Package> packages;
  std::string name;
  Package package;
  auto end_stanza = [&] {
    if (!name.empty() && !package.section.empty()) packages.try_emplace(name, std::move(package));
    name.clear();
    package = {};
  };
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(": ");
    const std::string field = line.substr(0, colon), value = colon == std::string::npos ? "" : line.substr(colon + 2);
    if (line.empty()) end_stanza();
    if (field == "Package") name = value;
    if (field == "Section") package.section = value.substr(value.find('/') + 1);  // "contrib/games" is of the games too
    if (field == "Depends" || field == "Pre-Depends") AddNames(value, &package.needs);
    if (field == "Description") AddWords(value, &package.words);
  }
  end_stanza();
  return packages;
}

// The numbers of `names`, in their order.
std::map<std::string, std::int32_t> Numbered(const std::set<std::string>& names) {
  std::map<std::string, std::int32_t> numbers;
  for (const std::string& name : names) numbers.emplace(name, static_cast<std::int32_t>(numbers.size()));
  return numbers;
}

std::set<std::string> CommonestWords(const std::map<std::string, Package>& packages) {
  std::map<std::string, std::int64_t> counts;
  for (const auto& [name, package] : packages)
    for (const std::string& word : package.words) ++counts[word];
  std::vector<std::pair<std::int64_t, std::string>> ordered;
  for (const auto& [word, count] : counts) ordered.emplace_back(-count, word);
  std::sort(ordered.begin(), ordered.end());
  std::set<std::string> words;
  for (std::size_t i = 0; i < std::min(kWords, ordered.size()); ++i) words.insert(ordered[i].second);
  return words;
}

mlrunner::NodeGraph MakeGraph(const std::map<std::string, Package>& packages, std::vector<std::string>* sections) {
  std::set<std::string> names, all_sections;
  for (const auto& [name, package] : packages) {
    names.insert(name);
    all_sections.insert(package.section);
  }
  const auto numbers = Numbered(names), labels = Numbered(all_sections), words = Numbered(CommonestWords(packages));
  sections->assign(all_sections.begin(), all_sections.end());
  mlrunner::NodeGraph graph{.features = static_cast<std::int64_t>(words.size()),
                            .x = std::vector<float>(packages.size() * words.size()),
                            .labels = {},
                            .classes = static_cast<std::int64_t>(labels.size()),
                            .edges = {}};
  for (const auto& [name, package] : packages) {
    const std::size_t row = graph.labels.size() * words.size();
    for (const std::string& word : package.words)
      if (auto found = words.find(word); found != words.end()) graph.x[row + static_cast<std::size_t>(found->second)] = 1;
    for (const std::string& other : package.needs)
      if (auto found = numbers.find(other); found != numbers.end())
        graph.edges.emplace_back(static_cast<std::int32_t>(graph.labels.size()), found->second);
    graph.labels.push_back(labels.at(package.section));
  }
  return graph;
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return (values[(values.size() - 1) / 2] + values[values.size() / 2]) / 2;
}
void PrintRow(const std::string& who, const std::vector<double>& test) {
  std::printf("%-34s %6.2f%%", who.c_str(), Median(test));
  for (double one : test) std::printf(" %6.2f", one);
  std::printf("\n");
  std::fflush(stdout);
}

int main(int argc, char** argv) {
  if (argc < 2 || argc > 4) {
    std::fprintf(stderr, "usage: train_packages PACKAGES [SEEDS] [EPOCHS]\n");
    return 2;
  }
  std::ifstream file(argv[1]);
  const std::map<std::string, Package> packages = Read(file);
  if (packages.empty()) {
    std::fprintf(stderr, "%s names no packages: write it by `apt-cache dumpavail`\n", argv[1]);
    return 1;
  }
  const int seeds = argc > 2 ? std::max(1, std::atoi(argv[2])) : 1, epochs = argc > 3 ? std::atoi(argv[3]) : 200;
  std::vector<std::string> sections;
  const mlrunner::NodeGraph graph = MakeGraph(packages, &sections);
  const mlrunner::Neighbours neighbours(graph);
  std::printf("%lld packages of %lld sections, %lld dependencies, %lld words\n", static_cast<long long>(graph.nodes()),
              static_cast<long long>(graph.classes), static_cast<long long>(neighbours.edges() / 2),
              static_cast<long long>(graph.features));
  std::printf("%-34s median, and of each seed: test packages whose section is found\n", "");

  struct Row {
    std::string who;
    mlrunner::NodeJob job;
  };
  const std::vector<std::int64_t> hidden{128};
  const std::int64_t sampled_epochs = std::max(1, epochs / 10);  // one has a step for each 512 training packages
  const std::vector<Row> rows = {
      {"words alone: MLP", {.model = NodeModel::kMlp, .hidden = hidden, .epochs = epochs}},
      {"GCN", {.model = NodeModel::kGcn, .hidden = hidden, .epochs = epochs}},
      {"GraphSAGE, the whole graph", {.model = NodeModel::kSage, .hidden = hidden, .epochs = epochs}},
      {"GraphSAGE, 10 and 5 neighbours",
       {.model = NodeModel::kSage, .hidden = hidden, .batch = 512, .fan_out = {10, 5}, .epochs = sampled_epochs}},
  };
  for (const Row& row : rows) {
    std::vector<double> test, majority;
    double seconds = 0;
    std::string commonest;
    for (int seed = 1; seed <= seeds; ++seed) {
      mlrunner::NodeJob job = row.job;
      job.seed = static_cast<std::uint64_t>(seed);
      job.weight_decay = .01;
      job.evaluate_every = job.batch > 0 ? 1 : 10;
      const auto trained = mlrunner::TrainNodes(graph, job);
      if (!trained.ok()) {
        std::fprintf(stderr, "%s\n", trained.status().ToString().c_str());
        return 1;
      }
      test.push_back(100 * trained->test.part());
      majority.push_back(100 * trained->majority_of_test.part());
      commonest = sections[static_cast<std::size_t>(trained->majority)];
      seconds += trained->seconds / seeds;
    }
    if (&row == rows.data()) PrintRow("always \"" + commonest + "\"", majority);
    PrintRow(row.who, test);
    std::fprintf(stderr, "%s: %.1f s\n", row.who.c_str(), seconds);
  }
}
