// How ranks agree on what each of them says, though any of them may die while they do.
//
// The lowest rank that is there gathers the words of all others and tells them what it has got: 2(P-1) messages while nobody dies. When it
// dies, the next one takes its place. Whoever has heard by then what was agreed on says that to the new one instead of a word; and since
// that waits for all who are there, it hears it, unless all who know it are dead. So there is one outcome on all ranks that live, whenever
// the others died, as long as only the dead are taken for dead. (Like the early returning agreement of ULFM, on the simplest tree.)
//
// Who is alive and taken for dead by the one that gathers, because the link between the two broke, has no word in the outcome; it learns
// that from the others.
//
// Pure: what happens goes in, messages to be sent come out. Owner: the links of a communicator. Thread rule: a value.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ropewalk::collective {

// What came of it: the same on all ranks.
struct Agreed {
  std::vector<std::optional<std::string>> words;  // by rank; nothing of those who were gone, and of those who are missed
  std::vector<bool> missed;                       // by rank: was there, and had not said its word when the one that gathers gave up
  bool are_silent = false;                        // because their processes do not answer, not because the time was over
  bool is_given_up() const;
};

class Agreements {
 public:
  enum class Kind : std::uint8_t { kWord, kAgreed };
  struct Message {
    std::int32_t to = 0;
    Kind kind = Kind::kWord;
    std::uint64_t number = 0;
    std::string bytes;
  };
  using Messages = std::vector<Message>;

  Agreements(std::int32_t rank, std::int32_t ranks);

  // This rank's word for agreement `number`; each number once, and in order, on all ranks. Nobody waits for those in `without`, which is
  // the same on all ranks.
  void Propose(std::uint64_t number, std::string word, std::vector<bool> without, Messages* out);
  // A message from a peer. False where it is nonsense.
  bool Hear(std::int32_t from, Kind kind, std::uint64_t number, std::string_view bytes, Messages* out);
  // `peer` is gone, and nothing comes of it any more.
  void Over(std::int32_t peer, Messages* out);
  // The one that gathers waits no longer for these: what is agreed on then is that they were missed. Nothing on the other ranks.
  void GiveUp(const std::vector<bool>& missed, bool are_silent, Messages* out);
  // What this rank says before it goes: its peers may need it, and would miss it.
  void Leave(Messages* out) const;

  // Null: there is none yet, or it is older than the last two.
  const Agreed* Find(std::uint64_t number) const;
  // Who gathers the words, as far as this rank knows; and on that rank, by rank, who has still to say its word.
  std::int32_t gatherer() const;
  std::vector<bool> missing() const;

 private:
  bool IsAwaited(std::int32_t peer) const { return peer != rank_ && !over_[peer] && !without_[peer]; }
  void Advance(Messages* out);
  void Learn(std::uint64_t number, Agreed agreed, std::int32_t from, Messages* out);
  std::vector<std::optional<std::string>>& WordsOf(std::uint64_t number);

  std::int32_t rank_, ranks_;
  std::vector<bool> over_, without_;  // by rank
  bool proposes_ = false;             // and nothing is agreed on yet
  std::uint64_t number_ = 0;          // of the last proposal
  std::string word_;
  std::int32_t told_ = -1;                                                  // who has it; -1: nobody
  std::map<std::uint64_t, std::vector<std::optional<std::string>>> words_;  // by number and rank, of what is not agreed on
  std::map<std::uint64_t, Agreed> agreed_;                                  // the last two
};

// A peer's bytes may be anything.
std::string Encode(const Agreed& agreed);
std::optional<Agreed> DecodeAgreed(std::string_view bytes, std::int32_t ranks);

}  // namespace ropewalk::collective
