// Ranks that hold the others up. In a step all ranks wait for the slowest one, so the length of their steps says nothing, and nor does what
// a rank waits for: not for the others in sums, and not for its batch either, which is made meanwhile. What a rank does by itself does:
// forward, backward and updates, and making a batch, the two beside each other (the longer one counts) or one after the other.
//
//   own seconds of the last steps ─ median ─▶ one number a rank ─ all ranks' ─▶ above `ratio` times the median of the other ranks': named
//
// A median over some steps, so that one slow step (a page fault, a backup) is no straggler, and a rank has to be slow in half of them.
//
// Thread rule: values.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

namespace ropewalk::mlrunner {

struct StragglerOptions {
  double ratio = 1.5;       // to the others' median; 0: nobody is looked for
  std::int64_t steps = 50;  // that are looked at together
};

// What a rank did by itself in a step.
struct OwnSeconds {
  double all = 0;
  double data = 0;  // to make its batch
};

struct Straggler {
  std::int32_t rank = 0;
  double ratio = 0;    // to its peers
  OwnSeconds own;      // medians of a step
  double peers_s = 0;  // median of the other ranks' medians
};

// By rank. Differences of less than a millisecond a step are what a machine's scheduler does to threads, and name nobody.
std::vector<Straggler> FindStragglers(std::span<const OwnSeconds> ranks, double ratio);

// One rank's part, and on rank 0 who has been named.
class StragglerWatch {
 public:
  explicit StragglerWatch(StragglerOptions options) : options_(options) {}

  // After each step. True every options.steps steps, on all ranks at the same one: TakeMedians() are to be brought together then.
  bool Add(const OwnSeconds& step);
  // Of the steps since the last call.
  OwnSeconds TakeMedians();

  // What is new by all ranks' medians: those who became slow, and those of them who are not any more. One that comes and goes, as where
  // processors are short, is news when it becomes slow for the first, second, fourth, eighth... time.
  struct News {
    std::vector<Straggler> slow;
    std::vector<std::int32_t> over;
  };
  News Judge(std::span<const OwnSeconds> ranks);

 private:
  const StragglerOptions options_;
  std::vector<double> all_, data_;
  std::set<std::int32_t> slow_;             // by the last medians
  std::set<std::int32_t> named_;            // of these, those who were news
  std::map<std::int32_t, unsigned> times_;  // that a rank became slow
};

// "rank 2 on w2 holds the others up: 41.2 ms of its own a step, 2.1 times the 19.6 ms of its peers; to make a batch takes it 19.0 ms"
std::string ToString(const Straggler& straggler, const std::string& machine);

}  // namespace ropewalk::mlrunner
