// f32 kernels of ops over the steps of a sequence. What all steps do at once (the product of the inputs, the gradient of the weights) lies
// in the graph as products of its own; here are the steps that wait for each other. Each thread goes through all steps with rows of the
// batch that are its own, so threads meet once an op and not once a step; the weights are laid out for oneDNN once an op, not once a step.
#include <omp.h>
#include <dnnl.hpp>

#include <algorithm>
#include <cmath>
#include <memory>

#include "base/copy_bytes.h"
#include "mlrunner/graph/ops.h"
#include "mlrunner/kernels/cpu.h"
#include "mlrunner/kernels/padded_product.h"

namespace ropewalk::mlrunner {
namespace {

using Tag = dnnl::memory::format_tag;
constexpr auto kF32Type = dnnl::memory::data_type::f32;
constexpr std::size_t kAlignment = 64;
std::size_t Aligned(std::size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// oneDNN cuts a product for the threads that it finds when it is made. Ours are made by a rank's thread and run inside of a team.
class OneThread {
 public:
  OneThread() : before_(omp_get_max_threads()) { omp_set_num_threads(1); }
  ~OneThread() { omp_set_num_threads(before_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_;
};

// (rows, k) x (k, n) -> (rows, n) on one thread, where the second factor stays: Begin lays it out, Multiply is each step's product. The
// factor is given as (n, k) where `transposed`. One thread at a time; its memory comes from the caller, `bytes` of it.
class StepProduct {
 public:
  StepProduct(std::int64_t rows, std::int64_t k, std::int64_t n, bool transposed) {
    OneThread one;
    dnnl::primitive_attr attr;
    attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    const dnnl::memory::desc src({rows, k}, kF32Type, Tag::ab), any({k, n}, kF32Type, Tag::any), dst({rows, n}, kF32Type, Tag::ab);
    const dnnl::memory::desc given({k, n}, kF32Type, transposed ? Tag::ba : Tag::ab);
    dnnl::matmul::primitive_desc pd(dnnl::matmul::desc(src, any, dst), attr, engine_);
    // Where oneDNN has no layout of its own, rows are a line longer: those of a multiple of 2 KiB would meet in a few sets of the cache.
    if (pd.weights_desc() == dnnl::memory::desc({k, n}, kF32Type, Tag::ab)) {
      const dnnl::memory::desc padded({k, n}, kF32Type, dnnl::memory::dims{n + kRowPadding, 1});
      pd = dnnl::matmul::primitive_desc(dnnl::matmul::desc(src, padded, dst), attr, engine_);
    }
    const dnnl::memory::desc laid_out = pd.weights_desc(), space = pd.scratchpad_desc();
    product_ = dnnl::matmul(pd);
    lay_out_ = dnnl::reorder(dnnl::reorder::primitive_desc(engine_, given, engine_, laid_out));
    from_ = Unbound(given);
    factor_bytes_ = Aligned(laid_out.get_size());
    bytes = factor_bytes_ + Aligned(space.get_size());
    arguments_ = {{DNNL_ARG_SRC, Unbound(src)},
                  {DNNL_ARG_WEIGHTS, Unbound(laid_out)},
                  {DNNL_ARG_DST, Unbound(dst)},
                  {DNNL_ARG_SCRATCHPAD, Unbound(space)}};
  }

  void Begin(const float* factor, void* memory) {
    dnnl::memory& laid_out = arguments_.at(DNNL_ARG_WEIGHTS);
    from_.set_data_handle(const_cast<float*>(factor));  // read only
    laid_out.set_data_handle(memory);
    arguments_.at(DNNL_ARG_SCRATCHPAD).set_data_handle(static_cast<std::byte*>(memory) + factor_bytes_);
    lay_out_.execute(stream_, from_, laid_out);
  }
  void Multiply(const float* rows, float* to) {
    arguments_.at(DNNL_ARG_SRC).set_data_handle(const_cast<float*>(rows));  // read only
    arguments_.at(DNNL_ARG_DST).set_data_handle(to);
    product_.execute(stream_, arguments_);
  }
  std::size_t bytes = 0;

 private:
  dnnl::memory Unbound(const dnnl::memory::desc& desc) { return dnnl::memory(desc, engine_, nullptr); }
  dnnl::engine engine_{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream_{engine_};
  dnnl::matmul product_;
  dnnl::reorder lay_out_;
  dnnl::memory from_;
  std::unordered_map<int, dnnl::memory> arguments_;
  std::size_t factor_bytes_ = 0;
};

// Rows of the batch that one thread does.
struct Piece {
  std::int64_t first = 0, count = 0;
  std::unique_ptr<StepProduct> product;
  std::size_t scratch = 0;  // where its memory begins: of the product, then of a step's results
};
struct Pieces {
  std::vector<Piece> all;
  std::size_t scratch_bytes = 0;
};
// For products (rows, k) x (k, n) of each step.
Pieces Cut(int threads, std::int64_t batch, std::int64_t k, std::int64_t n, bool transposed) {
  Pieces pieces;
  const std::int64_t count = std::min<std::int64_t>(threads, batch);
  for (std::int64_t p = 0; p < count; ++p) {
    Piece piece;
    piece.first = batch * p / count;
    piece.count = batch * (p + 1) / count - piece.first;
    piece.product = std::make_unique<StepProduct>(piece.count, k, n, transposed);
    piece.scratch = pieces.scratch_bytes;
    pieces.scratch_bytes += piece.product->bytes + Aligned(static_cast<std::size_t>(piece.count * n) * sizeof(float));
    pieces.all.push_back(std::move(piece));
  }
  return pieces;
}
// f(piece, its memory, the floats of a step's results), each on a thread of its own.
template <class F>
Status ForPieces(const Pieces& pieces, const KernelCall& call, F f) {
  const int count = static_cast<int>(pieces.all.size());
  std::vector<Status> done(pieces.all.size());
#pragma omp parallel for schedule(static, 1) num_threads(count) if (count > 1)
  for (int p = 0; p < count; ++p) {
    const Piece& piece = pieces.all[p];
    try {  // no exception may leave a team
      std::byte* memory = static_cast<std::byte*>(call.scratch) + piece.scratch;
      f(piece, memory, reinterpret_cast<float*>(memory + piece.product->bytes));
    } catch (const dnnl::error& error) {
      done[p] = OneDnnFailed(error.what());
    }
  }
  for (const Status& status : done) RETURN_IF_ERROR(status);
  return {};
}

// A row of a step. x, bias, z (4 H): the sum of the three is squashed into `gates` (4 H).
ROPEWALK_CLONES void CellForward(const float* x, const float* bias, const float* z, const float* before, float* gates, float* cell,
                                 float* hidden, std::int64_t h) {
#pragma GCC ivdep
  for (std::int64_t k = 0; k < h; ++k) {
    float i = FastSigmoid(x[k] + bias[k] + z[k]);
    float f = FastSigmoid(x[h + k] + bias[h + k] + z[h + k]);
    float g = FastTanh(x[2 * h + k] + bias[2 * h + k] + z[2 * h + k]);
    float o = FastSigmoid(x[3 * h + k] + bias[3 * h + k] + z[3 * h + k]);
    float c = f * before[k] + i * g;
    gates[k] = i;
    gates[h + k] = f;
    gates[2 * h + k] = g;
    gates[3 * h + k] = o;
    cell[k] = c;
    hidden[k] = o * FastTanh(c);
  }
}
// dc (H) is that of this step's cell state, and becomes that of the one before.
ROPEWALK_CLONES void CellBackward(const float* gates, const float* cell, const float* before, const float* dy, const float* dh, float* dc,
                                  float* dz, std::int64_t h) {
#pragma GCC ivdep
  for (std::int64_t k = 0; k < h; ++k) {
    float i = gates[k], f = gates[h + k], g = gates[2 * h + k], o = gates[3 * h + k];
    float squashed = FastTanh(cell[k]), to_hidden = dy[k] + dh[k];
    float to_cell = dc[k] + to_hidden * o * (1 - squashed * squashed);
    dz[k] = to_cell * g * i * (1 - i);
    dz[h + k] = to_cell * before[k] * f * (1 - f);
    dz[2 * h + k] = to_cell * i * (1 - g * g);
    dz[3 * h + k] = to_hidden * squashed * o * (1 - o);
    dc[k] = to_cell * f;
  }
}

bool IsEmpty(const KernelRequest& r) {
  return std::any_of(r.in.begin(), r.in.end(), [](const ConcreteType& type) { return NumElements(type.dims) == 0; });
}

Result<CompiledKernel> CompileLstm(const KernelRequest& r) {
  if (!AllRowMajor(r) || IsEmpty(r)) return Declined();
  const std::int64_t steps = r.in[0].dims[0], batch = r.in[0].dims[1], h = r.in[3].dims[1];
  try {
    auto pieces = std::make_shared<Pieces>(Cut(Threads(r, steps * batch * 4 * h), batch, h, 4 * h, true));
    return CompiledKernel{[=](const KernelCall& c) {
                            return ForPieces(*pieces, c, [&](const Piece& piece, void* memory, float* z) {
                              piece.product->Begin(In(c, 2), memory);
                              for (std::int64_t t = 0; t < steps; ++t) {
                                const std::int64_t first = (t * batch + piece.first) * h, last = first - batch * h;
                                const float* hidden = t == 0 ? In(c, 3) + piece.first * h : Out(c, 0) + last;
                                const float* before = t == 0 ? In(c, 4) + piece.first * h : Out(c, 2) + last;
                                piece.product->Multiply(hidden, z);
                                for (std::int64_t row = 0; row < piece.count; ++row) {
                                  const std::int64_t at = first + row * h;
                                  CellForward(In(c, 0) + 4 * at, In(c, 1), z + 4 * row * h, before + row * h, Out(c, 3) + 4 * at,
                                              Out(c, 2) + at, Out(c, 0) + at, h);
                                }
                              }
                              CopyBytes(Out(c, 1) + piece.first * h, Out(c, 2) + ((steps - 1) * batch + piece.first) * h,
                                        static_cast<std::size_t>(piece.count * h) * sizeof(float));
                            });
                          },
                          pieces->scratch_bytes};
  } catch (const dnnl::error& error) {
    return OneDnnFailed(error.what());
  }
}

Result<CompiledKernel> CompileLstmGrad(const KernelRequest& r) {
  if (!AllRowMajor(r) || IsEmpty(r)) return Declined();
  const std::int64_t steps = r.in[2].dims[0], batch = r.in[2].dims[1], h = r.in[2].dims[2];
  try {
    auto pieces = std::make_shared<Pieces>(Cut(Threads(r, steps * batch * 4 * h), batch, 4 * h, h, false));
    return CompiledKernel{[=](const KernelCall& c) {
                            return ForPieces(*pieces, c, [&](const Piece& piece, void* memory, float* dh) {
                              const std::int64_t own = piece.first * h;
                              piece.product->Begin(In(c, 0), memory);
                              std::fill_n(dh, piece.count * h, 0.0f);
                              CopyBytes(Out(c, 2) + own, In(c, 5) + own, static_cast<std::size_t>(piece.count * h) * sizeof(float));
                              for (std::int64_t t = steps; t-- > 0;) {
                                const std::int64_t first = (t * batch + piece.first) * h;
                                const float* before = t == 0 ? In(c, 1) + own : In(c, 2) + first - batch * h;
                                for (std::int64_t row = 0; row < piece.count; ++row) {
                                  const std::int64_t at = first + row * h;
                                  CellBackward(In(c, 3) + 4 * at, In(c, 2) + at, before + row * h, In(c, 4) + at, dh + row * h,
                                               Out(c, 2) + own + row * h, Out(c, 0) + 4 * at, h);
                                }
                                piece.product->Multiply(Out(c, 0) + 4 * first, t == 0 ? Out(c, 1) + own : dh);
                              }
                            });
                          },
                          pieces->scratch_bytes};
  } catch (const dnnl::error& error) {
    return OneDnnFailed(error.what());
  }
}

}  // namespace

void AddSequenceKernels(KernelTable& table) {
  table.Add(kLstm, Device::kCpu, Dtype::kF32, CompileLstm);
  table.Add(kLstmGrad, Device::kCpu, Dtype::kF32, CompileLstmGrad);
}

}  // namespace ropewalk::mlrunner
