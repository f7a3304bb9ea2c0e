// Ops that treat each element alike. Of known elements they are computed here.
#include <algorithm>
#include <cmath>
#include <functional>

#include <fmt/format.h>

#include "mlrunner/graph/maths.h"
#include "mlrunner/onnx/ops.h"
#include "mlrunner/types/saturate.h"

namespace ropewalk::mlrunner::onnx {
namespace {

// --- of known elements ---

std::optional<Dims> Together(const Dims& a, const Dims& b) {
  auto shape = Broadcast(Shape(a.begin(), a.end()), Shape(b.begin(), b.end()));
  if (!shape) return std::nullopt;
  Dims dims = Evaluate(*shape, {});
  return NumElements(dims) > kKnownMax ? std::nullopt : std::optional(dims);
}
// The place of `at` (of a broadcast result) in an operand of `dims`.
std::int64_t PlaceIn(const Dims& at, const Dims& dims) {
  std::int64_t place = 0;
  const std::size_t lead = at.size() - dims.size();
  for (std::size_t d = 0; d < dims.size(); ++d) place = place * dims[d] + (dims[d] == 1 ? 0 : at[lead + d]);
  return place;
}
Known Spread(const Known& a, const Dims& dims) {
  return Picked(a, dims, [&](const Dims& at) { return PlaceIn(at, a.dims); });
}

using OfWhole = std::function<std::optional<Dim>(const Dim&, const Dim&)>;
using OfReal = double (*)(double, double);
// Nothing where the elements are not known, are too many, or depend on symbols.
std::optional<Operand> Zip(NodeContext& c, std::size_t i, std::size_t j, const OfWhole& of_whole, OfReal of_real, bool compares = false) {
  const Known *a = c.KnownAt(i), *b = c.KnownAt(j);
  if (a == nullptr || b == nullptr || a->IsReal() != b->IsReal()) return std::nullopt;
  auto dims = Together(a->dims, b->dims);
  if (!dims) return std::nullopt;
  const Known x = Spread(*a, *dims), y = Spread(*b, *dims);
  Known out{compares ? Dtype::kBool : a->dtype, *dims, {}, {}};
  for (std::size_t k = 0; k < x.Size(); ++k) {
    if (!x.IsReal()) {
      auto element = of_whole(x.whole[k], y.whole[k]);
      if (!element) return std::nullopt;
      out.whole.push_back(*element);
    } else if (of_real == nullptr) {
      return std::nullopt;
    } else if (compares) {
      out.whole.emplace_back(static_cast<std::int64_t>(of_real(x.real[k], y.real[k])));
    } else {
      out.real.push_back(of_real(x.real[k], y.real[k]));
    }
  }
  return Operand::Of(std::move(out));
}

// --- arithmetic ---

using OfValues = Value (*)(Arg, Arg);
Operands Arithmetic(NodeContext& c, const OfWhole& of_whole, OfReal of_real, OfValues of_values) {
  if (auto known = Zip(c, 0, 1, of_whole, of_real)) return {*known};
  return {Operand::Of(of_values(c.Val(0), c.Val(1)))};
}
Operands Add(NodeContext& c) {
  // A row of numbers that is moved stays one.
  for (std::size_t i : {0, 1}) {
    if (!c.Has(i) || !c.Has(1 - i) || !c.At(i).progression || !c.IsWhole(1 - i) || c.KnownAt(1 - i)->Size() != 1) continue;
    if (c.At(1 - i).type.shape.size() > 1) continue;
    Operand moved = c.At(i);
    Progression p = *moved.progression;
    p.start = p.start + c.KnownAt(1 - i)->whole[0];
    moved.progression = std::make_shared<const Progression>(p);
    moved.value = {};
    return {moved};
  }
  return Arithmetic(
      c, [](const Dim& a, const Dim& b) { return a + b; }, [](double a, double b) { return a + b; }, [](Arg a, Arg b) { return a + b; });
}
Operands Sub(NodeContext& c) {
  return Arithmetic(
      c, [](const Dim& a, const Dim& b) { return a - b; }, [](double a, double b) { return a - b; }, [](Arg a, Arg b) { return a - b; });
}
Operands Mul(NodeContext& c) {
  return Arithmetic(
      c, [](const Dim& a, const Dim& b) { return a * b; }, [](double a, double b) { return a * b; }, [](Arg a, Arg b) { return a * b; });
}
Operands Div(NodeContext& c) {
  auto whole = [](const Dim& a, const Dim& b) -> std::optional<Dim> {
    auto x = a.Constant(), y = b.Constant();
    if (x && y && *y != 0 && *y != -1) return Dim(*x / *y);  // towards zero, as ONNX has it
    return b.Is(0) ? std::nullopt : a.DividedBy(b);
  };
  return Arithmetic(c, whole, [](double a, double b) { return a / b; }, [](Arg a, Arg b) { return a / b; });
}
Operands Extremum(NodeContext& c, bool largest) {
  if (c.NumInputs() == 1) return {c.At(0)};
  if (c.NumInputs() == 2) {
    auto whole = [&](const Dim& a, const Dim& b) -> std::optional<Dim> {
      auto sign = SignOfDifference(a, b, c.symbols());
      if (!sign) return std::nullopt;
      return (*sign > 0) == largest ? a : b;
    };
    if (auto known = Zip(
            c, 0, 1, whole,
            largest ? [](double a, double b) { return std::max(a, b); } : [](double a, double b) { return std::min(a, b); }))
      return {*known};
  }
  Value found = c.Val(0);
  for (std::size_t i = 1; i < c.NumInputs(); ++i) found = largest ? Maximum(found, c.Val(i)) : Minimum(found, c.Val(i));
  return {Operand::Of(found)};
}
Operands Max(NodeContext& c) { return Extremum(c, true); }
Operands Min(NodeContext& c) { return Extremum(c, false); }
Operands Sum(NodeContext& c) {
  Value sum = c.Val(0);
  for (std::size_t i = 1; i < c.NumInputs(); ++i) sum = sum + c.Val(i);
  return {Operand::Of(sum)};
}
Operands MeanOf(NodeContext& c) {
  Operands sum = Sum(c);
  return {Operand::Of(sum[0].value * (1.0 / static_cast<double>(c.NumInputs())))};
}
Operands Power(NodeContext& c) {
  if (auto known =
          Zip(c, 0, 1, [](const Dim&, const Dim&) { return std::optional<Dim>(); }, [](double a, double b) { return std::pow(a, b); }))
    return {*known};
  Value x = c.Val(0);
  if (!x.valid()) return {};
  const Known* exponent = c.KnownAt(1);
  if (exponent != nullptr && exponent->Size() == 1 && exponent->dims.size() <= x.rank() && IsFloat(x.dtype())) {
    // By products: the general rule takes logarithms, also in its gradient.
    const double p = c.RealAt(1, "the exponent");
    if (p == 1) return {Operand::Of(x)};
    if (p == 2) return {Operand::Of(Square(x))};
    if (p == 3) return {Operand::Of(x * x * x)};
    if (p == .5) return {Operand::Of(Sqrt(x))};
    if (p == -.5) return {Operand::Of(Rsqrt(x))};
    if (p == -1) return {Operand::Of(1.0 / Arg(x))};
  }
  return {Operand::Of(Pow(x, Cast(c.Val(1), x.dtype())))};
}

// --- comparisons and flags ---

Operands Compared(NodeContext& c, const std::function<std::optional<bool>(const Dim&, const Dim&)>& of_whole, OfReal of_real,
                  OfValues of_values) {
  auto whole = [&](const Dim& a, const Dim& b) -> std::optional<Dim> {
    auto answer = of_whole(a, b);
    if (!answer) return std::nullopt;
    return Dim(*answer ? 1 : 0);
  };
  if (auto known = Zip(c, 0, 1, whole, of_real, true)) return {*known};
  return {Operand::Of(of_values(c.Val(0), c.Val(1)))};
}
Operands EqualTo(NodeContext& c) {
  return Compared(
      c,
      [&](const Dim& a, const Dim& b) -> std::optional<bool> {
        auto sign = SignOfDifference(a, b, c.symbols());
        if (!sign) return std::nullopt;
        return *sign == 0;
      },
      [](double a, double b) { return a == b ? 1. : 0.; }, [](Arg a, Arg b) { return Equal(a, b); });
}
// Whether a < b, or a <= b: also where only the sign, not the difference, is known not to be on one side.
std::optional<bool> Before(const Dim& a, const Dim& b, bool or_equal, const std::vector<SymbolInfo>& symbols) {
  auto low = (b - a).LowerBound(symbols), back = (a - b).LowerBound(symbols);
  if (low && *low >= (or_equal ? 0 : 1)) return true;
  if (back && *back >= (or_equal ? 1 : 0)) return false;
  return std::nullopt;
}
Operands LessThan(NodeContext& c) {
  return Compared(
      c, [&](const Dim& a, const Dim& b) { return Before(a, b, false, c.symbols()); }, [](double a, double b) { return a < b ? 1. : 0.; },
      [](Arg a, Arg b) { return Less(a, b); });
}
Operands GreaterThan(NodeContext& c) {
  return Compared(
      c, [&](const Dim& a, const Dim& b) { return Before(b, a, false, c.symbols()); }, [](double a, double b) { return a > b ? 1. : 0.; },
      [](Arg a, Arg b) { return Greater(a, b); });
}
// Not "not greater": of what is no number neither holds.
Operands LessOrEqual(NodeContext& c) {
  return Compared(
      c, [&](const Dim& a, const Dim& b) { return Before(a, b, true, c.symbols()); }, [](double a, double b) { return a <= b ? 1. : 0.; },
      [](Arg a, Arg b) { return Maximum(Less(a, b), Equal(a, b)); });
}
Operands GreaterOrEqual(NodeContext& c) {
  return Compared(
      c, [&](const Dim& a, const Dim& b) { return Before(b, a, true, c.symbols()); }, [](double a, double b) { return a >= b ? 1. : 0.; },
      [](Arg a, Arg b) { return Maximum(Greater(a, b), Equal(a, b)); });
}
Value Inverted(const Value& flags) { return flags.valid() ? Equal(flags, flags.builder->Number(0, Dtype::kBool)) : Value(); }
Operands Not(NodeContext& c) {
  if (const Known* a = c.KnownAt(0)) {
    Known out = *a;
    for (Dim& flag : out.whole) flag = Dim(1) - flag;
    return {Operand::Of(std::move(out))};
  }
  return {Operand::Of(Inverted(c.Val(0)))};
}
Operands And(NodeContext& c) {
  return Arithmetic(c, [](const Dim& a, const Dim& b) { return a * b; }, nullptr, [](Arg a, Arg b) { return Minimum(a, b); });
}
Operands Or(NodeContext& c) {
  return Arithmetic(c, [](const Dim& a, const Dim& b) { return a + b - a * b; }, nullptr, [](Arg a, Arg b) { return Maximum(a, b); });
}
Operands Xor(NodeContext& c) {
  return Arithmetic(
      c, [](const Dim& a, const Dim& b) { return a + b - Dim(2) * a * b; }, nullptr, [](Arg a, Arg b) { return Inverted(Equal(a, b)); });
}
Operands IsNan(NodeContext& c) {
  Value x = c.Val(0);
  return {Operand::Of(Inverted(Equal(x, x)))};
}
Operands IsInf(NodeContext& c) {
  Value x = c.Val(0);
  return {Operand::Of(Minimum(Inverted(IsFinite(x)), Equal(x, x)))};
}
Operands Where(NodeContext& c) {
  const Known *which = c.KnownAt(0), *a = c.KnownAt(1), *b = c.KnownAt(2);
  if (which != nullptr && a != nullptr && b != nullptr && !which->IsReal() && a->IsReal() == b->IsReal()) {
    auto dims = Together(which->dims, a->dims);
    if (dims) dims = Together(*dims, b->dims);
    if (dims) {
      const Known flags = Spread(*which, *dims), x = Spread(*a, *dims), y = Spread(*b, *dims);
      Known out = x;
      for (std::size_t i = 0; i < out.Size(); ++i) {
        if (!flags.whole[i].Is(0)) continue;
        if (out.IsReal()) {
          out.real[i] = y.real[i];
        } else {
          out.whole[i] = y.whole[i];
        }
      }
      return {Operand::Of(std::move(out))};
    }
  }
  return {Operand::Of(Select(c.Val(0), c.Val(1), c.Val(2)))};
}

// --- casts ---

Operands CastTo(NodeContext& c, Dtype dtype) {
  if (const Known* a = c.KnownAt(0)) {
    Known out{dtype, a->dims, {}, {}};
    bool numbers = true;
    for (std::size_t i = 0; i < a->Size() && numbers; ++i) {
      if (IsFloat(dtype)) {
        numbers = a->IsReal() || a->whole[i].IsConstant();
        if (numbers) out.real.push_back(a->IsReal() ? a->real[i] : static_cast<double>(*a->whole[i].Constant()));
      } else if (dtype == Dtype::kBool) {
        numbers = a->IsReal() || a->whole[i].IsConstant();
        if (numbers) out.whole.emplace_back(a->IsReal() ? a->real[i] != 0 : !a->whole[i].Is(0));
      } else {
        out.whole.push_back(a->IsReal() ? Dim(Saturate<std::int64_t>(a->real[i])) : a->whole[i]);
      }
    }
    if (numbers) return {Operand::Of(std::move(out))};
  }
  if (c.Has(0) && c.At(0).progression && IsIndexType(dtype)) {
    Operand same = c.At(0);
    same.value = {};
    same.type.dtype = dtype;
    return {same};
  }
  return {Operand::Of(Cast(c.Val(0), dtype))};
}
Operands CastOp(NodeContext& c) {
  switch (c.node.Int("to", 0)) {
    case 1:
      return CastTo(c, Dtype::kF32);
    case 2:
      return CastTo(c, Dtype::kU8);
    case 6:
      return CastTo(c, Dtype::kI32);
    case 7:
      return CastTo(c, Dtype::kI64);
    case 9:
      return CastTo(c, Dtype::kBool);
    case 10:
      return CastTo(c, Dtype::kF16);
    case 11:
      return CastTo(c, Dtype::kF64);
    case 16:
      return CastTo(c, Dtype::kBF16);
    default:
      return c.Refuse(fmt::format("it casts to the type of code {}, which is none of ours", c.node.Int("to", 0)),
                      "use float32, float64, float16, bfloat16, int32, int64, uint8 or bool");
  }
}
Operands CastLike(NodeContext& c) { return CastTo(c, c.At(1).type.dtype); }

// --- functions of one value ---

template <Value (*f)(Arg)>
Operands One(NodeContext& c) {
  return {Operand::Of(f(c.Val(0)))};
}
template <Value (*f)(Arg), double (*g)(double)>
Operands OneOrKnown(NodeContext& c) {
  if (const Known* a = c.KnownAt(0); a != nullptr && a->IsReal()) {
    Known out = *a;
    for (double& value : out.real) value = g(value);
    return {Operand::Of(std::move(out))};
  }
  return One<f>(c);
}
Operands Neg(NodeContext& c) {
  if (const Known* a = c.KnownAt(0)) {
    Known out = *a;
    for (Dim& value : out.whole) value = Dim(0) - value;
    for (double& value : out.real) value = -value;
    return {Operand::Of(std::move(out))};
  }
  return {Operand::Of(-Arg(c.Val(0)))};
}
Operands Rounded(NodeContext& c) {
  const Known* a = c.KnownAt(0);
  if (a == nullptr || !a->IsReal()) {
    return c.Refuse("it rounds what a run brings, and there is no such op in a graph", "leave it out: its gradient is zero everywhere");
  }
  Known out = *a;
  for (double& value : out.real)
    value = c.node.op == "Floor" ? std::floor(value) : c.node.op == "Ceil" ? std::ceil(value) : std::nearbyint(value);
  return {Operand::Of(std::move(out))};
}
Value ReciprocalOf(Arg x) { return x.value.valid() ? 1.0 / x : Value(); }
Value SoftplusOf(Arg x) { return Relu(x) + Log(Exp(-Arg(Abs(x))) + 1.0); }
double Reciprocal(double x) { return 1 / x; }
double SquareRoot(double x) { return std::sqrt(x); }

Operands LeakyRelu(NodeContext& c) {
  Value x = c.Val(0);
  if (!x.valid()) return {};
  return {Operand::Of(Select(Greater(x, 0), x, x * c.node.Float("alpha", .01)))};
}
Operands PRelu(NodeContext& c) {
  Value x = c.Val(0), slope = c.Val(1);
  if (!x.valid()) return {};
  return {Operand::Of(Select(Greater(x, 0), x, x * slope))};
}
Operands Elu(NodeContext& c) {
  Value x = c.Val(0);
  if (!x.valid()) return {};
  return {Operand::Of(Select(Greater(x, 0), x, (Exp(Minimum(x, 0)) - 1.0) * c.node.Float("alpha", 1)))};
}
Operands Selu(NodeContext& c) {
  Value x = c.Val(0);
  if (!x.valid()) return {};
  const double alpha = c.node.Float("alpha", 1.67326319217681884765625), gamma = c.node.Float("gamma", 1.05070102214813232421875);
  return {Operand::Of(Select(Greater(x, 0), x, (Exp(Minimum(x, 0)) - 1.0) * alpha) * gamma)};
}
Value Between(const Value& x, double low, double high) { return Minimum(Maximum(x, low), high); }
Operands HardSigmoid(NodeContext& c) {
  Value x = c.Val(0);
  if (!x.valid()) return {};
  return {Operand::Of(Between(x * c.node.Float("alpha", .2) + c.node.Float("beta", .5), 0, 1))};
}
Operands HardSwish(NodeContext& c) {
  Value x = c.Val(0);
  if (!x.valid()) return {};
  return {Operand::Of(x * Between(x * (1. / 6) + .5, 0, 1))};
}
Operands Mish(NodeContext& c) {
  Value x = c.Val(0);
  if (!x.valid()) return {};
  return {Operand::Of(x * Tanh(SoftplusOf(x)))};
}
Operands Clip(NodeContext& c) {
  Value x = c.Val(0);
  if (!x.valid()) return {};
  if (c.Has(1)) x = Maximum(x, c.Val(1));
  if (c.Has(2)) x = Minimum(x, c.Val(2));
  return {Operand::Of(x)};
}
Operands GeluOp(NodeContext& c) {
  Value x = c.Val(0);
  if (!x.valid()) return {};
  return {Operand::Of(Gelu(x, c.node.String("approximate", "none") == "tanh" ? GeluForm::kTanh : GeluForm::kErf))};
}
Operands DropoutOp(NodeContext& c) {
  double rate = c.Has(1) ? c.RealAt(1, "the rate of a dropout") : .5;
  const ImportMode mode = c.s.options.mode;
  const bool trains =
      mode == ImportMode::kTraining || (mode == ImportMode::kAsTheFileSays && c.Has(2) && c.RealAt(2, "the mode of a dropout") != 0);
  if (!trains) rate = 0;
  if (rate == 0) return {c.At(0)};
  return {Operand::Of(Dropout(c.Val(0), rate))};
}
Operands Identity(NodeContext& c) { return {c.At(0)}; }

}  // namespace

void AddElementwise(Importers* table) {
  table->insert({
      {"Abs", One<mlrunner::Abs>},
      {"Add", Add},
      {"And", And},
      {"Cast", CastOp},
      {"CastLike", CastLike},
      {"Ceil", Rounded},
      {"Clip", Clip},
      {"Cos", One<mlrunner::Cos>},
      {"Div", Div},
      {"Dropout", DropoutOp},
      {"Elu", Elu},
      {"Equal", EqualTo},
      {"Erf", One<mlrunner::Erf>},
      {"Exp", One<mlrunner::Exp>},
      {"Floor", Rounded},
      {"Gelu", GeluOp},
      {"Greater", GreaterThan},
      {"GreaterOrEqual", GreaterOrEqual},
      {"HardSigmoid", HardSigmoid},
      {"HardSwish", HardSwish},
      {"Identity", Identity},
      {"IsInf", IsInf},
      {"IsNaN", IsNan},
      {"LeakyRelu", LeakyRelu},
      {"Less", LessThan},
      {"LessOrEqual", LessOrEqual},
      {"Log", One<mlrunner::Log>},
      {"Max", Max},
      {"Mean", MeanOf},
      {"Min", Min},
      {"Mish", Mish},
      {"Mul", Mul},
      {"Neg", Neg},
      {"Not", Not},
      {"Or", Or},
      {"PRelu", PRelu},
      {"Pow", Power},
      {"Reciprocal", OneOrKnown<ReciprocalOf, Reciprocal>},
      {"Relu", One<mlrunner::Relu>},
      {"Round", Rounded},
      {"Selu", Selu},
      {"Sigmoid", One<mlrunner::Sigmoid>},
      {"Sign", One<mlrunner::Sign>},
      {"Sin", One<mlrunner::Sin>},
      {"Softplus", One<SoftplusOf>},
      {"Sqrt", OneOrKnown<mlrunner::Sqrt, SquareRoot>},
      {"Sub", Sub},
      {"Sum", Sum},
      {"Tanh", One<mlrunner::Tanh>},
      {"Where", Where},
      {"Xor", Xor},
  });
}

}  // namespace ropewalk::mlrunner::onnx
