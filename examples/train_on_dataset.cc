// Training behind a batch job: which words speak for a label? Input lines: LABEL TAB TEXT, labels 0 and 1.
//   train_on_dataset LINES WORDS STEPS RANKS
#include <ropewalk/ropewalk.h>
#include <ropewalk/train.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace mlrunner = ropewalk::mlrunner;
using Count = std::pair<std::string, std::uint64_t>;

struct Sample {
  std::vector<float> features;  // how often each word of the vocabulary occurs
  std::int32_t label = 0;
};

std::string_view TextOf(std::string_view line) { return line.substr(std::min(line.find('\t') + 1, line.size())); }

int main(int argc, char** argv) {
  auto job = ropewalk::Init(argc, argv);
  if (argc != 5) return 2;
  auto lines = job.ReadLines(argv[1]);

  // The vocabulary is an action's result, and the tasks that make the samples get it.
  std::vector<std::string> words;
  for (const Count& count : lines.FlatMap([](std::string_view line) { return ropewalk::Words(TextOf(line)); })
                                .CountByKey()
                                .Top(static_cast<std::size_t>(std::atoi(argv[2])), [](const Count& c) { return c.second; }))
    words.push_back(count.first);
  auto vocabulary = job.Broadcast(words);
  auto samples = lines.Map([vocabulary](std::string_view line) {
    Sample sample{std::vector<float>(vocabulary->size()), line.starts_with('1') ? 1 : 0};
    for (std::string_view word : ropewalk::Words(TextOf(line))) {
      auto at = std::find(vocabulary->begin(), vocabulary->end(), word);
      if (at != vocabulary->end()) ++sample.features[static_cast<std::size_t>(at - vocabulary->begin())];
    }
    return sample;
  });

  // A model without hidden layers is logistic regression. One batch of all samples and a decay of the weights: there is one best answer.
  mlrunner::Trained trained = mlrunner::Train(samples, samples,
                                              {.model = {.hidden = {}},
                                               .optimizer = {.learning_rate = .2, .weight_decay = .05},
                                               .ranks = std::atoi(argv[4]),
                                               .batch = 1 << 20,
                                               .steps = std::atoi(argv[3])});
  const std::vector<double>& w = trained.parameters.at("out/w").values;  // (words, labels)
  std::printf("loss %.6f, %lld of %lld right\n", trained.summary.held_out_loss, static_cast<long long>(trained.summary.held_out_hits),
              static_cast<long long>(trained.summary.held_out_labels));
  for (std::size_t i = 0; i < words.size(); ++i) std::printf("%s %.4f\n", words[i].c_str(), w[2 * i + 1] - w[2 * i]);
}
