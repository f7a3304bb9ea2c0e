// f32 kernels that go over rows of the last dimension, and those that move elements. Threads share rows in fixed pieces, so results do not
// depend on how many there are.
#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "base/copy_bytes.h"
#include "mlrunner/graph/infer.h"
#include "mlrunner/graph/ops.h"
#include "mlrunner/kernels/cpu.h"
#include "mlrunner/kernels/philox.h"
#include "mlrunner/kernels/row_loops.h"

namespace ropewalk::mlrunner {
namespace {

Status CheckIndices(const void* data, Dtype dtype, std::int64_t n, std::int64_t size, const char* what) {
  for (std::int64_t i = 0; i < n; ++i) {
    std::int64_t at = IndexAt(data, dtype, i);
    if (at < 0 || at >= size) {
      return Status(Code::kUserError, "RUN05", fmt::format("{} {} is {}", what, i, at), fmt::format("it must lie in [0, {})", size),
                    at < 0 ? "mend the data: labels and indices count from 0" : "mend the data, or give the model more classes or rows");
    }
  }
  return {};
}

struct RowShape {
  std::int64_t rows = 1, n = 1;
  int threads = 1;
};
RowShape RowsOf(const KernelRequest& r, const ConcreteType& type) {
  RowShape s;
  s.n = type.dims.back();
  for (std::size_t d = 0; d + 1 < type.dims.size(); ++d) s.rows *= type.dims[d];
  s.threads = Threads(r, s.rows * s.n);
  return s;
}

Result<CompiledKernel> CompileSoftmax(const KernelRequest& r) {
  if (!AllRowMajor(r) || r.in[0].dims.back() == 0) return Declined();
  RowShape s = RowsOf(r, r.in[0]);
  bool log = r.op.def == &kLogSoftmax;
  return CompiledKernel{[=](const KernelCall& c) {
    ForRows(s.rows, s.threads, [&](std::int64_t row) {
      const float* x = In(c, 0) + row * s.n;
      float* y = Out(c, 0) + row * s.n;
      float top = MaxOf(x, s.n);
      if (log) {
        Shift(x, top + std::log(SumExpOf(x, top, s.n)), y, s.n);
      } else {
        ExpOf(x, top, y, s.n);
        Scale(y, 1 / SumOf(y, s.n), s.n);
      }
    });
    return Status();
  }};
}

Result<CompiledKernel> CompileSoftmaxGrad(const KernelRequest& r) {
  if (!AllRowMajor(r) || r.in[0].dims != r.in[1].dims) return Declined();
  RowShape s = RowsOf(r, r.in[0]);
  return CompiledKernel{[=](const KernelCall& c) {
    ForRows(s.rows, s.threads, [&](std::int64_t row) {
      const float *y = In(c, 0) + row * s.n, *g = In(c, 1) + row * s.n;
      SoftmaxGradOf(y, g, DotOf(y, g, s.n), Out(c, 0) + row * s.n, s.n);
    });
    return Status();
  }};
}

Result<CompiledKernel> CompileCrossEntropy(const KernelRequest& r) {
  if (!AllRowMajor(r) || r.in[0].dims.back() == 0) return Declined();
  RowShape s = RowsOf(r, r.in[0]);
  bool gradient = r.op.def == &kCrossEntropyGrad;
  Dtype labels = r.in[1].dtype;
  return CompiledKernel{[=](const KernelCall& c) {
    RETURN_IF_ERROR(CheckIndices(c.in[1], labels, s.rows, s.n, "label of sample"));
    ForRows(s.rows, s.threads, [&](std::int64_t row) {
      const float* x = In(c, 0) + row * s.n;
      std::int64_t label = IndexAt(c.in[1], labels, row);
      if (gradient) {
        float sum = In(c, 2)[row], g = In(c, 3)[row], *dx = Out(c, 0) + row * s.n;
        ScaledExpOf(x, sum, g, dx, s.n);
        dx[label] -= g;
      } else {
        float top = MaxOf(x, s.n);
        Out(c, 1)[row] = top + std::log(SumExpOf(x, top, s.n));
        Out(c, 0)[row] = Out(c, 1)[row] - x[label];
      }
    });
    return Status();
  }};
}

Result<CompiledKernel> CompileLayerNorm(const KernelRequest& r) {
  if (!AllRowMajor(r) || r.in[0].dims.back() == 0) return Declined();
  RowShape s = RowsOf(r, r.in[0]);
  auto epsilon = static_cast<float>(r.op.attrs.Double(Attr::kEpsilon));
  return CompiledKernel{[=](const KernelCall& c) {
    const float *gain = In(c, 1), *bias = In(c, 2);
    ForRows(s.rows, s.threads, [&](std::int64_t row) {
      const float* x = In(c, 0) + row * s.n;
      float *y = Out(c, 0) + row * s.n, mean = SumOf(x, s.n) / static_cast<float>(s.n);
      Shift(x, mean, y, s.n);
      float rstd = 1 / std::sqrt(DotOf(y, y, s.n) / static_cast<float>(s.n) + epsilon);
      Normalise(y, rstd, gain, bias, s.n);
      Out(c, 1)[row] = mean;
      Out(c, 2)[row] = rstd;
    });
    return Status();
  }};
}

Result<CompiledKernel> CompileGather(const KernelRequest& r) {
  if (!AllRowMajor(r)) return Declined();
  std::int64_t rows = r.in[0].dims[0], n = NumElements(r.in[1].dims), width = n == 0 ? 0 : NumElements(r.out[0].dims) / n;
  Dtype dtype = r.in[1].dtype;
  int threads = Threads(r, n * width);
  return CompiledKernel{[=](const KernelCall& c) {
    RETURN_IF_ERROR(CheckIndices(c.in[1], dtype, n, rows, "index"));
    ForRows(n, threads, [&](std::int64_t i) {
      if (i + kRowsAhead < n) AskForRow(In(c, 0) + IndexAt(c.in[1], dtype, i + kRowsAhead) * width, width);
      CopyBytes(Out(c, 0) + i * width, In(c, 0) + IndexAt(c.in[1], dtype, i) * width, static_cast<std::size_t>(width) * sizeof(float));
    });
    return Status();
  }};
}

// Each thread has a stretch of the result and takes all indices in their order: equal ones are added in an order that no number of threads
// changes.
Result<CompiledKernel> CompileScatterAdd(const KernelRequest& r) {
  if (!AllRowMajor(r)) return Declined();
  std::int64_t rows = r.out[0].dims[0], n = r.in[0].dims[0], width = rows == 0 ? 0 : NumElements(r.out[0].dims) / rows;
  Dtype dtype = r.in[0].dtype;
  int threads = Threads(r, std::max(n, rows) * width);
  return CompiledKernel{[=](const KernelCall& c) {
    RETURN_IF_ERROR(CheckIndices(c.in[0], dtype, n, rows, "index"));
    ForStretches(rows, threads, [&](std::int64_t first, std::int64_t end) {
      std::fill(Out(c, 0) + first * width, Out(c, 0) + end * width, 0.0f);
      for (std::int64_t i = 0; i < n; ++i) {
        if (const std::int64_t row = IndexAt(c.in[0], dtype, i); row >= first && row < end) {
          AddTo(Out(c, 0) + row * width, In(c, 1) + i * width, width);
        }
      }
    });
    return Status();
  }};
}

// (outer, reduced, inner) -> (outer, inner)
struct Reduction {
  std::int64_t outer = 1, reduced = 1, inner = 1;
  int threads = 1;
};
void ReduceOf(const Reduction& s, bool sum, const float* from, float* to) {
  if (s.reduced == 0) {
    std::fill_n(to, s.outer * s.inner, sum ? 0.0f : -HUGE_VALF);
    return;
  }
  if (s.inner == 1) {
    ForRows(s.outer, s.threads, [&](std::int64_t row) {
      const float* x = from + row * s.reduced;
      to[row] = sum ? SumOf(x, s.reduced) : MaxOf(x, s.reduced);
    });
    return;
  }
  // Columns in bands, so that the sums stay in the cache.
  constexpr std::int64_t kBand = 256;
  std::int64_t bands = (s.inner + kBand - 1) / kBand;
  ForRows(s.outer * bands, s.threads, [&](std::int64_t piece) {
    std::int64_t first = piece % bands * kBand, count = std::min(kBand, s.inner - first);
    const float* x = from + piece / bands * s.reduced * s.inner + first;
    float* y = to + piece / bands * s.inner + first;
    std::copy_n(x, count, y);
    for (std::int64_t k = 1; k < s.reduced; ++k) {
      (sum ? AddTo : LargerTo)(y, x + k * s.inner, count);
    }
  });
}

// Sums and maxima. Axes that lie together are one; of several such, as the sum for a channel of images is (N, C, H, W) over N, H and W, the
// last is reduced first.
Result<CompiledKernel> CompileReduce(const KernelRequest& r) {
  if (!AllRowMajor(r)) return CompileChannelSum(r);
  Dims dims = r.in[0].dims;
  std::vector<int> axes = Axes(r.op, dims.size());
  std::vector<Reduction> steps;
  std::int64_t between = 0;  // elements of the results that are reduced further
  do {
    Reduction step;
    int at = axes.empty() ? -1 : axes.back();  // a scalar has none
    for (std::size_t d = static_cast<std::size_t>(at + 1); d < dims.size(); ++d) step.inner *= dims[d];
    for (; !axes.empty() && axes.back() == at; --at) {
      step.reduced *= dims[at];
      dims[at] = 1;
      axes.pop_back();
    }
    for (int d = 0; d <= at; ++d) step.outer *= dims[d];
    step.threads = Threads(r, step.outer * step.reduced * step.inner);
    steps.push_back(step);
    if (!axes.empty()) between += step.outer * step.inner;
  } while (!axes.empty());
  bool sum = r.op.def == &kReduceSum;
  return CompiledKernel{[=](const KernelCall& c) {
                          const float* from = In(c, 0);
                          auto* to = static_cast<float*>(c.scratch);
                          for (std::size_t i = 0; i + 1 < steps.size(); ++i) {
                            ReduceOf(steps[i], sum, from, to);
                            from = to;
                            to += steps[i].outer * steps[i].inner;
                          }
                          ReduceOf(steps.back(), sum, from, Out(c, 0));
                          return Status();
                        },
                        static_cast<std::size_t>(between) * sizeof(float)};
}

// Any op that is a walk over the output with strides into the input: transposes, broadcasts, slices. T is as wide as an element.
template <class T>
CompiledKernel Walk(const Dims& dims, const Dims& strides, std::int64_t offset, int threads) {
  std::int64_t n = dims.back(), step = strides.back(), rows = n == 0 ? 0 : NumElements(dims) / n;
  return CompiledKernel{[=](const KernelCall& c) {
    ForRows(rows, threads, [&](std::int64_t row) {
      std::int64_t from = offset, rest = row;
      for (std::size_t d = dims.size() - 1; d-- > 0; rest /= dims[d]) from += rest % dims[d] * strides[d];
      const T* x = static_cast<const T*>(c.in[0]) + from;
      T* y = static_cast<T*>(c.out[0]) + row * n;
      if (step == 1) {
        CopyBytes(y, x, static_cast<std::size_t>(n) * sizeof(T));
      } else {
        for (std::int64_t i = 0; i < n; ++i) y[i] = x[i * step];
      }
    });
    return Status();
  }};
}
Result<CompiledKernel> Strided(const KernelRequest& r, Dims strides, std::int64_t offset) {
  Dims dims = r.out[0].dims;
  if (dims.empty()) {
    dims.push_back(1);
    strides.push_back(0);
  }
  int threads = Threads(r, NumElements(dims));
  if (r.in[0].dtype == Dtype::kI32) return Walk<std::int32_t>(dims, strides, offset, threads);
  if (r.in[0].dtype == Dtype::kI64) return Walk<std::int64_t>(dims, strides, offset, threads);
  return Walk<float>(dims, strides, offset, threads);
}
Result<CompiledKernel> CompileTranspose(const KernelRequest& r) {
  if (!AllRowMajor(r)) return Declined();
  Dims from = Layout{}.Strides(r.in[0].dims), strides;
  for (std::int64_t axis : r.op.attrs.Ints(Attr::kPermutation)) strides.push_back(from[axis]);
  return Strided(r, strides, 0);
}
Result<CompiledKernel> CompileBroadcast(const KernelRequest& r) {
  if (!AllRowMajor(r)) return Declined();
  Dims from = Layout{}.Strides(r.in[0].dims), strides(r.out[0].dims.size());
  std::size_t lead = strides.size() - from.size();
  for (std::size_t d = 0; d < from.size(); ++d) strides[lead + d] = r.in[0].dims[d] == 1 ? 0 : from[d];
  return Strided(r, strides, 0);
}
Result<CompiledKernel> CompileSlice(const KernelRequest& r) {
  if (!AllRowMajor(r)) return Declined();
  auto axis = static_cast<std::size_t>(r.op.attrs.Int(Attr::kAxis));
  Dims strides = Layout{}.Strides(r.in[0].dims);
  std::int64_t begin = r.op.attrs.DimOf(Attr::kBegin).Evaluate(r.bindings);
  if (begin < 0 || begin > r.in[0].dims[axis] - r.out[0].dims[axis]) return Declined();  // the reference says what is wrong
  return Strided(r, strides, begin * strides[axis]);
}
// Concat, Pad and Bucket: runs of bytes side by side.
Result<CompiledKernel> CompileConcat(const KernelRequest& r) {
  if (!AllRowMajor(r)) return Declined();
  bool pad = r.op.def == &kPad, bucket = r.op.def == &kBucket;
  auto axis = static_cast<std::size_t>(r.op.attrs.Int(Attr::kAxis));
  auto run = [&](const ConcreteType& type) {  // elements that lie together
    if (bucket) return NumElements(type.dims);
    std::int64_t elements = 1;
    for (std::size_t d = axis; d < type.dims.size(); ++d) elements *= type.dims[d];
    return elements;
  };
  std::int64_t whole = run(r.out[0]), outer = whole == 0 ? 0 : NumElements(r.out[0].dims) / whole;
  std::vector<std::int64_t> runs;
  for (const ConcreteType& in : r.in) runs.push_back(run(in));
  std::int64_t first = 0;
  if (pad) {
    std::int64_t size = r.out[0].dims[axis], low = r.op.attrs.DimOf(Attr::kLow).Evaluate(r.bindings);
    if (low < 0 || low > size - r.in[0].dims[axis]) return Declined();  // the reference says what is wrong
    first = size == 0 ? 0 : whole / size * low;
  }
  return CompiledKernel{[=](const KernelCall& c) {
    if (pad) std::fill_n(Out(c, 0), outer * whole, 0.0f);
    for (std::int64_t o = 0; o < outer; ++o) {
      float* to = Out(c, 0) + o * whole + first;
      for (std::size_t i = 0; i < runs.size(); to += runs[i++]) {
        const float* from = In(c, static_cast<int>(i)) + o * runs[i];
        // The planner may have put a bucket's member in its place already.
        if (to != from) CopyBytes(to, from, static_cast<std::size_t>(runs[i]) * sizeof(float));
      }
    }
    return Status();
  }};
}
Result<CompiledKernel> CompileFill(const KernelRequest& r) {
  auto value = static_cast<float>(r.op.attrs.Double(Attr::kValue));
  std::int64_t n = r.out[0].layout.PhysicalElements(r.out[0].dims);
  return CompiledKernel{[=](const KernelCall& c) {
    std::fill_n(Out(c, 0), n, value);
    return Status();
  }};
}

Result<CompiledKernel> CompileConstant(const KernelRequest& r) {
  if (!AllRowMajor(r)) return Declined();
  return CompiledKernel{[bytes = r.op.attrs.LiteralOf(Attr::kLiteral)->bytes](const KernelCall& c) {
    CopyBytes(c.out[0], bytes->data(), bytes->size());
    return Status();
  }};
}
template <class T>
Result<CompiledKernel> CompileIota(const KernelRequest& r) {
  std::int64_t n = NumElements(r.out[0].dims);
  return CompiledKernel{[=](const KernelCall& c) {
    for (std::int64_t i = 0; i < n; ++i) static_cast<T*>(c.out[0])[i] = static_cast<T>(i);
    return Status();
  }};
}
Result<CompiledKernel> CompileDimSize(const KernelRequest& r) {
  auto size = static_cast<float>(r.op.attrs.DimOf(Attr::kDim).Evaluate(r.bindings));
  return CompiledKernel{[=](const KernelCall& c) {
    *Out(c, 0) = size;
    return Status();
  }};
}

}  // namespace

void AddRowKernels(KernelTable& table) {
  auto add = [&](const OpDef& def, KernelMaker maker) { table.Add(def, Device::kCpu, Dtype::kF32, std::move(maker)); };
  add(kSoftmax, CompileSoftmax);
  add(kLogSoftmax, CompileSoftmax);
  add(kSoftmaxGrad, CompileSoftmaxGrad);
  add(kCrossEntropy, CompileCrossEntropy);
  add(kCrossEntropyGrad, CompileCrossEntropy);
  add(kLayerNorm, CompileLayerNorm);
  add(kGather, CompileGather);
  add(kScatterAdd, CompileScatterAdd);
  add(kReduceSum, CompileReduce);
  add(kReduceMax, CompileReduce);
  for (Dtype dtype : {Dtype::kF32, Dtype::kI32, Dtype::kI64}) {
    table.Add(kTranspose, Device::kCpu, dtype, CompileTranspose);
    table.Add(kBroadcastTo, Device::kCpu, dtype, CompileBroadcast);
    table.Add(kSlice, Device::kCpu, dtype, CompileSlice);
  }
  for (const OpDef* def : {&kConcat, &kPad, &kBucket}) add(*def, CompileConcat);
  add(kFill, CompileFill);
  add(kIota, CompileIota<float>);
  table.Add(kIota, Device::kCpu, Dtype::kI32, CompileIota<std::int32_t>);
  table.Add(kIota, Device::kCpu, Dtype::kI64, CompileIota<std::int64_t>);
  add(kDimSize, CompileDimSize);
  for (Dtype dtype : {Dtype::kF32, Dtype::kF64, Dtype::kF16, Dtype::kBF16, Dtype::kI32, Dtype::kI64, Dtype::kU8, Dtype::kBool}) {
    table.Add(kConstant, Device::kCpu, dtype, CompileConstant);
  }
}

}  // namespace ropewalk::mlrunner
