// In which order submitted calls begin, and on which lane: rank 0 decides, the others follow (docs/decisions/0011). Pure: what has happened
// goes in, what to start comes out.
//
// The rule, over calls that ALL ranks have submitted:
//   1. the smallest (priority, number) is next;
//   2. it begins when nothing runs; or when it is more urgent than everything that runs, and a lane is free (it pre-empts: every rank
//      drives the most urgent call that can go on, and looks again at each border); or while credit is left and two lanes are free, so
//      that one is kept for what is urgent;
//   3. what begins takes its bytes from the credit, which may become negative; what ends gives them back.
//
// Thread rule: a value; one thread.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <utility>
#include <vector>

namespace ropewalk::collective {

class SubmitOrder {
 public:
  SubmitOrder(std::int32_t lanes, std::int64_t credit_bytes) : running_(lanes), credit_bytes_(credit_bytes) {}

  void Add(std::uint64_t number, std::int64_t priority, std::int64_t bytes) { waiting_.insert({priority, number, bytes}); }
  void Finish(std::int32_t lane);

  struct Start {
    std::uint64_t number = 0;
    std::int32_t lane = 0;
    std::int64_t priority = 0;
  };
  // Call again until it gives none.
  std::optional<Start> Next();

 private:
  struct Waiting {
    std::int64_t priority = 0;
    std::uint64_t number = 0;
    std::int64_t bytes = 0;
    auto operator<=>(const Waiting&) const = default;
  };
  std::set<Waiting> waiting_;
  std::vector<std::optional<Waiting>> running_;  // by lane
  std::int64_t credit_bytes_;
};

}  // namespace ropewalk::collective
