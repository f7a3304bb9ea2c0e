// How `ropewalk bench collective` is called, and the factors that its bandwidths have.
#include <gtest/gtest.h>

#include <algorithm>

#include "mlrunner/measure/arguments.h"
#include "mlrunner/measure/bandwidth.h"
#include "mlrunner/measure/contenders.h"
#include "mlrunner/measure/sizes.h"

namespace ropewalk::measure {
namespace {

using collective::Collective;
using collective::Dtype;
using collective::ReduceOp;
using collective::Wire;
using Args = std::vector<std::string>;

Result<BenchArguments> Parse(Args args) {
  args.insert(args.begin(), "ropewalk bench collective");
  return ParseBenchArguments(args, "/folder");
}

// doc/PERFORMANCE.md of nccl-tests, by hand for four ranks; gather and scatter as its sources have them.
TEST(BusFactor, IsThatOfNcclTests) {
  EXPECT_EQ(BusFactor("allreduce", 4), 1.5);
  for (const char* split : {"reduce_scatter", "allgather", "allgather_v", "all_to_all", "all_to_all_v", "gather", "scatter"})
    EXPECT_EQ(BusFactor(split, 4), .75) << split;
  for (const char* whole : {"broadcast", "reduce", "send_recv"}) EXPECT_EQ(BusFactor(whole, 4), 1) << whole;
  EXPECT_EQ(BusFactor("allreduce", 2), 1);
  EXPECT_EQ(BusFactor("allgather", 2), .5);
  EXPECT_EQ(BusFactor("allreduce", 1), 0) << "one rank sends nothing";
  EXPECT_FALSE(BusFactor("barrier", 4));
  EXPECT_FALSE(BusFactor("mix", 4));
  EXPECT_DOUBLE_EQ(AlgorithmGbPerS(1'000'000, 1'000), 1);
  EXPECT_EQ(AlgorithmGbPerS(1'000'000, 0), 0);
}

TEST(BenchSizes, ListsAndRanges) {
  auto sizes = [](const char* text) {
    auto parsed = ParseSizes(text);
    EXPECT_TRUE(parsed.ok()) << text << ": " << parsed.status().ToString();
    return parsed.ok() ? *parsed : std::vector<std::int64_t>();
  };
  using List = std::vector<std::int64_t>;
  EXPECT_EQ(sizes("4096"), List{4096});
  EXPECT_EQ(sizes("4K,1M,3"), (List{4096, 1 << 20, 3}));
  EXPECT_EQ(sizes("1K:8K"), (List{1024, 2048, 4096, 8192}));
  EXPECT_EQ(sizes("1K:100K:4"), (List{1024, 4096, 16384, 65536}));
  EXPECT_EQ(sizes("5:5"), List{5});
  EXPECT_EQ(sizes("1K:2K,1M"), (List{1024, 2048, 1 << 20}));
  EXPECT_EQ(sizes("8G:16G:1000000000"), List{std::int64_t{8} << 30});
  for (const char* bad : {"", "0", "-1", "4X", "4K,", ",4K", "4K:", ":4K", "8K:4K", "1K:4K:1", "1K:4K:x", "1K:4K:2:2", "17G", "1K;2K",
                          "1.5K", "1:2:99999999999999999999"}) {
    const Status status = ParseSizes(bad).status();
    EXPECT_EQ(status.tag(), "BENCH21") << bad;
    EXPECT_EQ(status.code(), Code::kInvalid) << bad;
    EXPECT_FALSE(status.why().empty() || status.fix().empty()) << bad;
    EXPECT_EQ(status.what().find('\n'), std::string::npos) << bad;
  }
  std::string many = "1";
  for (int i = 0; i < 100; ++i) many += ",1";
  EXPECT_NE(ParseSizes(many).status().why().find("more than 100"), std::string::npos);
}

TEST(BenchArguments, SayWhatIsMeasured) {
  auto parsed = Parse({"--collective", "broadcast", "--ranks=3",   "--sizes", "4K,1M",      "--algorithms", "broadcast_chain,chosen",
                       "--dtype=bf16", "--op",      "max",         "--wire",  "shared,tcp", "--warmup",     "2",
                       "--iterations", "7",         "--check=off", "--json",  "r.json",     "--plot",       "/x/p.svg"});
  ASSERT_TRUE(parsed.ok()) << parsed.status().ToString();
  const BenchJob& job = parsed->job;
  EXPECT_EQ(job.collective, Collective::kBroadcast);
  EXPECT_EQ(job.ranks, 3);
  EXPECT_EQ(job.sizes, (std::vector<std::int64_t>{4096, 1 << 20}));
  EXPECT_EQ(job.algorithms, (Args{"broadcast_chain", ""}));
  EXPECT_EQ(job.dtype, Dtype::kBF16);
  EXPECT_EQ(job.op, ReduceOp::kMax);
  EXPECT_EQ(job.wires, (std::vector<Wire>{Wire::kShared, Wire::kTcp}));
  EXPECT_EQ(job.warmup, 2);
  EXPECT_EQ(job.iterations, 7);
  EXPECT_FALSE(job.check);
  EXPECT_EQ(job.json, "/folder/r.json");
  EXPECT_EQ(job.plot, "/x/p.svg");
}

TEST(BenchArguments, WithoutFlagsThereIsAJob) {
  auto parsed = Parse({});
  ASSERT_TRUE(parsed.ok()) << parsed.status().ToString();
  EXPECT_EQ(parsed->job.collective, Collective::kAllreduce);
  EXPECT_EQ(parsed->job.ranks, 2);
  EXPECT_TRUE(parsed->job.check);
  EXPECT_GT(parsed->job.sizes.size(), 3u);
  EXPECT_EQ(parsed->job.wires, std::vector<Wire>{Wire::kByMachine});
  EXPECT_EQ(parsed->job.choose_by, collective::ChooseBy::kFixedSizes);
}

TEST(BenchArguments, HowItIsChosenIsSaid) {
  auto parsed = Parse({"--choose-by", "kept-costs"});
  ASSERT_TRUE(parsed.ok()) << parsed.status().ToString();
  EXPECT_EQ(parsed->job.choose_by, collective::ChooseBy::kKeptCosts);
  parsed = Parse({"--choose-by=measured-cost"});
  ASSERT_FALSE(parsed.ok());
  EXPECT_NE(parsed.status().ToString().find("did you mean \"measured-costs\"?"), std::string::npos) << parsed.status().ToString();
}

// An executor has another folder.
TEST(BenchArguments, TheCallOfAnExecutorMakesTheSameJob) {
  auto parsed = Parse({"--master", "m:1", "--sizes", "4K", "--name=n", "--json", "r.json", "--ranks=4"});
  ASSERT_TRUE(parsed.ok()) << parsed.status().ToString();
  EXPECT_EQ(parsed->argv,
            (Args{"ropewalk bench collective", "--master", "m:1", "--sizes=4K", "--name=n", "--json=/folder/r.json", "--ranks=4"}));
  auto again = ParseBenchArguments(parsed->argv, "/elsewhere");
  ASSERT_TRUE(again.ok()) << again.status().ToString();
  EXPECT_EQ(again->argv, parsed->argv);
  EXPECT_EQ(again->job.json, "/folder/r.json");
  EXPECT_EQ(again->job.ranks, 4);
}

// Of each collective those of the table that a plain call can run by, whatever the table has; what stays out is named with a reason.
TEST(BenchArguments, AllAlgorithmsOfTheTableAreInOrSayWhyNot) {
  for (const std::string& collective : CollectiveNames(collective::Algorithms())) {
    auto parsed = Parse({"--collective", collective, "--ranks", "4"});
    std::size_t in_table = 0;
    for (const collective::Algorithm& algorithm : collective::Algorithms()) in_table += Name(algorithm.collective) == collective;
    if (!parsed.ok()) {
      EXPECT_EQ(collective, "mix") << parsed.status().ToString();
      EXPECT_NE(parsed.status().why().find("window: it needs a window"), std::string::npos) << parsed.status().ToString();
      continue;
    }
    EXPECT_EQ(parsed->job.algorithms.size() + parsed->job.left_out.size(), in_table) << collective;
  }
  auto sums = Parse({});
  ASSERT_TRUE(sums.ok());
  for (const char* name : {"direct", "ring", "recursive_doubling", "chain"})
    EXPECT_NE(std::find(sums->job.algorithms.begin(), sums->job.algorithms.end(), name), sums->job.algorithms.end()) << name;
  for (const char* left_out : {"native: it needs a library", "sra: it takes numbers encoded only"})
    EXPECT_NE(std::find(sums->job.left_out.begin(), sums->job.left_out.end(), left_out), sums->job.left_out.end()) << left_out;
}

// What must be placed in a certain way takes part where it is named only: where ranks will stand is not known here.
TEST(BenchArguments, WhatMustBePlacedIsLeftOutUntilItIsNamed) {
  auto is_hierarchical = [](const std::string& name) { return name.starts_with("hierarchical_"); };
  auto all = Parse({"--ranks", "4"});
  ASSERT_TRUE(all.ok()) << all.status().ToString();
  EXPECT_EQ(std::count_if(all->job.algorithms.begin(), all->job.algorithms.end(), is_hierarchical), 0);
  EXPECT_EQ(std::count_if(all->job.left_out.begin(), all->job.left_out.end(), is_hierarchical), 8);
  auto named = Parse({"--ranks", "4", "--algorithms", "hierarchical_ring_direct"});
  ASSERT_TRUE(named.ok()) << named.status().ToString();
  EXPECT_EQ(named->job.algorithms, std::vector<std::string>{"hierarchical_ring_direct"});
  // Two ranks cannot stand so that one machine has more of them.
  auto two = Parse({"--ranks", "2"});
  ASSERT_TRUE(two.ok());
  EXPECT_EQ(std::count_if(two->job.algorithms.begin(), two->job.algorithms.end(), is_hierarchical), 8);
}

TEST(BenchArguments, MistakesAreNamed) {
  struct Wrong {
    Args args;
    const char* what;
    const char* fix;
  };
  const Wrong table[] = {
      {{"--rank", "3"}, "unknown flag \"--rank\"", "\"--ranks\""},
      {{"--zzzzzz"}, "unknown flag", "--help"},
      {{"allreduce"}, "\"allreduce\" is too much", "--help"},
      {{"--ranks"}, "--ranks needs a value", "--help"},
      {{"--ranks", "0"}, "--ranks", "mend"},
      {{"--ranks", "257"}, "--ranks", "mend"},
      {{"--ranks", "2x"}, "--ranks", "mend"},
      {{"--ranks", "2", "--ranks", "3"}, "--ranks is given twice", "leave one out"},
      {{"--collective", "alreduce"}, "--collective: \"alreduce\"", "\"allreduce\""},
      {{"--collective", "mix"}, "none can be measured that does mix", "another collective"},
      {{"--algorithms", "rink"}, "\"rink\" cannot be measured", "\"ring\""},
      {{"--algorithms", "ring,"}, "\"\" cannot be measured", "direct"},
      {{"--algorithms", "ring,direct,ring"}, "\"ring\" is there twice", "leave one out"},
      {{"--algorithms", "chosen,chosen"}, "\"chosen\" is there twice", "leave one out"},
      {{"--algorithms", "sra"}, "\"sra\" cannot be measured", "direct"},
      {{"--algorithms", "ring,all"}, "\"all\" cannot be measured", "direct"},
      {{"--collective=broadcast", "--algorithms", "ring"}, "\"ring\" cannot be measured", "broadcast_tree"},
      {{"--dtype", "f31"}, "--dtype: \"f31\"", "\"f32\""},
      {{"--dtype", "bool"}, "--dtype: \"bool\"", "mend"},
      {{"--op", "avg", "--dtype", "i32"}, "none can be measured that does allreduce", "--dtype"},
      {{"--op", "mean"}, "--op: \"mean\"", ""},
      {{"--wire", "tpc"}, "--wire: \"tpc\"", "\"tcp\""},
      {{"--wire", "tcp,tcp"}, "--wire", "mend"},
      {{"--warmup", "0"}, "--warmup", "mend"},
      {{"--iterations", "0"}, "--iterations", "mend"},
      {{"--seconds", "0"}, "--seconds", "mend"},
      {{"--seconds", "nan"}, "--seconds", "mend"},
      {{"--seconds", "1", "--iterations", "1"}, "both --iterations and --seconds", "leave one out"},
      {{"--check", "yes"}, "--check", "mend"},
      {{"--json="}, "--json", "mend"},
      {{"--sizes", "0"}, "--sizes", "--sizes 4K,1M"},
      {{"--threads", "2"}, "it takes no --threads", "leave it out"},
  };
  for (const Wrong& wrong : table) {
    const Status status = Parse(wrong.args).status();
    EXPECT_EQ(status.tag(), "BENCH21") << wrong.what << status.ToString();
    EXPECT_EQ(status.code(), Code::kInvalid) << wrong.what;
    EXPECT_NE(status.what().find(wrong.what), std::string::npos) << status.ToString();
    EXPECT_FALSE(status.why().empty()) << status.ToString();
    EXPECT_NE(status.fix().find(wrong.fix), std::string::npos) << status.ToString();
  }
  auto help = Parse({"--ranks", "0", "--help"});
  ASSERT_TRUE(help.ok());
  EXPECT_TRUE(help->help);
  for (const char* part : {"--collective NAME", "--plot FILE.svg", "recursive_doubling"})
    EXPECT_NE(BenchUsage().find(part), std::string::npos) << part;
}

}  // namespace
}  // namespace ropewalk::measure
