#include <algorithm>
#include <cmath>
#include <utility>

#include "mlrunner/collective/check/symbolic_machine.h"

namespace ropewalk::collective {
namespace {

// Whether `claim` speaks of `rank`.
bool Concerns(const Claim& claim, std::int32_t rank) { return claim.rank == kEveryRank || claim.rank == rank; }

}  // namespace

// A stretch of out, one expression, from `position` of the buffer on, against the claim's terms.
Status SymbolicMachine::CheckFold(const Claim& claim, std::int32_t rank, Extent out, const Piece& piece, std::int64_t position) {
  const std::int32_t ranks = plan_.header.request.ranks;
  struct Expected {
    std::int32_t leaf;
    std::int64_t at;
    double coefficient;
  };
  std::vector<Expected> expected;
  auto expect = [&](std::int32_t of, std::int32_t chunk, double coefficient) {
    Extent extent = post_layout_->OfChunk(chunk, nullptr);
    expected.push_back(
        {expressions_.Leaf(of, plan_.post.chunks[chunk].buffer, 0).node, extent.offset + position - out.offset, coefficient});
    return extent.count == out.count;
  };
  bool lengths_fit = true;
  for (std::int32_t i = 0; i < claim.term_count; ++i) {
    const Term& term = plan_.post.terms[claim.first_term + i];
    for (std::int32_t of = 0; of < ranks; ++of) {
      if (term.rank == kSameRank ? of != rank : term.rank != kEveryRank && term.rank != of) continue;
      if (claim.kind == ClaimKind::kQuorum && IsAbsent(of)) {
        if (claim.state != kNone) lengths_fit = expect(of, claim.state, term.coefficient) && lengths_fit;
      } else {
        lengths_fit = expect(of, term.chunk, term.coefficient) && lengths_fit;
      }
    }
  }
  std::erase_if(expected, [](const Expected& one) { return one.coefficient == 0; });
  auto wrong = [&](const std::string& why) {
    return Status(Code::kInvalid, "COLL06",
                  plan_.header.algorithm + ": " + plan_.header.buffers[plan_.post.chunks[claim.out].buffer].name + " of rank " +
                      std::to_string(rank) + ", element " + std::to_string(position) + " holds " + expressions_.Print(piece.value),
                  why, "mend the builder");
  };
  if (!lengths_fit) return wrong("a term of the postcondition is not as long as what it explains");
  const auto& terms = expressions_.TermsOf(piece.value.node);
  for (const Expressions::Term& term : terms) {
    auto same = std::find_if(expected.begin(), expected.end(), [&](const Expected& one) {
      return one.leaf == term.leaf && (term.leaf <= 1 || one.at == piece.value.at + term.shift);
    });
    if (same == expected.end()) return wrong("the postcondition does not name one of these");
    if (std::abs(same->coefficient - term.coefficient) > 1e-9 * std::max(1.0, std::abs(same->coefficient)))
      return wrong("an operand is there " + std::to_string(term.coefficient) + " times instead of " + std::to_string(same->coefficient));
    expected.erase(same);
  }
  if (!expected.empty()) return wrong(std::to_string(expected.size()) + " operands are missing");
  if (expressions_.EncodingsOf(piece.value.node) > plan_.post.encodings_max)
    return Status(Code::kInvalid, "COLL09",
                  plan_.header.algorithm + ": an element of rank " + std::to_string(rank) + " was encoded " +
                      std::to_string(expressions_.EncodingsOf(piece.value.node)) + " times",
                  "each encoding loses something; the plan allows " + std::to_string(plan_.post.encodings_max),
                  "use scatter-reduce-allgather");

  if (plan_.header.request.deterministic && plan_.header.op != ReduceOp::kMin && plan_.header.op != ReduceOp::kMax &&
      claim.term_count == 1 && plan_.post.terms[claim.first_term].rank == kEveryRank) {
    const Term& term = plan_.post.terms[claim.first_term];
    const std::int32_t buffer = plan_.post.chunks[term.chunk].buffer;
    std::int64_t at = post_layout_->OfChunk(term.chunk, nullptr).offset + position - out.offset;
    Value fold = expressions_.Leaf(0, buffer, at);
    for (std::int32_t of = 1; of < ranks; ++of) fold = expressions_.Fold(fold, expressions_.Leaf(of, buffer, at));
    if (expressions_.Core(piece.value) != fold)
      return Status(Code::kInvalid, "COLL08",
                    plan_.header.algorithm + ": rank " + std::to_string(rank) + ", element " + std::to_string(position) + " is " +
                        expressions_.Print(piece.value),
                    "deterministic mode fixes the left fold over the ranks in the accumulator's type",
                    "fold all ranks in their order in one step, or along a chain");
  }
  return {};
}

Status SymbolicMachine::CheckWindowPut(std::int32_t rank, std::int32_t buffer, std::int64_t offset, const Pieces& pieces) {
  std::int64_t position = offset;
  for (const Piece& piece : pieces) {
    std::int64_t end = position + piece.count;
    bool explained = false;
    for (const Claim& claim : plan_.post.claims) {
      if (claim.kind != ClaimKind::kFold || !Concerns(claim, rank) || plan_.post.chunks[claim.out].buffer != buffer) continue;
      Extent out = post_layout_->OfChunk(claim.out, nullptr);
      if (position < out.offset || end > out.end()) continue;
      RETURN_IF_ERROR(CheckFold(claim, rank, out, piece, position));
      explained = true;
    }
    if (!explained)
      return Status(Code::kInvalid, "COLL06", "what is put into a relaxed window is named by no claim",
                    "nothing says what readers may find there",
                    "claim in the algorithm's `promise` what is put into each part of the window");
    position = end;
  }
  return {};
}

Status SymbolicMachine::CheckPost() {
  const std::int32_t ranks = plan_.header.request.ranks;
  for (const Claim& claim : plan_.post.claims) {
    if (claim.kind == ClaimKind::kBarrier) {
      // The first thing that every rank did must be known to the last thing of every other.
      for (std::int32_t rank = 0; rank < ranks; ++rank) {
        Clock known(clocks_.size());
        for (std::int32_t channel = 0; channel < plan_.header.channel_count; ++channel) Join(&known, clocks_[ThreadOf(rank, channel)]);
        for (std::int32_t other = 0; other < ranks; ++other)
          // A thread's first tick is the start; a message carries the second or a later one.
          if (other != rank && known[ThreadOf(other, 0)] < 2)
            return Status(Code::kInvalid, "COLL06",
                          plan_.header.algorithm + ": rank " + std::to_string(rank) + " leaves the barrier without knowing that rank " +
                              std::to_string(other) + " came",
                          "no chain of messages leads from it", "mend the builder");
      }
      continue;
    }
    const std::int32_t buffer = plan_.post.chunks[claim.out].buffer;
    if (plan_.header.buffers[buffer].relaxed) continue;  // proved at each put
    Pieces first;
    Extent out = post_layout_->OfChunk(claim.out, nullptr);
    bool is_first = true;
    for (std::int32_t rank = 0; rank < ranks; ++rank) {
      if (!Concerns(claim, rank)) continue;
      Place place = PlaceOf(rank, buffer);
      auto held = memories_[place.memory].Peek({out.offset + place.shift, out.count});
      if (!held)
        return Status(Code::kInvalid, "COLL06",
                      plan_.header.algorithm + ": " + plan_.header.buffers[buffer].name + " of rank " + std::to_string(rank) +
                          " is not written wholly",
                      "no step stores there", "mend the builder");
      std::int64_t position = out.offset;
      for (const Piece& piece : *held) {
        RETURN_IF_ERROR(CheckFold(claim, rank, out, piece, position));
        if (plan_.post.identical && !expressions_.IsOrdered(piece.value.node))
          return Status(Code::kInvalid, "COLL07",
                        plan_.header.algorithm + ": rank " + std::to_string(rank) + ", element " + std::to_string(position) + " is " +
                            expressions_.Print(piece.value),
                        "nothing fixes the order of these additions, so ranks may differ in the last bits", "mend the builder");
        position += piece.count;
      }
      if (claim.counter != kNone) RETURN_IF_ERROR(CheckCounter(claim, rank));
      if (!plan_.post.identical || claim.rank != kEveryRank) continue;
      if (is_first) {
        first = std::move(*held);
        is_first = false;
        continue;
      }
      bool same = first.size() == held->size();
      for (std::size_t i = 0; same && i < first.size(); ++i)
        same = first[i].count == (*held)[i].count && first[i].value == (*held)[i].value;
      if (!same)
        return Status(
            Code::kInvalid, "COLL07",
            plan_.header.algorithm + ": ranks 0 and " + std::to_string(rank) + " hold different expressions, so their last bits may differ",
            "the operations are nested differently", "mend the builder");
    }
  }
  return {};
}

// How many contributed must be what the counter says, and enough.
Status SymbolicMachine::CheckCounter(const Claim& claim, std::int32_t rank) {
  const std::int32_t ranks = plan_.header.request.ranks;
  const double present = ranks - static_cast<double>(options_.absent.size());
  Place place = PlaceOf(rank, plan_.post.chunks[claim.counter].buffer);
  Extent extent = post_layout_->OfChunk(claim.counter, nullptr);
  auto held = memories_[place.memory].Peek({extent.offset + place.shift, extent.count});
  auto wrong = [&](const std::string& why) {
    return Status(Code::kInvalid, "COLL06", plan_.header.algorithm + ": the counter of rank " + std::to_string(rank) + " is wrong", why,
                  "mend the builder");
  };
  if (!held || held->size() != 1) return wrong("it is not written");
  double counted = 0;
  for (const Expressions::Term& term : expressions_.TermsOf((*held)[0].value.node)) {
    if (term.leaf != 1) return wrong("it holds something else");
    counted += term.coefficient;
  }
  if (counted != present) return wrong("it says " + std::to_string(counted) + ", and " + std::to_string(present) + " contributed");
  if (present < plan_.header.request.quorum)
    return wrong("fewer contributed than the quorum of " + std::to_string(plan_.header.request.quorum));
  return {};
}

}  // namespace ropewalk::collective
