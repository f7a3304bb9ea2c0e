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
  const std::int64_t width = x.dim(-1).Constant().value_or(1);
  const Dim tokens = NumElements(Shape(x.shape().begin(), x.shape().end() - 1));
  auto capacity = Capacity(tokens, o, b.graph().symbols);
  if (!capacity.ok()) {
    b.Fail(capacity.status());
    return {};
  }
  Value flat = Reshape(x, {tokens, width});
  Value probabilities = Softmax(MatMul(flat, m.New(name + "/router", {width, o.experts}, Initializer::Normal(.02))));
  TopKResult chosen = TopK(probabilities, static_cast<int>(o.each));

  // Choices in the order of their rank: every token's first choice comes before anybody's second.
  const Dim choices = tokens * Dim(o.each);
  Value experts = Reshape(Transpose(chosen.places), {choices});
  Value slots = ExpertSlots(experts, o.experts, *capacity);
  Value token_of = Reshape(BroadcastTo(Iota(b, Dtype::kI64, tokens), {o.each, tokens}), {choices});
  const Dim seats = *capacity * Dim(o.experts);
  // One seat more than there are, for what is over capacity: nobody looks at it, and nothing comes back from it.
  Value seated = SliceAxis(SumRows(flat, token_of, slots, seats + 1), 0, 0, seats);
  Value done = Experts(m, name + "/experts", Reshape(seated, {o.experts, *capacity, width}), o);
  Value back = PadAxis(Reshape(done, {seats, width}), 0, 0, 1);

  Value weights = chosen.values;
  if (o.normalise && o.each > 1) weights = weights / ReduceSum(weights, {-1}, true);
  Value given = Gather(back, slots) * Reshape(Transpose(weights), {choices, 1});
  Value sum = ReduceSum(Reshape(given, {o.each, tokens, width}), {0});

  const Dtype dtype = x.dtype();
  Value ones = Fill(b, 1, dtype, {choices, 1});
  Value share = ScatterAdd(experts, ones, o.experts) / DimSize(b, choices, dtype);  // no function of what is trained
  Value mean = Reshape(Mean(probabilities, {0}), {o.experts, 1});
  Value dropped = ReduceSum(SliceAxis(ScatterAdd(slots, ones, seats + 1), 0, seats, seats + 1));
  return {x + Reshape(sum, x.shape()), ReduceSum(share * mean) * (o.auxiliary * static_cast<double>(o.experts)), StopGradient(dropped)};
}

}  // namespace ropewalk::mlrunner
