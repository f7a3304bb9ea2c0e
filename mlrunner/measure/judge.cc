#include "mlrunner/measure/judge.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include <fmt/format.h>

#include "base/hash.h"
#include "mlrunner/types/half.h"

namespace ropewalk::measure {
namespace {

using collective::Claim;
using collective::ClaimKind;
using collective::Dtype;
using collective::Extent;
using collective::Plan;
using collective::ReduceOp;
using collective::Role;
using collective::Term;

// Up to here the type has every whole number.
double ExactMax(Dtype dtype) {
  switch (dtype) {
    case Dtype::kF64:
    case Dtype::kI64:
      return 0x1p53;
    case Dtype::kF32:
      return 0x1p24;
    case Dtype::kF16:
      return 2048;
    case Dtype::kBF16:
      return 256;
    case Dtype::kI32:
      return std::numeric_limits<std::int32_t>::max();
    default:
      return 255;
  }
}

// How far a rounded number may lie from the true one, as a part of it.
double Rounding(Dtype dtype) {
  switch (dtype) {
    case Dtype::kF64:
      return 0x1p-53;
    case Dtype::kF32:
      return 0x1p-24;
    case Dtype::kF16:
      return 0x1p-11;
    case Dtype::kBF16:
      return 0x1p-8;
    default:
      return 0;  // whole numbers have no mean
  }
}

constexpr int kLevelsMax = 15;
// Twos in one product: 2^7 fits into every type.
constexpr std::int64_t kTwosMax = 7;

template <class T>
void FillWith(const Pattern& pattern, std::int32_t rank, T* data, std::int64_t count, T (*convert)(int)) {
  std::array<T, Pattern::kPeriod> row;
  for (std::int64_t i = 0; i < Pattern::kPeriod; ++i) row[static_cast<std::size_t>(i)] = convert(pattern.At(rank, i));
  for (std::int64_t from = 0; from < count; from += Pattern::kPeriod)
    std::memcpy(data + from, row.data(), static_cast<std::size_t>(std::min(Pattern::kPeriod, count - from)) * sizeof(T));
}

double Load(Dtype dtype, const void* data, std::int64_t i) {
  switch (dtype) {
    case Dtype::kF32:
      return static_cast<const float*>(data)[i];
    case Dtype::kF64:
      return static_cast<const double*>(data)[i];
    case Dtype::kI32:
      return static_cast<const std::int32_t*>(data)[i];
    case Dtype::kI64:
      return static_cast<double>(static_cast<const std::int64_t*>(data)[i]);
    case Dtype::kU8:
      return static_cast<const std::uint8_t*>(data)[i];
    case Dtype::kF16:
    case Dtype::kBF16:
      return mlrunner::HalfToFloat(dtype, static_cast<const std::uint16_t*>(data)[i]);
    default:
      return std::nan("");
  }
}

double Fold(ReduceOp op, double a, double b) {
  switch (op) {
    case ReduceOp::kMin:
      return std::min(a, b);
    case ReduceOp::kMax:
      return std::max(a, b);
    case ReduceOp::kProd:
      return a * b;
    case ReduceOp::kSum:
    case ReduceOp::kAvg:
      break;
  }
  return a + b;
}

// One operand of a claim: which rank's numbers, from which one on, times what.
struct Source {
  std::int32_t rank = 0;
  std::int64_t offset = 0;
  double coefficient = 1;
};

Result<std::vector<Source>> SourcesOf(const Plan& plan, const collective::Layout& post, const Claim& claim, std::int32_t rank) {
  std::vector<Source> sources;
  const std::int64_t count = post.OfChunk(claim.out, nullptr).count;
  for (std::int32_t t = 0; t < claim.term_count; ++t) {
    const Term& term = plan.post.terms[static_cast<std::size_t>(claim.first_term + t)];
    const std::int32_t buffer = plan.post.chunks[static_cast<std::size_t>(term.chunk)].buffer;
    const Extent from = post.OfChunk(term.chunk, nullptr);
    if (plan.header.buffers[static_cast<std::size_t>(buffer)].role != Role::kIn || from.count != count)
      return Status(Code::kInvalid, "BENCH21", plan.header.algorithm + ": its results cannot be checked",
                    "it promises something else than sums of what went in", "measure it with --check=off");
    for (std::int32_t of = 0; of < plan.header.request.ranks; ++of)
      if (term.rank == collective::kEveryRank || term.rank == of || (term.rank == collective::kSameRank && of == rank))
        sources.push_back({of, from.offset, term.coefficient});
  }
  return sources;
}

}  // namespace

Pattern::Pattern(Dtype dtype, ReduceOp op, std::int32_t ranks) : dtype_(dtype), rows_(static_cast<std::size_t>(ranks) * kPeriod) {
  const bool adds = op == ReduceOp::kSum || op == ReduceOp::kAvg;
  const double exact = ExactMax(dtype);
  const auto levels = static_cast<std::uint64_t>(adds ? std::clamp(std::floor(exact / ranks), 1.0, double{kLevelsMax}) : kLevelsMax);
  for (std::int32_t rank = 0; rank < ranks; ++rank)
    for (std::int64_t i = 0; i < kPeriod; ++i) {
      const std::uint64_t drawn = HashCombine(static_cast<std::uint64_t>(rank), static_cast<std::uint64_t>(i));
      std::uint64_t number = drawn % (levels + 1);
      if (op == ReduceOp::kProd) number = 1 + ((rank + i) % ranks < kTwosMax ? drawn % 2 : 0);
      if (adds && rank >= exact) number = 0;  // of more ranks than the type can count
      rows_[static_cast<std::size_t>(rank * kPeriod + i)] = static_cast<std::uint8_t>(number);
    }
}

void Pattern::Fill(std::int32_t rank, void* data, std::int64_t count) const {
  auto plain = [&]<class T>(T* typed) { FillWith<T>(*this, rank, typed, count, [](int number) { return static_cast<T>(number); }); };
  auto halves = [&](std::uint16_t (*convert)(int)) { FillWith(*this, rank, static_cast<std::uint16_t*>(data), count, convert); };
  switch (dtype_) {
    case Dtype::kF32:
      return plain(static_cast<float*>(data));
    case Dtype::kF64:
      return plain(static_cast<double*>(data));
    case Dtype::kI32:
      return plain(static_cast<std::int32_t*>(data));
    case Dtype::kI64:
      return plain(static_cast<std::int64_t*>(data));
    case Dtype::kF16:
      return halves([](int number) { return mlrunner::FloatToF16(static_cast<float>(number)); });
    case Dtype::kBF16:
      return halves([](int number) { return mlrunner::FloatToBF16(static_cast<float>(number)); });
    default:
      return plain(static_cast<std::uint8_t*>(data));
  }
}

// As floating-point numbers they are NaNs, as signed integers -1; as bytes 255, which sums reach only where all ranks have their most.
void Spoil(void* data, std::int64_t bytes) { std::memset(data, 0xff, static_cast<std::size_t>(bytes)); }

Result<Verdict> Look(const Plan& plan, const collective::Sizes& sizes, const Pattern& pattern, std::int32_t rank, const void* out) {
  constexpr std::int64_t kBlock = 512;
  ASSIGN_OR_RETURN(const collective::Layout post, collective::Layout::Make(plan.header, plan.post, {}, sizes));
  const Dtype dtype = plan.header.request.dtype;
  const ReduceOp op = plan.header.op;
  const bool averages = plan.header.request.op == ReduceOp::kAvg;
  Verdict verdict;
  std::array<double, kBlock> expected;
  for (const Claim& claim : plan.post.claims) {
    if (claim.kind == ClaimKind::kBarrier || (claim.rank != collective::kEveryRank && claim.rank != rank)) continue;
    ASSIGN_OR_RETURN(const std::vector<Source> sources, SourcesOf(plan, post, claim, rank));
    const Extent extent = post.OfChunk(claim.out, nullptr);
    const double slack = averages && sources.size() > 1 ? (static_cast<double>(sources.size()) + 2) * Rounding(dtype) * kLevelsMax : 0;
    for (std::int64_t from = 0; from < extent.count; from += kBlock) {
      const std::int64_t length = std::min(kBlock, extent.count - from);
      for (std::size_t s = 0; s < sources.size(); ++s)
        for (std::int64_t i = 0; i < length; ++i) {
          const double number = sources[s].coefficient * pattern.At(sources[s].rank, sources[s].offset + from + i);
          double& sum = expected[static_cast<std::size_t>(i)];
          sum = s == 0 ? number : Fold(op, sum, number);
        }
      for (std::int64_t i = 0; i < length; ++i) {
        const std::int64_t at = extent.offset + from + i;
        const double held = Load(dtype, out, at), wanted = expected[static_cast<std::size_t>(i)];
        // Written so that a NaN is wrong.
        if (std::abs(held - wanted) <= slack) continue;
        if (verdict.wrong++ == 0) verdict.first = fmt::format("element {} is {:g} and should be {:g}", at, held, wanted);
      }
    }
  }
  return verdict;
}

}  // namespace ropewalk::measure
