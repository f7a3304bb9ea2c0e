#include "mlrunner/collective/run/agreement.h"

#include <algorithm>
#include <utility>

#include "base/bytes.h"

namespace ropewalk::collective {
namespace {

// Numbers that peers may be ahead of this rank; each takes a word of each.
constexpr std::size_t kAheadMax = 64;

enum class Said : std::uint8_t { kNothing, kWord, kMissed };

}  // namespace

bool Agreed::is_given_up() const { return std::find(missed.begin(), missed.end(), true) != missed.end(); }

std::string Encode(const Agreed& agreed) {
  std::string bytes;
  ByteWriter writer(&bytes);
  writer.Fixed(static_cast<std::uint8_t>(agreed.are_silent));
  for (std::size_t rank = 0; rank < agreed.words.size(); ++rank) {
    const Said said = agreed.missed[rank] ? Said::kMissed : agreed.words[rank].has_value() ? Said::kWord : Said::kNothing;
    writer.Fixed(static_cast<std::uint8_t>(said));
    if (said == Said::kWord) writer.Sized(*agreed.words[rank]);
  }
  return bytes;
}

std::optional<Agreed> DecodeAgreed(std::string_view bytes, std::int32_t ranks) {
  ByteReader reader(bytes);
  Agreed agreed{.words = std::vector<std::optional<std::string>>(ranks), .missed = std::vector<bool>(ranks)};
  agreed.are_silent = reader.Fixed<std::uint8_t>() != 0;
  for (std::int32_t rank = 0; rank < ranks; ++rank) {
    const auto said = reader.Fixed<std::uint8_t>();
    if (said > static_cast<std::uint8_t>(Said::kMissed)) return std::nullopt;
    agreed.missed[rank] = Said{said} == Said::kMissed;
    if (Said{said} == Said::kWord) agreed.words[rank] = std::string(reader.Sized());
  }
  if (!reader.ok() || !reader.empty()) return std::nullopt;
  return agreed;
}

Agreements::Agreements(std::int32_t rank, std::int32_t ranks) : rank_(rank), ranks_(ranks), over_(ranks), without_(ranks) {}

std::int32_t Agreements::gatherer() const {
  std::int32_t first = 0;
  while (first != rank_ && !IsAwaited(first)) ++first;
  return first;
}

const Agreed* Agreements::Find(std::uint64_t number) const {
  const auto found = agreed_.find(number);
  return found == agreed_.end() ? nullptr : &found->second;
}

std::vector<std::optional<std::string>>& Agreements::WordsOf(std::uint64_t number) {
  auto& words = words_[number];
  words.resize(ranks_);
  return words;
}

void Agreements::Propose(std::uint64_t number, std::string word, std::vector<bool> without, Messages* out) {
  number_ = number;
  proposes_ = true;
  word_ = std::move(word);
  without_ = std::move(without);
  told_ = -1;
  Advance(out);
}

void Agreements::Advance(Messages* out) {
  if (!proposes_) return;
  if (Find(number_) != nullptr) {
    proposes_ = false;
    return;
  }
  if (const std::int32_t first = gatherer(); first != rank_) {
    if (std::exchange(told_, first) != first) out->push_back({.to = first, .kind = Kind::kWord, .number = number_, .bytes = word_});
    return;
  }
  const auto& words = WordsOf(number_);
  Agreed agreed{.words = std::vector<std::optional<std::string>>(ranks_), .missed = std::vector<bool>(ranks_)};
  for (std::int32_t peer = 0; peer < ranks_; ++peer) {
    if (!IsAwaited(peer)) continue;
    if (!words[peer].has_value()) return;
    agreed.words[peer] = words[peer];
  }
  agreed.words[rank_] = word_;
  Learn(number_, std::move(agreed), rank_, out);
}

std::vector<bool> Agreements::missing() const {
  std::vector<bool> missing(ranks_);
  const auto words = words_.find(number_);
  for (std::int32_t peer = 0; peer < ranks_; ++peer)
    missing[peer] = IsAwaited(peer) && (words == words_.end() || !words->second[peer].has_value());
  return missing;
}

void Agreements::GiveUp(const std::vector<bool>& missed, bool are_silent, Messages* out) {
  if (!proposes_ || Find(number_) != nullptr || gatherer() != rank_) return;
  Agreed agreed{.words = WordsOf(number_), .missed = missed, .are_silent = are_silent};
  agreed.words[rank_] = word_;
  Learn(number_, std::move(agreed), rank_, out);
}

void Agreements::Learn(std::uint64_t number, Agreed agreed, std::int32_t from, Messages* out) {
  const bool is_old = !agreed_.empty() && number + 1 < agreed_.rbegin()->first;
  if (is_old || Find(number) != nullptr) return;
  const std::string bytes = Encode(agreed);
  const bool is_mine = number == number_ && proposes_;
  const std::vector<std::optional<std::string>> words = WordsOf(number);
  for (std::int32_t peer = 0; peer < ranks_; ++peer) {
    if (peer == rank_ || peer == from || over_[peer]) continue;
    // Those who have said their word here; one that is taken for dead, and is not; and the one that has this rank's word, if the outcome is
    // from another.
    const bool asks = words[peer].has_value();
    const bool is_cut_off = is_mine && !without_[peer] && !agreed.words[peer].has_value() && !agreed.missed[peer];
    const bool gathers = is_mine && peer == told_;
    if (asks || is_cut_off || gathers) out->push_back({.to = peer, .kind = Kind::kAgreed, .number = number, .bytes = bytes});
  }
  words_.erase(words_.begin(), words_.upper_bound(number));
  agreed_[number] = std::move(agreed);
  // All who are there have the one before the last, or they could not have said a word for the last.
  while (agreed_.size() > 2) agreed_.erase(agreed_.begin());
  if (number == number_) proposes_ = false;
}

bool Agreements::Hear(std::int32_t from, Kind kind, std::uint64_t number, std::string_view bytes, Messages* out) {
  if (over_[from]) return true;
  if (kind == Kind::kAgreed) {
    std::optional<Agreed> agreed = DecodeAgreed(bytes, ranks_);
    if (!agreed.has_value()) return false;
    Learn(number, *std::move(agreed), from, out);
    return true;
  }
  if (const Agreed* agreed = Find(number); agreed != nullptr) {
    out->push_back({.to = from, .kind = Kind::kAgreed, .number = number, .bytes = Encode(*agreed)});
    return true;
  }
  if (!agreed_.empty() && number < agreed_.begin()->first) return true;
  WordsOf(number)[from] = std::string(bytes);
  if (words_.size() > kAheadMax) return false;
  Advance(out);
  return true;
}

void Agreements::Over(std::int32_t peer, Messages* out) {
  if (over_[peer]) return;
  over_[peer] = true;
  // The next one gathers now, and may not know what this rank does.
  if (const std::int32_t first = gatherer(); peer < first && first != rank_)
    for (const auto& [number, agreed] : agreed_)
      out->push_back({.to = first, .kind = Kind::kAgreed, .number = number, .bytes = Encode(agreed)});
  Advance(out);
}

void Agreements::Leave(Messages* out) const {
  if (agreed_.empty()) return;
  const auto& [number, agreed] = *agreed_.rbegin();
  for (std::int32_t peer = 0; peer < ranks_; ++peer)
    if (peer != rank_ && !over_[peer]) out->push_back({.to = peer, .kind = Kind::kAgreed, .number = number, .bytes = Encode(agreed)});
}

}  // namespace ropewalk::collective
