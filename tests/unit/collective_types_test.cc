// Every element type with every operation, by every algorithm that sums, against a plain loop over whole numbers.
#include <cmath>
#include <limits>

#include "base/random.h"
#include "tests/unit/collective_gang.h"
#include "tests/unit/collective_numbers.h"

namespace ropewalk::collective::testing {
namespace {

constexpr Dtype kTypes[] = {Dtype::kF32, Dtype::kF64, Dtype::kF16, Dtype::kBF16, Dtype::kI32, Dtype::kI64, Dtype::kU8};
constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProd};

class Types : public ::testing::TestWithParam<Wire> {};
INSTANTIATE_TEST_SUITE_P(Wires, Types, ::testing::Values(Wire::kShared, Wire::kTcp),
                         [](const auto& info) { return std::string(info.param == Wire::kShared ? "shared" : "tcp"); });

// Whole numbers as elements of a whole type, and back: of all 64 bits, which no double holds.
void PutWhole(Dtype dtype, char* data, std::int64_t i, std::int64_t value) {
  if (dtype == Dtype::kI32) reinterpret_cast<std::int32_t*>(data)[i] = static_cast<std::int32_t>(value);
  if (dtype == Dtype::kI64) reinterpret_cast<std::int64_t*>(data)[i] = value;
  if (dtype == Dtype::kU8) reinterpret_cast<std::uint8_t*>(data)[i] = static_cast<std::uint8_t>(value);
}
std::int64_t GetWhole(Dtype dtype, const char* data, std::int64_t i) {
  if (dtype == Dtype::kI32) return reinterpret_cast<const std::int32_t*>(data)[i];
  if (dtype == Dtype::kI64) return reinterpret_cast<const std::int64_t*>(data)[i];
  return reinterpret_cast<const std::uint8_t*>(data)[i];
}

// What rank `rank` brings. Whole numbers of any size for whole types, whose sums and products wrap; for floats so small ones that all types
// hold every sum and product of five ranks exactly.
std::vector<char> Drawn(Dtype dtype, ReduceOp op, std::int64_t count, std::int32_t rank) {
  std::vector<char> bytes(static_cast<std::size_t>(count) * SizeOf(dtype) + 8);
  Random random =
      Random::ForPurpose(static_cast<std::uint64_t>(count) * 100 + static_cast<std::uint64_t>(op), static_cast<std::uint64_t>(rank));
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t large = op == ReduceOp::kProd ? 2 : 20;
    const double small = static_cast<double>(random.Below(static_cast<std::uint64_t>(2 * large + 1))) - static_cast<double>(large);
    const auto whole = static_cast<std::int64_t>(random.Below(std::numeric_limits<std::uint64_t>::max()));
    if (IsFloat(dtype))
      Set(dtype, bytes.data(), i, small);
    else
      PutWhole(dtype, bytes.data(), i, whole);
  }
  return bytes;
}

// One element of all ranks' vectors, as whole numbers that wrap at 64 bits; the type's own width is cut from that.
std::int64_t Whole(ReduceOp op, const std::vector<std::int64_t>& terms) {
  auto result = static_cast<std::uint64_t>(terms[0]);
  for (std::size_t i = 1; i < terms.size(); ++i) {
    const auto term = static_cast<std::uint64_t>(terms[i]);
    if (op == ReduceOp::kSum || op == ReduceOp::kAvg) result += term;
    if (op == ReduceOp::kProd) result *= term;
    if (op == ReduceOp::kMin && terms[i] < static_cast<std::int64_t>(result)) result = term;
    if (op == ReduceOp::kMax && terms[i] > static_cast<std::int64_t>(result)) result = term;
  }
  return static_cast<std::int64_t>(result);
}

double EpsilonOf(Dtype dtype) {
  return dtype == Dtype::kF64 ? 0x1p-53 : dtype == Dtype::kF32 ? 0x1p-24 : dtype == Dtype::kF16 ? 0x1p-11 : 0x1p-8;
}

void ExpectFolded(Dtype dtype, ReduceOp op, std::int64_t count, std::int32_t ranks, const char* got, const std::string& what) {
  std::vector<std::vector<char>> all;
  for (std::int32_t rank = 0; rank < ranks; ++rank) all.push_back(Drawn(dtype, op, count, rank));
  std::vector<std::int64_t> terms(ranks);
  for (std::int64_t i = 0; i < count; ++i) {
    double size = 0;
    for (std::int32_t rank = 0; rank < ranks; ++rank) {
      terms[rank] = IsFloat(dtype) ? static_cast<std::int64_t>(Get(dtype, all[rank].data(), i)) : GetWhole(dtype, all[rank].data(), i);
      size += std::abs(static_cast<double>(terms[rank]));
    }
    const std::int64_t whole = Whole(op, terms);
    if (!IsFloat(dtype)) {
      char expected[8];
      PutWhole(dtype, expected, 0, whole);
      ASSERT_EQ(GetWhole(dtype, got, i), GetWhole(dtype, expected, 0)) << what << " element " << i;
    } else if (op == ReduceOp::kAvg) {
      ASSERT_LE(std::abs(Get(dtype, got, i) - static_cast<double>(whole) / ranks), EpsilonOf(dtype) * size) << what << " element " << i;
    } else {
      ASSERT_EQ(Get(dtype, got, i), static_cast<double>(whole)) << what << " element " << i;
    }
  }
}

// Those that add up numbers as they are, in blocking calls; and none, which is the communicator's choice.
std::vector<std::string_view> Summing() {
  std::vector<std::string_view> names = {""};
  for (const Algorithm& algorithm : Algorithms())
    if (algorithm.collective == Collective::kAllreduce && algorithm.codecs == Codecs::kNone && algorithm.name != "eager" &&
        algorithm.name != "native")
      names.push_back(algorithm.name);
  return names;
}

TEST_P(Types, FoldAsAPlainLoopDoes) {
  for (std::int32_t ranks : {2, 3, 5}) {
    std::vector<std::vector<char>> results(ranks);
    WithRanks(ranks, Over(GetParam()), [&](Communicator& all, Meeting& meeting) {
      for (Dtype dtype : kTypes)
        for (ReduceOp op : kOps) {
          if (op == ReduceOp::kAvg && !IsFloat(dtype)) continue;
          for (std::int64_t count : {0, 1, 7, 1000})
            for (std::string_view algorithm : Summing()) {
              const std::string what = std::string(algorithm.empty() ? "the chosen" : algorithm) + " " + std::string(Name(op)) + " of " +
                                       std::to_string(count) + " " + std::string(Name(dtype)) + ", P=" + std::to_string(ranks);
              std::vector<char> mine = Drawn(dtype, op, count, all.rank());
              const std::vector<char> before = mine;
              std::vector<char>& out = results[all.rank()];
              out.assign(mine.size(), 'x');
              Status status = all.AllReduce(
                  {.in = mine.data(), .out = out.data(), .count = count, .dtype = dtype, .op = op, .name = "t", .algorithm = algorithm});
              ASSERT_TRUE(status.ok()) << what << ": " << status.ToString();
              EXPECT_EQ(mine, before) << what << " wrote to `in`";
              EXPECT_EQ(std::string(out.end() - 8, out.end()), "xxxxxxxx") << what << " wrote beyond its vector";
              ExpectFolded(dtype, op, count, ranks, out.data(), what);
              meeting.Barrier(all.rank());
              EXPECT_EQ(out, results[0]) << what << ": ranks 0 and " << all.rank() << " hold different bits";
              meeting.Barrier(all.rank());
            }
        }
    });
  }
}

// Hiding one would hide a step of a training that has gone wrong.
TEST_P(Types, ANumberThatIsNoneStaysInMinimaAndMaxima) {
  WithRanks(3, Over(GetParam()), [&](Communicator& all, Meeting&) {
    for (Dtype dtype : kTypes)
      for (ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax})
        for (std::string_view algorithm : Summing())
          for (std::int32_t of = 0; IsFloat(dtype) && of < 3; ++of) {
            char in[32] = {}, out[32] = {};
            for (int i = 0; i < 3; ++i) Set(dtype, in, i, all.rank() == of && i == 1 ? std::nan("") : all.rank() + i);
            Status status =
                all.AllReduce({.in = in, .out = out, .count = 3, .dtype = dtype, .op = op, .name = "nan", .algorithm = algorithm});
            ASSERT_TRUE(status.ok()) << status.ToString();
            const int reached = op == ReduceOp::kMin ? 0 : 2;
            EXPECT_EQ(Get(dtype, out, 0), reached);
            EXPECT_TRUE(std::isnan(Get(dtype, out, 1))) << algorithm << " " << Name(dtype) << " of rank " << of;
            EXPECT_EQ(Get(dtype, out, 2), reached + 2);
          }
  });
}

TEST_P(Types, AMeanOfWholeNumbersIsRefusedWithItsReason) {
  WithRanks(3, Over(GetParam()), [&](Communicator& all, Meeting&) {
    for (Dtype dtype : {Dtype::kI32, Dtype::kI64, Dtype::kU8})
      for (std::string_view algorithm : Summing()) {
        std::vector<char> x(8 * 10, 7);
        const std::vector<char> before = x;
        const CollectiveCall call{
            .in = x.data(), .out = x.data(), .count = 10, .dtype = dtype, .op = ReduceOp::kAvg, .name = "mean", .algorithm = algorithm};
        for (const Status& status : {all.AllReduce(call), all.Submit(call, {}).status()}) {
          EXPECT_EQ(status.tag(), "COLL10") << algorithm << " " << Name(dtype) << ": " << status.ToString();
          EXPECT_EQ(status.code(), Code::kInvalid);
          EXPECT_NE(status.what().find("mean"), std::string::npos) << status.ToString();
          EXPECT_NE(status.why().find(std::string(Name(dtype))), std::string::npos) << status.ToString();
          EXPECT_FALSE(status.fix().empty());
        }
        EXPECT_EQ(x, before);
      }
    // Nothing has moved, so all goes on; and where nothing is added up the operation is not looked at.
    std::int64_t one = 1;
    EXPECT_TRUE(all.Broadcast({.in = &one, .out = &one, .count = 1, .dtype = Dtype::kI64, .op = ReduceOp::kAvg, .name = "b"}).ok());
    EXPECT_TRUE(all.AllReduce({.in = &one, .out = &one, .count = 1, .dtype = Dtype::kI64, .name = "sum"}).ok());
    EXPECT_EQ(one, 3);
  });
}

}  // namespace
}  // namespace ropewalk::collective::testing
