#include "mlrunner/data/bpe.h"

#include <re2/re2.h>

#include <algorithm>

#include <fmt/format.h>

namespace ropewalk::mlrunner {
namespace {

constexpr std::uint32_t kNone = ~std::uint32_t{0};
constexpr std::int64_t kSpecialsMemory = 256 << 20;  // bytes, for an expression of as many special tokens as a vocabulary may have

}  // namespace

Bpe::Bpe(std::vector<std::string> tokens, std::vector<Merge> merges, std::vector<std::int32_t> specials)
    : tokens_(std::move(tokens)), merges_(std::move(merges)), specials_(std::move(specials)) {
  ids_.reserve(tokens_.size());
  for (std::size_t id = 0; id < tokens_.size(); ++id) {
    ids_.emplace(tokens_[id], static_cast<std::int32_t>(id));
    hash_ = HashCombine(hash_, Checksum64(tokens_[id]));
  }
  for (std::size_t byte = 0; byte < 256; ++byte) byte_ids_[byte] = IdOf(std::string(1, static_cast<char>(byte)));
  ranks_.reserve(merges_.size());
  for (std::size_t rank = 0; rank < merges_.size(); ++rank) {
    const Merge& merge = merges_[rank];
    ranks_.emplace(PairOf(merge.left, merge.right), Ranked{static_cast<std::uint32_t>(rank), merge.result});
    hash_ = HashCombine(hash_, PairOf(merge.left, merge.right));
  }
}

std::int32_t Bpe::IdOf(std::string_view bytes) const {
  const auto found = ids_.find(bytes);
  return found == ids_.end() ? -1 : found->second;
}

Result<std::string> Bpe::Decode(std::span<const std::int32_t> ids) const {
  std::string text;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= size())
      return Status(Code::kUserError, "DATA12", fmt::format("token {} of {} is {}", i, ids.size(), ids[i]),
                    fmt::format("the vocabulary has {}: ids lie in [0, {})", size(), size()),
                    "decode with the vocabulary that the ids were made with");
    text += BytesOf(ids[i]);
  }
  return text;
}

BpeEncoder::BpeEncoder(const Bpe& bpe) : bpe_(bpe) {
  if (bpe.specials().empty()) return;
  std::vector<std::string> spellings;
  for (std::int32_t id : bpe.specials()) spellings.push_back(re2::RE2::QuoteMeta(bpe.BytesOf(id)));
  // Of those that begin at one place an expression takes the first: the longest shall be that.
  std::sort(spellings.begin(), spellings.end(), [](const std::string& a, const std::string& b) {
    return std::pair(b.size(), std::string_view(a)) < std::pair(a.size(), std::string_view(b));
  });
  re2::RE2::Options options(re2::RE2::Latin1);  // bytes
  options.set_log_errors(false);
  options.set_max_mem(kSpecialsMemory);
  specials_ = std::make_unique<re2::RE2>(fmt::format("{}", fmt::join(spellings, "|")), options);
}
BpeEncoder::~BpeEncoder() = default;

void BpeEncoder::Encode(std::string_view text, std::vector<std::int32_t>* ids) {
  while (!text.empty()) {
    const std::size_t bytes = words_.FirstOf(text);
    Word(text.substr(0, bytes), ids);
    text.remove_prefix(bytes);
  }
}

void BpeEncoder::EncodeWithSpecials(std::string_view text, std::vector<std::int32_t>* ids) {
  if (specials_ == nullptr) return Encode(text, ids);
  const re2::StringPiece whole(text.data(), text.size());
  std::size_t at = 0;
  re2::StringPiece match;
  while (specials_->Match(whole, at, whole.size(), re2::RE2::UNANCHORED, &match, 1)) {
    const auto begin = static_cast<std::size_t>(match.data() - text.data());
    Encode(text.substr(at, begin - at), ids);
    ids->push_back(bpe_.IdOf(std::string_view(match.data(), match.size())));
    at = begin + match.size();
  }
  Encode(text.substr(at), ids);
}

void BpeEncoder::Word(std::string_view word, std::vector<std::int32_t>* ids) {
  if (word.size() > kWordBytesMax) return Join(word, ids);
  if (const auto found = kept_.find(word); found != kept_.end()) {
    const auto begin = kept_ids_.begin() + static_cast<std::ptrdiff_t>(found->second.begin);
    ids->insert(ids->end(), begin, begin + static_cast<std::ptrdiff_t>(found->second.count));
    return;
  }
  if (kept_.size() == kWordsMax) {
    kept_.clear();
    kept_ids_.clear();
  }
  const std::size_t before = ids->size();
  Join(word, ids);
  kept_.emplace(std::string(word), Kept{kept_ids_.size(), ids->size() - before});
  kept_ids_.insert(kept_ids_.end(), ids->begin() + static_cast<std::ptrdiff_t>(before), ids->end());
}

// All places of the lowest rank are joined from left to right before what this makes is looked at. That is what GPT-2 does, and with files
// in which two lines make the same token another order would give other ids.
void BpeEncoder::Join(std::string_view word, std::vector<std::int32_t>* ids) {
  const auto bytes = static_cast<std::uint32_t>(word.size());
  symbols_.resize(bytes);
  places_.clear();
  for (std::uint32_t i = 0; i < bytes; ++i)
    symbols_[i] = {bpe_.byte_ids_[static_cast<std::uint8_t>(word[i])], i == 0 ? kNone : i - 1, i + 1 == bytes ? kNone : i + 1};
  for (std::uint32_t i = 0; i < bytes; ++i) Consider(i);
  while (!places_.empty()) {
    const std::uint32_t rank = places_.front().rank;
    joined_.clear();
    while (!places_.empty() && places_.front().rank == rank) {
      std::pop_heap(places_.begin(), places_.end());
      const Place place = places_.back();
      places_.pop_back();
      Symbol& left = symbols_[place.at];
      // One of the two may have been joined with its other neighbour since.
      if (left.id != place.left || left.behind == kNone || symbols_[left.behind].id != place.right) continue;
      Symbol& right = symbols_[left.behind];
      left.id = bpe_.merges_[rank].result;
      left.behind = right.behind;
      if (right.behind != kNone) symbols_[right.behind].before = place.at;
      right.id = -1;
      joined_.push_back(place.at);
    }
    for (std::uint32_t at : joined_) {
      Consider(at);
      if (symbols_[at].before != kNone) Consider(symbols_[at].before);
    }
  }
  for (std::uint32_t at = 0; at != kNone; at = symbols_[at].behind) ids->push_back(symbols_[at].id);
}

// The symbol at `at` and the one behind it.
void BpeEncoder::Consider(std::uint32_t at) {
  const Symbol& left = symbols_[at];
  if (left.behind == kNone) return;
  const std::int32_t right = symbols_[left.behind].id;
  const auto found = bpe_.ranks_.find(Bpe::PairOf(left.id, right));
  if (found == bpe_.ranks_.end()) return;
  places_.push_back({found->second.rank, at, left.id, right});
  std::push_heap(places_.begin(), places_.end());
}

}  // namespace ropewalk::mlrunner
