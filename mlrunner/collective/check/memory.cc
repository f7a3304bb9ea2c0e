#include "mlrunner/collective/check/memory.h"

#include <algorithm>
#include <utility>

namespace ropewalk::collective {
namespace {

Value Shifted(Value value, std::int64_t by) {
  if (value.node > 1) value.at += by;
  return value;
}

}  // namespace

void Memory::SplitAt(std::int64_t offset) {
  auto after = cells_.upper_bound(offset);
  if (after == cells_.begin()) return;
  auto cell = std::prev(after);
  if (cell->first == offset || cell->second.end <= offset) return;
  Cell right = cell->second;
  right.value = Shifted(right.value, offset - cell->first);
  cell->second.end = offset;
  cells_.emplace_hint(after, offset, std::move(right));
}

std::optional<Pieces> Memory::Read(Extent extent, Moment now, const Clock& clock, std::int32_t post, std::string* why) {
  Pieces pieces;
  if (extent.count == 0) return pieces;
  SplitAt(extent.offset);
  SplitAt(extent.end());
  std::int64_t at = extent.offset;
  for (auto cell = cells_.lower_bound(extent.offset); cell != cells_.end() && cell->first < extent.end(); ++cell) {
    if (cell->first != at) break;
    auto& [end, value, written, accumulated, reads, posts] = cell->second;
    bool ordered = written.IsBefore(clock);
    for (const Moment& moment : accumulated) ordered = ordered && moment.IsBefore(clock);
    if (!ordered) {
      *why = "element " + std::to_string(at) + " is read while another step writes it";
      return std::nullopt;
    }
    if (post != kNone) {
      posts.push_back(post);
    } else {
      // What this thread knows of is ordered before it: a later write need only be compared with this one.
      std::erase_if(reads, [&](const Moment& moment) { return moment.IsBefore(clock); });
      reads.push_back(now);
    }
    Expressions::Append(&pieces, end - cell->first, value);
    at = end;
  }
  if (at < extent.end()) {
    *why = "element " + std::to_string(at) + " is read and was never written";
    return std::nullopt;
  }
  return pieces;
}

std::optional<Pieces> Memory::Peek(Extent extent) const {
  Pieces pieces;
  std::int64_t at = extent.offset;
  auto cell = cells_.upper_bound(at);
  if (cell != cells_.begin()) --cell;
  for (; cell != cells_.end() && at < extent.end(); ++cell) {
    if (cell->second.end <= at) continue;
    if (cell->first > at) return std::nullopt;
    std::int64_t end = std::min(cell->second.end, extent.end());
    Expressions::Append(&pieces, end - at, Shifted(cell->second.value, at - cell->first));
    at = end;
  }
  if (at < extent.end()) return std::nullopt;
  return pieces;
}

bool Memory::MayWrite(Extent extent, const Clock& clock, bool accumulate, std::string* why) const {
  for (auto cell = cells_.lower_bound(extent.offset); cell != cells_.end() && cell->first < extent.end(); ++cell) {
    const char* conflict = nullptr;
    if (!cell->second.written.IsBefore(clock)) conflict = "while another step writes it";
    for (const Moment& moment : cell->second.reads)
      if (!moment.IsBefore(clock)) conflict = "while another step reads it";
    if (!accumulate)
      for (const Moment& moment : cell->second.accumulated)
        if (!moment.IsBefore(clock)) conflict = "while a peer accumulates into it";
    for (std::int32_t post : cell->second.posts)
      if (const Post& posted = (*posts_)[post]; !posted.consumed || !posted.when.IsBefore(clock))
        conflict = "while a message that was sent from it may still be read";
    if (conflict != nullptr) {
      *why = "element " + std::to_string(cell->first) + " is overwritten " + conflict;
      return false;
    }
  }
  return true;
}

void Memory::Put(std::int64_t offset, const Pieces& pieces, Moment now) {
  std::int64_t end = offset;
  for (const Piece& piece : pieces) end += piece.count;
  SplitAt(offset);
  SplitAt(end);
  cells_.erase(cells_.lower_bound(offset), cells_.lower_bound(end));
  for (const Piece& piece : pieces) {
    if (piece.count == 0) continue;
    cells_[offset] = Cell{.end = offset + piece.count, .value = piece.value, .written = now};
    offset += piece.count;
  }
}

bool Memory::Write(std::int64_t offset, const Pieces& pieces, Moment now, const Clock& clock, std::string* why) {
  std::int64_t count = 0;
  for (const Piece& piece : pieces) count += piece.count;
  SplitAt(offset);
  SplitAt(offset + count);
  if (!MayWrite({offset, count}, clock, false, why)) return false;
  Put(offset, pieces, now);
  return true;
}

bool Memory::Accumulate(std::int64_t offset, const Pieces& pieces, Expressions* expressions, Moment now, const Clock& clock,
                        std::string* why) {
  std::int64_t end = offset;
  for (const Piece& piece : pieces) {
    SplitAt(end);
    end += piece.count;
  }
  SplitAt(end);
  if (!MayWrite({offset, end - offset}, clock, true, why)) return false;
  std::int64_t at = offset;
  for (const Piece& piece : pieces) {
    std::int64_t piece_begin = at;
    while (at < piece_begin + piece.count) {
      auto cell = cells_.find(at);
      if (cell == cells_.end()) {
        *why = "element " + std::to_string(at) + " is accumulated into and was never written";
        return false;
      }
      bool alone = std::all_of(cell->second.accumulated.begin(), cell->second.accumulated.end(),
                               [&](const Moment& moment) { return moment.IsBefore(clock); });
      Value added = Shifted(piece.value, at - piece_begin);
      cell->second.value = alone ? expressions->Fold(cell->second.value, added) : expressions->Unordered(cell->second.value, added);
      cell->second.accumulated.push_back(now);
      at = cell->second.end;
    }
  }
  return true;
}

}  // namespace ropewalk::collective
