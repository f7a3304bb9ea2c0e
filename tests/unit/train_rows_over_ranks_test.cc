// Rows of tables that several ranks have read: gathered where they are fewer bytes than whole tables, and then the same bits for any
// number of ranks.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <thread>

#include "base/random.h"
#include "mlrunner/graph/explain.h"
#include "mlrunner/graph/grad.h"
#include "mlrunner/graph/maths.h"
#include "mlrunner/graph/ops.h"
#include "mlrunner/graph/optimizers.h"
#include "mlrunner/graph/passes/pass.h"
#include "mlrunner/kernels/cpu.h"
#include "mlrunner/train/buckets.h"
#include "mlrunner/train/family.h"
#include "mlrunner/train/step_graph.h"
#include "tests/unit/train_ranks.h"

namespace ropewalk::mlrunner {
namespace {

using testing::JobOf;
using testing::TrainOnThreads;

constexpr std::int64_t kTable = 400, kWidth = 3, kBatch = 24;

std::int64_t CountOf(const Graph& graph, const OpDef& def) {
  return std::count_if(graph.ops.begin(), graph.ops.end(), [&](const Op& op) { return op.def == &def && op.half != Half::kDone; });
}

// The gradient of each row is what is given for it: nothing but the sums can be rounded in another way.
Graph TableModel(std::int32_t ranks, bool adagrad, std::int64_t table) {
  Builder b;
  b.mutable_graph().mesh = {{{kDataAxis, ranks}}};
  const Dim rows = b.NewSymbol("B", 1);
  Value ids = b.Input("ids", Dtype::kI32, {rows}), given = b.Input("given", Dtype::kF32, {rows, kWidth});
  const std::vector<Parameter> parameters = {b.NewParameter("table", {table, kWidth}, Initializer::Normal(1))};
  std::vector<Value> loss = {ReduceSum(Gather(parameters[0], ids) * given)};
  std::vector<Gradient> gradients = Grad(loss[0], {parameters[0]});
  if (ranks > 1) gradients = SumOverRanks(b, parameters, gradients, &loss, {.bindings = {kBatch / ranks}});
  b.Output("loss", loss[0]);
  if (adagrad) {
    ApplyAdagrad(b, parameters, gradients, .3);
  } else {
    ApplySgd(b, parameters, gradients, .3);
  }
  auto graph = b.Finish();
  EXPECT_TRUE(graph.ok()) << graph.status().ToString();
  Graph clean = RemoveDeadCode(MergeEqual(Simplify(*graph)));
  return ranks > 1 ? OverlapCollectives(clean) : clean;
}

// The table behind some steps, of each rank.
std::vector<std::vector<std::byte>> Learn(const Graph& graph, std::int32_t ranks, std::uint64_t seed) {
  testing::Hall hall(ranks);
  std::vector<std::vector<std::byte>> tables(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  for (std::int32_t rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      testing::ThreadCommunicator communicator(rank, ranks, &hall, true);
      KernelTable kernels = CpuKernels();
      AddSumKernels(&kernels, &communicator, true);
      const std::int64_t rows = kBatch / ranks;
      auto executable = Compile(graph, {rows}, StepProgram(graph, 1), kernels);
      ASSERT_TRUE(executable.ok()) << executable.status().ToString();
      StateStore states;
      Random random(seed);
      for (int step = 0; step < 6; ++step) {
        Tensor ids{Dtype::kI32, {rows}, std::vector<std::byte>(static_cast<std::size_t>(rows) * 4)};
        Tensor given{Dtype::kF32, {rows, kWidth}, std::vector<std::byte>(static_cast<std::size_t>(rows * kWidth) * 4)};
        for (std::int64_t i = 0; i < kBatch; ++i) {
          const auto id = static_cast<std::int32_t>(random.Below(9));  // many come twice
          float numbers[kWidth];
          for (float& number : numbers) number = static_cast<float>(random.Unit() * 2 - 1);
          if (i / rows != rank) continue;
          std::memcpy(ids.bytes.data() + (i % rows) * 4, &id, 4);
          std::memcpy(given.bytes.data() + (i % rows) * 4 * kWidth, numbers, sizeof numbers);
        }
        RunInputs in;
        in.micro_batches[0] = {&ids, &given};
        in.run = {.seed = 5, .step = static_cast<std::uint64_t>(step)};
        auto ran = (*executable)->Run(in, states);
        ASSERT_TRUE(ran.ok()) << ran.status().ToString();
      }
      tables[static_cast<std::size_t>(rank)] = states.Get("table").bytes;
    });
  }
  for (std::thread& thread : threads) thread.join();
  return tables;
}

TEST(RowsOverRanks, GiveTheSameBitsForAnyNumberOfRanks) {
  const auto seed = static_cast<std::uint64_t>(::testing::UnitTest::GetInstance()->random_seed()) + 29;
  SCOPED_TRACE("seed " + std::to_string(seed));
  for (bool adagrad : {false, true}) {
    const auto one = Learn(TableModel(1, adagrad, kTable), 1, seed);
    ASSERT_EQ(one[0].size(), static_cast<std::size_t>(kTable * kWidth) * 4);
    for (std::int32_t ranks : {2, 3, 4}) {
      const Graph graph = TableModel(ranks, adagrad, kTable);
      EXPECT_EQ(CountOf(graph, kAllGather), 2) << ExplainText(graph);
      EXPECT_EQ(CountOf(graph, adagrad ? kAdagradRows : kAddRows), 1) << ExplainText(graph);
      for (const auto& table : Learn(graph, ranks, seed)) EXPECT_EQ(table, one[0]) << ranks << " ranks, adagrad " << adagrad;
    }
  }
}

// Of 2 ranks 12 rows each: 2 * 12 * (4 + 12) bytes. A table of 16 rows is summed by moving as many: it is summed whole.
TEST(RowsOverRanks, WhatIsMoreThanTheTableIsNotSent) {
  const std::string rows = ExplainText(TableModel(2, false, 17)), whole = ExplainText(TableModel(2, false, 16));
  EXPECT_NE(rows.find("ranks, rows of table: 384 bytes, not 408"), std::string::npos) << rows;
  EXPECT_NE(whole.find("ranks, all of table: 384 bytes, its rows 384"), std::string::npos) << whole;
  EXPECT_EQ(whole.find("AllGather"), std::string::npos) << whole;
  EXPECT_EQ(rows.find("Scatter"), std::string::npos) << rows;
}

// A training of a DLRM: with rows, on one rank, and where tables are so small that they are summed whole.
TEST(RowsOverRanks, ADlrmLearnsTheSame) {
  testing::TempFolder folder;
  {
    Random random(8);
    std::ofstream file(folder.path() + "/clicks.csv");
    file << "x,u,i,c\n";
    for (int k = 0; k < 600; ++k)
      file << random.Unit() << ",u" << random.Below(40) << ",i" << random.Below(20) << "," << random.Below(2) << "\n";
  }
  for (const char* kind : {"sgd", "adagrad", "adam"}) {
    auto job = [&](const char* rows) {
      std::vector<std::string> settings = {"model.kind=dlrm",
                                           "model.vector=4",
                                           "model.bottom=6",
                                           "model.top=6",
                                           "data.kind=clicks",
                                           "data.path=" + folder.path() + "/clicks.csv",
                                           "train.threads=1",
                                           "train.batch=31",
                                           "data.categories=u, i",
                                           "train.dtype=f64",
                                           "train.steps=12",
                                           std::string("data.rows=") + rows,
                                           "optimizer.learning_rate=0.05",
                                           std::string("optimizer.kind=") + kind};
      if (std::string(kind) == "sgd") settings.push_back("optimizer.momentum=0");
      return JobOf(settings);
    };
    for (const char* rows : {"5000", "2"}) {
      SCOPED_TRACE(std::string(kind) + ", tables of " + rows);
      auto samples = LoadData(job(rows));
      ASSERT_TRUE(samples.ok()) << samples.status().ToString();
      auto graph = StepGraph(job(rows), *samples->training, 3);
      ASSERT_TRUE(graph.ok()) << graph.status().ToString();
      EXPECT_EQ(CountOf(*graph, kAllGather), rows[0] == '5' ? 2 : 0);
      auto one = TrainOnThreads(job(rows), 1);
      ASSERT_TRUE(one[0].status.ok()) << one[0].status.ToString();
      for (auto sums : {testing::Sums::kInMemory, testing::Sums::kSharedMemory, testing::Sums::kTcp}) {
        auto three = TrainOnThreads(job(rows), 3, {.sums = sums});
        ASSERT_TRUE(three[0].status.ok()) << three[0].status.ToString();
        ASSERT_EQ(three[0].losses.size(), 12u);
        for (std::size_t i = 0; i < 12; ++i) EXPECT_NEAR(three[0].losses[i], one[0].losses[i], 1e-10) << i;
      }
    }
  }
}

}  // namespace
}  // namespace ropewalk::mlrunner
