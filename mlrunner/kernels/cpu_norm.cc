// f32 kernels of batch norm. A plane of channels (ChannelPlanes) is gone over in pieces that stay in the first-level cache; sums are taken
// in lanes of floats over a piece, and of the pieces in doubles. Batches are cut into fixed parts whose sums are added in order, so results
// do not depend on the number of threads.
#include <algorithm>
#include <cmath>
#include <vector>

#include "mlrunner/graph/infer.h"
#include "mlrunner/graph/ops.h"
#include "mlrunner/kernels/cpu.h"

namespace ropewalk::mlrunner {

std::optional<ChannelPlanes> ChannelPlanesOf(const ConcreteType& type) {
  if (type.dims.size() < 2 || NumElements(type.dims) == 0) return std::nullopt;
  ChannelPlanes p{type.dims[0], type.dims[1], 1, 1};
  for (std::size_t d = 2; d < type.dims.size(); ++d) p.spatial *= type.dims[d];
  const Layout& layout = type.layout;
  if (layout.IsRowMajor()) {
    if (p.spatial == 1) std::swap(p.blocks, p.width);
    return p;
  }
  if (!layout.order.empty() || layout.blocks.size() != 1 || layout.blocks[0].dim != 1) return std::nullopt;
  p.width = layout.blocks[0].size;
  if ((p.width != 8 && p.width != 16) || p.blocks % p.width != 0) return std::nullopt;
  p.blocks /= p.width;
  return p;
}

namespace {

// Lane k of a piece holds channel k % width. A multiple of every width of a block, and as many as fit into registers twice.
constexpr int kLanes = 32;
constexpr std::int64_t kPiece = 4096;  // floats
constexpr std::int64_t kParts = 16;    // of a batch

// --- what is done with a row of `n` numbers, each lane with numbers of its own ---

ROPEWALK_IN_CLONES void NormRow(const float* x, const float* mean, const float* scale, const float* shift, bool relu, float* y,
                                std::int64_t n) {
  if (relu) {
#pragma GCC ivdep
    for (std::int64_t k = 0; k < n; ++k) {
      float value = (x[k] - mean[k]) * scale[k] + shift[k];
      y[k] = value > 0 ? value : 0;
    }
  } else {
#pragma GCC ivdep
    for (std::int64_t k = 0; k < n; ++k) y[k] = (x[k] - mean[k]) * scale[k] + shift[k];
  }
}
ROPEWALK_IN_CLONES void GradRow(const float* x, const float* g, const float* mean, const float* scale, const float* shift,
                                const float* same, const float* slope, float weight, bool relu, float* dx, std::int64_t n) {
  if (relu) {
#pragma GCC ivdep
    for (std::int64_t k = 0; k < n; ++k) {
      float d = x[k] - mean[k], given = g[k];
      float passed = d * scale[k] + shift[k] > 0 ? given : 0;
      dx[k] = scale[k] * passed - weight * (same[k] + d * slope[k]);
    }
  } else {
#pragma GCC ivdep
    for (std::int64_t k = 0; k < n; ++k) dx[k] = scale[k] * g[k] - weight * (same[k] + (x[k] - mean[k]) * slope[k]);
  }
}
ROPEWALK_IN_CLONES void AddGradRow(const float* x, const float* g, const float* mean, const float* scale, const float* shift, bool relu,
                                   float* of_gain, float* of_bias, std::int64_t n) {
#pragma GCC ivdep
  for (std::int64_t k = 0; k < n; ++k) {
    float d = x[k] - mean[k], given = g[k];
    float passed = !relu || d * scale[k] + shift[k] > 0 ? given : 0;
    of_bias[k] += passed;
    of_gain[k] += passed * d;
  }
}
ROPEWALK_IN_CLONES void AddRow(const float* x, float* sum, std::int64_t n) {
#pragma GCC ivdep
  for (std::int64_t k = 0; k < n; ++k) sum[k] += x[k];
}
// Of distances from `centre`: they have their digits where the sums of the elements themselves have lost some.
ROPEWALK_IN_CLONES void AddSquareRow(const float* x, const float* centre, float* sum, float* squares, std::int64_t n) {
#pragma GCC ivdep
  for (std::int64_t k = 0; k < n; ++k) {
    float d = x[k] - centre[k];
    sum[k] += d;
    squares[k] += d * d;
  }
}

// --- the same of a piece: rows of kLanes numbers, and a shorter one ---

ROPEWALK_CLONES void NormPiece(const float* x, const float* mean, const float* scale, const float* shift, bool relu, float* y,
                               std::int64_t n) {
  std::int64_t i = 0;
  if (relu) {
    for (; i + kLanes <= n; i += kLanes) NormRow(x + i, mean, scale, shift, true, y + i, kLanes);
  } else {
    for (; i + kLanes <= n; i += kLanes) NormRow(x + i, mean, scale, shift, false, y + i, kLanes);
  }
  NormRow(x + i, mean, scale, shift, relu, y + i, n - i);
}
ROPEWALK_CLONES void GradPiece(const float* x, const float* g, const float* mean, const float* scale, const float* shift, const float* same,
                               const float* slope, float weight, bool relu, float* dx, std::int64_t n) {
  std::int64_t i = 0;
  if (relu) {
    for (; i + kLanes <= n; i += kLanes) GradRow(x + i, g + i, mean, scale, shift, same, slope, weight, true, dx + i, kLanes);
  } else {
    for (; i + kLanes <= n; i += kLanes) GradRow(x + i, g + i, mean, scale, shift, same, slope, weight, false, dx + i, kLanes);
  }
  GradRow(x + i, g + i, mean, scale, shift, same, slope, weight, relu, dx + i, n - i);
}
ROPEWALK_CLONES void AddGradPiece(const float* x, const float* g, const float* mean, const float* scale, const float* shift, bool relu,
                                  float* of_gain, float* of_bias, std::int64_t n) {
  float gain[kLanes] = {}, bias[kLanes] = {};
  std::int64_t i = 0;
  if (relu) {
    for (; i + kLanes <= n; i += kLanes) AddGradRow(x + i, g + i, mean, scale, shift, true, gain, bias, kLanes);
  } else {
    for (; i + kLanes <= n; i += kLanes) AddGradRow(x + i, g + i, mean, scale, shift, false, gain, bias, kLanes);
  }
  std::copy_n(gain, kLanes, of_gain);
  std::copy_n(bias, kLanes, of_bias);
  AddGradRow(x + i, g + i, mean, scale, shift, relu, of_gain, of_bias, n - i);
}
ROPEWALK_CLONES void AddPiece(const float* x, float* sum, std::int64_t n) {
  float lanes[kLanes] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) AddRow(x + i, lanes, kLanes);
  std::copy_n(lanes, kLanes, sum);
  AddRow(x + i, sum, n - i);
}
ROPEWALK_CLONES void AddSquarePiece(const float* x, const float* centre, float* sum, float* squares, std::int64_t n) {
  float lanes[kLanes] = {}, square_lanes[kLanes] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) AddSquareRow(x + i, centre, lanes, square_lanes, kLanes);
  std::copy_n(lanes, kLanes, sum);
  std::copy_n(square_lanes, kLanes, squares);
  AddSquareRow(x + i, centre, sum, squares, n - i);
}
// --- and of one row of all channels, where there is nothing else ---
ROPEWALK_CLONES void NormWide(const float* x, const float* mean, const float* scale, const float* shift, bool relu, float* y,
                              std::int64_t n) {
  NormRow(x, mean, scale, shift, relu, y, n);
}
ROPEWALK_CLONES void GradWide(const float* x, const float* g, const float* mean, const float* scale, const float* shift, const float* same,
                              const float* slope, float weight, bool relu, float* dx, std::int64_t n) {
  GradRow(x, g, mean, scale, shift, same, slope, weight, relu, dx, n);
}
ROPEWALK_CLONES void AddGradWide(const float* x, const float* g, const float* mean, const float* scale, const float* shift, bool relu,
                                 float* of_gain, float* of_bias, std::int64_t n) {
  AddGradRow(x, g, mean, scale, shift, relu, of_gain, of_bias, n);
}
ROPEWALK_CLONES void AddWide(const float* x, float* sum, std::int64_t n) { AddRow(x, sum, n); }
ROPEWALK_CLONES void AddSquareWide(const float* x, const float* centre, float* sum, float* squares, std::int64_t n) {
  AddSquareRow(x, centre, sum, squares, n);
}

bool IsWide(const ChannelPlanes& p) { return p.width > kLanes || p.spatial == 1; }

// A vector (C) as the lanes of block `block`.
void Spread(const ChannelPlanes& p, const std::vector<float>& channels, std::int64_t block, float* lanes) {
  for (int k = 0; k < kLanes; ++k) lanes[k] = channels[static_cast<std::size_t>(block * p.width + k % p.width)];
}
void Fold(const ChannelPlanes& p, const float* lanes, double* channels) {
  for (int k = 0; k < kLanes; ++k) channels[k % p.width] += lanes[k];
}

// What a batch norm does with channel c: (x - mean) * scale + shift, where scale = gain / deviation.
struct Channels {
  std::vector<float> mean, scale, shift, rstd;
  Channels(const KernelCall& c, int gain, std::int64_t n, double epsilon) : mean(n), scale(n), shift(n), rstd(n) {
    for (std::int64_t i = 0; i < n; ++i) {
      const double r = 1 / std::sqrt(static_cast<double>(In(c, gain + 3)[i]) + epsilon);
      mean[i] = In(c, gain + 2)[i];
      rstd[i] = static_cast<float>(r);
      scale[i] = static_cast<float>(r * In(c, gain)[i]);
      shift[i] = In(c, gain + 1)[i];
    }
  }
};
struct Lanes {
  float mean[kLanes], scale[kLanes], shift[kLanes];
  Lanes(const ChannelPlanes& p, const Channels& c, std::int64_t block) {
    Spread(p, c.mean, block, mean);
    Spread(p, c.scale, block, scale);
    Spread(p, c.shift, block, shift);
  }
};

// f(part, block, first row, row behind the last) for fixed parts of the batch; where planes are one row of channels, for block 0 alone.
template <class F>
void ForParts(const ChannelPlanes& p, int threads, F f) {
  ForRows(kParts * p.blocks, threads, [&](std::int64_t i) {
    const std::int64_t part = i / p.blocks;
    f(part, i % p.blocks, part * p.rows / kParts, (part + 1) * p.rows / kParts);
  });
}
// f(piece's first float, floats) for the pieces of one row's plane of a block.
template <class F>
void ForPieces(const ChannelPlanes& p, std::int64_t row, std::int64_t block, F f) {
  const std::int64_t first = (row * p.blocks + block) * p.size();
  for (std::int64_t at = 0; at < p.size(); at += kPiece) f(first + at, std::min(kPiece, p.size() - at));
}

// How many elements, their mean, and the sum of the squares of their distances from it; two such are put together as by Chan et al. 1979.
struct Spreads {
  double count = 0, mean = 0, squares = 0;
  void Add(const Spreads& other) {
    if (other.count == 0) return;
    const double all = count + other.count, between = other.mean - mean;
    mean += between * (other.count / all);
    squares += other.squares + between * between * (count * other.count / all);
    count = all;
  }
  // Of `n` elements whose distances from `centre`, and the squares of these, have such sums.
  static Spreads Around(float centre, double n, double sum, double squares) {
    if (n == 0) return {};
    return {n, centre + sum / n, squares - sum * sum / n};
  }
};

void PartMoments(const ChannelPlanes& p, const float* x, const float* counted, std::int64_t block, std::int64_t begin, std::int64_t end,
                 Spreads* of) {
  auto counts = [&](std::int64_t row) { return counted == nullptr || counted[row] != 0; };
  if (IsWide(p)) {  // the rows of a part at once
    double n = 0;
    std::vector<float> centre(p.width), sum(p.width), squares(p.width);
    for (std::int64_t row = begin; row < end; ++row) {
      if (!counts(row)) continue;
      n += 1;
      AddWide(x + (row * p.blocks + block) * p.width, centre.data(), p.width);
    }
    for (float& m : centre) m = n == 0 ? 0 : static_cast<float>(m / n);
    for (std::int64_t row = begin; row < end; ++row) {
      if (counts(row)) AddSquareWide(x + (row * p.blocks + block) * p.width, centre.data(), sum.data(), squares.data(), p.width);
    }
    for (std::int64_t k = 0; k < p.width; ++k) of[k].Add(Spreads::Around(centre[k], n, sum[k], squares[k]));
    return;
  }
  for (std::int64_t row = begin; row < end; ++row) {
    if (!counts(row)) continue;
    ForPieces(p, row, block, [&](std::int64_t at, std::int64_t floats) {
      const double n = static_cast<double>(floats) / static_cast<double>(p.width);
      float lanes[kLanes], square_lanes[kLanes], centre[kLanes];
      double mean[kLanes] = {}, sum[kLanes] = {}, squares[kLanes] = {};
      AddPiece(x + at, lanes, floats);
      Fold(p, lanes, mean);
      for (int k = 0; k < kLanes; ++k) centre[k] = static_cast<float>(mean[k % p.width] / n);
      AddSquarePiece(x + at, centre, lanes, square_lanes, floats);
      Fold(p, lanes, sum);
      Fold(p, square_lanes, squares);
      for (std::int64_t k = 0; k < p.width; ++k) of[k].Add(Spreads::Around(centre[k], n, sum[k], squares[k]));
    });
  }
}

// (x[, counted]) -> mean, variance
Result<CompiledKernel> CompileMoments(const KernelRequest& r) {
  const auto planes = ChannelPlanesOf(r.in[0]);
  if (!planes) return Declined();
  const ChannelPlanes p = *planes;
  const bool some = r.in.size() > 1;
  const int threads = Threads(r, NumElements(r.in[0].dims));
  return CompiledKernel{[=](const KernelCall& c) {
                          const std::int64_t channels = p.channels();
                          auto* parts = static_cast<Spreads*>(c.scratch);
                          std::fill_n(parts, kParts * channels, Spreads{});
                          ForParts(p, threads, [&](std::int64_t part, std::int64_t block, std::int64_t begin, std::int64_t end) {
                            PartMoments(p, In(c, 0), some ? In(c, 1) : nullptr, block, begin, end,
                                        parts + part * channels + block * p.width);
                          });
                          for (std::int64_t k = 0; k < channels; ++k) {
                            Spreads all;
                            for (std::int64_t part = 0; part < kParts; ++part) all.Add(parts[part * channels + k]);
                            Out(c, 0)[k] = static_cast<float>(all.mean);
                            Out(c, 1)[k] = static_cast<float>(all.squares / std::max(all.count, 1.0));
                          }
                          return Status();
                        },
                        static_cast<std::size_t>(kParts * p.channels()) * sizeof(Spreads)};
}

struct NormSpec {
  ChannelPlanes planes;
  double epsilon = 0;
  bool relu = false;
  int threads = 1;
};
// Of ops whose first tensors, and first result where it is one, lie alike.
std::optional<NormSpec> NormSpecOf(const KernelRequest& r, std::size_t tensors, bool makes_one) {
  const auto planes = ChannelPlanesOf(r.in[0]);
  if (!planes) return std::nullopt;
  for (std::size_t i = 1; i < r.in.size(); ++i) {
    if (i < tensors ? r.in[i].layout != r.in[0].layout : !r.in[i].layout.IsRowMajor()) return std::nullopt;
  }
  if (makes_one && r.out[0].layout != r.in[0].layout) return std::nullopt;
  return NormSpec{*planes, r.op.attrs.Double(Attr::kEpsilon), r.op.attrs.Int(Attr::kRelu) != 0, Threads(r, NumElements(r.in[0].dims))};
}

Result<CompiledKernel> CompileBatchNorm(const KernelRequest& r) {  // (x, gain, bias, mean, variance, ...) -> y
  const auto spec = NormSpecOf(r, 1, true);
  if (!spec) return Declined();
  return CompiledKernel{[s = *spec](const KernelCall& c) {
    const ChannelPlanes& p = s.planes;
    const Channels of(c, 1, p.channels(), s.epsilon);
    ForRows(p.rows * p.blocks, s.threads, [&](std::int64_t i) {
      const std::int64_t row = i / p.blocks, block = i % p.blocks;
      if (IsWide(p)) {
        const std::int64_t at = i * p.width, first = block * p.width;
        NormWide(In(c, 0) + at, &of.mean[first], &of.scale[first], &of.shift[first], s.relu, Out(c, 0) + at, p.width);
        return;
      }
      const Lanes lanes(p, of, block);
      ForPieces(p, row, block, [&](std::int64_t at, std::int64_t floats) {
        NormPiece(In(c, 0) + at, lanes.mean, lanes.scale, lanes.shift, s.relu, Out(c, 0) + at, floats);
      });
    });
    return Status();
  }};
}

// (x, g, gain, bias, mean, variance) -> dgain, dbias
Result<CompiledKernel> CompileSums(const KernelRequest& r) {
  const auto spec = NormSpecOf(r, 2, false);
  if (!spec) return Declined();
  const std::int64_t channels = spec->planes.channels();
  return CompiledKernel{[s = *spec, channels](const KernelCall& c) {
                          const ChannelPlanes& p = s.planes;
                          const Channels of(c, 2, channels, s.epsilon);
                          const float *x = In(c, 0), *g = In(c, 1);
                          auto* parts = static_cast<double*>(c.scratch);  // [part][gain, bias][channel]
                          std::fill_n(parts, 2 * kParts * channels, 0.0);
                          ForParts(p, s.threads, [&](std::int64_t part, std::int64_t block, std::int64_t begin, std::int64_t end) {
                            double *gain = parts + 2 * part * channels + block * p.width, *bias = gain + channels;
                            if (IsWide(p)) {
                              std::vector<float> of_gain(p.width), of_bias(p.width);
                              const std::int64_t first = block * p.width;
                              for (std::int64_t row = begin; row < end; ++row) {
                                const std::int64_t at = (row * p.blocks + block) * p.width;
                                AddGradWide(x + at, g + at, &of.mean[first], &of.scale[first], &of.shift[first], s.relu, of_gain.data(),
                                            of_bias.data(), p.width);
                              }
                              std::copy(of_gain.begin(), of_gain.end(), gain);
                              std::copy(of_bias.begin(), of_bias.end(), bias);
                              return;
                            }
                            const Lanes lanes(p, of, block);
                            float of_gain[kLanes], of_bias[kLanes];
                            for (std::int64_t row = begin; row < end; ++row) {
                              ForPieces(p, row, block, [&](std::int64_t at, std::int64_t floats) {
                                AddGradPiece(x + at, g + at, lanes.mean, lanes.scale, lanes.shift, s.relu, of_gain, of_bias, floats);
                                Fold(p, of_gain, gain);
                                Fold(p, of_bias, bias);
                              });
                            }
                          });
                          for (std::int64_t k = 0; k < channels; ++k) {
                            double gain = 0, bias = 0;
                            for (std::int64_t part = 0; part < kParts; ++part) {
                              gain += parts[2 * part * channels + k];
                              bias += parts[(2 * part + 1) * channels + k];
                            }
                            Out(c, 0)[k] = static_cast<float>(gain * of.rstd[k]);
                            Out(c, 1)[k] = static_cast<float>(bias);
                          }
                          return Status();
                        },
                        static_cast<std::size_t>(2 * kParts * channels) * sizeof(double)};
}

// (x, g, gain, bias, mean, variance, dgain, dbias, count[, counted]) -> dx
Result<CompiledKernel> CompileInputGrad(const KernelRequest& r) {
  const auto spec = NormSpecOf(r, 2, true);
  if (!spec) return Declined();
  const bool some = r.in.size() > 9;
  return CompiledKernel{[s = *spec, some](const KernelCall& c) {
    const ChannelPlanes& p = s.planes;
    const Channels of(c, 2, p.channels(), s.epsilon);
    // dx = scale * g - weight * (same + (x - mean) * slope)
    std::vector<float> same(p.channels()), slope(p.channels());
    const float count = std::max(*In(c, 8), 1.0f);
    for (std::int64_t k = 0; k < p.channels(); ++k) {
      same[k] = of.scale[k] * (In(c, 7)[k] / count);
      slope[k] = of.scale[k] * of.rstd[k] * (In(c, 6)[k] / count);
    }
    ForRows(p.rows * p.blocks, s.threads, [&](std::int64_t i) {
      const std::int64_t row = i / p.blocks, block = i % p.blocks;
      const float weight = some ? In(c, 9)[row] : 1;
      if (IsWide(p)) {
        const std::int64_t at = i * p.width, first = block * p.width;
        GradWide(In(c, 0) + at, In(c, 1) + at, &of.mean[first], &of.scale[first], &of.shift[first], &same[first], &slope[first], weight,
                 s.relu, Out(c, 0) + at, p.width);
        return;
      }
      const Lanes lanes(p, of, block);
      float same_lanes[kLanes], slope_lanes[kLanes];
      Spread(p, same, block, same_lanes);
      Spread(p, slope, block, slope_lanes);
      ForPieces(p, row, block, [&](std::int64_t at, std::int64_t floats) {
        GradPiece(In(c, 0) + at, In(c, 1) + at, lanes.mean, lanes.scale, lanes.shift, same_lanes, slope_lanes, weight, s.relu,
                  Out(c, 0) + at, floats);
      });
    });
    return Status();
  }};
}

}  // namespace

Result<CompiledKernel> CompileChannelSum(const KernelRequest& r) {
  const auto planes = ChannelPlanesOf(r.in[0]);
  std::vector<int> all_but_channels;
  for (int d = 0; d < static_cast<int>(r.in[0].dims.size()); ++d) {
    if (d != 1) all_but_channels.push_back(d);
  }
  const bool is_it = r.op.def == &kReduceSum && Axes(r.op, r.in[0].dims.size()) == all_but_channels && r.out[0].layout.IsRowMajor();
  if (!is_it || !planes || IsWide(*planes)) return Declined();
  const ChannelPlanes p = *planes;
  const int threads = Threads(r, NumElements(r.in[0].dims));
  return CompiledKernel{[=](const KernelCall& c) {
                          const std::int64_t channels = p.channels();
                          auto* parts = static_cast<double*>(c.scratch);
                          std::fill_n(parts, kParts * channels, 0.0);
                          ForParts(p, threads, [&](std::int64_t part, std::int64_t block, std::int64_t begin, std::int64_t end) {
                            float lanes[kLanes];
                            for (std::int64_t row = begin; row < end; ++row) {
                              ForPieces(p, row, block, [&](std::int64_t at, std::int64_t floats) {
                                AddPiece(In(c, 0) + at, lanes, floats);
                                Fold(p, lanes, parts + part * channels + block * p.width);
                              });
                            }
                          });
                          for (std::int64_t k = 0; k < channels; ++k) {
                            double sum = 0;
                            for (std::int64_t part = 0; part < kParts; ++part) sum += parts[part * channels + k];
                            Out(c, 0)[k] = static_cast<float>(sum);
                          }
                          return Status();
                        },
                        static_cast<std::size_t>(kParts * p.channels()) * sizeof(double)};
}

void AddNormKernels(KernelTable& table) {
  auto add = [&](const OpDef& def, KernelMaker maker) { table.Add(def, Device::kCpu, Dtype::kF32, std::move(maker)); };
  add(kBatchMoments, CompileMoments);
  add(kBatchNorm, CompileBatchNorm);
  add(kBatchNormInference, CompileBatchNorm);
  add(kBatchNormSums, CompileSums);
  add(kBatchNormInputGrad, CompileInputGrad);
}

}  // namespace ropewalk::mlrunner
