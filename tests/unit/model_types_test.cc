// Element types: what each can hold, there and back.
#include <gtest/gtest.h>

#include <cmath>

#include "mlrunner/executor/executor.h"
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
