// DLRM: shapes and sizes, gradients, and that ids stay in their tables.
#include <gtest/gtest.h>

#include "mlrunner/models/dlrm.h"
#include "tests/unit/built_models.h"

namespace ropewalk::mlrunner {
namespace {

const DlrmShape kSmall{.tables = {4, 3, 5}, .width = 3, .bottom = {4}, .top = {5}};

Built Build(const DlrmShape& shape, std::int64_t features, std::int64_t bag) {
  Builder b;
  Dim rows = b.NewSymbol("B");
  const auto tables = static_cast<std::int64_t>(shape.tables.size());
  Value dense = b.Input("dense", Dtype::kF32, {rows, features});
  Value ids = b.Input("ids", Dtype::kI32, bag == 0 ? Shape{rows, tables} : Shape{rows, tables, bag});
  Value targets = b.Input("targets", Dtype::kF32, {rows});
  Model model = Dlrm(b, shape, dense, ids);
  return FinishWithLoss(b, model, Mean(BinaryCrossEntropy(model.logits, targets)));
}

TEST(Dlrm, ShapesAndSizes) {
  Built built = Build({}, 13, 0);
  EXPECT_EQ(built.logits, "(B)");
  const std::int64_t bottom = 13 * 512 + 512 + 512 * 256 + 256 + 256 * 64 + 64 + 64 * 16 + 16;
  const std::int64_t pairs = 27 * 26 / 2, top = (16 + pairs) * 512 + 512 + 512 * 256 + 256 + 256 + 1;
  EXPECT_EQ(built.numbers, bottom + 26 * 10000 * 16 + top);
  EXPECT_EQ(Build(kSmall, 2, 0).parameters,
            (std::vector<std::string>{"bottom0/w", "bottom0/b", "bottom1/w", "bottom1/b", "tables", "top0/w", "top0/b", "out/w", "out/b"}));
}

TEST(Dlrm, GradientsAreThoseOfTheLoss) {
  GradientsAreDifferences(Build(kSmall, 2, 0), 3);
  GradientsAreDifferences(Build(kSmall, 2, 2), 3);
}

// The gradient of the tables stays rows: one for each id.
TEST(Dlrm, TablesLearnByRows) {
  Builder b;
  Value dense = b.Input("dense", Dtype::kF32, {6, 2}), ids = b.Input("ids", Dtype::kI32, {6, 3});
  Model model = Dlrm(b, kSmall, dense, ids);
  const Parameter tables = model.parameters[4];
  Gradient g = Grad(Mean(model.logits), {tables})[0];
  ASSERT_TRUE(g.IsRows());
  EXPECT_EQ(g.rows().rows.shape(), Shape({18, 3}));
}

TEST(Dlrm, AnIdIsOfItsOwnTable) {
  Built built = Build(kSmall, 2, 0);
  std::vector<RefTensor> inputs = Inputs(built.graph, 3, 3);
  std::map<std::string, RefTensor> states;
  ASSERT_TRUE(Evaluate(built.graph, {kRows}, inputs, states).ok());
  inputs[1].data[4] = 3;  // of sample 1 for table 1, which has 3 rows
  Status status = Evaluate(built.graph, {kRows}, inputs, states).status();
  EXPECT_EQ(status.code(), Code::kUserError);
  EXPECT_NE(status.ToString().find("of table 1, index 1 is 3"), std::string::npos) << status.ToString();
}

}  // namespace
}  // namespace ropewalk::mlrunner
