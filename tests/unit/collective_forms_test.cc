// Closed forms of what algorithms send, how many rounds they take and how many messages meet at a rank, written down from what the
// algorithms are and without a look at their builders, against the figures of the plans.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/collective_plans.h"
#include "tests/unit/collective_rounds.h"

namespace ropewalk::collective::testing {
namespace {

using Int = std::int64_t;

constexpr Int kRanks[] = {2, 3, 4, 5, 6, 7, 8, 9, 12, 16};
constexpr Int kCounts[] = {0, 1, 7, 1'000'003};

Int Floor2(Int n) { return n < 2 ? 0 : 1 + Floor2(n / 2); }            // ⌊log₂n⌋
Int Ceiling2(Int n) { return n < 2 ? 0 : 1 + Ceiling2((n + 1) / 2); }  // ⌈log₂n⌉
Int Modulo(Int a, Int n) { return ((a % n) + n) % n; }
// Part i of n elements: the first n mod p are one longer.
Int Part(Int p, Int n, Int i) { return n / p + (Modulo(i, p) < n % p ? 1 : 0); }

// Of an algorithm among p ranks with n elements.
struct Form {
  std::string algorithm;
  std::function<Int(Int p, Int n)> all;          // elements that all ranks send
  std::function<Int(Int p, Int n, Int r)> rank;  // elements that rank r sends
  std::function<Int(Int p)> rounds, fan_in;
};

Int MostOf(const Form& form, Int p, Int n) {
  Int most = 0;
  for (Int r = 0; r < p; ++r) most = std::max(most, form.rank(p, n, r));
  return most;
}

Int TwoForEachOther(Int p, Int n) { return 2 * n * (p - 1); }

// Everybody's part of all others, and its own sum to all others.
Int SentByDirect(Int p, Int n, Int r) { return (n - Part(p, n, r)) + (p - 1) * Part(p, n, r); }
// Each half sends all parts but one.
Int SentByRing(Int p, Int n, Int r) { return (n - Part(p, n, r + 1)) + (n - Part(p, n, r + 2)); }
// 2^k ranks exchange k times; of the first 2·rest each even one hands in, and gets the result from the odd one behind it.
Int SentByDoubling(Int p, Int n, Int r) {
  const Int k = Floor2(p), rest = p - (Int{1} << k);
  if (r >= 2 * rest) return n * k;
  return r % 2 == 0 ? n : n * k + n;
}
// A rank of a block of 2^k ranks keeps one of two halves k times, and so sends all but the piece that it is left with; on the way back it
// sends what it has then, k times. The piece goes up to a larger block and down to a smaller one, where there are such.
Int SentByHalving(Int p, Int n, Int r) {
  Int first = 0, block = Int{1} << Floor2(p);
  while (r >= first + block) {
    first += block;
    block = Int{1} << Floor2(p - first);
  }
  Int piece = n, grown = 0;
  for (Int index = r - first, rest = block; rest > 1; rest /= 2, index /= 2) {
    piece = index % 2 == 0 ? (piece + 1) / 2 : piece / 2;
    grown += piece;
  }
  return (n - piece) + grown + (first > 0 ? piece : 0) + (first + block < p ? piece : 0);
}
// The widest step between the sizes of neighbouring blocks: so many pieces reach a rank of the smaller one at once.
Int FanInOfHalving(Int p) {
  Int widest = 1, before = 0;
  for (Int block = Int{1} << Floor2(p); block > 0; block /= 2)
    if ((p & block) != 0) {
      if (before > 0) widest = std::max(widest, before / block);
      before = block;
    }
  return widest;
}
Int RoundsOfDoubling(Int p) {
  const Int k = Floor2(p), rest = p - (Int{1} << k);
  // One more for what is handed in; one more still where a rank that must hand the result back is as far as can be from another such.
  return k + (rest > 0 ? 1 : 0) + (2 * rest > Int{1} << k ? 1 : 0);
}
// How many children a place has: odd ones none; place 0 one; the others one, or two where a place lies behind them.
Int Children(Int p, Int place) {
  if (place % 2 != 0 || p == 1) return 0;
  return place == 0 || place == p - 1 ? 1 : 2;
}
// The vector once up, but from the root, and once down to each child.
Int SentByTree(Int p, Int n, Int place) { return n * ((place > 0 ? 1 : 0) + Children(p, place)); }
Int RoundsOfTrees(Int p) { return 2 * Ceiling2(p); }
// From four ranks on some place has two leaves below it.
Int FanInOfTrees(Int p) { return p < 4 ? 1 : 2; }
// The second tree is the first in the mirror, or moved on by one.
Int SentByDoubleTree(Int p, Int n, Int r) {
  const Int second = p % 2 == 0 ? p - 1 - r : Modulo(r - 1, p);
  return SentByTree(p, (n + 1) / 2, r) + SentByTree(p, n / 2, second);
}

const std::vector<Form>& Forms() {
  static const std::vector<Form> kForms = {
      {"direct", TwoForEachOther, SentByDirect, [](Int) { return Int{2}; }, [](Int p) { return p - 1; }},
      {"ring", TwoForEachOther, SentByRing, [](Int p) { return 2 * (p - 1); }, [](Int) { return Int{1}; }},
      {"recursive_doubling",
       [](Int p, Int n) {
         const Int k = Floor2(p), inner = Int{1} << k;
         return n * (inner * k + 2 * (p - inner));
       },
       SentByDoubling, RoundsOfDoubling, [](Int p) { return p == Int{1} << Floor2(p) ? Int{1} : Int{2}; }},
      {"halving_doubling", TwoForEachOther, SentByHalving, [](Int p) { return 2 * Floor2(p); }, FanInOfHalving},
      {"chain", TwoForEachOther, [](Int p, Int n, Int r) { return r == 0 || r == p - 1 ? n : 2 * n; }, [](Int p) { return 2 * (p - 1); },
       [](Int) { return Int{1}; }},
      {"tree", TwoForEachOther, SentByTree, RoundsOfTrees, FanInOfTrees},
      {"double_tree", TwoForEachOther, SentByDoubleTree, RoundsOfTrees, FanInOfTrees},
      {"central_ps", TwoForEachOther, [](Int p, Int n, Int r) { return r == 0 ? n * (p - 1) : n; }, [](Int) { return Int{2}; },
       [](Int p) { return p - 1; }},
  };
  return kForms;
}

const Form& FormOf(std::string_view algorithm) {
  for (const Form& form : Forms())
    if (form.algorithm == algorithm) return form;
  ADD_FAILURE() << "no closed form is known of " << algorithm;
  return Forms()[0];
}

// `within` among the ranks of a node, `across` among those of the same place; nodes are dealt out in turn (NodesOf).
Form Hierarchical(const std::string& within, const std::string& across, Int size) {
  const Form a = FormOf(within), b = FormOf(across);
  auto ranks_across = [=](Int p) { return p / size; };
  return {.algorithm = "hierarchical_" + within + "_" + across,
          .all =
              [=](Int p, Int n) {
                const Int m = ranks_across(p);
                Int sum = size > 1 ? m * a.all(size, n) : 0;
                for (Int place = 0; m > 1 && place < size; ++place) sum += b.all(m, Part(size, n, place));
                return sum;
              },
          .rank =
              [=](Int p, Int n, Int r) {
                const Int m = ranks_across(p), place = r / m, node = r % m;
                // Round a ring the part that a rank has the sum of is the next one's.
                const Int mine = size == 1 ? n : Part(size, n, within == "ring" ? place + 1 : place);
                return (size > 1 ? a.rank(size, n, place) : 0) + (m > 1 ? b.rank(m, mine, node) : 0);
              },
          .rounds = [=](Int p) { return (size > 1 ? a.rounds(size) : 0) + (p > size ? b.rounds(ranks_across(p)) : 0); },
          .fan_in = [=](Int p) { return std::max(size > 1 ? a.fan_in(size) : 0, p > size ? b.fan_in(ranks_across(p)) : 0); }};
}

void ExpectForm(const Form& form, const Request& request, Int n) {
  const Int p = request.ranks, size = static_cast<Int>(SizeOf(request.dtype));
  const std::string what =
      form.algorithm + " P=" + std::to_string(p) + " N=" + std::to_string(n) + " of " + std::to_string(size) + " bytes";
  auto plan = BuildPlan(form.algorithm, request);
  ASSERT_TRUE(plan.ok()) << what << ": " << plan.status().ToString();
  const Figures figures = RoundMachine::FiguresOf(*plan, {.count = n});
  EXPECT_EQ(figures.total(), form.all(p, n) * size) << what;
  for (Int r = 0; r < p; ++r) EXPECT_EQ(figures.sent_bytes[r], form.rank(p, n, r) * size) << what << ", rank " << r;
  EXPECT_EQ(figures.most(), MostOf(form, p, n) * size) << what;
  EXPECT_EQ(figures.rounds, form.rounds(p)) << what;
  EXPECT_EQ(figures.fan_in, form.fan_in(p)) << what;
}

class FormsOf : public ::testing::TestWithParam<Int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, FormsOf, ::testing::ValuesIn(kRanks), [](const auto& info) { return "P" + std::to_string(info.param); });

TEST_P(FormsOf, AllreducesAreThoseOfTheirPlans) {
  for (const Form& form : Forms())
    for (Int n : kCounts)
      for (Dtype dtype : {Dtype::kF32, Dtype::kU8})
        ExpectForm(form, {.dtype = dtype, .ranks = static_cast<std::int32_t>(GetParam()), .channels = 1}, n);
}

TEST_P(FormsOf, HierarchicalOnesAreThoseOfTheirPhases) {
  const auto p = static_cast<std::int32_t>(GetParam());
  for (std::int32_t size = 1; size <= p; ++size) {
    if (p % size != 0) continue;
    for (const char* within : {"direct", "ring"})
      for (const char* across : {"direct", "ring", "recursive_doubling", "halving_doubling"})
        for (Int n : kCounts) ExpectForm(Hierarchical(within, across, size), {.ranks = p, .channels = 1, .nodes = NodesOf(p, size)}, n);
  }
}

// Every allreduce that the table has, but for what carries codes, a quorum or a library's messages.
TEST(Forms, AreKnownOfEveryAllreduce) {
  for (const std::string& algorithm : PlainAllreduces()) {
    if (algorithm.starts_with("hierarchical_")) continue;
    EXPECT_EQ(FormOf(algorithm).algorithm, algorithm);
  }
}

// What all ranks send does not depend on how it is cut, though what a rank sends may.
TEST(Forms, HoldForSegmentsAndChannels) {
  for (Int p : kRanks)
    for (const Form& form : Forms()) {
      auto plan = BuildPlan(form.algorithm, {.ranks = static_cast<std::int32_t>(p), .channels = 2, .segment_bytes = 4096});
      ASSERT_TRUE(plan.ok()) << plan.status().ToString();
      EXPECT_EQ(RoundMachine::FiguresOf(*plan, {.count = 10'007}).total(), form.all(p, 10'007) * 4) << form.algorithm << " P=" << p;
    }
}

// A rank is an inner node of one of the two trees at most, where ranks are even in number: so none sends more than about two vectors.
TEST(Forms, NoRankOfADoubleTreeSendsMuchMoreThanTwoVectors) {
  for (Int p : kRanks) {
    auto plan = BuildPlan("double_tree", {.ranks = static_cast<std::int32_t>(p)});
    ASSERT_TRUE(plan.ok());
    EXPECT_LE(RoundMachine::FiguresOf(*plan, {.count = 10'000}).most(), 2 * 10'000 * 4) << p;
  }
}

}  // namespace
}  // namespace ropewalk::collective::testing
