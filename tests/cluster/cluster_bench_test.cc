// `ropewalk bench collective` with real processes: here, and on the workers of `ropewalk start dev`.
#include <nlohmann/json.hpp>

#include <set>

#include "tests/cluster/dev_cluster.h"

namespace ropewalk::cluster {
namespace {

using nlohmann::json;

class Bench : public DevCluster {
 protected:
  // Exits with 0; what it says on stdout.
  std::string Measure(std::vector<std::string> args, bool on_cluster) {
    args.insert(args.begin(), {"bench", "collective"});
    if (on_cluster) args.insert(args.end(), {"--master", address_, "--token-file", dir_ / "state/token"});
    auto bench = Start(std::move(args), "bench" + std::to_string(calls_++));
    EXPECT_EQ(bench->Wait(), 0) << bench->err();
    return bench->out();
  }
  int calls_ = 0;
};

TEST_F(Bench, HereAndOnAClusterEveryResultIsRight) {
  StartDev();
  for (bool on_cluster : {false, true}) {
    SCOPED_TRACE(on_cluster ? "on a cluster" : "here");
    const std::string name = on_cluster ? "there" : "here";
    // Two workers count as two machines, which share no memory.
    const std::size_t wires = on_cluster ? 1 : 2;
    const std::string wire = on_cluster ? "tcp" : "shared,tcp";
    const std::string said = Measure({"--ranks", "2", "--sizes", "1K,100K", "--wire", wire, "--iterations", "5", "--json", name + ".json",
                                      "--plot", name + ".svg", "--output", "json"},
                                     on_cluster);
    EXPECT_EQ(ReadFile(dir_ / (name + ".json")), said);
    EXPECT_EQ(ReadFile(dir_ / (name + ".svg")).find("<svg "), 0u);
    const json report = json::parse(said, nullptr, false);
    ASSERT_FALSE(report.is_discarded()) << said;
    EXPECT_EQ(report["ranks"], 2);
    EXPECT_EQ(report["machines"], on_cluster ? 2 : 1);
    EXPECT_EQ(report["calibration"].size(), wires);
    for (const json& costs : report["calibration"]) {
      EXPECT_GT(costs["ns_per_byte"], 0) << costs;
      EXPECT_EQ(costs["from_rank_0"].size(), 1u) << costs;
    }
    std::set<std::string> algorithms, places;
    for (const json& point : report["points"]) {
      algorithms.insert(point["algorithm"]);
      places.insert(std::string(point["algorithm"]) + " " + std::string(point["wire"]) + " " + point["size"].dump());
      EXPECT_EQ(point["wrong"], 0) << point;
      EXPECT_EQ(point["iterations"], 5) << point;
      for (const char* number : {"median_us", "p95_us", "algbw_gb_per_s", "predicted_us"}) EXPECT_GT(point[number], 0) << point;
      // 2(P - 1)/P of two ranks is 1.
      EXPECT_EQ(point["busbw_gb_per_s"], point["algbw_gb_per_s"]);
    }
    EXPECT_GE(algorithms.size(), 4u);
    EXPECT_EQ(places.size(), algorithms.size() * 2 * wires) << "each algorithm at each size over each wire";
    EXPECT_EQ(report["points"].size(), places.size());
  }
}

TEST_F(Bench, TheTableIsForPeople) {
  const std::string said = Measure({"--ranks", "3", "--sizes", "4K", "--collective", "broadcast", "--iterations", "5"}, false);
  for (const char* part :
       {"# broadcast of f32, 3 ranks on 1 machine", "# shared: a call ", "predicted us  wrong\n", "broadcast_chain", "*"})
    EXPECT_NE(said.find(part), std::string::npos) << part << " in " << said;
}

TEST_F(Bench, MistakesEndWithTheirExitCode) {
  struct Case {
    std::vector<std::string> args;
    int code;
    const char* tag;
  };
  for (const Case& c :
       {Case{{"--ranks", "0"}, 2, "BENCH21"}, Case{{"--algorithms", "rink"}, 2, "BENCH21"}, Case{{"--threads", "2"}, 2, "CLI02"},
        Case{{"--json", "nowhere/r.json"}, 3, "BENCH24"}, Case{{"--output", "xml"}, 2, "CLI01"}}) {
    std::vector<std::string> args = {"bench", "collective"};
    args.insert(args.end(), c.args.begin(), c.args.end());
    std::string said;
    EXPECT_EQ(Run(args, &said), c.code) << said;
    EXPECT_NE(said.find(c.tag), std::string::npos) << said;
  }
}

}  // namespace
}  // namespace ropewalk::cluster
