#include <algorithm>
#include <map>
#include <queue>

#include <fmt/format.h>

#include "mlrunner/data/bpe.h"
#include "mlrunner/data/byte_alphabet.h"

namespace ropewalk::mlrunner {
namespace {

using Ids = std::vector<std::int32_t>;
using Pair = std::pair<std::int32_t, std::int32_t>;

struct PairHash {
  std::size_t operator()(const Pair& pair) const {
    return HashCombine(static_cast<std::uint32_t>(pair.first), static_cast<std::uint32_t>(pair.second));
  }
};

// A word of the text as the tokens that it is made up of so far.
struct Counted {
  Ids ids;
  std::int64_t count = 0;
};

// How often each pair of neighbours comes, and where.
class Neighbours {
 public:
  explicit Neighbours(std::vector<Counted> words) : words_(std::move(words)) {
    for (std::size_t word = 0; word < words_.size(); ++word) Count(word, 1);
    for (const auto& [pair, places] : pairs_) queue_.push({places.count, pair});
  }

  // The most frequent pair; of several the one of the lowest ids. False: none comes twice.
  bool Most(Pair* most) {
    while (!queue_.empty()) {
      const Queued top = queue_.top();
      const std::int64_t count = pairs_[top.pair].count;
      if (count < 2 || count == top.count) {
        *most = top.pair;
        if (count >= 2) return true;
        queue_.pop();
        continue;
      }
      queue_.pop();
      queue_.push({count, top.pair});  // it has become rarer since
    }
    return false;
  }

  // Makes `token` of each `pair`.
  void Join(const Pair& pair, std::int32_t token) {
    std::vector<std::size_t> words = std::move(pairs_[pair].words);
    std::sort(words.begin(), words.end());
    words.erase(std::unique(words.begin(), words.end()), words.end());
    changed_.clear();
    for (std::size_t word : words) {
      Count(word, -1);
      Ids& ids = words_[word].ids;
      std::size_t kept = 0;
      for (std::size_t i = 0; i < ids.size(); ++kept) {
        const bool joins = i + 1 < ids.size() && Pair(ids[i], ids[i + 1]) == pair;
        ids[kept] = joins ? token : ids[i];
        i += joins ? 2 : 1;
      }
      ids.resize(kept);
      Count(word, 1);
    }
    pairs_[pair].words.clear();
    std::sort(changed_.begin(), changed_.end());
    changed_.erase(std::unique(changed_.begin(), changed_.end()), changed_.end());
    for (const Pair& changed : changed_) queue_.push({pairs_[changed].count, changed});
  }

 private:
  struct Places {
    std::int64_t count = 0;
    std::vector<std::size_t> words;  // all that hold it, and some that did
  };
  struct Queued {
    std::int64_t count;
    Pair pair;
    bool operator<(const Queued& other) const { return count != other.count ? count < other.count : other.pair < pair; }
  };

  void Count(std::size_t word, std::int64_t sign) {
    const Counted& counted = words_[word];
    for (std::size_t i = 0; i + 1 < counted.ids.size(); ++i) {
      const Pair pair(counted.ids[i], counted.ids[i + 1]);
      Places& places = pairs_[pair];
      places.count += sign * counted.count;
      if (sign < 0) continue;
      if (places.words.empty() || places.words.back() != word) places.words.push_back(word);
      changed_.push_back(pair);
    }
  }

  std::vector<Counted> words_;
  std::unordered_map<Pair, Places, PairHash> pairs_;
  std::priority_queue<Queued> queue_;  // counts as they were when they were put here
  std::vector<Pair> changed_;
};

}  // namespace

Result<Bpe> Bpe::Train(std::string_view text, std::int64_t tokens, const std::vector<std::string>& specials) {
  auto bad = [](std::string what, std::string why, std::string fix) {
    return Status(Code::kUserError, "DATA10", std::move(what), std::move(why), std::move(fix));
  };
  const auto least = static_cast<std::int64_t>(256 + specials.size());
  if (tokens < least || tokens > kTokensMax)
    return bad(fmt::format("a vocabulary of {} tokens cannot be learnt", tokens),
               fmt::format("it holds the 256 bytes and {} special tokens, and {} at most", specials.size(), kTokensMax),
               fmt::format("ask for {} to {} tokens", least, kTokensMax));
  for (auto special = specials.begin(); special != specials.end(); ++special) {
    if (special->size() < 2 || std::find(specials.begin(), special, *special) != special)
      return bad(fmt::format("the special token {} is \"{}\"", special - specials.begin(), *special),
                 "it is spelt with two bytes or more, in a way that no other one is", "give each special token a name of its own");
  }

  Words cut;
  std::map<std::string, std::int64_t, std::less<>> counts;
  while (!text.empty()) {
    const std::string_view word = text.substr(0, cut.FirstOf(text));
    text.remove_prefix(word.size());
    if (word.size() < 2 || word.size() > kTrainedWordBytesMax) continue;
    const auto found = counts.find(word);
    if (found == counts.end()) {
      counts.emplace(word, 1);
    } else {
      ++found->second;
    }
  }
  std::vector<std::string> made;
  ByText<std::int32_t> ids;
  auto id_of = [&](const std::string& bytes) {
    const auto [place, is_new] = ids.emplace(bytes, static_cast<std::int32_t>(made.size()));
    if (is_new) made.push_back(bytes);
    return place->second;
  };
  for (std::uint8_t byte : BytesOfAlphabet()) id_of(std::string(1, static_cast<char>(byte)));
  std::vector<Counted> words;
  for (const auto& [word, count] : counts) {
    Counted counted{{}, count};
    for (char c : word) counted.ids.push_back(ids.find(std::string_view(&c, 1))->second);
    words.push_back(std::move(counted));
  }
  counts.clear();

  Neighbours neighbours(std::move(words));
  std::vector<Merge> merges;
  Pair pair;
  while (static_cast<std::int64_t>(made.size() + specials.size()) < tokens && neighbours.Most(&pair)) {
    // Two pairs may make the same token: then both have a rank, and there is one id.
    const std::string bytes = made[static_cast<std::size_t>(pair.first)] + made[static_cast<std::size_t>(pair.second)];
    if (std::find(specials.begin(), specials.end(), bytes) != specials.end())
      return bad(fmt::format("\"{}\" is a special token and a frequent one of the text", bytes), "an id is that of one token",
                 "spell the special token in a way that the text has not");
    merges.push_back({pair.first, pair.second, id_of(bytes)});
    neighbours.Join(pair, merges.back().result);
  }
  std::vector<std::int32_t> special_ids;
  for (const std::string& special : specials) special_ids.push_back(id_of(special));
  return Bpe(std::move(made), std::move(merges), std::move(special_ids));
}

}  // namespace ropewalk::mlrunner
