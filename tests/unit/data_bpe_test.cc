// Byte pairs: GPT-2's ids, any bytes to and fro, against a slow plain implementation; vocabularies that are learnt, written, read, damaged.
#include "mlrunner/data/bpe.h"

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <optional>
#include <sstream>

#include "mlrunner/data/byte_alphabet.h"
#include "tests/unit/data_random_text.h"
#include "tests/unit/temp_folder.h"

namespace ropewalk::mlrunner {
namespace {

using Ids = std::vector<std::int32_t>;
using Spelt = std::pair<std::string, std::string>;

std::string Slurp(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}
void Write(const std::string& path, const std::string& bytes) { std::ofstream(path, std::ios::binary) << bytes; }

// The two files of a vocabulary: the bytes, what the merges make, the special tokens.
struct Files {
  std::string vocabulary, merges;
};
Files FilesOf(const std::vector<Spelt>& merges, const std::vector<std::string>& specials = {}) {
  std::vector<std::string> names;
  for (std::uint8_t byte : BytesOfAlphabet()) names.push_back(SpellBytes(std::string(1, static_cast<char>(byte))));
  Files files{"{", "#version: 0.2\n"};
  for (const auto& [left, right] : merges) {
    files.merges += left + " " + right + "\n";
    if (std::find(names.begin(), names.end(), left + right) == names.end()) names.push_back(left + right);
  }
  names.insert(names.end(), specials.begin(), specials.end());
  for (std::size_t id = 0; id < names.size(); ++id) {
    std::string name;
    for (char c : names[id]) name += c == '"' || c == '\\' ? std::string("\\") + c : std::string(1, c);
    files.vocabulary += (id == 0 ? "\"" : ", \"") + name + "\": " + std::to_string(id);
  }
  files.vocabulary += "}";
  return files;
}

class Bpes : public ::testing::Test {
 protected:
  Result<Bpe> Load(const Files& files) {
    Write(folder_.path() + "/vocab.json", files.vocabulary);
    Write(folder_.path() + "/merges.txt", files.merges);
    return Bpe::LoadFolder(folder_.path());
  }
  Bpe Loaded(const Files& files) {
    auto bpe = Load(files);
    EXPECT_TRUE(bpe.ok()) << bpe.status().ToString();
    if (!bpe.ok()) std::abort();
    return *std::move(bpe);
  }
  testing::TempFolder folder_;
};

Ids Encode(const Bpe& bpe, std::string_view text) {
  Ids ids;
  BpeEncoder(bpe).Encode(text, &ids);
  return ids;
}

// The first lines of GPT-2's own file, whose ids are known: 262 is " the", 290 " and".
const std::vector<Spelt> kGpt2 = {{"Ġ", "t"},  {"Ġ", "a"},  {"h", "e"},  {"i", "n"},  {"r", "e"},  {"o", "n"}, {"Ġt", "he"},
                                  {"e", "r"},  {"Ġ", "s"},  {"a", "t"},  {"Ġ", "w"},  {"Ġ", "o"},  {"e", "n"}, {"Ġ", "c"},
                                  {"i", "t"},  {"i", "s"},  {"a", "n"},  {"o", "r"},  {"e", "s"},  {"Ġ", "b"}, {"e", "d"},
                                  {"Ġ", "f"},  {"in", "g"}, {"Ġ", "p"},  {"o", "u"},  {"Ġa", "n"}, {"a", "l"}, {"a", "r"},
                                  {"Ġt", "o"}, {"Ġ", "m"},  {"Ġo", "f"}, {"Ġ", "in"}, {"Ġ", "d"},  {"Ġ", "h"}, {"Ġan", "d"}};

TEST_F(Bpes, HasGpt2sIds) {
  const Bpe bpe = Loaded(FilesOf(kGpt2, {"<|endoftext|>"}));
  EXPECT_EQ(bpe.size(), 256 + 35 + 1);
  EXPECT_EQ(Encode(bpe, "the"), (Ids{83, 258})) << "t, he";
  EXPECT_EQ(Encode(bpe, " the"), Ids{262});
  EXPECT_EQ(Encode(bpe, "!\"A a\n\t"), (Ids{0, 1, 32, 257, 198, 197})) << "two spaces at the end are two tokens of one word";
  EXPECT_EQ(Encode(bpe, " to of in and"), (Ids{284, 286, 287, 290}));
  EXPECT_EQ(Encode(bpe, "  the "), (Ids{220, 262, 220}));
  EXPECT_EQ(Encode(bpe, "\xff\xad"), (Ids{187, 255}));
  EXPECT_EQ(Encode(bpe, std::string(1, '\0')), Ids{188});
  EXPECT_EQ(bpe.specials().size(), 1u);
  EXPECT_EQ(bpe.IdOf("<|endoftext|>"), 291);
  EXPECT_EQ(bpe.IdOf(" the"), 262);
  EXPECT_EQ(bpe.IdOf("the"), -1);
}

TEST_F(Bpes, TheAlphabetIsOneToOne) {
  std::string all, back;
  for (int byte = 0; byte < 256; ++byte) all += static_cast<char>(byte);
  ASSERT_TRUE(BytesOfSpelling(SpellBytes(all), &back));
  EXPECT_EQ(back, all);
  EXPECT_EQ(SpellBytes(" \n\x7f\xad"), "ĠĊġŃ");
  for (const char* bad : {" ", "\n", "\u00ad", "\u0144", "\u3000", "\U0001f600", "\xc4", "a\xff", "\xc4z", "\xc1\x80"})
    EXPECT_FALSE(BytesOfSpelling(bad, &back)) << bad;
}

// As the encoder of GPT-2 does it: the pair of the lowest rank in the word, all of them from left to right, and again.
Ids SlowEncode(const std::map<std::pair<std::string, std::string>, std::size_t>& ranks, const std::map<std::string, std::int32_t>& ids,
               std::string_view text) {
  Words words;
  Ids encoded;
  while (!text.empty()) {
    const std::string_view word = text.substr(0, words.FirstOf(text));
    text.remove_prefix(word.size());
    std::vector<std::string> parts;
    for (char c : word) parts.emplace_back(1, c);
    for (;;) {
      auto best = ranks.end();
      for (std::size_t i = 0; i + 1 < parts.size(); ++i) {
        const auto found = ranks.find({parts[i], parts[i + 1]});
        if (found != ranks.end() && (best == ranks.end() || found->second < best->second)) best = found;
      }
      if (best == ranks.end()) break;
      std::vector<std::string> next;
      for (std::size_t i = 0; i < parts.size(); ++i) {
        if (i + 1 < parts.size() && parts[i] == best->first.first && parts[i + 1] == best->first.second) {
          next.push_back(parts[i] + parts[i + 1]);
          ++i;
        } else {
          next.push_back(parts[i]);
        }
      }
      parts = std::move(next);
    }
    for (const std::string& part : parts) encoded.push_back(ids.at(part));
  }
  return encoded;
}

// Merges of few letters in any order, also before their parts are made and with several that make the same token.
TEST_F(Bpes, IsWhatASlowOneIs) {
  const std::uint64_t seed = ::testing::UnitTest::GetInstance()->random_seed() + 21;
  SCOPED_TRACE("seed " + std::to_string(seed));
  Random random(seed);
  for (int round = 0; round < 40; ++round) {
    std::vector<std::string> known = {"a", "b", "c", " ", "\n"};
    std::vector<Spelt> merges;
    std::map<std::pair<std::string, std::string>, std::size_t> drawn;
    for (int i = 0; i < 30; ++i) {
      const std::string left = known[random.Below(known.size())], right = known[random.Below(known.size())];
      if (left.size() + right.size() > 6 || !drawn.emplace(std::pair(left, right), 0).second) continue;
      known.push_back(left + right);
    }
    std::vector<std::pair<std::string, std::string>> order;
    for (const auto& [pair, unused] : drawn) order.push_back(pair);
    for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.Below(i)]);
    for (std::size_t rank = 0; rank < order.size(); ++rank) {
      drawn[order[rank]] = rank;
      merges.emplace_back(SpellBytes(order[rank].first), SpellBytes(order[rank].second));
    }
    const Bpe bpe = Loaded(FilesOf(merges));
    std::map<std::string, std::int32_t> ids;
    for (std::int32_t id = 0; id < bpe.size(); ++id) ids[bpe.BytesOf(id)] = id;
    BpeEncoder encoder(bpe);
    for (int text = 0; text < 20; ++text) {
      std::string bytes;
      while (bytes.size() < random.Below(60)) bytes += "aabbc \n"[random.Below(7)];
      Ids fast;
      encoder.Encode(bytes, &fast);
      ASSERT_EQ(fast, SlowEncode(drawn, ids, bytes)) << "\"" << bytes << "\", round " << round;
    }
  }
}

std::string SomeText(Random& random, int words) {
  static constexpr const char* kWords[] = {
      "rope", "ropes", "roping", "walk", "walks", "walker", "walking", "tar", "tarred", "\u043a\u0430\u043d\u0430\u0442", "don't", "42"};
  std::string text;
  for (int i = 0; i < words; ++i) text += std::string(i == 0 ? "" : " ") + kWords[random.Below(std::size(kWords))];
  return text;
}

TEST_F(Bpes, AnyBytesComeBack) {
  const std::uint64_t seed = ::testing::UnitTest::GetInstance()->random_seed() + 22;
  SCOPED_TRACE("seed " + std::to_string(seed));
  Random random(seed);
  auto bpe = Bpe::Train(SomeText(random, 500), 340, {"<|end|>"});
  ASSERT_TRUE(bpe.ok()) << bpe.status().ToString();
  BpeEncoder encoder(*bpe);
  for (int round = 0; round < 400; ++round) {
    const std::string text = round % 2 == 0
                                 ? testing::RandomBytes(random, random.Below(300))
                                 : testing::TextOf(testing::RandomCharacters(random, random.Below(100))) + "<|end|>" + SomeText(random, 9);
    Ids ids, with;
    encoder.Encode(text, &ids);
    encoder.EncodeWithSpecials(text, &with);
    EXPECT_EQ(*bpe->Decode(ids), text);
    EXPECT_EQ(*bpe->Decode(with), text);
    EXPECT_EQ(std::count(ids.begin(), ids.end(), bpe->IdOf("<|end|>")), 0) << "text like any other";
    EXPECT_EQ(std::count(with.begin(), with.end(), bpe->IdOf("<|end|>")), round % 2);
  }
  const Ids bad = {3, -1};
  EXPECT_EQ(bpe->Decode(bad).status().what(), "token 1 of 2 is -1");
  EXPECT_EQ(bpe->Decode(Ids{static_cast<std::int32_t>(bpe->size())}).status().tag(), "DATA12");
}

TEST_F(Bpes, OfSpecialTokensTheFirstAndLongest) {
  const Bpe bpe = Loaded(FilesOf(kGpt2, {"<s>", "<s>x", "</s>", "[.*]"}));
  BpeEncoder encoder(bpe);
  Ids ids;
  encoder.EncodeWithSpecials("<s>a<s>x</s>[.*]<s", &ids);
  EXPECT_EQ(ids, (Ids{bpe.IdOf("<s>"), 64, bpe.IdOf("<s>x"), bpe.IdOf("</s>"), bpe.IdOf("[.*]"), 27, 82}));
}

// Twice from an empty cache and from a full one; of words without end no more is kept than the bound.
TEST_F(Bpes, ItsMemoryIsBoundedAndChangesNothing) {
  const Bpe bpe = Loaded(FilesOf(kGpt2));
  BpeEncoder encoder(bpe);
  std::string text;
  for (std::size_t i = 0; i < BpeEncoder::kWordsMax + 5000; ++i) text += " the" + std::to_string(i);
  Ids first, second;
  encoder.Encode(text, &first);
  EXPECT_LE(encoder.words_kept(), BpeEncoder::kWordsMax);
  encoder.Encode(text, &second);
  EXPECT_LE(encoder.words_kept(), BpeEncoder::kWordsMax);
  EXPECT_EQ(first, second);
  EXPECT_EQ(*bpe.Decode(first), text);
}

// What would take hours if each merge went through the whole word.
TEST_F(Bpes, AWordOfAMillionLetters) {
  const Bpe bpe = Loaded(FilesOf({{"a", "a"}, {"aa", "aa"}, {"aaaa", "aaaa"}}));
  const Ids ids = Encode(bpe, std::string((1 << 20) - 1, 'a'));
  EXPECT_EQ(ids.size(), (std::size_t{1} << 17) + 2) << "eights, and 4 + 2 + 1";
}

// Counts all pairs anew for each merge.
std::vector<Spelt> SlowTrain(std::string_view text, std::size_t tokens) {
  Words cut;
  std::map<std::string, std::int32_t> ids;
  std::vector<std::string> names;
  auto id_of = [&](const std::string& bytes) {
    if (ids.emplace(bytes, names.size()).second) names.push_back(bytes);
    return ids[bytes];
  };
  for (std::uint8_t byte : BytesOfAlphabet()) id_of(std::string(1, static_cast<char>(byte)));
  std::vector<Ids> words;
  while (!text.empty()) {
    const std::string_view word = text.substr(0, cut.FirstOf(text));
    text.remove_prefix(word.size());
    words.emplace_back();
    for (char c : word) words.back().push_back(id_of(std::string(1, c)));
  }
  std::vector<Spelt> merges;
  while (names.size() < tokens) {
    std::map<std::pair<std::int32_t, std::int32_t>, int> counts;
    for (const Ids& word : words)
      for (std::size_t i = 0; i + 1 < word.size(); ++i) ++counts[{word[i], word[i + 1]}];
    auto best = counts.end();
    for (auto pair = counts.begin(); pair != counts.end(); ++pair)
      if (best == counts.end() || pair->second > best->second) best = pair;  // of the same count the first
    if (best == counts.end() || best->second < 2) break;
    const auto [left, right] = best->first;
    const std::int32_t token = id_of(names[left] + names[right]);
    merges.emplace_back(SpellBytes(names[left]), SpellBytes(names[right]));
    for (Ids& word : words) {
      Ids next;
      for (std::size_t i = 0; i < word.size(); ++i) {
        const bool joins = i + 1 < word.size() && word[i] == left && word[i + 1] == right;
        next.push_back(joins ? token : word[i]);
        if (joins) ++i;
      }
      word = next;
    }
  }
  return merges;
}

TEST_F(Bpes, LearnsTheMostFrequentPairs) {
  const std::uint64_t seed = ::testing::UnitTest::GetInstance()->random_seed() + 23;
  SCOPED_TRACE("seed " + std::to_string(seed));
  Random random(seed);
  storage::LocalFileSystem files;
  for (int round = 0; round < 12; ++round) {
    std::string text = round % 3 == 0 ? testing::RandomBytes(random, 800) : round % 3 == 1 ? SomeText(random, 150) : "";
    for (int i = 0; round % 3 == 2 && i < 600; ++i) text += "aab "[random.Below(4)];
    const std::size_t tokens = 256 + random.Below(90);
    auto bpe = Bpe::Train(text, static_cast<std::int64_t>(tokens));
    ASSERT_TRUE(bpe.ok()) << bpe.status().ToString();
    ASSERT_TRUE(bpe->Save(files, folder_.path()).ok());
    std::string expected = "#version: 0.2\n";
    for (const auto& [left, right] : SlowTrain(text, tokens)) expected += left + " " + right + "\n";
    ASSERT_EQ(Slurp(folder_.path() + "/merges.txt"), expected) << round;
    EXPECT_EQ(Bpe::Train(text, static_cast<std::int64_t>(tokens))->hash(), bpe->hash());
  }
  EXPECT_EQ(Bpe::Train("", 300)->size(), 256) << "there is nothing more to learn";
}

TEST_F(Bpes, WhatIsWrittenIsReadAgain) {
  Random random(5);
  storage::LocalFileSystem files;
  auto learnt = Bpe::Train(SomeText(random, 300), 320, {"<|end|>", "\u65e5\u672c", "\"\\\n"});
  ASSERT_TRUE(learnt.ok()) << learnt.status().ToString();
  ASSERT_TRUE(learnt->Save(files, folder_.path() + "/new").ok());
  auto read = Bpe::LoadFolder(folder_.path() + "/new");
  ASSERT_TRUE(read.ok()) << read.status().ToString();
  EXPECT_EQ(read->hash(), learnt->hash());
  EXPECT_EQ(Ids(read->specials().begin(), read->specials().end()), Ids(learnt->specials().begin(), learnt->specials().end()));
  for (std::int32_t id = 0; id < learnt->size(); ++id) ASSERT_EQ(read->BytesOf(id), learnt->BytesOf(id));
  EXPECT_NE(Bpe::Train(SomeText(random, 300), 319)->hash(), learnt->hash());
  Write(folder_.path() + "/file", "");
  EXPECT_EQ(learnt->Save(files, folder_.path() + "/file").tag(), "DATA11");
}

TEST_F(Bpes, WhatIsWrongIsNamedWithItsPlace) {
  const Files good = FilesOf(kGpt2, {"<|endoftext|>"});
  auto with = [&](const std::string& from, const std::string& to) {
    std::string text = good.vocabulary;
    const std::size_t at = text.find(from);
    EXPECT_NE(at, text.npos) << from;
    return Files{text.replace(at, from.size(), to), good.merges};
  };
  struct Case {
    Files files;
    const char *what, *why;
  };
  const Case cases[] = {
      {{"", good.merges}, "vocab.json\": it is no JSON at byte ", "unexpected end of input"},
      {{good.vocabulary + "}", good.merges}, "it is no JSON at byte ", "expected end of input"},
      {{"[1]", good.merges}, "it holds a list", "an object of tokens"},
      {{"7", good.merges}, "it holds 7", "an object of tokens"},
      {{"{}", good.merges}, "the byte 00 is no token", "could not be encoded"},
      {with("\"!\": 0", "\"!\": -1"), "the token \"!\" has -1", "a number from 0 on"},
      {with("\"!\": 0", "\"!\": 0.5"), "the token \"!\" has 0.5", "a number from 0 on"},
      {with("\"!\": 0", "\"!\": {\"a\": 1}"), "the token \"!\" has an object", "a number from 0 on"},
      {with("\"!\": 0", "\"!\": \"0\""), "the token \"!\" has a string", "a number from 0 on"},
      {with("\"!\": 0", "\"!\": 99999999999"), "the token \"!\" has the id 99999999999", "ids lie below 4194304"},
      {with("\"!\": 0", "\"!\": 7"), "have the id 7", "one token"},
      {with("\"!\": 0", "\"!\": 4000"), "no token has the id 0", "its 292 tokens have the ids 0 to 291"},
      {with("\"!\": 0", "\"!!\": 0"), "the byte 21 is no token", "could not be encoded"},
      {with("<|endoftext|>", ""), "the token with the id 291 is empty", "a byte or more"},
      {with("<|endoftext|>", "!"), "the tokens with the ids 0 and 291 stand for the same bytes", "once"},
      {{good.vocabulary, good.merges + "a\n"}, "merges.txt\": line 37 is \"a\"", "two tokens with a space between them"},
      {{good.vocabulary, good.merges + "a  b\n"}, "line 37 is \"a  b\"", "two tokens with a space between them"},
      {{good.vocabulary, good.merges + "a b c\r\n"}, "line 37 is \"a b c\"", "two tokens with a space between them"},
      {{good.vocabulary, good.merges + "a \u3000\n"}, "line 37", "stands for no byte"},
      {{good.vocabulary, good.merges + "xx a\n"}, "line 37 is \"xx a\"", "\"xx\" is no token of \""},
      {{good.vocabulary, good.merges + "x y"}, "line 37 is \"x y\"", "what it makes is no token of \""},
      {{good.vocabulary, good.merges + "h e\n"}, "line 37 is \"h e\"", "it stands in line 4 already"},
  };
  for (const Case& c : cases) {
    auto bpe = Load(c.files);
    ASSERT_FALSE(bpe.ok()) << c.what;
    const Status& status = bpe.status();
    EXPECT_EQ(status.tag(), "DATA10") << status.ToString();
    EXPECT_EQ(status.code(), Code::kUserError);
    EXPECT_NE(status.what().find(c.what), std::string::npos) << status.ToString();
    EXPECT_NE(status.why().find(c.why), std::string::npos) << status.ToString();
    EXPECT_FALSE(status.fix().empty());
  }
  EXPECT_TRUE(Load({good.vocabulary, "\r\n" + good.merges.substr(good.merges.find('\n') + 1)}).ok()) << "the first line may be missing";
  EXPECT_EQ(Bpe::LoadFolder(folder_.path() + "/none").status().why(), "there is no such folder on this machine");
  EXPECT_EQ(Bpe::LoadFolder("/").status().tag(), "DATA02");
  EXPECT_EQ(Bpe::Train("ab ab", 256, {"<s>"}).status().tag(), "DATA10");
  EXPECT_EQ(Bpe::Train("ab ab", 300, {"<s>", "<s>"}).status().tag(), "DATA10");
  EXPECT_EQ(Bpe::Train("ab ab ab", 300, {" ab"}).status().tag(), "DATA10");
  EXPECT_EQ(Bpe::Train("ab ab", std::int64_t{1} << 40).status().tag(), "DATA10");
}

// Cut off or changed anywhere, a file is refused or another vocabulary, which encodes and decodes.
TEST_F(Bpes, DamagedFilesAreRefusedOrWhole) {
  const Files good = FilesOf(kGpt2, {"<|endoftext|>"});
  const std::uint64_t seed = ::testing::UnitTest::GetInstance()->random_seed() + 24;
  SCOPED_TRACE("seed " + std::to_string(seed));
  Random random(seed);
  int whole = 0;
  for (int round = 0; round < 600; ++round) {
    Files files = good;
    std::string& damaged = round % 2 == 0 ? files.vocabulary : files.merges;
    if (round % 3 == 0) {
      damaged.resize(random.Below(damaged.size()));
    } else {
      for (int i = 0; i < 2; ++i) damaged[random.Below(damaged.size())] = static_cast<char>(random.Below(256));
    }
    auto bpe = Load(files);
    if (!bpe.ok()) {
      ASSERT_EQ(bpe.status().tag(), "DATA10") << bpe.status().ToString();
      continue;
    }
    ++whole;
    Ids ids;
    BpeEncoder(*bpe).EncodeWithSpecials(" the rope\xff<|endoftext|>", &ids);
    ASSERT_EQ(*bpe->Decode(ids), " the rope\xff<|endoftext|>");
  }
  EXPECT_GT(whole, 20);
}

}  // namespace
}  // namespace ropewalk::mlrunner
