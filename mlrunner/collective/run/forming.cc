#include "mlrunner/collective/run/forming.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "base/bytes.h"

namespace ropewalk::collective {
namespace {

// The first byte of a word says which it is: ranks that have given up waiting may be at another one.
enum class Word : std::uint8_t { kIntent = 1, kFormed = 2 };
constexpr std::size_t kWhyBytesMax = 200;

// Which of these wishes cannot be met; -1 is none.
std::vector<std::size_t> Refused(std::span<const std::int32_t> wishes, std::int32_t others) {
  // Who is refused makes the communicator smaller, so that the next one may have to be refused, too.
  std::vector<std::size_t> refused;
  for (auto ranks = others + static_cast<std::int32_t>(wishes.size());;) {
    std::vector<std::size_t> now;
    std::vector<std::int32_t> taken;
    for (std::size_t i = 0; i < wishes.size(); ++i) {
      if (wishes[i] < 0) continue;
      if (wishes[i] >= ranks || std::find(taken.begin(), taken.end(), wishes[i]) != taken.end())
        now.push_back(i);
      else
        taken.push_back(wishes[i]);
    }
    if (now == refused) return refused;
    ranks = others + static_cast<std::int32_t>(wishes.size() - now.size());
    refused = std::move(now);
  }
}

}  // namespace

std::string Encode(const Intent& intent) {
  std::string bytes;
  ByteWriter writer(&bytes);
  writer.Fixed(static_cast<std::uint8_t>(Word::kIntent));
  writer.Fixed(static_cast<std::uint8_t>(intent.leaves));
  writer.Fixed(static_cast<std::uint8_t>(intent.shrinks));
  for (bool is_over : intent.over) writer.Fixed(static_cast<std::uint8_t>(is_over));
  writer.Sized(intent.place);
  writer.Varint(intent.newcomers.size());
  for (const Newcomer& newcomer : intent.newcomers) {
    writer.Fixed(newcomer.wish);
    writer.Sized(newcomer.place);
  }
  return bytes;
}

std::optional<Intent> DecodeIntent(std::string_view bytes, std::int32_t ranks) {
  ByteReader reader(bytes);
  if (Word{reader.Fixed<std::uint8_t>()} != Word::kIntent) return std::nullopt;
  Intent intent{.leaves = reader.Fixed<std::uint8_t>() != 0};
  intent.shrinks = reader.Fixed<std::uint8_t>() != 0;
  for (std::int32_t rank = 0; rank < ranks; ++rank) intent.over.push_back(reader.Fixed<std::uint8_t>() != 0);
  intent.place = std::string(reader.Sized());
  for (std::uint64_t left = reader.Varint(); left > 0 && reader.ok(); --left) {
    Newcomer newcomer{.wish = reader.Fixed<std::int32_t>()};
    newcomer.place = std::string(reader.Sized());
    intent.newcomers.push_back(std::move(newcomer));
  }
  if (!reader.ok() || !reader.empty()) return std::nullopt;
  return intent;
}

std::string Encode(const Formed& formed) {
  std::string bytes;
  ByteWriter writer(&bytes);
  writer.Fixed(static_cast<std::uint8_t>(Word::kFormed));
  writer.Fixed(static_cast<std::uint8_t>(formed.is_well));
  writer.Fixed(static_cast<std::uint8_t>(formed.has_lost_one));
  writer.Sized(std::string_view(formed.why).substr(0, kWhyBytesMax));
  return bytes;
}

std::optional<Formed> DecodeFormed(std::string_view bytes) {
  ByteReader reader(bytes);
  if (Word{reader.Fixed<std::uint8_t>()} != Word::kFormed) return std::nullopt;
  Formed formed{.is_well = reader.Fixed<std::uint8_t>() != 0};
  formed.has_lost_one = reader.Fixed<std::uint8_t>() != 0;
  formed.why = std::string(reader.Sized());
  if (!reader.ok() || !reader.empty()) return std::nullopt;
  return formed;
}

std::vector<std::string> Forming::words() const {
  std::vector<std::string> words;
  for (const Place& place : ranks) words.push_back(place.word);
  return words;
}

Result<Forming> Form(std::span<const std::optional<std::string>> said) {
  const auto ranks = static_cast<std::int32_t>(said.size());
  std::vector<std::optional<Intent>> intents(said.size());
  Forming forming{.gone = std::vector<bool>(said.size())};
  for (std::int32_t rank = 0; rank < ranks; ++rank) {
    if (said[rank].has_value()) intents[rank] = DecodeIntent(*said[rank], ranks);
    if (said[rank].has_value() && !intents[rank].has_value())
      return Status(Code::kInternal, "COLL25", "what rank " + std::to_string(rank) + " says of where it goes cannot be read",
                    "the ranks do not make the same calls: one of them has begun anew", "call it again on all ranks");
    if (!intents[rank].has_value()) forming.gone[rank] = true;
  }
  const auto first = static_cast<std::int32_t>(std::find(forming.gone.begin(), forming.gone.end(), false) - forming.gone.begin());
  for (std::int32_t rank = first; rank < ranks; ++rank)
    if (intents[rank].has_value() && intents[rank]->shrinks != intents[first]->shrinks)
      return Status(Code::kInvalid, "COLL21",
                    "rank " + std::to_string(first) + " calls " + (intents[first]->shrinks ? "Shrink" : "Reform") + "(), rank " +
                        std::to_string(rank) + " " + (intents[rank]->shrinks ? "Shrink" : "Reform") + "()",
                    "they would count their ranks differently", "make all ranks call the same");
  for (std::int32_t rank = 0; rank < ranks; ++rank)
    for (std::int32_t other = 0; intents[rank].has_value() && other < ranks; ++other)
      if (intents[rank]->over[other]) forming.gone[other] = true;

  std::vector<Forming::Place> stay, come;
  std::vector<std::int32_t> wishes;
  for (std::int32_t rank = 0; rank < ranks; ++rank) {
    if (forming.gone[rank]) continue;
    if (!intents[rank]->leaves) stay.push_back({.member = rank, .word = intents[rank]->place});
    for (std::size_t i = 0; i < intents[rank]->newcomers.size(); ++i) {
      come.push_back({.door = rank, .newcomer = static_cast<std::int32_t>(i), .word = intents[rank]->newcomers[i].place});
      wishes.push_back(intents[rank]->newcomers[i].wish);
    }
  }
  if (stay.empty()) {
    // Nobody is left who could take them in.
    forming.refused = std::move(come);
    return forming;
  }
  const std::vector<std::size_t> refused = Refused(wishes, static_cast<std::int32_t>(stay.size()));
  forming.ranks.resize(stay.size() + come.size() - refused.size());
  std::vector<bool> is_taken(forming.ranks.size());
  for (std::size_t i = 0; i < come.size(); ++i) {
    if (std::find(refused.begin(), refused.end(), i) != refused.end()) {
      forming.refused.push_back(std::move(come[i]));
      continue;
    }
    ++forming.newcomers;
    if (wishes[i] < 0) {
      stay.push_back(std::move(come[i]));
      continue;
    }
    forming.ranks[wishes[i]] = std::move(come[i]);
    is_taken[wishes[i]] = true;
  }
  std::size_t next = 0;
  for (Forming::Place& place : stay) {
    while (is_taken[next]) ++next;
    forming.ranks[next++] = std::move(place);
  }
  return forming;
}

}  // namespace ropewalk::collective
