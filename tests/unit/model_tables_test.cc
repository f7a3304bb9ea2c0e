// Tables: bags, ids of tables side by side, and updates that touch the rows that they name and nothing else.
#include <gtest/gtest.h>

#include <cmath>

#include "mlrunner/executor/executor.h"
#include "mlrunner/graph/grad.h"
#include "mlrunner/graph/maths.h"
#include "mlrunner/graph/ops.h"

namespace ropewalk::mlrunner {
namespace {

constexpr std::int64_t kRows = 1000, kWidth = 8;
constexpr auto kTableBytes = static_cast<std::size_t>(kRows * kWidth) * sizeof(float);

Value Ints(Builder& b, const std::vector<std::int32_t>& values) {
  return Constant(b, Literal::Of(Dtype::kI32, {static_cast<std::int64_t>(values.size())}, values));
}

// By the reference and by the CPU's kernels.
Status RunBoth(const Graph& graph, std::vector<RefTensor>* outputs) {
  std::map<std::string, RefTensor> states;
  auto reference = Evaluate(graph, {}, {}, states);
  auto executable = Compile(graph, {}, {}, CpuKernels());
  EXPECT_TRUE(executable.ok()) << executable.status().ToString();
  StateStore store;
  auto fast = (*executable)->Run({}, store);
  EXPECT_EQ(reference.ok(), fast.ok());
  if (!reference.ok() || !fast.ok()) {
    auto after_op = [](const std::string& what) { return what.substr(what.find(": ")); };  // which says more of an executor
    EXPECT_EQ(after_op(reference.status().what()), after_op(fast.status().what()));
    EXPECT_EQ(reference.status().why(), fast.status().why());
    return fast.ok() ? reference.status() : fast.status();
  }
  *outputs = reference->outputs;
  for (std::size_t i = 0; i < outputs->size(); ++i) {
    const std::vector<double> got = ToRef(fast->outputs[0][i]).data, want = reference->outputs[i].data;
    for (std::size_t k = 0; k < want.size(); ++k) EXPECT_NEAR(got[k], want[k], 1e-6 * std::max(1.0, std::fabs(want[k])));
  }
  return {};
}
std::vector<double> Constants(Builder& b, const Value& y) {
  b.Output("y", y);
  auto graph = b.Finish();
  EXPECT_TRUE(graph.ok()) << graph.status().ToString();
  std::vector<RefTensor> outputs;
  Status status = RunBoth(*graph, &outputs);
  EXPECT_TRUE(status.ok()) << status.ToString();
  return outputs.empty() ? std::vector<double>() : outputs[0].data;
}
// (5, 2): 0, 1; 10, 11; ...
Value Table(Builder& b) { return Constant(b, Literal::Of(Dtype::kF32, {5, 2}, std::vector<float>{0, 1, 10, 11, 20, 21, 30, 31, 40, 41})); }

TEST(Tables, BagsAreAddedUpOrAveragedAndMayBeEmpty) {
  using V = std::vector<double>;
  {
    Builder b;
    EXPECT_EQ(Constants(b, EmbeddingBags(Table(b), Ints(b, {1, 3, 1, 4}), Ints(b, {0, 3, 3}))), (V{50, 53, 0, 0, 40, 41}));
  }
  {
    Builder b;
    EXPECT_EQ(Constants(b, EmbeddingBags(Table(b), Ints(b, {1, 3, 2, 4}), Ints(b, {0, 0, 3}), Bag::kMean)), (V{0, 0, 20, 21, 40, 41}));
  }
  {
    Builder b;
    EXPECT_EQ(Constants(b, EmbeddingBag(Table(b), Reshape(Ints(b, {1, 3, 0, 4}), {2, 2}))), (V{40, 42, 40, 42}));
  }
  {
    Builder b;
    EXPECT_EQ(Constants(b, EmbeddingBag(Table(b), Reshape(Ints(b, {1, 3, 0, 4}), {2, 2}), Bag::kMean)), (V{20, 21, 20, 21}));
  }
  {
    Builder b;  // of one there is nothing to add up
    EXPECT_EQ(Constants(b, EmbeddingBag(Table(b), Reshape(Ints(b, {4, 3}), {2, 1}), Bag::kMean)), (V{40, 41, 30, 31}));
  }
}

TEST(Tables, GradientsOfBagsStayRows) {
  Builder b;
  Parameter table = b.NewParameter("table", {kRows, kWidth}, Initializer::Normal(1));
  Value bags = EmbeddingBags(table, Ints(b, {7, 9, 7}), Ints(b, {0, 2}));
  Value fixed = EmbeddingBag(table, Reshape(Ints(b, {1, 2}), {1, 2}));
  Gradient g = Grad(ReduceSum(bags) + ReduceSum(fixed), {table})[0];
  ASSERT_TRUE(g.IsRows());
  EXPECT_EQ(g.rows().indices.shape(), Shape({5}));
  EXPECT_EQ(g.rows().rows.shape(), Shape({5, kWidth}));
}

TEST(Tables, WrongIndicesAndOffsetsAreNamed) {
  auto error = [](const std::function<Value(Builder&)>& write) {
    Builder b;
    b.Output("y", write(b));
    auto graph = b.Finish();
    EXPECT_TRUE(graph.ok()) << graph.status().ToString();
    std::vector<RefTensor> outputs;
    Status status = RunBoth(*graph, &outputs);
    EXPECT_EQ(status.code(), Code::kUserError);
    EXPECT_EQ(status.tag(), "RUN05");
    return status.ToString();
  };
  auto bags = [](const std::vector<std::int32_t>& offsets) {
    return [offsets](Builder& b) { return EmbeddingBags(Table(b), Ints(b, {1, 3, 1}), Ints(b, offsets)); };
  };
  EXPECT_NE(error(bags({1, 2})).find("bag 0 of 2 begins at 1"), std::string::npos) << error(bags({1, 2}));
  EXPECT_NE(error(bags({0, 2, 1})).find("bag 1 of 3 begins at 2"), std::string::npos) << error(bags({0, 2, 1}));
  EXPECT_NE(error(bags({0, 4})).find("bag 1 of 2 begins at 4"), std::string::npos) << error(bags({0, 4}));
  auto sum = [](std::int32_t from, std::int32_t to) {
    return [=](Builder& b) { return SumRows(Table(b), Ints(b, {1, from}), Ints(b, {0, to}), 3); };
  };
  EXPECT_NE(error(sum(5, 0)).find("index 1 is 5"), std::string::npos);
  EXPECT_NE(error(sum(0, -1)).find("index 1 is -1"), std::string::npos);
  // The id of a table that the next one would have.
  auto stacked = [](Builder& b) { return Gather(Table(b), StackedRows(Reshape(Ints(b, {1, 2, 2, 0}), {2, 2}), {2, 3}, 1)); };
  EXPECT_NE(error(stacked).find("of table 0, index 1 is 2"), std::string::npos) << error(stacked);
  EXPECT_NE(error([](Builder& b) { return AddRows(Table(b), Ints(b, {9}), Fill(b, 1, Dtype::kF32, {1, 2})); }).find("index 0 is 9"),
            std::string::npos);
}

struct Update {
  Graph graph;
  std::unique_ptr<Executable> executable;
};
// A table, and what is assigned to it from rows (n, width) for indices (n). `also_read`: the rows that it had before are given back, too.
void MakeUpdate(Update* update, bool adagrad, bool also_read, std::int64_t n, int threads) {
  Builder b;
  Parameter table = b.NewParameter("table", {kRows, kWidth}, Initializer::Normal(1));
  Value at = b.Input("at", Dtype::kI32, {n}), rows = b.Input("rows", Dtype::kF32, {n, kWidth});
  if (adagrad) {
    StateId squares = b.NewState("squares", StateKind::kOptimizer, {Dtype::kF32, {kRows, kWidth}}, Initializer::Constant(.1), table.state);
    std::vector<Value> next = b.Emit(kAdagradRows, {table, b.Read(squares), at, rows, b.Number(.5, Dtype::kF32)}, {{Attr::kEpsilon, 1e-8}});
    b.Assign(table.state, next[0]);
    b.Assign(squares, next[1]);
  } else {
    b.Assign(table.state, AddRows(table, at, rows * -.5));
  }
  if (also_read) b.Output("before", ReduceSum(table, {1}));
  auto graph = b.Finish();
  ASSERT_TRUE(graph.ok()) << graph.status().ToString();
  update->graph = *std::move(graph);
  auto executable = Compile(update->graph, {}, {}, CpuKernels(), {.num_threads = threads});
  ASSERT_TRUE(executable.ok()) << executable.status().ToString();
  update->executable = *std::move(executable);
}

TEST(Tables, UpdatesTouchTheirRowsOnly) {
  for (bool adagrad : {false, true}) {
    for (bool also_read : {false, true}) {
      SCOPED_TRACE(std::string(adagrad ? "adagrad" : "sgd") + (also_read ? ", old rows are read later" : ""));
      Update update;
      ASSERT_NO_FATAL_FAILURE(MakeUpdate(&update, adagrad, also_read, 3, 1));
      // Where nobody reads the old version later, the new one is made where it lies, and no memory of a table's size is needed.
      if (also_read) {
        EXPECT_GE(update.executable->arena_bytes(), kTableBytes);
      } else {
        EXPECT_LT(update.executable->arena_bytes(), kTableBytes / 8);
      }
      const RefTensor at{{3}, {7, 999, 7}}, rows{{3, kWidth}, std::vector<double>(3 * kWidth, .25)};
      const Tensor at_tensor = ToTensor(Dtype::kI32, at), rows_tensor = ToTensor(Dtype::kF32, rows);
      RunInputs inputs;
      inputs.micro_batches[0] = {&at_tensor, &rows_tensor};
      StateStore store;
      std::map<std::string, RefTensor> states;
      auto before = Evaluate(update.graph, {}, {at, rows}, states);  // the first step
      ASSERT_TRUE(before.ok()) << before.status().ToString();
      auto ran = update.executable->Run(inputs, store);
      ASSERT_TRUE(ran.ok()) << ran.status().ToString();
      if (also_read) {
        const std::vector<double> sums = ToRef(ran->outputs[0][0]).data;
        for (std::size_t i = 0; i < sums.size(); ++i) EXPECT_NEAR(sums[i], before->outputs[0].data[i], 1e-5) << i;
      }
      for (int step = 0; step < 2; ++step) {
        ASSERT_TRUE(Evaluate(update.graph, {}, {at, rows}, states).ok());
        ASSERT_TRUE(update.executable->Run(inputs, store).ok());
      }
      for (const auto& [name, want] : states) {
        const std::vector<double> got = ToRef(store.Get(name)).data;
        for (std::size_t i = 0; i < got.size(); ++i) {
          const auto row = static_cast<std::int64_t>(i) / kWidth;
          if (row == 7 || row == 999) {
            EXPECT_NEAR(got[i], want.data[i], 1e-6) << name << " " << i;
          } else {
            EXPECT_EQ(got[i], want.data[i]) << name << " " << i;  // as it began
          }
        }
      }
    }
  }
}

// Sums do not depend on the number of threads: bit for bit, also where indices repeat.
TEST(Tables, UpdatesAreTheSameWithTwoThreads) {
  constexpr std::int64_t kMany = 6000;  // times the width: enough for two
  for (bool adagrad : {false, true}) {
    std::vector<std::byte> bytes[2];
    for (int threads : {1, 2}) {
      Update update;
      ASSERT_NO_FATAL_FAILURE(MakeUpdate(&update, adagrad, false, kMany, threads));
      RefTensor at{{kMany}, {}}, rows{{kMany, kWidth}, {}};
      for (std::int64_t i = 0; i < kMany; ++i) at.data.push_back(static_cast<double>(i * i % kRows));
      for (std::int64_t i = 0; i < kMany * kWidth; ++i) rows.data.push_back(std::sin(static_cast<double>(i)));
      const Tensor at_tensor = ToTensor(Dtype::kI32, at), rows_tensor = ToTensor(Dtype::kF32, rows);
      RunInputs inputs;
      inputs.micro_batches[0] = {&at_tensor, &rows_tensor};
      StateStore store;
      ASSERT_TRUE(update.executable->Run(inputs, store).ok());
      bytes[threads - 1] = store.Get("table").bytes;
    }
    EXPECT_EQ(bytes[0], bytes[1]);
  }
}

}  // namespace
}  // namespace ropewalk::mlrunner
