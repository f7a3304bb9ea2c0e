// f32 kernels of pooling, over planes of channels (ChannelPlanes): each window once, the channels of a block beside each other.
#include <algorithm>
#include <cmath>

#include "mlrunner/graph/infer.h"
#include "mlrunner/graph/ops.h"
#include "mlrunner/kernels/cpu.h"

namespace ropewalk::mlrunner {
namespace {

struct PoolSpec {
  ChannelPlanes planes;                // of x
  std::int64_t height = 0, width = 0;  // of x
  std::int64_t rows = 0, columns = 0;  // of y
  PoolWindow window;
  int threads = 1;
};
// `x` and `y` lie alike.
std::optional<PoolSpec> PoolSpecOf(const KernelRequest& r, const ConcreteType& x, const ConcreteType& y) {
  const auto planes = ChannelPlanesOf(x);
  if (!planes || x.layout != y.layout || !ChannelPlanesOf(y)) return std::nullopt;
  PoolSpec s{*planes, x.dims[2], x.dims[3], y.dims[2], y.dims[3], PoolWindowOf(r.op), Threads(r, NumElements(x.dims))};
  // An image of one element is met channel by channel, as others are.
  if (x.layout.IsRowMajor()) s.planes = {x.dims[0], x.dims[1], x.dims[2] * x.dims[3], 1};
  return s;
}

// What of the image window (i, j) covers: from (top, left) up to (bottom, right).
struct Covered {
  std::int64_t top, bottom, left, right;
  Covered(const PoolSpec& s, std::int64_t i, std::int64_t j) {
    const std::int64_t h = i * s.window.stride[0] - s.window.padding[0], v = j * s.window.stride[1] - s.window.padding[1];
    top = std::max<std::int64_t>(h, 0);
    bottom = std::min(h + s.window.kernel[0], s.height);
    left = std::max<std::int64_t>(v, 0);
    right = std::min(v + s.window.kernel[1], s.width);
  }
};

// begin(plane's first float in x) for each, then for each window of it window(what it covers, that float, its own first float in y).
template <class Begin, class Window>
void ForWindows(const PoolSpec& s, Begin begin, Window window) {
  const std::int64_t planes = s.planes.rows * s.planes.blocks, lanes = s.planes.width;
#pragma omp parallel for schedule(static) num_threads(s.threads) if (s.threads > 1)
  for (std::int64_t plane = 0; plane < planes; ++plane) {
    const std::int64_t x = plane * s.height * s.width * lanes, y = plane * s.rows * s.columns * lanes;
    begin(x);
    for (std::int64_t i = 0; i < s.rows; ++i) {
      for (std::int64_t j = 0; j < s.columns; ++j) window(Covered(s, i, j), x, y + (i * s.columns + j) * lanes);
    }
  }
}

// The largest of each lane, the first of equals; and in which place of the image it lies.
template <int kWidth>
ROPEWALK_IN_CLONES void Largest(const float* image, const Covered& w, std::int64_t width, float* best, std::int32_t* place) {
  const std::int64_t first = w.top * width + w.left;
  for (int k = 0; k < kWidth; ++k) {
    best[k] = image[first * kWidth + k];
    place[k] = static_cast<std::int32_t>(first);
  }
  for (std::int64_t h = w.top; h < w.bottom; ++h) {
    for (std::int64_t v = w.left; v < w.right; ++v) {
      const float* x = image + (h * width + v) * kWidth;
      const auto at = static_cast<std::int32_t>(h * width + v);
#pragma GCC ivdep
      for (int k = 0; k < kWidth; ++k) {
        const bool larger = x[k] > best[k];
        best[k] = larger ? x[k] : best[k];
        place[k] = larger ? at : place[k];
      }
    }
  }
}
ROPEWALK_CLONES void Largest1(const float* image, const Covered& w, std::int64_t width, float* best, std::int32_t* place) {
  Largest<1>(image, w, width, best, place);
}
ROPEWALK_CLONES void Largest8(const float* image, const Covered& w, std::int64_t width, float* best, std::int32_t* place) {
  Largest<8>(image, w, width, best, place);
}
ROPEWALK_CLONES void Largest16(const float* image, const Covered& w, std::int64_t width, float* best, std::int32_t* place) {
  Largest<16>(image, w, width, best, place);
}

// (x) -> y; (x, g) -> dx
Result<CompiledKernel> CompileMaxPool(const KernelRequest& r) {
  const bool gradient = r.op.def == &kMaxPool2DGrad;
  const auto spec = PoolSpecOf(r, r.in[0], gradient ? r.in[1] : r.out[0]);
  if (!spec || (gradient && r.out[0].layout != r.in[0].layout) || spec->height * spec->width > INT32_MAX) return Declined();
  return CompiledKernel{[s = *spec, gradient](const KernelCall& c) {
    const std::int64_t lanes = s.planes.width, plane = s.height * s.width * lanes;
    const auto largest = lanes == 1 ? Largest1 : lanes == 8 ? Largest8 : Largest16;
    ForWindows(
        s,
        [&](std::int64_t x) {
          if (gradient) std::fill_n(Out(c, 0) + x, plane, 0.0f);
        },
        [&](const Covered& w, std::int64_t x, std::int64_t y) {
          float best[16];
          std::int32_t place[16];
          largest(In(c, 0) + x, w, s.width, best, place);
          if (!gradient) {
            std::copy_n(best, lanes, Out(c, 0) + y);
            return;
          }
          for (std::int64_t k = 0; k < lanes; ++k) Out(c, 0)[x + place[k] * lanes + k] += In(c, 1)[y + k];
        });
    return Status();
  }};
}

ROPEWALK_CLONES void AddTo(float* y, const float* x, std::int64_t n) {
#pragma GCC ivdep
  for (std::int64_t k = 0; k < n; ++k) y[k] += x[k];
}

// (x) -> y; (g) -> dx. What is padded counts as 0.
Result<CompiledKernel> CompileAvgPool(const KernelRequest& r) {
  const bool gradient = r.op.def == &kAvgPool2DGrad;
  const auto spec = PoolSpecOf(r, gradient ? r.out[0] : r.in[0], gradient ? r.in[0] : r.out[0]);
  if (!spec) return Declined();
  return CompiledKernel{[s = *spec, gradient](const KernelCall& c) {
    const std::int64_t lanes = s.planes.width, plane = s.height * s.width * lanes;
    const float share = 1 / (static_cast<float>(s.window.kernel[0]) * static_cast<float>(s.window.kernel[1]));
    ForWindows(
        s,
        [&](std::int64_t x) {
          if (gradient) std::fill_n(Out(c, 0) + x, plane, 0.0f);
        },
        [&](const Covered& w, std::int64_t x, std::int64_t y) {
          float sum[16] = {}, given[16];
          if (gradient) {
            for (std::int64_t k = 0; k < lanes; ++k) given[k] = In(c, 0)[y + k] * share;
          }
          for (std::int64_t h = w.top; h < w.bottom; ++h) {
            for (std::int64_t v = w.left; v < w.right; ++v) {
              const std::int64_t at = x + (h * s.width + v) * lanes;
              if (lanes == 1) {
                if (gradient) {
                  Out(c, 0)[at] += given[0];
                } else {
                  sum[0] += In(c, 0)[at];
                }
              } else if (gradient) {
                AddTo(Out(c, 0) + at, given, lanes);
              } else {
                AddTo(sum, In(c, 0) + at, lanes);
              }
            }
          }
          for (std::int64_t k = 0; k < lanes && !gradient; ++k) Out(c, 0)[y + k] = sum[k] * share;
        });
    return Status();
  }};
}

}  // namespace

void AddPoolKernels(KernelTable& table) {
  for (const OpDef* def : {&kMaxPool2D, &kMaxPool2DGrad}) table.Add(*def, Device::kCpu, Dtype::kF32, CompileMaxPool);
  for (const OpDef* def : {&kAvgPool2D, &kAvgPool2DGrad}) table.Add(*def, Device::kCpu, Dtype::kF32, CompileAvgPool);
}

}  // namespace ropewalk::mlrunner
