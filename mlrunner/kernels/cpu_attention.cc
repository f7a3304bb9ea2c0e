// f32 kernels of attention. A thread does a block of rows of one head at a time, against all keys that these may look at: its scores lie in
// a strip of so many rows, which stays in the cache, and nobody holds a head's whole square (Rabe and Staats 2021; backward from the log of
// the sums as in Dao et al. 2022). Rows need no rescaling on the way, since a strip holds all of their keys.
#include <dnnl.h>
#include <omp.h>

#include <algorithm>
#include <atomic>
#include <cmath>

#include "mlrunner/graph/attention.h"
#include "mlrunner/kernels/attention.h"
#include "mlrunner/kernels/cpu.h"
#include "mlrunner/kernels/padded_product.h"
#include "mlrunner/kernels/row_loops.h"
#include "mlrunner/kernels/table_parts.h"
#include "mlrunner/kernels/uniform_row.h"

namespace ropewalk::mlrunner {
namespace {

constexpr std::int64_t kBlock = 64;  // rows

// (m, k) x (k, n), factors read transposed where it says so; adds to c where `add`.
struct Product {
  bool transpose_a = false, transpose_b = false, add = false;
  float scale = 1;
};
dnnl_status_t Multiply(const Product& p, std::int64_t m, std::int64_t n, std::int64_t k, const float* a, std::int64_t lda, const float* b,
                       std::int64_t ldb, float* c, std::int64_t ldc) {
  return dnnl_sgemm(p.transpose_a ? 'T' : 'N', p.transpose_b ? 'T' : 'N', m, n, k, p.scale, a, lda, b, ldb, p.add ? 1.0f : 0.0f, c, ldc);
}

// ds = p (by_weight - with_out) scale
ROPEWALK_CLONES void ScoreGradOf(const float* p, const float* by_weight, float with_out, float scale, float* ds, std::int64_t n) {
#pragma GCC ivdep
  for (std::int64_t i = 0; i < n; ++i) ds[i] = p[i] * (by_weight[i] - with_out) * scale;
}

void Dropped(const AttentionForm& form, const AttentionForm::Draws& draws, float* x, std::int64_t n) {
  DropRow(draws.key, draws.sample, draws.first, static_cast<float>(form.rate), x, n);
}

// Where a head's tensors begin, and how its products are made.
struct Heads {
  AttentionForm form;
  std::int64_t blocks = 1;  // of a head's rows
  int threads = 1;

  std::int64_t QAt(std::int64_t head, std::int64_t row) const { return (head * form.places + row) * form.width; }
  std::int64_t KAt(std::int64_t head) const { return head * form.keys * form.width; }
  std::int64_t VAt(std::int64_t head) const { return head * form.keys * form.out_width; }
  std::int64_t OutAt(std::int64_t head, std::int64_t row) const { return (head * form.places + row) * form.out_width; }
  std::int64_t LeadOfK() const { return form.transposed_keys ? form.width : form.keys; }
  // Of a strip of scores: rows of a multiple of 1 KiB would meet in a few sets of the cache.
  std::int64_t Lead() const { return form.keys % 256 == 0 ? form.keys + kRowPadding : form.keys; }
  float* Strip(const KernelCall& c, std::int64_t strips) const {
    return static_cast<float*>(c.scratch) + omp_get_thread_num() * strips * kBlock * Lead();
  }

  // scores (rows, n) = scale q k' + mask, of rows from `first` on and the first n keys.
  dnnl_status_t Scores(const float* q, const float* k, const float* mask, std::int64_t head, std::int64_t first, std::int64_t rows,
                       std::int64_t n, float* scores) const {
    const dnnl_status_t status = Multiply({.transpose_b = form.transposed_keys, .scale = static_cast<float>(form.scale)}, rows, n,
                                          form.width, q + QAt(head, first), form.width, k + KAt(head), LeadOfK(), scores, Lead());
    if (mask == nullptr) return status;
    for (std::int64_t row = 0; row < rows; ++row) {
      AddTo(scores + row * Lead(), mask + form.mask_of_head[head] + (first + row) * form.mask_row, n);
    }
    return status;
  }
};

Result<Heads> HeadsOf(const KernelRequest& r, std::size_t mask_at) {
  if (!AllRowMajor(r)) return Declined();
  for (const ConcreteType& in : r.in) {
    if (NumElements(in.dims) == 0) return Declined();
  }
  Heads heads;
  heads.form = AttentionFormOf(r.op, r.in[0].dims, r.in[2].dims, r.in.size() > mask_at ? &r.in[mask_at].dims : nullptr);
  heads.blocks = (heads.form.places + kBlock - 1) / kBlock;
  heads.threads = Threads(r, heads.form.heads * heads.form.places * heads.form.keys);
  return heads;
}

// What went wrong on any thread; oneDNN's own codes are the same for all.
Status Outcome(dnnl_status_t worst) { return worst == dnnl_success ? Status() : OneDnnFailed("sgemm"); }

Result<CompiledKernel> CompileAttention(const KernelRequest& r) {  // (q, k, v[, mask]) -> out, log sums
  ASSIGN_OR_RETURN(const Heads h, HeadsOf(r, 3));
  const AttentionForm form = h.form;
  return CompiledKernel{[=](const KernelCall& c) {
                          std::atomic<dnnl_status_t> worst = dnnl_success;
                          ForRows(form.heads * h.blocks, h.threads, [&](std::int64_t i) {
                            const std::int64_t head = i / h.blocks, first = i % h.blocks * kBlock;
                            const std::int64_t rows = std::min(kBlock, form.places - first), n = form.KeysOf(first + rows - 1);
                            float* weights = h.Strip(c, 1);
                            dnnl_status_t status =
                                h.Scores(In(c, 0), In(c, 1), form.HasMask() ? In(c, 3) : nullptr, head, first, rows, n, weights);
                            for (std::int64_t row = 0; row < rows; ++row) {
                              float* w = weights + row * h.Lead();
                              const std::int64_t seen = form.KeysOf(first + row);
                              const float top = MaxOf(w, seen);
                              ExpOf(w, top, w, seen);
                              const float sum = SumOf(w, seen);
                              Scale(w, 1 / sum, seen);
                              std::fill(w + seen, w + n, 0.0f);
                              if (form.rate != 0) Dropped(form, form.DrawsOf(c.run, head, first + row), w, seen);
                              Out(c, 1)[head * form.places + first + row] = top + std::log(sum);
                            }
                            if (status == dnnl_success) {
                              status = Multiply({}, rows, form.out_width, n, weights, h.Lead(), In(c, 2) + h.VAt(head), form.out_width,
                                                Out(c, 0) + h.OutAt(head, first), form.out_width);
                            }
                            if (status != dnnl_success) worst = status;
                          });
                          return Outcome(worst);
                        },
                        static_cast<std::size_t>(h.threads * kBlock * h.Lead()) * sizeof(float)};
}

// One thread does a head, so that dk and dv are added up in one order.
Result<CompiledKernel> CompileAttentionGrad(const KernelRequest& r) {  // (q, k, v, out, log sums, g[, mask]) -> dq, dk, dv
  ASSIGN_OR_RETURN(const Heads h, HeadsOf(r, 6));
  const AttentionForm form = h.form;
  return CompiledKernel{
      [=](const KernelCall& c) {
        std::atomic<dnnl_status_t> worst = dnnl_success;
        ForRows(form.heads, h.threads, [&](std::int64_t head) {
          float *weights = h.Strip(c, 2), *scores = weights + kBlock * h.Lead();
          const float *k = In(c, 1) + h.KAt(head), *v = In(c, 2) + h.VAt(head);
          float *dk = Out(c, 1) + h.KAt(head), *dv = Out(c, 2) + h.VAt(head);
          std::fill_n(dk, form.keys * form.width, 0.0f);
          std::fill_n(dv, form.keys * form.out_width, 0.0f);
          for (std::int64_t first = 0; first < form.places; first += kBlock) {
            const std::int64_t rows = std::min(kBlock, form.places - first), n = form.KeysOf(first + rows - 1);
            const float *q = In(c, 0) + h.QAt(head, first), *out = In(c, 3) + h.OutAt(head, first), *g = In(c, 5) + h.OutAt(head, first);
            dnnl_status_t status = h.Scores(In(c, 0), In(c, 1), form.HasMask() ? In(c, 6) : nullptr, head, first, rows, n, weights);
            auto multiply = [&](const Product& p, std::int64_t of_m, std::int64_t of_n, std::int64_t of_k, const float* a, std::int64_t lda,
                                const float* b, std::int64_t ldb, float* to, std::int64_t ldc) {
              if (status == dnnl_success) status = Multiply(p, of_m, of_n, of_k, a, lda, b, ldb, to, ldc);
            };
            multiply({.transpose_b = true}, rows, n, form.out_width, g, form.out_width, v, form.out_width, scores, h.Lead());
            for (std::int64_t row = 0; row < rows; ++row) {
              float *w = weights + row * h.Lead(), *ds = scores + row * h.Lead();
              const std::int64_t seen = form.KeysOf(first + row);
              ExpOf(w, In(c, 4)[head * form.places + first + row], w, seen);
              std::fill(w + seen, w + n, 0.0f);
              const AttentionForm::Draws draws = form.DrawsOf(c.run, head, first + row);
              if (form.rate != 0) Dropped(form, draws, ds, seen);
              const float with_out = DotOf(g + row * form.out_width, out + row * form.out_width, form.out_width);
              ScoreGradOf(w, ds, with_out, static_cast<float>(form.scale), ds, seen);
              std::fill(ds + seen, ds + n, 0.0f);
              if (form.rate != 0) Dropped(form, draws, w, seen);
            }
            multiply({.transpose_b = !form.transposed_keys}, rows, form.width, n, scores, h.Lead(), k, h.LeadOfK(),
                     Out(c, 0) + h.QAt(head, first), form.width);
            if (form.transposed_keys) {
              multiply({.transpose_a = true, .add = true}, n, form.width, rows, scores, h.Lead(), q, form.width, dk, form.width);
            } else {
              multiply({.transpose_a = true, .add = true}, form.width, n, rows, q, form.width, scores, h.Lead(), dk, form.keys);
            }
            multiply({.transpose_a = true, .add = true}, n, form.out_width, rows, weights, h.Lead(), g, form.out_width, dv, form.out_width);
            if (status != dnnl_success) worst = status;
          }
        });
        return Outcome(worst);
      },
      static_cast<std::size_t>(2 * h.threads * kBlock * h.Lead()) * sizeof(float)};
}

}  // namespace

void AddAttentionKernels(KernelTable& table) {
  for (const OpDef* def : {&kAttention, &kCausalAttention}) table.Add(*def, Device::kCpu, Dtype::kF32, CompileAttention);
  for (const OpDef* def : {&kAttentionGrad, &kCausalAttentionGrad}) table.Add(*def, Device::kCpu, Dtype::kF32, CompileAttentionGrad);
}

}  // namespace ropewalk::mlrunner
