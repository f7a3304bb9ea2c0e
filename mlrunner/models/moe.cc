#include "mlrunner/models/moe.h"

#include <cmath>

#include <fmt/format.h>

#include "mlrunner/graph/maths.h"

namespace ropewalk::mlrunner {
namespace {

// The experts' maps: (E, capacity, C) -> (E, capacity, C).
Value Experts(Layers& m, const std::string& name, const Value& x, const MoeOptions& o) {
  const std::int64_t width = x.dim(-1).Constant().value_or(1);
  auto parameter = [&](const char* part, Shape shape, Initializer init) { return m.New(name + part, std::move(shape), init, o.sharding); };
  Parameter up = parameter("/up/w", {o.experts, width, o.hidden}, XavierUniform(width, o.hidden));
  Parameter up_bias = parameter("/up/b", {o.experts, 1, o.hidden}, Initializer::Zeros());
  Parameter down = parameter("/down/w", {o.experts, o.hidden, width}, XavierUniform(o.hidden, width));
  Parameter down_bias = parameter("/down/b", {o.experts, 1, width}, Initializer::Zeros());
  return MatMul(Gelu(MatMul(x, up) + up_bias), down) + down_bias;
}

}  // namespace

Result<Dim> Capacity(const Dim& tokens, const MoeOptions& o, const std::vector<SymbolInfo>& symbols) {
  const double share = o.capacity_factor * static_cast<double>(o.each) / static_cast<double>(o.experts);
  if (auto count = tokens.Constant()) {
    // In whole numbers where the factor is a short fraction: 1.1 * 10 is 11, and not the double above it.
    constexpr double kParts = 1 << 20;
    const double exact = share * static_cast<double>(*count);
    return Dim(static_cast<std::int64_t>(std::ceil(exact - exact / kParts / kParts)));
  }
  for (std::int64_t parts = 1; parts <= 1024; parts *= 2) {
    const double numerator = o.capacity_factor * static_cast<double>(o.each * parts);
    if (numerator != std::trunc(numerator)) continue;
    if (auto exact = (tokens * Dim(static_cast<std::int64_t>(numerator))).DividedBy(Dim(o.experts * parts))) return *exact;
    break;
  }
  return Status(Code::kInvalid, "GRAPH09",
                fmt::format("{} tokens for {} experts of capacity factor {}, {} for each token", tokens.ToString(symbols), o.experts,
                            o.capacity_factor, o.each),
                "cf k T / E is no whole number for all that the symbols may be",
                "give the tokens a number, or a factor and experts that divide them");
}

MoeResult MoeBlock(Builder& b, Layers& m, const std::string& name, const Value& x, const MoeOptions& o) {
  if (!x.valid()) return {};
  const std::int64_t width = x.dim(-1).Constant().value_or(1), each = o.each;
  const Dim tokens = NumElements(Shape(x.shape().begin(), x.shape().end() - 1));
  const Dim groups = o.grouped ? x.dim(0) : Dim(1);
  const Dim group = o.grouped ? NumElements(Shape(x.shape().begin() + 1, x.shape().end() - 1)) : tokens;
  auto capacity = Capacity(group, o, b.graph().symbols);
  if (!capacity.ok()) {
    b.Fail(capacity.status());
    return {};
  }
  Value flat = Reshape(x, {tokens, width});
  Value probabilities = Softmax(MatMul(flat, m.New(name + "/router", {width, o.experts}, Initializer::Normal(.02))));
  TopKResult chosen = TopK(probabilities, static_cast<int>(each));

  // Choices of a group in the order of their rank: every token's first choice comes before anybody's second.
  const Dim choices = tokens * Dim(each);
  auto by_rank = [&](const Value& v) {
    return Reshape(Transpose(Reshape(v, {groups, group, each}), {0, 2, 1}), {groups, group * Dim(each)});
  };
  Value experts = by_rank(chosen.places);
  Value slots = Reshape(ExpertSlots(experts, o.experts, *capacity), {choices});
  Value token_of = Reshape(BroadcastTo(Reshape(Iota(b, Dtype::kI64, tokens), {groups, 1, group}), {groups, each, group}), {choices});
  const Dim of_expert = *capacity * groups, seats = of_expert * Dim(o.experts);
  // One seat more than there are, for what is over capacity: nobody looks at it, and nothing comes back from it.
  Value seated = SliceAxis(SumRows(flat, token_of, slots, seats + 1), 0, 0, seats);
  Value at_experts = Reshape(seated, {o.experts, of_expert, width});
  Value done = Experts(m, name + "/experts", o.to_experts ? o.to_experts(at_experts) : at_experts, o);
  if (o.from_experts) done = o.from_experts(done);
  Value back = PadAxis(Reshape(done, {seats, width}), 0, 0, 1);

  Value weights = chosen.values;
  if (o.normalise && each > 1) weights = weights / ReduceSum(weights, {-1}, true);
  Value given = Gather(back, slots) * Reshape(by_rank(weights), {choices, 1});
  Value y = Reshape(ReduceSum(Reshape(given, {groups, each, group, width}), {1}), x.shape());

  const Dtype dtype = x.dtype();
  // How many of a group's choices are whose, (groups, experts); no function of what is trained.
  Value whose = o.grouped ? experts + Reshape(Iota(b, Dtype::kI64, groups), {groups, 1}) * static_cast<double>(o.experts) : experts;
  Value counts =
      Reshape(ScatterAdd(Reshape(whose, {choices}), Fill(b, 1, dtype, {choices, 1}), groups * Dim(o.experts)), {groups, o.experts});
  Value mean = Mean(Reshape(probabilities, {groups, group, o.experts}), {1});
  const Value share = counts / DimSize(b, group * Dim(each), dtype);
  Value auxiliary = ReduceSum(share * mean, {1}) * (o.auxiliary * static_cast<double>(o.experts));
  Value dropped = StopGradient(ReduceSum(Maximum(counts - DimSize(b, *capacity, dtype), 0.0), {1}));
  if (!o.grouped) auxiliary = Reshape(auxiliary, {}), dropped = Reshape(dropped, {});
  return {o.adds_x ? x + y : y, auxiliary, dropped};
}

}  // namespace ropewalk::mlrunner
