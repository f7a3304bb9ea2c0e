// Elementwise ops and fused chains in f32: an interpreter over blocks that stay in the first-level cache. Each instruction is one
// vectorised
// loop over a block, so that its cost of being looked up is spread over 512 elements. Blocks of bf16 and f16 are widened when they are
// read; what a chain has in such a type on the way is a float that the type can hold.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "mlrunner/graph/op_def.h"
#include "mlrunner/graph/ops.h"
#include "mlrunner/kernels/cpu.h"
#include "mlrunner/kernels/half_blocks.h"

namespace ropewalk::mlrunner {
namespace {

constexpr std::int64_t kBlock = 512;

enum class Code8 : std::uint8_t {
  kAdd,
  kSub,
  kMul,
  kDiv,
  kMaximum,
  kMinimum,
  kLess,
  kGreater,
  kEqual,
  kSelect,
  kNeg,
  kExp,
  kLog,
  kSqrt,
  kRsqrt,
  kTanh,
  kSigmoid,
  kAbs,
  kSign,
  kRelu,
  kIsFinite,
  kCopy,
  kGelu,
  kGeluGrad,
  kGeluErf,
  kGeluErfGrad,
  kBinaryCrossEntropy,
  kBinaryCrossEntropyGrad,
  kPow,
  kErf,
  kSin,
  kCos,
  kRoundBF16,
  kRoundF16
};

struct Instruction {
  Code8 code;
  int a = 0, b = 0, c = 0, to = 0;  // registers
};

// x * sigmoid(2 z), where z = sqrt(2 / pi) * (x + .044715 x^3): the same as .5 x (1 + tanh z), but keeps its digits for negative x. Below
// -10.2 it and its slope are less than the least normal float.
constexpr float kTwiceGeluScale = 1.595769122f;
ROPEWALK_IN_CLONES float FastGelu(float x) {
  float e = FastExp(-kTwiceGeluScale * (x + .044715f * x * x * x));
  return x < -10.2f ? 0.0f : x / (1 + e);
}
ROPEWALK_IN_CLONES float GeluSlope(float y) {
  // Above 20 the slope is 1 in floats, and the squares of large numbers would be inf.
  float x = y > 20 ? 20 : y;
  float e = FastExp(-kTwiceGeluScale * (x + .044715f * x * x * x)), s = 1 / (1 + e);
  float slope = s * (1 + x * (e * s) * kTwiceGeluScale * (1 + 3 * .044715f * x * x));
  return x < -10.2f ? 0.0f : slope;
}

// The normal distribution's probability below x, as half of erfc(|x| / sqrt 2) or what is left of 1 of it: so both tails keep their digits.
// erfc by Chebyshev fitting, relative error below 1.2e-7 (Press et al., Numerical Recipes, 6.2).
ROPEWALK_IN_CLONES float FastNormalBelow(float x) {
  float z = std::fabs(x) * 0.70710678f, t = 1 / (1 + 0.5f * z);
  float p = 0.17087277f;
  p = p * t - 0.82215223f;
  p = p * t + 1.48851587f;
  p = p * t - 1.13520398f;
  p = p * t + 0.27886807f;
  p = p * t - 0.18628806f;
  p = p * t + 0.09678418f;
  p = p * t + 0.37409196f;
  p = p * t + 1.00002368f;
  p = p * t - 1.26551223f;
  float tail = 0.5f * t * FastExp(p - z * z);
  return x > 0 ? 1 - tail : tail;
}
// Below -13.2 both are less than the least normal float, and above 20 the slope is 1 in floats; the squares of large numbers would be inf.
ROPEWALK_IN_CLONES float FastGeluErf(float x) {
  float inside = x > 20 ? 20 : x;
  return x < -13.2f ? 0.0f : x * FastNormalBelow(inside);
}
ROPEWALK_IN_CLONES float GeluErfSlope(float y) {
  float x = y > 20 ? 20 : y;
  float slope = FastNormalBelow(x) + x * FastExp(-0.5f * x * x) * 0.39894228f;
  return x < -13.2f ? 0.0f : slope;
}

// Over a block; an output may lie exactly on an input, which the compiler must not take for a reason to go one by one.
#define ROPEWALK_EACH(statement) \
  _Pragma("GCC ivdep") for (std::int64_t k = 0; k < n; ++k) { statement; }

ROPEWALK_CLONES void Execute(const Instruction& i, const float* a, const float* b, const float* c, float* y, std::int64_t n) {
  switch (i.code) {
    case Code8::kAdd:
      ROPEWALK_EACH(y[k] = a[k] + b[k]);
      break;
    case Code8::kSub:
      ROPEWALK_EACH(y[k] = a[k] - b[k]);
      break;
    case Code8::kMul:
      ROPEWALK_EACH(y[k] = a[k] * b[k]);
      break;
    case Code8::kDiv:
      ROPEWALK_EACH(y[k] = a[k] / b[k]);
      break;
    case Code8::kMaximum:
      ROPEWALK_EACH(y[k] = a[k] > b[k] ? a[k] : b[k]);
      break;
    case Code8::kMinimum:
      ROPEWALK_EACH(y[k] = a[k] < b[k] ? a[k] : b[k]);
      break;
    case Code8::kLess:
      ROPEWALK_EACH(y[k] = a[k] < b[k] ? 1.0f : 0.0f);
      break;
    case Code8::kGreater:
      ROPEWALK_EACH(y[k] = a[k] > b[k] ? 1.0f : 0.0f);
      break;
    case Code8::kEqual:
      ROPEWALK_EACH(y[k] = a[k] == b[k] ? 1.0f : 0.0f);
      break;
    case Code8::kSelect:
      // Both are read first: the compiler may not read what a branch might not, and would go one by one.
      ROPEWALK_EACH(float yes = b[k]; float no = c[k]; y[k] = a[k] != 0 ? yes : no);
      break;
    case Code8::kNeg:
      ROPEWALK_EACH(y[k] = -a[k]);
      break;
    case Code8::kExp:
      ROPEWALK_EACH(y[k] = a[k] > kExpMax ? HUGE_VALF : FastExp(a[k]));
      break;
    case Code8::kSqrt:
      ROPEWALK_EACH(y[k] = std::sqrt(a[k]));
      break;
    case Code8::kRsqrt:
      ROPEWALK_EACH(y[k] = 1 / std::sqrt(a[k]));
      break;
    case Code8::kTanh:
      ROPEWALK_EACH(y[k] = FastTanh(a[k]));
      break;
    case Code8::kSigmoid:
      ROPEWALK_EACH(y[k] = FastSigmoid(a[k]));
      break;
    case Code8::kAbs:
      ROPEWALK_EACH(y[k] = std::fabs(a[k]));
      break;
    case Code8::kSign:
      ROPEWALK_EACH(y[k] = a[k] > 0 ? 1.0f : a[k] < 0 ? -1.0f : a[k]);
      break;
    case Code8::kRelu:
      ROPEWALK_EACH(y[k] = a[k] > 0 ? a[k] : 0);
      break;
    case Code8::kIsFinite:
      ROPEWALK_EACH(y[k] = std::fabs(a[k]) < HUGE_VALF ? 1.0f : 0.0f);
      break;
    case Code8::kCopy:
      std::memmove(y, a, static_cast<std::size_t>(n) * sizeof(float));
      break;
    case Code8::kGelu:
      ROPEWALK_EACH(y[k] = FastGelu(a[k]));
      break;
    case Code8::kGeluGrad:
      ROPEWALK_EACH(y[k] = b[k] * GeluSlope(a[k]));
      break;
    case Code8::kGeluErf:
      ROPEWALK_EACH(y[k] = FastGeluErf(a[k]));
      break;
    case Code8::kGeluErfGrad:
      ROPEWALK_EACH(y[k] = b[k] * GeluErfSlope(a[k]));
      break;
    case Code8::kBinaryCrossEntropy:
      ROPEWALK_EACH(y[k] = (a[k] > 0 ? a[k] : 0) - a[k] * b[k] + std::log1p(FastExp(-std::fabs(a[k]))));
      break;
    case Code8::kBinaryCrossEntropyGrad:
      ROPEWALK_EACH(y[k] = (FastSigmoid(a[k]) - b[k]) * c[k]);
      break;
    case Code8::kRoundBF16:
      ROPEWALK_EACH(y[k] = __builtin_bit_cast(float, RoundedToBF16(a[k])));
      break;
    case Code8::kRoundF16:
      ROPEWALK_EACH(y[k] = FloatOfF16(BitsOfF16(a[k])));
      break;
    case Code8::kLog:
      ROPEWALK_EACH(y[k] = std::log(a[k]));
      break;
    case Code8::kPow:
      ROPEWALK_EACH(y[k] = std::pow(a[k], b[k]));
      break;
    case Code8::kErf:
      ROPEWALK_EACH(y[k] = std::erf(a[k]));
      break;
    case Code8::kSin:
      ROPEWALK_EACH(y[k] = std::sin(a[k]));
      break;
    case Code8::kCos:
      ROPEWALK_EACH(y[k] = std::cos(a[k]));
      break;
  }
}

const std::map<const OpDef*, Code8>& Codes() {
  static const std::map<const OpDef*, Code8> kCodes = {{&kAdd, Code8::kAdd},
                                                       {&kSub, Code8::kSub},
                                                       {&kMul, Code8::kMul},
                                                       {&kDiv, Code8::kDiv},
                                                       {&kMaximum, Code8::kMaximum},
                                                       {&kMinimum, Code8::kMinimum},
                                                       {&kLess, Code8::kLess},
                                                       {&kGreater, Code8::kGreater},
                                                       {&kEqual, Code8::kEqual},
                                                       {&kSelect, Code8::kSelect},
                                                       {&kNeg, Code8::kNeg},
                                                       {&kExp, Code8::kExp},
                                                       {&kLog, Code8::kLog},
                                                       {&kSqrt, Code8::kSqrt},
                                                       {&kRsqrt, Code8::kRsqrt},
                                                       {&kTanh, Code8::kTanh},
                                                       {&kSigmoid, Code8::kSigmoid},
                                                       {&kAbs, Code8::kAbs},
                                                       {&kSign, Code8::kSign},
                                                       {&kRelu, Code8::kRelu},
                                                       {&kIsFinite, Code8::kIsFinite},
                                                       {&kGelu, Code8::kGelu},
                                                       {&kGeluGrad, Code8::kGeluGrad},
                                                       {&kPow, Code8::kPow},
                                                       {&kErf, Code8::kErf},
                                                       {&kSin, Code8::kSin},
                                                       {&kCos, Code8::kCos},
                                                       {&kCast, Code8::kCopy},
                                                       {&kGeluErf, Code8::kGeluErf},
                                                       {&kGeluErfGrad, Code8::kGeluErfGrad},
                                                       {&kBinaryCrossEntropy, Code8::kBinaryCrossEntropy},
                                                       {&kBinaryCrossEntropyGrad, Code8::kBinaryCrossEntropyGrad}};
  return kCodes;
}

// How an input is met along the output, seen as rows of its last dimension.
struct Operand {
  Dtype dtype = Dtype::kF32;
  bool full = false;      // the output's shape: element k of the whole
  std::int64_t step = 0;  // along the last dimension: 0 or 1
  Dims strides;           // along the leading dimensions, in elements
};

struct Loop {
  std::vector<Instruction> code;
  std::vector<Operand> operands;             // registers 0..n-1
  std::vector<std::pair<int, float>> fills;  // registers that hold a number
  int num_registers = 0;
  int result = 0;
  Dtype result_dtype = Dtype::kF32;
  Dims lead;  // leading dimensions of the output
  std::int64_t rows = 1, width = 1;
  int threads = 1;
};

bool IsBlockType(Dtype dtype) { return dtype == Dtype::kF32 || dtype == Dtype::kBool || IsHalf(dtype); }

Result<Operand> MakeOperand(const ConcreteType& in, const ConcreteType& out) {
  if (!IsBlockType(in.dtype)) return Declined();
  Operand operand{in.dtype, in.dims == out.dims, 0, {}};
  if (operand.full) {
    if (in.layout != out.layout) return Declined();
  } else if (!in.layout.IsRowMajor() || (!out.layout.IsRowMajor() && NumElements(in.dims) != 1)) {
    return Declined();
  }
  std::size_t rank = out.dims.size();
  Dims strides(rank);
  std::int64_t stride = 1;
  for (std::size_t d = in.dims.size(); d-- > 0;) {
    strides[rank - in.dims.size() + d] = in.dims[d] == 1 ? 0 : stride;
    stride *= in.dims[d];
  }
  if (rank > 0) {
    operand.step = strides.back();
    strides.pop_back();
  }
  operand.strides = std::move(strides);
  return operand;
}

ROPEWALK_CLONES void FromBools(const std::uint8_t* from, float* to, std::int64_t n) {
  for (std::int64_t k = 0; k < n; ++k) to[k] = from[k] != 0 ? 1.0f : 0.0f;
}
ROPEWALK_CLONES void ToBools(const float* from, std::uint8_t* to, std::int64_t n) {
  for (std::int64_t k = 0; k < n; ++k) to[k] = from[k] != 0;
}

// Into a register: what is not floats side by side, which are read where they lie.
void LoadBlock(const Operand& operand, bool repeats, const void* data, std::int64_t at, std::int64_t n, float* to) {
  const std::int64_t count = repeats ? 1 : n;
  if (operand.dtype == Dtype::kF32) {
    to[0] = static_cast<const float*>(data)[at];
  } else if (operand.dtype == Dtype::kBool) {
    FromBools(static_cast<const std::uint8_t*>(data) + at, to, count);
  } else {
    WidenHalves(operand.dtype, static_cast<const std::uint16_t*>(data) + at, to, count);
  }
  if (repeats) std::fill_n(to + 1, n - 1, to[0]);
}

// One block of `n` elements that begins at element `at` of the output, in row `row` at `column`.
void RunBlock(const Loop& loop, const KernelCall& call, std::vector<float>& space, std::int64_t at, const Dims& row, std::int64_t column,
              std::int64_t n) {
  const float* registers[64];
  float* own[64];
  for (int r = 0; r < loop.num_registers; ++r) registers[r] = own[r] = space.data() + r * kBlock;
  for (std::size_t i = 0; i < loop.operands.size(); ++i) {
    const Operand& operand = loop.operands[i];
    std::int64_t from = at;
    if (!operand.full) {
      from = column * operand.step;
      for (std::size_t d = 0; d < row.size(); ++d) from += row[d] * operand.strides[d];
    }
    const bool repeats = !operand.full && operand.step == 0;
    if (operand.dtype == Dtype::kF32 && !repeats) {
      registers[i] = static_cast<const float*>(call.in[i]) + from;
    } else {
      LoadBlock(operand, repeats, call.in[i], from, n, own[i]);
    }
  }
  const bool in_place = loop.result_dtype == Dtype::kF32;
  for (const Instruction& i : loop.code) {
    float* to = i.to == loop.result && in_place ? static_cast<float*>(call.out[0]) + at : own[i.to];
    Execute(i, registers[i.a], registers[i.b], registers[i.c], to, n);
    registers[i.to] = to;
  }
  if (loop.result_dtype == Dtype::kBool) {
    ToBools(registers[loop.result], static_cast<std::uint8_t*>(call.out[0]) + at, n);
  } else if (IsHalf(loop.result_dtype)) {
    NarrowToHalves(loop.result_dtype, registers[loop.result], static_cast<std::uint16_t*>(call.out[0]) + at, n);
  }
}

Status RunLoop(const Loop& loop, const KernelCall& call) {
  bool flat = loop.lead.empty();
  std::int64_t pieces_a_row = (loop.width + kBlock - 1) / kBlock, pieces = pieces_a_row * loop.rows;
#pragma omp parallel num_threads(loop.threads) if (loop.threads > 1)
  {
    std::vector<float> space(static_cast<std::size_t>(loop.num_registers) * kBlock);
    for (const auto& [to, value] : loop.fills) std::fill_n(space.begin() + to * kBlock, kBlock, value);
    Dims row(loop.lead.size());
#pragma omp for schedule(static)
    for (std::int64_t piece = 0; piece < pieces; ++piece) {
      std::int64_t r = piece / pieces_a_row, column = piece % pieces_a_row * kBlock, rest = r;
      if (!flat) {
        for (std::size_t d = row.size(); d-- > 0; rest /= loop.lead[d]) row[d] = rest % loop.lead[d];
      }
      RunBlock(loop, call, space, r * loop.width + column, row, column, std::min(kBlock, loop.width - column));
    }
  }
  return {};
}

// One op, or the body of a Map, as a loop.
Result<CompiledKernel> CompileLoop(const KernelRequest& r) {
  Loop loop;
  const ConcreteType& out = r.out.at(0);
  if (r.out.size() != 1 || !IsBlockType(out.dtype)) return Declined();
  bool all_full = true;
  for (const ConcreteType& in : r.in) {
    ASSIGN_OR_RETURN(Operand operand, MakeOperand(in, out));
    // A scalar is met by any walk.
    all_full = all_full && (operand.full || NumElements(in.dims) == 1);
    loop.operands.push_back(std::move(operand));
  }
  int next = static_cast<int>(r.in.size());
  auto add = [&](const Op& op, const std::vector<int>& in) -> Result<int> {
    auto code = Codes().find(op.def);
    if (code == Codes().end()) return Declined();
    Instruction i{code->second, in[0], in.size() > 1 ? in[1] : in[0], in.size() > 2 ? in[2] : in[0], next};
    loop.code.push_back(i);
    return next++;
  };
  // Behind an op whose result has 16 bits; a cast to them is nothing else.
  auto rounded = [&](int from, Dtype dtype) {
    loop.code.push_back({dtype == Dtype::kBF16 ? Code8::kRoundBF16 : Code8::kRoundF16, from, from, from, next});
    return next++;
  };
  if (r.op.def == &kMap) {
    const Graph& body = *r.op.bodies[0];
    std::map<ValueId, int> registers;
    for (std::size_t i = 0; i < body.inputs.size(); ++i) registers[body.inputs[i]] = static_cast<int>(i);
    for (const Op& op : body.ops) {
      if (op.def == &kInput) continue;
      if (!IsBlockType(body.value(op.outputs[0]).type.dtype)) return Declined();
      if (op.def == &kFill) {
        const Dtype dtype = body.value(op.outputs[0]).type.dtype;
        loop.fills.emplace_back(next, static_cast<float>(RoundTo(dtype, op.attrs.Double(Attr::kValue))));
        registers[op.outputs[0]] = next++;
        continue;
      }
      std::vector<int> in;
      for (ValueId value : op.inputs) in.push_back(registers.at(value));
      const ValueId made = op.outputs[0];
      const Dtype dtype = body.value(made).type.dtype;
      // A cast to bool is not a copy.
      if (op.def == &kCast && dtype == Dtype::kBool) return Declined();
      // The result of all is rounded when it is written.
      const bool rounds = IsHalf(dtype) && made != body.outputs[0].value;
      if (op.def == &kCast && rounds) {
        registers[made] = rounded(in[0], dtype);
        continue;
      }
      ASSIGN_OR_RETURN(registers[made], add(op, in));
      if (rounds) registers[made] = rounded(registers[made], dtype);
    }
    loop.result = registers.at(body.outputs[0].value);
    if (loop.code.empty() || loop.code.back().to != loop.result) return Declined();
  } else {
    if (r.op.def == &kCast && out.dtype == Dtype::kBool) return Declined();
    std::vector<int> in;
    for (std::size_t i = 0; i < r.in.size(); ++i) in.push_back(static_cast<int>(i));
    ASSIGN_OR_RETURN(loop.result, add(r.op, in));
  }
  if (next > 64) return Declined();
  loop.num_registers = next;
  loop.result_dtype = out.dtype;
  std::int64_t elements = out.layout.PhysicalElements(out.dims);
  if (all_full) {
    loop.width = elements;
    for (Operand& operand : loop.operands) operand.strides.clear();
    for (std::size_t i = 0; i < r.in.size(); ++i) {
      if (!loop.operands[i].full) loop.operands[i].step = 0;
    }
  } else {
    loop.lead.assign(out.dims.begin(), out.dims.end() - 1);
    loop.rows = NumElements(loop.lead);
    loop.width = out.dims.back();
  }
  loop.threads = Threads(r, elements);
  return CompiledKernel{[loop = std::move(loop)](const KernelCall& call) { return RunLoop(loop, call); }};
}

ROPEWALK_CLONES void AdamWBlock(float* p, float* m, float* v, const float* p0, const float* m0, const float* v0, const float* g,
                                std::int64_t n, float b1, float b2, float c1, float c2, float lr, float epsilon, float decay) {
#pragma GCC ivdep
  for (std::int64_t i = 0; i < n; ++i) {
    float mi = b1 * m0[i] + (1 - b1) * g[i], vi = b2 * v0[i] + (1 - b2) * g[i] * g[i], pi = p0[i];
    p[i] = pi - lr * (mi * c1 / (std::sqrt(vi * c2) + epsilon) + decay * pi);
    m[i] = mi;
    v[i] = vi;
  }
}

Result<CompiledKernel> CompileAdamW(const KernelRequest& r) {
  if (!AllRowMajor(r)) return Declined();
  std::int64_t n = NumElements(r.out[0].dims);
  double b1 = r.op.attrs.Double(Attr::kLow), b2 = r.op.attrs.Double(Attr::kHigh);
  auto epsilon = static_cast<float>(r.op.attrs.Double(Attr::kEpsilon)), decay = static_cast<float>(r.op.attrs.Double(Attr::kValue));
  int threads = Threads(r, n);
  return CompiledKernel{[=](const KernelCall& c) {
    float lr = *static_cast<const float*>(c.in[4]);
    double t = *static_cast<const float*>(c.in[5]);
    auto c1 = static_cast<float>(1 / (1 - std::pow(b1, t))), c2 = static_cast<float>(1 / (1 - std::pow(b2, t)));
    constexpr std::int64_t kPiece = 8192;
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (std::int64_t at = 0; at < n; at += kPiece) {
      auto in = [&](int i) { return static_cast<const float*>(c.in[i]) + at; };
      auto out = [&](int i) { return static_cast<float*>(c.out[i]) + at; };
      AdamWBlock(out(0), out(1), out(2), in(0), in(1), in(2), in(3), std::min(kPiece, n - at), static_cast<float>(b1),
                 static_cast<float>(b2), c1, c2, lr, epsilon, decay);
    }
    return Status();
  }};
}

}  // namespace

void AddElementwiseKernels(KernelTable& table) {
  for (Dtype dtype : {Dtype::kF32, Dtype::kBF16, Dtype::kF16}) {
    for (const auto& [def, code] : Codes()) table.Add(*def, Device::kCpu, dtype, CompileLoop);
    table.Add(kMap, Device::kCpu, dtype, CompileLoop);
  }
  table.Add(kAdamW, Device::kCpu, Dtype::kF32, CompileAdamW);
}

}  // namespace ropewalk::mlrunner
