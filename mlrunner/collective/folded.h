// The programs of all ranks as virtual time needs them, each kept once: ranks whose programs differ only in the rank that they count from
// share one. So a ring of ten thousand ranks, whose programs have two hundred million steps, takes the memory of one program and, for each
// rank, where it stands.
//
// What is folded: a peer is kept as its distance from the rank, round the group; a part of so many parts (where all are of one length but
// for a unit) as its distance from part `rank`, but for several in a row; likewise rows and columns of a count table. Where something lies
// is left out, since time depends on lengths only, and so is which column is learned. Two ranks share a program when these forms are equal
// in every field; given the rank, each form says again which peers and lengths were meant. So nothing is assumed of an algorithm: what is
// no rotation is kept rank by rank, whatever it says.
//
// Owner: a simulation. Thread rule: one thread adds; const use from many.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "mlrunner/collective/interpreter.h"
#include "mlrunner/collective/layout.h"
#include "mlrunner/collective/plan.h"

namespace ropewalk::collective {

// A program that stands for several ranks. Its peers are distances: rank + peer, round the group, is meant.
struct FoldedProgram {
  Program program;
  std::vector<bool> turns;  // by range: its part, row and column are distances, too
  std::int64_t ranks = 0;   // how many it stands for
};
// The program must be sound (CheckProgram, Layout::Make).
FoldedProgram Fold(const Header& header, const Program& program);

class FoldedPrograms {
 public:
  // Both must outlive it. Programs of as many ranks follow, in their order.
  FoldedPrograms(const Header* header, const Sizes* sizes) : header_(*header), sizes_(*sizes) {}
  FoldedPrograms(const FoldedPrograms&) = delete;
  FoldedPrograms& operator=(const FoldedPrograms&) = delete;

  // What stands for the next rank; the program itself is not kept. kInvalid as CheckProgram() and Layout::Make().
  Status Add(const Program& program);

  std::int32_t ranks() const { return static_cast<std::int32_t>(kind_of_rank_.size()); }
  const Program& program(std::int32_t rank) const { return kinds_[kind_of_rank_[rank]].folded.program; }
  Interpreter MakeInterpreter(std::int32_t rank) const;
  std::int32_t PeerOf(std::int32_t rank, std::int32_t distance) const {
    const std::int32_t peer = rank + distance;
    return peer < header_.request.ranks ? peer : peer - header_.request.ranks;
  }

  std::int64_t kinds() const { return static_cast<std::int64_t>(kinds_.size()); }
  // Of what is kept, and of what it stands for when all runs are over.
  std::int64_t steps_kept() const;
  std::int64_t steps_of_all_runs() const;

 private:
  struct Kind {
    FoldedProgram folded;
    std::optional<Layout> layout;
    std::optional<Course> course;
  };
  const Header& header_;
  const Sizes& sizes_;
  std::deque<Kind> kinds_;  // layouts point at their programs
  std::unordered_multimap<std::uint64_t, std::int32_t> kinds_by_hash_;
  std::vector<std::int32_t> kind_of_rank_;
};

}  // namespace ropewalk::collective
