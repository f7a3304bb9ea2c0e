// One plain loop for each op.
#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "mlrunner/graph/infer.h"
#include "mlrunner/graph/ops.h"
#include "mlrunner/kernels/fold.h"
#include "mlrunner/kernels/philox.h"
#include "mlrunner/kernels/reference.h"
#include "mlrunner/kernels/table_parts.h"
#include "mlrunner/types/saturate.h"

namespace ropewalk::mlrunner {
namespace {

// The index that follows `index` in row-major order.
void Next(const Dims& dims, Dims& index) {
  for (std::size_t d = dims.size(); d-- > 0;) {
    if (++index[d] < dims[d]) return;
    index[d] = 0;
  }
}
std::int64_t Flat(const Dims& dims, const Dims& index) {
  std::int64_t flat = 0;
  for (std::size_t d = 0; d < dims.size(); ++d) flat = flat * dims[d] + index[d];
  return flat;
}
// The element of `tensor` that broadcasting shows at `index` of a larger shape.
double Seen(const RefTensor& tensor, const Dims& index) {
  std::int64_t flat = 0;
  std::size_t lead = index.size() - tensor.dims.size();
  for (std::size_t d = 0; d < tensor.dims.size(); ++d) flat = flat * tensor.dims[d] + (tensor.dims[d] == 1 ? 0 : index[lead + d]);
  return tensor.data[flat];
}

template <class F>
RefKernel Unary(F f) {
  return [f](RefCall& c) {
    for (std::size_t i = 0; i < c.in[0]->data.size(); ++i) c.out[0].data[i] = f(c.in[0]->data[i]);
    return Status();
  };
}
template <class F>
RefKernel Binary(F f) {
  return [f](RefCall& c) {
    Dims index(c.out[0].dims.size());
    for (double& y : c.out[0].data) {
      y = f(Seen(*c.in[0], index), Seen(*c.in[1], index));
      Next(c.out[0].dims, index);
    }
    return Status();
  };
}

// (logits, targets, g)
Status BinaryCrossEntropyGrad(RefCall& c) {
  Dims index(c.out[0].dims.size());
  for (double& y : c.out[0].data) {
    y = (1 / (1 + std::exp(-Seen(*c.in[0], index))) - Seen(*c.in[1], index)) * Seen(*c.in[2], index);
    Next(c.out[0].dims, index);
  }
  return {};
}
Status Select(RefCall& c) {
  Dims index(c.out[0].dims.size());
  for (double& y : c.out[0].data) {
    y = Seen(*c.in[0], index) != 0 ? Seen(*c.in[1], index) : Seen(*c.in[2], index);
    Next(c.out[0].dims, index);
  }
  return {};
}
Status Copy(RefCall& c) {
  for (std::size_t i = 0; i < c.out.size(); ++i) c.out[i].data = c.in[c.in.size() - c.out.size() + i]->data;
  return {};
}
Status Transpose(RefCall& c) {
  std::vector<std::int64_t> order = c.op.attrs.Ints(Attr::kPermutation);
  Dims index(order.size()), from(order.size());
  for (double& y : c.out[0].data) {
    for (std::size_t d = 0; d < order.size(); ++d) from[order[d]] = index[d];
    y = c.in[0]->data[Flat(c.in[0]->dims, from)];
    Next(c.out[0].dims, index);
  }
  return {};
}
Status BroadcastTo(RefCall& c) {
  Dims index(c.out[0].dims.size());
  for (double& y : c.out[0].data) {
    y = Seen(*c.in[0], index);
    Next(c.out[0].dims, index);
  }
  return {};
}
// Copies the elements of `part` into `whole` at `begin` of one axis, or back.
void Place(const RefTensor& part, RefTensor& whole, std::size_t axis, std::int64_t begin) {
  Dims index(part.dims.size());
  for (double value : part.data) {
    Dims at = index;
    at[axis] += begin;
    whole.data[Flat(whole.dims, at)] = value;
    Next(part.dims, index);
  }
}
Status Slice(RefCall& c) {
  auto axis = static_cast<std::size_t>(c.op.attrs.Int(Attr::kAxis));
  std::int64_t begin = c.op.attrs.DimOf(Attr::kBegin).Evaluate(c.bindings);
  std::int64_t count = c.out[0].dims[axis], size = c.in[0]->dims[axis];
  if (begin < 0 || begin > size - count) {
    return Status(Code::kUserError, "RUN04", fmt::format("{} elements from {} on do not lie in an axis of {}", count, begin, size),
                  "so the bound symbols make it; while the graph was built they had no numbers",
                  "bind others, or slice by an expression that stays inside for all that the symbols may be");
  }
  Dims index(c.out[0].dims.size());
  for (double& y : c.out[0].data) {
    Dims at = index;
    at[axis] += begin;
    y = c.in[0]->data[Flat(c.in[0]->dims, at)];
    Next(c.out[0].dims, index);
  }
  return {};
}
Status Pad(RefCall& c) {
  std::int64_t low = c.op.attrs.DimOf(Attr::kLow).Evaluate(c.bindings), high = c.op.attrs.DimOf(Attr::kHigh).Evaluate(c.bindings);
  if (low < 0 || high < 0) {
    return Status(Code::kUserError, "RUN04", fmt::format("there cannot be {} and {} zeros around an axis", low, high),
                  "so the bound symbols make it; while the graph was built they had no numbers",
                  "bind others, or pad by expressions that are 0 or more for all that the symbols may be");
  }
  Place(*c.in[0], c.out[0], c.op.attrs.Int(Attr::kAxis), low);
  return {};
}
Status Concat(RefCall& c) {
  std::int64_t begin = 0;
  auto axis = static_cast<std::size_t>(c.op.attrs.Int(Attr::kAxis));
  for (const RefTensor* part : c.in) {
    Place(*part, c.out[0], axis, begin);
    begin += part->dims[axis];
  }
  return {};
}
Status Bucket(RefCall& c) {
  auto to = c.out[0].data.begin();
  for (const RefTensor* part : c.in) to = std::copy(part->data.begin(), part->data.end(), to);
  return {};
}
Status OutOfRange(const char* what, std::size_t place, double value, std::int64_t size) {
  return Status(Code::kUserError, "RUN05", fmt::format("{} {} is {}", what, place, value), fmt::format("it must lie in [0, {})", size),
                value < 0 ? "mend the data: labels and indices count from 0" : "mend the data, or give the model more classes or rows");
}
Status At(RefCall& c) {
  std::int64_t rows = c.in[0]->dims[0], i = Saturate<std::int64_t>(c.in[1]->data[0]);
  if (i < 0 || i >= rows) return OutOfRange("the index", 0, static_cast<double>(i), rows);
  std::size_t size = c.out[0].data.size();
  std::copy_n(c.in[0]->data.begin() + static_cast<std::ptrdiff_t>(size) * i, size, c.out[0].data.begin());
  return {};
}
Status SetAt(RefCall& c) {
  std::int64_t rows = c.in[0]->dims[0], i = Saturate<std::int64_t>(c.in[1]->data[0]);
  if (i < 0 || i >= rows) return OutOfRange("the index", 0, static_cast<double>(i), rows);
  c.out[0].data = c.in[0]->data;
  std::copy(c.in[2]->data.begin(), c.in[2]->data.end(), c.out[0].data.begin() + static_cast<std::ptrdiff_t>(c.in[2]->data.size()) * i);
  return {};
}

Status Constant(RefCall& c) {
  c.out[0].data = FromLiteral(*c.op.attrs.LiteralOf(Attr::kLiteral)).data;
  return {};
}
Status Fill(RefCall& c) {
  std::fill(c.out[0].data.begin(), c.out[0].data.end(), c.op.attrs.Double(Attr::kValue));
  return {};
}
Status Iota(RefCall& c) {
  for (std::size_t i = 0; i < c.out[0].data.size(); ++i) c.out[0].data[i] = static_cast<double>(i);
  return {};
}
Status DimSize(RefCall& c) {
  c.out[0].data[0] = static_cast<double>(c.op.attrs.DimOf(Attr::kDim).Evaluate(c.bindings));
  return {};
}
Status RandomUniform(RefCall& c) {
  const ValueInfo& info = c.graph.value(c.op.outputs[0]);
  Dims logical = Evaluate(info.logical, c.bindings), begin = SliceOf(logical, info.sharding, c.graph.mesh, c.run.rank).begin;
  std::int64_t sample_dim = c.op.attrs.Int(Attr::kSampleDim);
  std::uint64_t extra = c.in.empty() ? 0 : static_cast<std::uint64_t>(Saturate<std::int64_t>(c.in[0]->data[0]));
  std::uint64_t key = RandomKey(c.run.seed, c.run.step, c.op.stable_id, extra);
  Dims index(c.out[0].dims.size());
  for (double& y : c.out[0].data) {
    std::uint64_t sample = 0, element = 0;
    for (std::size_t d = 0; d < index.size(); ++d) {
      auto at = static_cast<std::uint64_t>(begin[d] + index[d]);
      if (static_cast<std::int64_t>(d) == sample_dim) {
        sample = at + static_cast<std::uint64_t>(c.run.sample_offset);
      } else {
        element = element * static_cast<std::uint64_t>(logical[d]) + at;
      }
    }
    y = UniformAt(key, sample, element);
    Next(c.out[0].dims, index);
  }
  return {};
}

// Calls f(place in the result, element) for each element.
template <class F>
void Reduce(RefCall& c, F f) {
  std::vector<int> axes = Axes(c.op, c.in[0]->dims.size());
  Dims kept = c.in[0]->dims;
  for (int axis : axes) kept[axis] = 1;
  Dims index(kept.size());
  for (double x : c.in[0]->data) {
    Dims at = index;
    for (int axis : axes) at[axis] = 0;
    f(Flat(kept, at), x);
    Next(c.in[0]->dims, index);
  }
}
Status ReduceSum(RefCall& c) {
  Reduce(c, [&](std::int64_t to, double x) { c.out[0].data[to] += x; });
  return {};
}
Status ReduceMax(RefCall& c) {
  // Of nothing it is the least that the type has: no flag, then, and for integers RoundTo() makes their least of it.
  const bool is_flag = c.graph.value(c.op.outputs[0]).type.dtype == Dtype::kBool;
  std::fill(c.out[0].data.begin(), c.out[0].data.end(), is_flag ? 0 : -HUGE_VAL);
  Reduce(c, [&](std::int64_t to, double x) { c.out[0].data[to] = std::isnan(x) ? x : std::max(c.out[0].data[to], x); });
  return {};
}
Status ArgMax(RefCall& c) {
  auto axis = static_cast<std::size_t>(c.op.attrs.Int(Attr::kAxis));
  Dims index(c.out[0].dims.size());
  for (double& y : c.out[0].data) {
    Dims at = index;
    at.insert(at.begin() + static_cast<std::ptrdiff_t>(axis), 0);
    double best = -HUGE_VAL;
    for (std::int64_t i = 0; i < c.in[0]->dims[axis]; ++i) {
      at[axis] = i;
      double x = c.in[0]->data[Flat(c.in[0]->dims, at)];
      if (i == 0 || x > best) {
        best = x;
        y = static_cast<double>(i);
      }
    }
    Next(c.out[0].dims, index);
  }
  return {};
}

// C[..., m, n] = sum over k of A[..., m, k] B[..., k, n]
Status MatMul(RefCall& c) {
  bool ta = c.op.attrs.Int(Attr::kTransposeA) != 0, tb = c.op.attrs.Int(Attr::kTransposeB) != 0;
  const RefTensor &a = *c.in[0], &b = *c.in[1];
  std::int64_t depth = ta ? a.dims[a.dims.size() - 2] : a.dims.back();
  Dims index(c.out[0].dims.size());
  std::size_t r = index.size();
  for (double& y : c.out[0].data) {
    Dims ia = index, ib = index;
    double sum = 0;
    for (std::int64_t k = 0; k < depth; ++k) {
      ia[r - 2] = ta ? k : index[r - 2];
      ia[r - 1] = ta ? index[r - 2] : k;
      ib[r - 2] = tb ? index[r - 1] : k;
      ib[r - 1] = tb ? k : index[r - 1];
      // Seen() repeats dimensions of 1; a matrix dimension of 1 is only asked for at 0.
      sum += Seen(a, ia) * Seen(b, ib);
    }
    y = sum;
    Next(c.out[0].dims, index);
  }
  return {};
}

// Calls f(x index, w index, y index) for each product of a convolution (N, C, H, W) x (K, C / groups, R, S) -> (N, K, P, Q).
template <class F>
void Convolve(const Op& op, const Dims& x, const Dims& w, const Dims& y, F f) {
  const ConvWindow window = ConvWindowOf(op);
  const std::int64_t kernels = std::max<std::int64_t>(1, w[0] / window.groups);  // of a group
  for (std::int64_t n = 0; n < y[0]; ++n)
    for (std::int64_t k = 0; k < y[1]; ++k)
      for (std::int64_t p = 0; p < y[2]; ++p)
        for (std::int64_t q = 0; q < y[3]; ++q)
          for (std::int64_t ch = 0; ch < w[1]; ++ch)
            for (std::int64_t r = 0; r < w[2]; ++r)
              for (std::int64_t s = 0; s < w[3]; ++s) {
                std::int64_t h = p * window.stride[0] + r * window.dilation[0] - window.padding[0],
                             v = q * window.stride[1] + s * window.dilation[1] - window.padding[1], in = k / kernels * w[1] + ch;
                if (h < 0 || h >= x[2] || v < 0 || v >= x[3]) continue;
                f(((n * x[1] + in) * x[2] + h) * x[3] + v, ((k * w[1] + ch) * w[2] + r) * w[3] + s, ((n * y[1] + k) * y[2] + p) * y[3] + q);
              }
}
Status Conv2D(RefCall& c) {
  if (c.in.size() > 2) {  // (K) over (N, K, P, Q)
    const Dims& y = c.out[0].dims;
    for (std::size_t i = 0; i < c.out[0].data.size(); ++i) {
      c.out[0].data[i] = c.in[2]->data[i / static_cast<std::size_t>(y[2] * y[3]) % static_cast<std::size_t>(y[1])];
    }
  }
  Convolve(c.op, c.in[0]->dims, c.in[1]->dims, c.out[0].dims,
           [&](std::int64_t x, std::int64_t w, std::int64_t y) { c.out[0].data[y] += c.in[0]->data[x] * c.in[1]->data[w]; });
  return {};
}
Status Conv2DInputGrad(RefCall& c) {  // (g, w) -> dx
  Convolve(c.op, c.out[0].dims, c.in[1]->dims, c.in[0]->dims,
           [&](std::int64_t x, std::int64_t w, std::int64_t y) { c.out[0].data[x] += c.in[0]->data[y] * c.in[1]->data[w]; });
  return {};
}
Status Conv2DWeightGrad(RefCall& c) {  // (x, g) -> dw
  Convolve(c.op, c.in[0]->dims, c.out[0].dims, c.in[1]->dims,
           [&](std::int64_t x, std::int64_t w, std::int64_t y) { c.out[0].data[w] += c.in[0]->data[x] * c.in[1]->data[y]; });
  return {};
}

// Calls f(output place, places of its window that are not padded) for each window of a pooling from `x` to `y`.
template <class F>
void Pool(const Op& op, const Dims& x, const Dims& y, F f) {
  const PoolWindow pool = PoolWindowOf(op);
  std::int64_t to = 0;
  std::vector<std::int64_t> window;
  for (std::int64_t plane = 0; plane < x[0] * x[1]; ++plane)
    for (std::int64_t i = 0; i < y[2]; ++i)
      for (std::int64_t j = 0; j < y[3]; ++j) {
        window.clear();
        for (std::int64_t r = 0; r < pool.kernel[0]; ++r)
          for (std::int64_t s = 0; s < pool.kernel[1]; ++s) {
            const std::int64_t h = i * pool.stride[0] + r - pool.padding[0], v = j * pool.stride[1] + s - pool.padding[1];
            if (h >= 0 && h < x[2] && v >= 0 && v < x[3]) window.push_back((plane * x[2] + h) * x[3] + v);
          }
        f(to++, window);
      }
}
std::int64_t Largest(const std::vector<double>& x, const std::vector<std::int64_t>& window) {
  return *std::max_element(window.begin(), window.end(), [&](std::int64_t a, std::int64_t b) { return x[a] < x[b]; });
}
Status MaxPool2D(RefCall& c) {
  Pool(c.op, c.in[0]->dims, c.out[0].dims,
       [&](std::int64_t to, const auto& window) { c.out[0].data[to] = c.in[0]->data[Largest(c.in[0]->data, window)]; });
  return {};
}
Status MaxPool2DGrad(RefCall& c) {  // (x, g) -> dx; the first of equal maxima gets the gradient
  Pool(c.op, c.in[0]->dims, c.in[1]->dims,
       [&](std::int64_t to, const auto& window) { c.out[0].data[Largest(c.in[0]->data, window)] += c.in[1]->data[to]; });
  return {};
}
double AreaOf(const Op& op) {
  const PoolWindow pool = PoolWindowOf(op);
  return static_cast<double>(pool.kernel[0]) * static_cast<double>(pool.kernel[1]);
}
Status AvgPool2D(RefCall& c) {
  Pool(c.op, c.in[0]->dims, c.out[0].dims, [&, area = AreaOf(c.op)](std::int64_t to, const auto& window) {
    for (std::int64_t from : window) c.out[0].data[to] += c.in[0]->data[from] / area;
  });
  return {};
}
Status AvgPool2DGrad(RefCall& c) {
  Pool(c.op, c.out[0].dims, c.in[0]->dims, [&, area = AreaOf(c.op)](std::int64_t to, const auto& window) {
    for (std::int64_t from : window) c.out[0].data[from] += c.in[0]->data[to] / area;
  });
  return {};
}

Status Gather(RefCall& c) {
  std::int64_t rows = c.in[0]->dims[0];
  std::size_t width = rows == 0 ? 0 : c.in[0]->data.size() / static_cast<std::size_t>(rows);
  for (std::size_t i = 0; i < c.in[1]->data.size(); ++i) {
    double row = c.in[1]->data[i];
    if (!(row >= 0 && row < static_cast<double>(rows))) return OutOfRange("index", i, row, rows);
    std::copy_n(c.in[0]->data.begin() + static_cast<std::ptrdiff_t>(width) * static_cast<std::int64_t>(row), width,
                c.out[0].data.begin() + static_cast<std::ptrdiff_t>(width * i));
  }
  return {};
}
Status ScatterAdd(RefCall& c) {
  std::int64_t rows = c.out[0].dims[0];
  std::size_t width = rows == 0 ? 0 : c.out[0].data.size() / static_cast<std::size_t>(rows);
  for (std::size_t i = 0; i < c.in[0]->data.size(); ++i) {
    double row = c.in[0]->data[i];
    if (!(row >= 0 && row < static_cast<double>(rows))) return OutOfRange("index", i, row, rows);
    for (std::size_t k = 0; k < width; ++k) c.out[0].data[static_cast<std::size_t>(row) * width + k] += c.in[1]->data[i * width + k];
  }
  return {};
}
Status OneHot(RefCall& c) {
  std::int64_t depth = c.out[0].dims.back();
  for (std::size_t i = 0; i < c.in[0]->data.size(); ++i) {
    double at = c.in[0]->data[i];
    if (!(at >= 0 && at < static_cast<double>(depth))) return OutOfRange("label of sample", i, at, depth);
    c.out[0].data[i * static_cast<std::size_t>(depth) + static_cast<std::size_t>(at)] = 1;
  }
  return {};
}

const double kGeluScale = std::sqrt(2 / M_PI);
double Gelu(double x) { return .5 * x * (1 + std::tanh(kGeluScale * (x + .044715 * x * x * x))); }
double GeluSlope(double x) {
  double t = std::tanh(kGeluScale * (x + .044715 * x * x * x));
  return .5 * (1 + t) + .5 * x * (1 - t * t) * kGeluScale * (1 + 3 * .044715 * x * x);
}

double NormalBelow(double x) { return .5 * std::erfc(-x * M_SQRT1_2); }
double GeluErfSlope(double x) { return NormalBelow(x) + x * std::exp(-.5 * x * x) * std::sqrt(.5 / M_PI); }

// Calls f(first element, row) for each row of the last dimension.
template <class F>
void Rows(const RefTensor& x, F f) {
  std::int64_t n = x.dims.back();
  for (std::int64_t row = 0; n > 0 && row * n < static_cast<std::int64_t>(x.data.size()); ++row) f(row * n, row, n);
}
double LogSumExp(const double* x, std::int64_t n) {
  double top = *std::max_element(x, x + n), sum = 0;
  for (std::int64_t i = 0; i < n; ++i) sum += std::exp(x[i] - top);
  return top + std::log(sum);
}
Status Softmax(RefCall& c) {
  bool log = c.op.def == &kLogSoftmax;
  Rows(*c.in[0], [&](std::int64_t at, std::int64_t, std::int64_t n) {
    double sum = LogSumExp(&c.in[0]->data[at], n);
    for (std::int64_t i = at; i < at + n; ++i) c.out[0].data[i] = log ? c.in[0]->data[i] - sum : std::exp(c.in[0]->data[i] - sum);
  });
  return {};
}
Status SoftmaxGrad(RefCall& c) {  // (y, g)
  Rows(*c.in[0], [&](std::int64_t at, std::int64_t, std::int64_t n) {
    double dot = 0;
    for (std::int64_t i = at; i < at + n; ++i) dot += c.in[0]->data[i] * c.in[1]->data[i];
    for (std::int64_t i = at; i < at + n; ++i) c.out[0].data[i] = c.in[0]->data[i] * (c.in[1]->data[i] - dot);
  });
  return {};
}
Status CheckLabels(const RefTensor& labels, std::int64_t classes) {
  for (std::size_t i = 0; i < labels.data.size(); ++i) {
    if (!(labels.data[i] >= 0 && labels.data[i] < static_cast<double>(classes))) {
      return OutOfRange("label of sample", i, labels.data[i], classes);
    }
  }
  return {};
}
Status CrossEntropy(RefCall& c) {
  RETURN_IF_ERROR(CheckLabels(*c.in[1], c.in[0]->dims.back()));
  Rows(*c.in[0], [&](std::int64_t at, std::int64_t row, std::int64_t n) {
    double sum = LogSumExp(&c.in[0]->data[at], n);
    c.out[0].data[row] = sum - c.in[0]->data[at + static_cast<std::int64_t>(c.in[1]->data[row])];
    c.out[1].data[row] = sum;
  });
  return {};
}
Status CrossEntropyGrad(RefCall& c) {  // (logits, labels, log sum, g)
  RETURN_IF_ERROR(CheckLabels(*c.in[1], c.in[0]->dims.back()));
  Rows(*c.in[0], [&](std::int64_t at, std::int64_t row, std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) {
      double p = std::exp(c.in[0]->data[at + i] - c.in[2]->data[row]);
      c.out[0].data[at + i] = (p - (i == static_cast<std::int64_t>(c.in[1]->data[row]) ? 1 : 0)) * c.in[3]->data[row];
    }
  });
  return {};
}
Status LayerNorm(RefCall& c) {
  double epsilon = c.op.attrs.Double(Attr::kEpsilon);
  Rows(*c.in[0], [&](std::int64_t at, std::int64_t row, std::int64_t n) {
    const double* x = &c.in[0]->data[at];
    double mean = 0, variance = 0;
    for (std::int64_t i = 0; i < n; ++i) mean += x[i] / static_cast<double>(n);
    for (std::int64_t i = 0; i < n; ++i) variance += (x[i] - mean) * (x[i] - mean) / static_cast<double>(n);
    double rstd = 1 / std::sqrt(variance + epsilon);
    for (std::int64_t i = 0; i < n; ++i) c.out[0].data[at + i] = (x[i] - mean) * rstd * c.in[1]->data[i] + c.in[2]->data[i];
    c.out[1].data[row] = mean;
    c.out[2].data[row] = rstd;
  });
  return {};
}

// Calls f(element, row, channel) for each element of (N, C, ...).
template <class F>
void Channels(const Dims& x, F f) {
  const std::int64_t channels = x[1], size = NumElements(x), of_a_row = x[0] == 0 ? 0 : size / x[0];
  const std::int64_t of_a_plane = channels == 0 ? 0 : of_a_row / channels;
  for (std::int64_t i = 0; i < size; ++i) f(i, i / of_a_row, i / of_a_plane % channels);
}
Status BatchMoments(RefCall& c) {  // (x[, counted])
  const RefTensor& x = *c.in[0];
  auto weight = [&](std::int64_t row) { return c.in.size() > 1 ? c.in[1]->data[row] : 1; };
  std::vector<double> count(c.out[0].data.size()), &mean = c.out[0].data, &variance = c.out[1].data;
  Channels(x.dims, [&](std::int64_t, std::int64_t row, std::int64_t ch) { count[ch] += weight(row); });
  for (double& n : count) n = std::max(n, 1.0);
  Channels(x.dims, [&](std::int64_t i, std::int64_t row, std::int64_t ch) { mean[ch] += weight(row) * x.data[i] / count[ch]; });
  Channels(x.dims, [&](std::int64_t i, std::int64_t row, std::int64_t ch) {
    variance[ch] += weight(row) * (x.data[i] - mean[ch]) * (x.data[i] - mean[ch]) / count[ch];
  });
  return {};
}
// The inputs' functions at element `i` of channel `ch`: (x - mean) / deviation, and what a batch norm makes of it without its ReLU.
struct NormAt {
  const RefCall& c;
  int gain;  // inputs gain, bias, mean and variance follow each other
  double epsilon = c.op.attrs.Double(Attr::kEpsilon);
  bool relu = c.op.attrs.Int(Attr::kRelu) != 0;
  double Rstd(std::int64_t ch) const { return 1 / std::sqrt(c.in[gain + 3]->data[ch] + epsilon); }
  double Hat(std::int64_t i, std::int64_t ch) const { return (c.in[0]->data[i] - c.in[gain + 2]->data[ch]) * Rstd(ch); }
  double Y(std::int64_t i, std::int64_t ch) const { return Hat(i, ch) * c.in[gain]->data[ch] + c.in[gain + 1]->data[ch]; }
  double G(std::int64_t i, std::int64_t ch) const { return relu && !(Y(i, ch) > 0) ? 0 : c.in[1]->data[i]; }
};
Status BatchNorm(RefCall& c) {  // (x, gain, bias, mean, variance, ...) -> y
  const NormAt at{c, 1};
  Channels(c.in[0]->dims, [&](std::int64_t i, std::int64_t, std::int64_t ch) {
    const double y = at.Y(i, ch);
    c.out[0].data[i] = at.relu && !(y > 0) ? 0 : y;
  });
  return {};
}
Status BatchNormSums(RefCall& c) {  // (x, g, gain, bias, mean, variance) -> dgain, dbias
  const NormAt at{c, 2};
  Channels(c.in[0]->dims, [&](std::int64_t i, std::int64_t, std::int64_t ch) {
    c.out[0].data[ch] += at.G(i, ch) * at.Hat(i, ch);
    c.out[1].data[ch] += at.G(i, ch);
  });
  return {};
}
Status BatchNormInputGrad(RefCall& c) {  // (x, g, gain, bias, mean, variance, dgain, dbias, count[, counted]) -> dx
  const NormAt at{c, 2};
  const double count = std::max(c.in[8]->data[0], 1.0);
  Channels(c.in[0]->dims, [&](std::int64_t i, std::int64_t row, std::int64_t ch) {
    const double weight = c.in.size() > 9 ? c.in[9]->data[row] : 1;
    const double shared = weight * (c.in[7]->data[ch] + at.Hat(i, ch) * c.in[6]->data[ch]) / count;
    c.out[0].data[i] = c.in[2]->data[ch] * at.Rstd(ch) * (at.G(i, ch) - shared);
  });
  return {};
}
Status AdamW(RefCall& c) {
  double b1 = c.op.attrs.Double(Attr::kLow), b2 = c.op.attrs.Double(Attr::kHigh), epsilon = c.op.attrs.Double(Attr::kEpsilon);
  double decay = c.op.attrs.Double(Attr::kValue), lr = c.in[4]->data[0], t = c.in[5]->data[0];
  for (std::size_t i = 0; i < c.out[0].data.size(); ++i) {
    double p = c.in[0]->data[i], g = c.in[3]->data[i];
    double m = c.out[1].data[i] = b1 * c.in[1]->data[i] + (1 - b1) * g;
    double v = c.out[2].data[i] = b2 * c.in[2]->data[i] + (1 - b2) * g * g;
    c.out[0].data[i] = p - lr * (m / (1 - std::pow(b1, t)) / (std::sqrt(v / (1 - std::pow(b2, t))) + epsilon) + decay * p);
  }
  return {};
}

Status Map(RefCall& c) {
  std::vector<RefTensor> inputs;
  for (const RefTensor* in : c.in) inputs.push_back(*in);
  std::map<std::string, RefTensor> none;
  ASSIGN_OR_RETURN(RefResult result, Evaluate(*c.op.bodies[0], c.bindings, inputs, none, c.run));
  c.out = std::move(result.outputs);
  return {};
}

double Sign(double x) { return x > 0 ? 1 : x < 0 ? -1 : x; }

RefTable MakeTable() {
  RefTable table;
  table[&kAdd] = Binary([](double a, double b) { return a + b; });
  table[&kSub] = Binary([](double a, double b) { return a - b; });
  table[&kMul] = Binary([](double a, double b) { return a * b; });
  table[&kDiv] = Binary([](double a, double b) { return a / b; });
  table[&kMaximum] = Binary([](double a, double b) { return a > b ? a : b; });
  table[&kMinimum] = Binary([](double a, double b) { return a < b ? a : b; });
  table[&kPow] = Binary([](double a, double b) { return std::pow(a, b); });
  table[&kLess] = Binary([](double a, double b) { return a < b ? 1.0 : 0.0; });
  table[&kGreater] = Binary([](double a, double b) { return a > b ? 1.0 : 0.0; });
  table[&kEqual] = Binary([](double a, double b) { return a == b ? 1.0 : 0.0; });
  table[&kGeluGrad] = Binary([](double x, double g) { return g * GeluSlope(x); });
  table[&kGeluErf] = Unary([](double x) { return x * NormalBelow(x); });
  table[&kGeluErfGrad] = Binary([](double x, double g) { return g * GeluErfSlope(x); });
  table[&kBinaryCrossEntropy] = Binary([](double x, double t) { return (x > 0 ? x : 0) - x * t + std::log1p(std::exp(-std::fabs(x))); });
  table[&kBinaryCrossEntropyGrad] = BinaryCrossEntropyGrad;
  table[&kSelect] = Select;
  table[&kNeg] = Unary([](double x) { return -x; });
  table[&kExp] = Unary([](double x) { return std::exp(x); });
  table[&kLog] = Unary([](double x) { return std::log(x); });
  table[&kSqrt] = Unary([](double x) { return std::sqrt(x); });
  table[&kRsqrt] = Unary([](double x) { return 1 / std::sqrt(x); });
  table[&kTanh] = Unary([](double x) { return std::tanh(x); });
  table[&kSigmoid] = Unary([](double x) { return 1 / (1 + std::exp(-x)); });
  table[&kErf] = Unary([](double x) { return std::erf(x); });
  table[&kSin] = Unary([](double x) { return std::sin(x); });
  table[&kCos] = Unary([](double x) { return std::cos(x); });
  table[&kAbs] = Unary([](double x) { return std::fabs(x); });
  table[&kSign] = Unary(Sign);
  table[&kRelu] = Unary([](double x) { return x > 0 ? x : 0; });
  table[&kGelu] = Unary(Gelu);
  table[&kIsFinite] = Unary([](double x) { return std::isfinite(x) ? 1.0 : 0.0; });
  for (const OpDef* copy : {&kCast, &kIdentity, &kStopGradient, &kReshape, &kRelayout, &kCustomGradient}) table[copy] = Copy;
  table[&kTranspose] = Transpose;
  table[&kBroadcastTo] = BroadcastTo;
  table[&kSlice] = Slice;
  table[&kPad] = Pad;
  table[&kConcat] = Concat;
  table[&kBucket] = Bucket;
  table[&kAt] = At;
  table[&kSetAt] = SetAt;
  table[&kConstant] = Constant;
  table[&kFill] = Fill;
  table[&kIota] = Iota;
  table[&kDimSize] = DimSize;
  table[&kRandomUniform] = RandomUniform;
  table[&kReduceSum] = ReduceSum;
  table[&kReduceMax] = ReduceMax;
  table[&kArgMax] = ArgMax;
  table[&kMatMul] = MatMul;
  table[&kConv2D] = Conv2D;
  table[&kConv2DInputGrad] = Conv2DInputGrad;
  table[&kConv2DWeightGrad] = Conv2DWeightGrad;
  table[&kMaxPool2D] = MaxPool2D;
  table[&kMaxPool2DGrad] = MaxPool2DGrad;
  table[&kAvgPool2D] = AvgPool2D;
  table[&kAvgPool2DGrad] = AvgPool2DGrad;
  table[&kGather] = Gather;
  table[&kScatterAdd] = ScatterAdd;
  table[&kOneHot] = OneHot;
  table[&kSoftmax] = Softmax;
  table[&kLogSoftmax] = Softmax;
  table[&kSoftmaxGrad] = SoftmaxGrad;
  table[&kCrossEntropy] = CrossEntropy;
  table[&kCrossEntropyGrad] = CrossEntropyGrad;
  table[&kLayerNorm] = LayerNorm;
  table[&kBatchMoments] = BatchMoments;
  table[&kBatchNorm] = BatchNorm;
  table[&kBatchNormInference] = BatchNorm;
  table[&kBatchNormSums] = BatchNormSums;
  table[&kBatchNormInputGrad] = BatchNormInputGrad;
  table[&kAdamW] = AdamW;
  table[&kMap] = Map;
  AddSequenceReferences(table);
  AddTableReferences(table);
  AddRoutingReferences(table);
  AddAttentionReferences(table);
  AddResidualNormReferences(table);
  AddOptimizerReferences(table);
  return table;
}

}  // namespace

const RefTable& ReferenceKernels() {
  static const RefTable kTable = MakeTable();
  return kTable;
}

}  // namespace ropewalk::mlrunner
