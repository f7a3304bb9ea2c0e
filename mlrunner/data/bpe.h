// Byte pairs (Sennrich et al. 2016) on bytes, as GPT-2 has them (Radford et al. 2019): a text is cut into words (words.h), a word into its
// bytes, and neighbours become one token, those of the lowest rank first, until no two of them have one.
//
//   " the"  ▸  ␣ t h e  ▸ rank 0: ␣t  ▸  ␣t h e  ▸ rank 2: he  ▸  ␣t he  ▸ rank 6: ␣the  ▸  262
//
// All bytes are tokens, so that any text is encoded, and decoded to the same bytes.
//
// Thread rule: a Bpe is immutable once it is made and may be read by many threads; a BpeEncoder belongs to one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "base/status.h"
#include "mlrunner/data/words.h"
#include "storage/file_system.h"

namespace ropewalk::mlrunner {

class Bpe {
 public:
  static constexpr std::int64_t kTokensMax = 1 << 22;

  // Reads GPT-2's files: `vocabulary` (vocab.json, encoder.json: the tokens by name with their ids) and `merges` (merges.txt, vocab.bpe:
  // two tokens a line, by rank), plain or compressed. A token that is no byte and that no line makes is a special one.
  // kNotFound IO01, kUserError IO02, IO03, IO05: as ReadWhole. kUserError DATA10: what is wrong with which entry or line.
  static Result<Bpe> Load(const std::string& vocabulary, const std::string& merges);
  // The same from a folder: vocab.json or encoder.json, and merges.txt or vocab.bpe. kNotFound DATA02: one of them is not there.
  static Result<Bpe> LoadFolder(const std::string& folder);

  // Learns from `text`: the 256 bytes, then what the most frequent pair of neighbours makes, again and again, until there are `tokens`
  // tokens with the special ones, which come last; fewer where no pair is left that comes twice. The same text gives the same tokens: of
  // pairs that are as frequent the one of the lower ids is taken. Words of more than kTrainedWordBytesMax bytes are left out.
  // kUserError DATA10: `tokens` is less than the bytes and the special tokens, or more than kTokensMax; a special token is empty or comes
  // twice.
  static Result<Bpe> Train(std::string_view text, std::int64_t tokens, const std::vector<std::string>& specials = {});
  static constexpr std::size_t kTrainedWordBytesMax = 1 << 10;

  // Writes vocab.json and merges.txt into `folder`, which is made where it is not there. DATA11 with the code of what failed.
  Status Save(storage::FileSystem& files, const std::string& folder) const;

  std::int64_t size() const { return static_cast<std::int64_t>(tokens_.size()); }
  const std::string& BytesOf(std::int32_t id) const { return tokens_[static_cast<std::size_t>(id)]; }
  std::span<const std::int32_t> specials() const { return specials_; }
  // -1: there is no such token.
  std::int32_t IdOf(std::string_view bytes) const;
  // kUserError DATA12: an id that no token has; names its place.
  Result<std::string> Decode(std::span<const std::int32_t> ids) const;
  // Of all tokens, their ids and ranks.
  std::uint64_t hash() const { return hash_; }

 private:
  friend class BpeEncoder;

  struct Merge {
    std::int32_t left = 0, right = 0, result = 0;
  };
  struct Ranked {
    std::uint32_t rank = 0;
    std::int32_t result = 0;
  };
  struct MixHash {
    std::size_t operator()(std::uint64_t pair) const { return Mix64(pair); }
  };
  struct TextHash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const { return Checksum64(text); }
  };
  template <class T>
  using ByText = std::unordered_map<std::string, T, TextHash, std::equal_to<>>;

  // `tokens` by id, each once; all bytes are among them.
  Bpe(std::vector<std::string> tokens, std::vector<Merge> merges, std::vector<std::int32_t> specials);

  static std::uint64_t PairOf(std::int32_t left, std::int32_t right) {
    return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 | static_cast<std::uint32_t>(right);
  }

  std::vector<std::string> tokens_;
  std::vector<Merge> merges_;  // by rank
  std::vector<std::int32_t> specials_;
  ByText<std::int32_t> ids_;
  std::int32_t byte_ids_[256];
  std::unordered_map<std::uint64_t, Ranked, MixHash> ranks_;
  std::uint64_t hash_ = 0;
};

// Encodes texts, and remembers what it has made of the words that it met.
class BpeEncoder {
 public:
  // What is kept of words at most; one more, and all are forgotten.
  static constexpr std::size_t kWordsMax = 1 << 16, kWordBytesMax = 64;

  // `bpe` must outlive it.
  explicit BpeEncoder(const Bpe& bpe);
  ~BpeEncoder();

  // Appends the ids of `text`. What is spelt as a special token is text like any other.
  void Encode(std::string_view text, std::vector<std::int32_t>* ids);
  // The same, but that a special token's spelling is that token: of several the one that begins first, of those the longest.
  void EncodeWithSpecials(std::string_view text, std::vector<std::int32_t>* ids);

  std::size_t words_kept() const { return kept_.size(); }

 private:
  struct Symbol {
    std::int32_t id = 0;                   // -1: it went into the one before
    std::uint32_t before = 0, behind = 0;  // kNone at the ends
  };
  struct Place {
    std::uint32_t rank = 0, at = 0;
    std::int32_t left = 0, right = 0;
    // Of a heap that gives the lowest rank first, of one rank the leftmost.
    bool operator<(const Place& other) const { return std::pair(rank, at) > std::pair(other.rank, other.at); }
  };
  struct Kept {
    std::size_t begin = 0, count = 0;  // in kept_ids_
  };

  void Word(std::string_view word, std::vector<std::int32_t>* ids);
  void Join(std::string_view word, std::vector<std::int32_t>* ids);
  void Consider(std::uint32_t at);

  const Bpe& bpe_;
  Words words_;
  std::unique_ptr<re2::RE2> specials_;  // null: there are none
  Bpe::ByText<Kept> kept_;
  std::vector<std::int32_t> kept_ids_;
  std::vector<Symbol> symbols_;  // of the word that is joined
  std::vector<Place> places_;    // a heap
  std::vector<std::uint32_t> joined_;
};

}  // namespace ropewalk::mlrunner
