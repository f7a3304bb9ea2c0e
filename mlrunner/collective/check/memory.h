// The memory of one rank in a proof: what each stretch holds, and who wrote and read it when, so that accesses which nothing orders are
// found whatever order the proof happened to take.
//
// Owner: one check. Thread rule: one thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "mlrunner/collective/check/expressions.h"
#include "mlrunner/collective/layout.h"

namespace ropewalk::collective {

// What happened before: of each thread of the proof, how far.
using Clock = std::vector<std::uint32_t>;
struct Moment {
  std::int32_t thread = 0;
  std::uint32_t time = 0;
  bool IsBefore(const Clock& clock) const { return clock[thread] >= time; }
};
inline void Join(Clock* clock, const Clock& other) {
  for (std::size_t i = 0; i < other.size(); ++i) (*clock)[i] = std::max((*clock)[i], other[i]);
}

// A message that was posted: its memory is read until it is consumed.
struct Post {
  bool consumed = false;
  Moment when;  // consumed
};

class Memory {
 public:
  // `posts` outlives it.
  explicit Memory(const std::vector<Post>* posts) : posts_(posts) {}

  // Holds `pieces` from the start.
  void Fill(std::int64_t offset, const Pieces& pieces) { Put(offset, pieces, Moment{}); }

  // The contents, noted as read at `now` (of a thread that knows `clock`), or as being read until `post` is consumed. Empty when something
  // is wrong: then `*why` says what.
  std::optional<Pieces> Read(Extent extent, Moment now, const Clock& clock, std::int32_t post, std::string* why);
  // False when something is wrong.
  bool Write(std::int64_t offset, const Pieces& pieces, Moment now, const Clock& clock, std::string* why);
  // Folds `pieces` into what is there; other accumulates at the same time are no conflict.
  bool Accumulate(std::int64_t offset, const Pieces& pieces, Expressions* expressions, Moment now, const Clock& clock, std::string* why);
  // Without a note: of the end state.
  std::optional<Pieces> Peek(Extent extent) const;

 private:
  struct Cell {
    std::int64_t end = 0;
    Value value;
    Moment written;
    std::vector<Moment> accumulated;  // since the last plain write
    std::vector<Moment> reads;
    std::vector<std::int32_t> posts;
  };
  using Cells = std::map<std::int64_t, Cell>;
  void SplitAt(std::int64_t offset);
  void Put(std::int64_t offset, const Pieces& pieces, Moment now);
  bool MayWrite(Extent extent, const Clock& clock, bool accumulate, std::string* why) const;

  const std::vector<Post>* posts_;
  Cells cells_;
};

}  // namespace ropewalk::collective
