// Element types: what each can hold, there and back.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "mlrunner/executor/executor.h"
#include "mlrunner/graph/maths.h"
#include "mlrunner/types/half.h"

namespace ropewalk::mlrunner {
namespace {

constexpr Dtype kAll[] = {Dtype::kF32, Dtype::kF64, Dtype::kF16, Dtype::kBF16, Dtype::kI32, Dtype::kI64, Dtype::kU8, Dtype::kBool};

TEST(Types, TensorsKeepWhatTheirTypeCanHold) {
  for (Dtype dtype : kAll) {
    RefTensor values{{5}, {0, 1, 0, 1, 1}};
    if (dtype != Dtype::kBool) values.data = {0, 1, 200, 3, 77};
    Tensor tensor = ToTensor(dtype, values);
    EXPECT_EQ(tensor.dtype, dtype);
    EXPECT_EQ(tensor.bytes.size(), 5 * SizeOf(dtype)) << Name(dtype);
    EXPECT_EQ(ToRef(tensor).data, values.data) << Name(dtype);
  }
}

TEST(Types, RoundingIsWhatWritingAndReadingDoes) {
  for (Dtype dtype : kAll) {
    for (double value : {.1, 1.0 / 3, 2.7, 65519.0, 1e-7}) {
      if (dtype == Dtype::kU8 && value > 255) continue;
      double rounded = RoundTo(dtype, value);
      EXPECT_EQ(ToRef(ToTensor(dtype, {{1}, {rounded}})).data[0], rounded) << Name(dtype) << " " << value;
      EXPECT_EQ(RoundTo(dtype, rounded), rounded) << Name(dtype) << " " << value;
    }
  }
  EXPECT_EQ(RoundTo(Dtype::kF16, .1), 0x1.998p-4);
  EXPECT_EQ(RoundTo(Dtype::kBF16, .1), 0x1.9ap-4);
  EXPECT_EQ(RoundTo(Dtype::kU8, 2.7), 2);
}

// What an integer type cannot hold is its nearest end, and what is no number is 0: in what is computed as in what is written.
TEST(Types, IntegersStayAtTheirEnds) {
  const double inf = HUGE_VAL, nan = std::nan(""), i64_end = 0x1p63;
  struct Case {
    Dtype dtype;
    double value, expected;
  };
  const Case cases[] = {{Dtype::kI32, 3e9, 2147483647},
                        {Dtype::kI32, -3e9, -2147483648.0},
                        {Dtype::kI32, nan, 0},
                        {Dtype::kI32, inf, 2147483647},
                        {Dtype::kI32, -inf, -2147483648.0},
                        {Dtype::kI32, 2147483647.5, 2147483647},
                        {Dtype::kI32, -2147483648.5, -2147483648.0},
                        {Dtype::kI32, -2.7, -2},
                        {Dtype::kU8, 300, 255},
                        {Dtype::kU8, 255.9, 255},
                        {Dtype::kU8, -1, 0},
                        {Dtype::kU8, nan, 0},
                        {Dtype::kI64, 1e19, i64_end},
                        {Dtype::kI64, -1e19, -i64_end},
                        {Dtype::kI64, nan, 0},
                        {Dtype::kI64, 0x1p62, 0x1p62},
                        {Dtype::kBool, .5, 1},
                        {Dtype::kBool, nan, 1},
                        {Dtype::kBool, -300, 1},
                        {Dtype::kBool, 0, 0}};
  for (const Case& test : cases) {
    EXPECT_EQ(RoundTo(test.dtype, test.value), test.expected) << Name(test.dtype) << " " << test.value;
    EXPECT_EQ(ToRef(ToTensor(test.dtype, {{1}, {test.value}})).data[0], test.expected) << Name(test.dtype) << " " << test.value;
  }
  const Tensor end = ToTensor(Dtype::kI64, {{1}, {1e19}});
  std::int64_t bits;
  std::memcpy(&bits, end.bytes.data(), sizeof bits);
  EXPECT_EQ(bits, std::numeric_limits<std::int64_t>::max());
}

// The yardstick and the executor give the same, for casts and for what integers add up to.
TEST(Types, TheExecutorCastsAndAddsAsTheReferenceDoes) {
  Builder b;
  const std::vector<double> values = {0, -0.0, 2.9, -2.9, 255.5, 300, -1, 3e9, -3e9, 1e19, -1e19, HUGE_VAL, -HUGE_VAL, std::nan("")};
  const auto n = static_cast<std::int64_t>(values.size());
  Value x = b.Input("x", Dtype::kF32, {n});
  for (Dtype dtype : {Dtype::kI32, Dtype::kI64, Dtype::kU8, Dtype::kBool}) {
    Value whole = Cast(x, dtype);
    b.Output("cast", whole);
    b.Output("back", Cast(whole, Dtype::kF32));
    if (dtype != Dtype::kBool) {
      b.Output("sum", whole + whole);
      b.Output("less one", whole - 1);
      b.Output("product", whole * whole);
    }
  }
  auto graph = b.Finish();
  ASSERT_TRUE(graph.ok()) << graph.status().ToString();
  RefTensor given{{n}, values};
  for (double& value : given.data) value = RoundTo(Dtype::kF32, value);
  const Tensor input = ToTensor(Dtype::kF32, given);
  std::map<std::string, RefTensor> none;
  auto expected = Evaluate(*graph, {}, {given}, none);
  ASSERT_TRUE(expected.ok()) << expected.status().ToString();
  auto executable = Compile(*graph, {}, {}, CpuKernels());
  ASSERT_TRUE(executable.ok()) << executable.status().ToString();
  RunInputs inputs;
  inputs.micro_batches[0] = {&input};
  StateStore states;
  auto got = (*executable)->Run(inputs, states);
  ASSERT_TRUE(got.ok()) << got.status().ToString();
  for (std::size_t i = 0; i < expected->outputs.size(); ++i) {
    EXPECT_EQ(ToRef(got->outputs[0][i]).data, expected->outputs[i].data) << i << " " << graph->outputs[i].name;
  }
  EXPECT_EQ(expected->outputs[2].data[7], 2147483647);  // the sum of two ends of i32
}

// A NaN whose payload lies in the lower half must not become an infinity.
TEST(Types, NansStayNans) {
  for (Dtype dtype : {Dtype::kF16, Dtype::kBF16}) {
    EXPECT_TRUE(std::isnan(RoundTo(dtype, std::nan("1")))) << Name(dtype);
    EXPECT_TRUE(std::isnan(HalfToFloat(dtype, FloatToHalf(dtype, std::bit_cast<float>(0x7f800001u))))) << Name(dtype);
    EXPECT_TRUE(std::isinf(RoundTo(dtype, HUGE_VAL))) << Name(dtype);
  }
}

}  // namespace
}  // namespace ropewalk::mlrunner
