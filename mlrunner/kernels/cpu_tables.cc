// f32 kernels on rows of tables. Where rows are added, each thread owns a stretch of the result and takes all indices in their order,
// so sums do not depend on how many threads there are.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/copy_bytes.h"
#include "mlrunner/graph/ops.h"
#include "mlrunner/kernels/cpu.h"
#include "mlrunner/kernels/tables.h"

namespace ropewalk::mlrunner {
namespace {

// Indices of either type.
struct Indices {
  const void* data;
  Dtype dtype;
  std::int64_t operator[](std::int64_t i) const { return IndexAt(data, dtype, i); }
};

ROPEWALK_CLONES void AddTo(float* y, const float* x, std::int64_t n) {
#pragma GCC ivdep
  for (std::int64_t i = 0; i < n; ++i) y[i] += x[i];
}
ROPEWALK_CLONES void AdagradOf(float* p, float* sum, const float* g, float rate, float epsilon, std::int64_t n) {
#pragma GCC ivdep
  for (std::int64_t i = 0; i < n; ++i) {
    sum[i] += g[i] * g[i];
    // Where the gradient is 0 the sum of squares may be, too.
    p[i] -= g[i] == 0 ? 0.0f : rate * g[i] / (std::sqrt(sum[i]) + epsilon);
  }
}

std::int64_t WidthOf(const ConcreteType& table) { return table.dims[0] == 0 ? 0 : NumElements(table.dims) / table.dims[0]; }

Result<CompiledKernel> CompileSumRows(const KernelRequest& r) {
  if (!AllRowMajor(r)) return Declined();
  const std::int64_t from_rows = r.in[0].dims[0], to_rows = r.out[0].dims[0], n = r.in[1].dims[0], width = WidthOf(r.in[0]);
  const Dtype from_type = r.in[1].dtype, to_type = r.in[2].dtype;
  const int threads = Threads(r, std::max(n, to_rows) * width);
  return CompiledKernel{[=](const KernelCall& c) {
    const Indices from{c.in[1], from_type}, to{c.in[2], to_type};
    RETURN_IF_ERROR(CheckRows(from, n, from_rows));
    RETURN_IF_ERROR(CheckRows(to, n, to_rows));
    ForStretches(to_rows, threads, [&](std::int64_t first, std::int64_t end) {
      std::fill(Out(c, 0) + first * width, Out(c, 0) + end * width, 0.0f);
      for (std::int64_t i = 0; i < n; ++i) {
        if (i + kRowsAhead < n) AskForRow(In(c, 0) + from[i + kRowsAhead] * width, width);
        if (const std::int64_t row = to[i]; row >= first && row < end) AddTo(Out(c, 0) + row * width, In(c, 0) + from[i] * width, width);
      }
    });
    return Status();
  }};
}

template <class T>
CompiledKernel Bags(std::int64_t count, std::int64_t places) {
  return CompiledKernel{
      [=](const KernelCall& c) { return FindBags(static_cast<const T*>(c.in[0]), count, static_cast<T*>(c.out[0]), places); }};
}
Result<CompiledKernel> CompileBagsOf(const KernelRequest& r) {
  const std::int64_t count = r.in[0].dims[0], places = r.out[0].dims[0];
  return r.in[0].dtype == Dtype::kI64 ? Bags<std::int64_t>(count, places) : Bags<std::int32_t>(count, places);
}

template <class T>
CompiledKernel Stacked(const StackedTables& tables, std::int64_t n) {
  return CompiledKernel{[=](const KernelCall& c) {
    const T* ids = static_cast<const T*>(c.in[0]);
    T* rows = static_cast<T*>(c.out[0]);
    for (std::int64_t i = 0; i < n; i += tables.inner) {
      const std::size_t table = tables.TableOf(i);
      for (std::int64_t k = i; k < i + tables.inner; ++k) {
        if (ids[k] < 0 || ids[k] >= tables.sizes[table]) {
          return NoSuchRow(fmt::format("of table {}, index", table), tables.SampleOf(k), ids[k], tables.sizes[table]);
        }
        rows[k] = static_cast<T>(ids[k] + tables.first[table]);
      }
    }
    return Status();
  }};
}
Result<CompiledKernel> CompileStackedRows(const KernelRequest& r) {
  if (!AllRowMajor(r) || NumElements(r.in[0].dims) == 0) return Declined();
  const StackedTables tables(r.op, r.in[0].dims);
  const std::int64_t n = NumElements(r.in[0].dims);
  return r.in[0].dtype == Dtype::kI64 ? Stacked<std::int64_t>(tables, n) : Stacked<std::int32_t>(tables, n);
}

// Of a table that stays where it is nothing is copied.
void Keep(const KernelCall& c, int i, std::int64_t elements) {
  if (c.out[i] != c.in[i]) CopyBytes(c.out[i], c.in[i], static_cast<std::size_t>(elements) * sizeof(float));
}

Result<CompiledKernel> CompileAddRows(const KernelRequest& r) {
  if (!AllRowMajor(r)) return Declined();
  const std::int64_t rows = r.in[0].dims[0], n = r.in[1].dims[0], width = WidthOf(r.in[0]);
  const Dtype dtype = r.in[1].dtype;
  const int threads = Threads(r, n * width);
  return CompiledKernel{[=](const KernelCall& c) {
    const Indices at{c.in[1], dtype};
    RETURN_IF_ERROR(CheckRows(at, n, rows));
    Keep(c, 0, rows * width);
    ForStretches(rows, threads, [&](std::int64_t first, std::int64_t end) {
      auto is_own = [&](std::int64_t row) { return row >= first && row < end; };
      for (std::int64_t i = 0; i < n; ++i) {
        if (i + kRowsAhead < n && is_own(at[i + kRowsAhead])) AskForRow(Out(c, 0) + at[i + kRowsAhead] * width, width);
        if (is_own(at[i])) AddTo(Out(c, 0) + at[i] * width, In(c, 2) + i * width, width);
      }
    });
    return Status();
  }};
}

// Equal rows are added up first, in the order of the indices: the places of the indices, sorted by row, lie in the scratch memory.
Result<CompiledKernel> CompileAdagradRows(const KernelRequest& r) {
  if (!AllRowMajor(r)) return Declined();
  const std::int64_t rows = r.in[0].dims[0], n = r.in[2].dims[0], width = WidthOf(r.in[0]);
  const Dtype dtype = r.in[2].dtype;
  const auto epsilon = static_cast<float>(r.op.attrs.Double(Attr::kEpsilon));
  const int threads = Threads(r, n * width);
  return CompiledKernel{[=](const KernelCall& c) {
                          const Indices at{c.in[2], dtype};
                          RETURN_IF_ERROR(CheckRows(at, n, rows));
                          Keep(c, 0, rows * width);
                          Keep(c, 1, rows * width);
                          auto* places = static_cast<std::int64_t*>(c.scratch);
                          std::iota(places, places + n, 0);
                          std::sort(places, places + n,
                                    [&](std::int64_t a, std::int64_t b) { return at[a] != at[b] ? at[a] < at[b] : a < b; });
                          const float rate = *In(c, 4);
                          ForStretches(rows, threads, [&](std::int64_t first, std::int64_t end) {
                            std::vector<float> sum(static_cast<std::size_t>(width));
                            auto lower = [&](std::int64_t row) {
                              return std::lower_bound(places, places + n, row, [&](std::int64_t p, std::int64_t x) { return at[p] < x; });
                            };
                            const std::int64_t* last = lower(end);
                            for (const std::int64_t* p = lower(first); p != last;) {
                              const std::int64_t row = at[*p];
                              std::copy_n(In(c, 3) + *p * width, width, sum.begin());
                              for (++p; p != last && at[*p] == row; ++p) AddTo(sum.data(), In(c, 3) + *p * width, width);
                              AdagradOf(Out(c, 0) + row * width, Out(c, 1) + row * width, sum.data(), rate, epsilon, width);
                            }
                          });
                          return Status();
                        },
                        static_cast<std::size_t>(n) * sizeof(std::int64_t)};
}

// A sample's vectors side by side, element k of vector i at [k * stride + i], so that products with all vectors are one loop. A stride of
// whole lanes leaves that loop no rest.
constexpr std::int64_t kLanes = 32;
std::int64_t Padded(std::int64_t vectors) { return (vectors + kLanes - 1) / kLanes * kLanes; }
void SideBySide(const float* x, const float* rows, std::int64_t vectors, std::int64_t width, std::int64_t stride, float* to) {
  for (std::int64_t i = 0; i < vectors; ++i) {
    const float* from = i == 0 ? x : rows + (i - 1) * width;
    for (std::int64_t k = 0; k < width; ++k) to[k * stride + i] = from[k];
  }
}
// products (stride) = the sum over k of scale[k * step] * side[k]
ROPEWALK_CLONES void SumOfColumns(const float* side, const float* scale, std::int64_t step, std::int64_t count, std::int64_t stride,
                                  float* products) {
  for (std::int64_t first = 0; first < stride; first += kLanes) {
    float lanes[kLanes] = {};
    for (std::int64_t k = 0; k < count; ++k) {
      const float* column = side + k * stride + first;
      for (int j = 0; j < kLanes; ++j) lanes[j] += column[j] * scale[k * step];
    }
    for (int j = 0; j < kLanes; ++j) products[first + j] = lanes[j];
  }
}

Result<CompiledKernel> CompilePairDots(const KernelRequest& r) {
  if (!AllRowMajor(r) || NumElements(r.in[1].dims) == 0) return Declined();
  const std::int64_t batch = r.in[0].dims[0], width = r.in[0].dims[1], vectors = r.in[1].dims[1] + 1, wide = r.out[0].dims[1];
  const std::int64_t stride = Padded(vectors);
  const int threads = Threads(r, batch * vectors * vectors * width);
  return CompiledKernel{[=](const KernelCall& c) {
    ForStretches(batch, threads, [&](std::int64_t first, std::int64_t end) {
      std::vector<float> side(static_cast<std::size_t>(stride * width)), products(static_cast<std::size_t>(stride));
      for (std::int64_t b = first; b < end; ++b) {
        const float *x = In(c, 0) + b * width, *rows = In(c, 1) + b * (vectors - 1) * width;
        float* y = std::copy_n(x, width, Out(c, 0) + b * wide);
        SideBySide(x, rows, vectors, width, stride, side.data());
        for (std::int64_t i = 1; i < vectors; ++i) {
          SumOfColumns(side.data(), rows + (i - 1) * width, 1, width, stride, products.data());
          y = std::copy_n(products.data(), i, y);
        }
      }
    });
    return Status();
  }};
}

// With G the gradient of the pairs at both of its places, the vectors' is G times the vectors: element k of all of them at once.
Result<CompiledKernel> CompilePairDotsGrad(const KernelRequest& r) {
  if (!AllRowMajor(r) || NumElements(r.in[1].dims) == 0) return Declined();
  const std::int64_t batch = r.in[0].dims[0], width = r.in[0].dims[1], vectors = r.in[1].dims[1] + 1, wide = r.in[2].dims[1];
  const std::int64_t stride = Padded(vectors);
  const int threads = Threads(r, batch * vectors * vectors * width);
  return CompiledKernel{[=](const KernelCall& c) {
    ForStretches(batch, threads, [&](std::int64_t first, std::int64_t end) {
      std::vector<float> pairs(static_cast<std::size_t>(vectors * stride)), all(static_cast<std::size_t>(vectors * width)),
          sums(static_cast<std::size_t>(stride));
      for (std::int64_t b = first; b < end; ++b) {
        const float *x = In(c, 0) + b * width, *rows = In(c, 1) + b * (vectors - 1) * width, *own = In(c, 2) + b * wide, *g = own + width;
        float *dx = Out(c, 0) + b * width, *drows = Out(c, 1) + b * (vectors - 1) * width;
        for (std::int64_t i = 1; i < vectors; ++i) {
          for (std::int64_t j = 0; j < i; ++j) pairs[i * stride + j] = pairs[j * stride + i] = *g++;
        }
        std::copy_n(rows, (vectors - 1) * width, std::copy_n(x, width, all.data()));
        for (std::int64_t k = 0; k < width; ++k) {
          SumOfColumns(pairs.data(), all.data() + k, width, vectors, stride, sums.data());
          dx[k] = own[k] + sums[0];
          for (std::int64_t i = 1; i < vectors; ++i) drows[(i - 1) * width + k] = sums[i];
        }
      }
    });
    return Status();
  }};
}

}  // namespace

void AddTableKernels(KernelTable& table) {
  auto add = [&](const OpDef& def, KernelMaker maker) { table.Add(def, Device::kCpu, Dtype::kF32, std::move(maker)); };
  add(kSumRows, CompileSumRows);
  add(kAddRows, CompileAddRows);
  add(kAdagradRows, CompileAdagradRows);
  add(kPairDots, CompilePairDots);
  add(kPairDotsGrad, CompilePairDotsGrad);
  for (Dtype dtype : {Dtype::kI32, Dtype::kI64}) {
    table.Add(kBagsOf, Device::kCpu, dtype, CompileBagsOf);
    table.Add(kStackedRows, Device::kCpu, dtype, CompileStackedRows);
  }
}

}  // namespace ropewalk::mlrunner
