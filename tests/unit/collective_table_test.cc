// The table of algorithms is all there is: what is not in it can be neither built nor called, whatever its name was.
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "mlrunner/collective/run/choose.h"
#include "mlrunner/collective/run/codecs.h"
#include "tests/unit/collective_gang.h"

namespace ropewalk::collective::testing {
namespace {

std::vector<Algorithm> Without(std::string_view name) {
  std::vector<Algorithm> rest;
  for (const Algorithm& algorithm : Algorithms())
    if (algorithm.name != name) rest.push_back(algorithm);
  return rest;
}

TEST(Table, WhatIsNotInItCannotBeBuilt) {
  for (const Algorithm& algorithm : Algorithms()) {
    EXPECT_EQ(*FindAlgorithm(Algorithms(), algorithm.name), &algorithm);
    const std::vector<Algorithm> rest = Without(algorithm.name);
    ASSERT_EQ(rest.size() + 1, Algorithms().size());
    Status status = FindAlgorithm(rest, algorithm.name).status();
    EXPECT_EQ(status.tag(), "COLL11") << algorithm.name;
    EXPECT_EQ(status.code(), Code::kNotFound);
    // It is not said to be there, either: between commas, since some names begin as others do.
    EXPECT_EQ((status.why().substr(std::string("there are").size()) + ",").find(" " + std::string(algorithm.name) + ","), std::string::npos)
        << status.why();
    for (const Algorithm& other : rest) EXPECT_TRUE(FindAlgorithm(rest, other.name).ok()) << other.name;
  }
}

class TableOfCalls : public ::testing::TestWithParam<Wire> {};
INSTANTIATE_TEST_SUITE_P(Wires, TableOfCalls, ::testing::Values(Wire::kShared, Wire::kTcp),
                         [](const auto& info) { return std::string(info.param == Wire::kShared ? "shared" : "tcp"); });

// Long enough for the choice of large vectors, or short enough for that of small ones.
std::int64_t CountFor(const Algorithm& algorithm) {
  return algorithm.name == "recursive_doubling" || algorithm.name == "broadcast_tree" ? 16 : 50'000;
}

// The algorithm of a call for what `algorithm` does that names none.
std::string_view WhatIsChosen(Wire wire, const Algorithm& algorithm) {
  return Choose({.collective = algorithm.collective, .ranks = 2}, algorithm.codecs != Codecs::kNone, CountFor(algorithm),
                wire == Wire::kShared, 0)
      .algorithm;
}

// A call by `algorithm`, or by what is chosen for the same, between ranks that have `table`: its tag, empty where it went well.
std::string TagOfCall(Wire wire, std::span<const Algorithm> table, const Algorithm& algorithm, bool by_name) {
  constexpr std::int32_t kRanks = 2;
  const std::int64_t count = CountFor(algorithm);
  std::vector<std::string> tags(kRanks);
  Meeting meeting(kRanks);
  std::vector<std::thread> threads;
  for (std::int32_t rank = 0; rank < kRanks; ++rank)
    threads.emplace_back([&, rank] {
      CommunicatorOptions options = Over(wire);
      options.algorithms = table;
      auto all = Communicator::Connect(meeting.Of(rank), options);
      if (!all.ok()) {
        tags[rank] = all.status().tag();
        return;
      }
      const std::vector<std::int64_t> each(kRanks, 10);
      const MixingMatrix mean(kRanks, std::vector<double>(kRanks, .5));
      const Codec codec = MinMaxCodec(8, 512);
      const Neighbors neighbors = {{1}, {0, 1}};
      std::vector<float> in(static_cast<std::size_t>(kRanks * count), 1), out(in.size());
      CollectiveCall call{.collective = algorithm.collective,
                          .in = in.data(),
                          .out = out.data(),
                          .count = count,
                          .peer = 1,
                          .name = "x",
                          .algorithm = by_name ? algorithm.name : std::string_view()};
      Window window;
      if (LearnsCounts(algorithm.collective)) call.counts = each.data();
      if (algorithm.collective == Collective::kNeighborExchange) call.neighbors = &neighbors;
      if (algorithm.collective == Collective::kMix) {
        auto made = (*all)->MakeWindow(static_cast<std::size_t>(count) * sizeof(float));
        ASSERT_TRUE(made.ok()) << made.status().ToString();
        window = *made;
        call.mixing = &mean;
        call.window = &window;
      }
      if (algorithm.codecs != Codecs::kNone) call.codec = &codec;
      Status status = (*all)->Run(call);
      tags[rank] = status.ok() ? "" : status.tag();
      meeting.Barrier(rank);
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(tags[0], tags[1]) << algorithm.name;
  return tags[0];
}

TEST_P(TableOfCalls, WhatIsNotInItCannotBeCalledByNameOrByChoice) {
  for (const Algorithm& algorithm : Algorithms()) {
    const std::vector<Algorithm> rest = Without(algorithm.name);
    EXPECT_EQ(TagOfCall(GetParam(), rest, algorithm, true), "COLL11") << algorithm.name;
    // The control: it is there, and runs, or says what else it needs: a quorum, a library.
    const std::string needs = algorithm.name == "eager" ? "COLL10" : algorithm.name.starts_with("native") ? "COLL12" : "";
    EXPECT_EQ(TagOfCall(GetParam(), Algorithms(), algorithm, true), needs) << algorithm.name;
    const bool is_chosen = WhatIsChosen(GetParam(), algorithm) == algorithm.name;
    EXPECT_EQ(TagOfCall(GetParam(), rest, algorithm, false), is_chosen ? "COLL11" : "") << algorithm.name;
  }
}

// A strategy's own algorithm is called like any other.
TEST_P(TableOfCalls, ACallersOwnAlgorithmRunsByItsName) {
  std::vector<Algorithm> table(Algorithms().begin(), Algorithms().end());
  Algorithm mine = **FindAlgorithm(Algorithms(), "ring");
  mine.name = "mine";
  EXPECT_EQ(TagOfCall(GetParam(), table, mine, true), "COLL11");
  table.push_back(mine);
  EXPECT_EQ(TagOfCall(GetParam(), table, mine, true), "");
}

}  // namespace
}  // namespace ropewalk::collective::testing
