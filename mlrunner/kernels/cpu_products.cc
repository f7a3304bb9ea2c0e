// Products and convolutions by oneDNN. Primitives are made when a kernel is compiled; a run binds pointers.
#include <dnnl.hpp>

#include <algorithm>
#include <memory>

#include "mlrunner/graph/ops.h"
#include "mlrunner/kernels/cpu.h"

namespace ropewalk::mlrunner {
namespace {

using Tag = dnnl::memory::format_tag;
constexpr auto kF32Type = dnnl::memory::data_type::f32;

// A primitive with its engine, stream and memories. Its memories without a pointer are bound at each run.
struct Bound {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  struct Step {
    dnnl::primitive primitive;
    std::unordered_map<int, dnnl::memory> arguments;
  };
  std::vector<Step> steps;
  std::vector<dnnl::memory> in, out;  // bound to the call's pointers
  std::vector<dnnl::memory> own;      // buffers between reorders and the primitive
};

Status Failed(const dnnl::error& error) {
  return Status(Code::kInternal, "KERNEL02", std::string("oneDNN: ") + error.what(), "a primitive could not be made or run");
}

CompiledKernel Runs(const std::shared_ptr<Bound>& bound) {
  return CompiledKernel{[bound](const KernelCall& call) {
    try {
      for (std::size_t i = 0; i < bound->in.size(); ++i) bound->in[i].set_data_handle(call.in[i]);
      for (std::size_t i = 0; i < bound->out.size(); ++i) bound->out[i].set_data_handle(call.out[i]);
      for (Bound::Step& step : bound->steps) step.primitive.execute(bound->stream, step.arguments);
      bound->stream.wait();
    } catch (const dnnl::error& error) {
      return Failed(error);
    }
    return Status();
  }};
}

dnnl::memory Unbound(const dnnl::memory::desc& desc, const dnnl::engine& engine) { return dnnl::memory(desc, engine, nullptr); }

// Of oneDNN's two products its plain GEMM was the faster one where the output is wide and the inner dimension short (1024 x 256 by
// 256 x 5000: 1.24 times; its gradient by the second factor: 1.35), and the slower one elsewhere (docs/performance.md). A choice by shape
// alone: every rank makes the same.
bool IsWide(std::int64_t n, std::int64_t k) { return n >= 512 && n >= 2 * k; }

CompiledKernel Gemm(char transpose_a, char transpose_b, std::int64_t m, std::int64_t n, std::int64_t k) {
  return CompiledKernel{[=](const KernelCall& call) {
    const auto *a = static_cast<const float*>(call.in[0]), *b = static_cast<const float*>(call.in[1]);
    const dnnl_status_t status = dnnl_sgemm(transpose_a, transpose_b, m, n, k, 1, a, transpose_a == 'T' ? m : k, b,
                                            transpose_b == 'T' ? k : n, 0, static_cast<float*>(call.out[0]), n);
    return status == dnnl_success ? Status() : Failed(dnnl::error(status, "sgemm"));
  }};
}

// Of an operand without elements: sums over nothing. oneDNN takes no such.
bool IsOverNothing(const KernelRequest& r) { return NumElements(r.in[0].dims) == 0 || NumElements(r.in[1].dims) == 0; }
CompiledKernel Zeros(std::int64_t elements) {
  return CompiledKernel{[elements](const KernelCall& call) {
    std::fill_n(static_cast<float*>(call.out[0]), elements, 0.0f);
    return Status();
  }};
}

Result<CompiledKernel> CompileMatMul(const KernelRequest& r) {
  if (!AllRowMajor(r)) return Declined();
  if (IsOverNothing(r)) return Zeros(NumElements(r.out[0].dims));
  std::size_t rank = r.out[0].dims.size();
  const bool transpose_a = r.op.attrs.Int(Attr::kTransposeA) != 0, transpose_b = r.op.attrs.Int(Attr::kTransposeB) != 0;
  if (rank == 2 && r.in[0].dims.size() == 2 && r.in[1].dims.size() == 2) {
    const std::int64_t m = r.out[0].dims[0], n = r.out[0].dims[1], k = r.in[0].dims[transpose_a ? 0 : 1];
    if (IsWide(n, k)) return Gemm(transpose_a ? 'T' : 'N', transpose_b ? 'T' : 'N', m, n, k);
  }
  auto desc = [&](const ConcreteType& type, bool transposed) {
    Dims dims(rank, 1), strides(rank, 1);
    std::int64_t stride = 1;
    for (std::size_t k = 0; k < rank; ++k) {
      std::size_t d = rank - 1 - k;
      if (k < type.dims.size()) dims[d] = type.dims[type.dims.size() - 1 - k];
      strides[d] = stride;
      stride *= dims[d];
    }
    if (transposed) {
      std::swap(dims[rank - 1], dims[rank - 2]);
      std::swap(strides[rank - 1], strides[rank - 2]);
    }
    return dnnl::memory::desc(dims, kF32Type, strides);
  };
  try {
    auto bound = std::make_shared<Bound>();
    auto a = desc(r.in[0], transpose_a), b = desc(r.in[1], transpose_b);
    auto c = desc(r.out[0], false);
    dnnl::matmul::primitive_desc pd(dnnl::matmul::desc(a, b, c), bound->engine);
    bound->in = {Unbound(a, bound->engine), Unbound(b, bound->engine)};
    bound->out = {Unbound(c, bound->engine)};
    bound->steps.push_back(
        {dnnl::matmul(pd), {{DNNL_ARG_SRC, bound->in[0]}, {DNNL_ARG_WEIGHTS, bound->in[1]}, {DNNL_ARG_DST, bound->out[0]}}});
    return Runs(bound);
  } catch (const dnnl::error& error) {
    return Failed(error);
  }
}

// The three convolutions. oneDNN chooses its layouts; reorders stand where ours differ.
Result<CompiledKernel> CompileConvolution(const KernelRequest& r) {
  if (!AllRowMajor(r)) return Declined();
  if (IsOverNothing(r)) return Zeros(NumElements(r.out[0].dims));
  bool forward = r.op.def == &kConv2D, to_input = r.op.def == &kConv2DInputGrad;
  // (x, w) -> y; (y, w) -> x; (x, y) -> w
  const ConcreteType& x = to_input ? r.out[0] : r.in[0];
  const ConcreteType& w = forward || to_input ? r.in[1] : r.out[0];
  const ConcreteType& y = forward ? r.out[0] : to_input ? r.in[0] : r.in[1];
  std::vector<std::int64_t> stride = r.op.attrs.Ints(Attr::kStrides), padding = r.op.attrs.Ints(Attr::kPadding), high = padding;
  // oneDNN wants sizes to fit exactly; what our floor leaves over is taken off the far padding (it may become negative: then it declines).
  for (int i = 0; i < 2; ++i) high[i] = (y.dims[2 + i] - 1) * stride[i] + w.dims[2 + i] - x.dims[2 + i] - padding[i];
  auto any = [](const ConcreteType& t) { return dnnl::memory::desc(t.dims, kF32Type, Tag::any); };
  auto plain = [](const ConcreteType& t) { return dnnl::memory::desc(t.dims, kF32Type, Tag::abcd); };
  constexpr auto kAlgorithm = dnnl::algorithm::convolution_direct;
  try {
    auto bound = std::make_shared<Bound>();
    const dnnl::engine& engine = bound->engine;
    dnnl::convolution_forward::primitive_desc fwd(
        dnnl::convolution_forward::desc(dnnl::prop_kind::forward_training, kAlgorithm, any(x), any(w), any(y), stride, padding, high),
        engine);
    // Appends a reorder where the layouts differ; gives the memory that the primitive uses.
    auto input = [&](const ConcreteType& type, const dnnl::memory::desc& wanted) {
      bound->in.push_back(Unbound(plain(type), engine));
      if (wanted == plain(type)) return bound->in.back();
      dnnl::memory own(wanted, engine);
      bound->own.push_back(own);
      bound->steps.push_back({dnnl::reorder(bound->in.back(), own), {{DNNL_ARG_FROM, bound->in.back()}, {DNNL_ARG_TO, own}}});
      return own;
    };
    auto output = [&](const ConcreteType& type, const dnnl::memory::desc& wanted, const dnnl::primitive& primitive,
                      std::unordered_map<int, dnnl::memory> arguments, int name) {
      bound->out.push_back(Unbound(plain(type), engine));
      if (wanted == plain(type)) {
        arguments[name] = bound->out[0];
        bound->steps.push_back({primitive, arguments});
        return;
      }
      dnnl::memory own(wanted, engine);
      bound->own.push_back(own);
      arguments[name] = own;
      bound->steps.push_back({primitive, arguments});
      bound->steps.push_back({dnnl::reorder(own, bound->out[0]), {{DNNL_ARG_FROM, own}, {DNNL_ARG_TO, bound->out[0]}}});
    };
    if (forward) {
      dnnl::memory src = input(x, fwd.src_desc()), weights = input(w, fwd.weights_desc());
      output(y, fwd.dst_desc(), dnnl::convolution_forward(fwd), {{DNNL_ARG_SRC, src}, {DNNL_ARG_WEIGHTS, weights}}, DNNL_ARG_DST);
    } else if (to_input) {
      dnnl::convolution_backward_data::primitive_desc pd(
          dnnl::convolution_backward_data::desc(kAlgorithm, any(x), any(w), any(y), stride, padding, high), engine, fwd);
      dnnl::memory diff = input(y, pd.diff_dst_desc()), weights = input(w, pd.weights_desc());
      output(x, pd.diff_src_desc(), dnnl::convolution_backward_data(pd), {{DNNL_ARG_DIFF_DST, diff}, {DNNL_ARG_WEIGHTS, weights}},
             DNNL_ARG_DIFF_SRC);
    } else {
      dnnl::convolution_backward_weights::primitive_desc pd(
          dnnl::convolution_backward_weights::desc(kAlgorithm, any(x), any(w), any(y), stride, padding, high), engine, fwd);
      dnnl::memory src = input(x, pd.src_desc()), diff = input(y, pd.diff_dst_desc());
      output(w, pd.diff_weights_desc(), dnnl::convolution_backward_weights(pd), {{DNNL_ARG_SRC, src}, {DNNL_ARG_DIFF_DST, diff}},
             DNNL_ARG_DIFF_WEIGHTS);
    }
    return Runs(bound);
  } catch (const dnnl::error& error) {
    if (error.status == dnnl_unimplemented || error.status == dnnl_invalid_arguments) return Declined();
    return Failed(error);
  }
}

}  // namespace

void AddProductKernels(KernelTable& table) {
  table.Add(kMatMul, Device::kCpu, Dtype::kF32, CompileMatMul);
  for (const OpDef* def : {&kConv2D, &kConv2DInputGrad, &kConv2DWeightGrad}) table.Add(*def, Device::kCpu, Dtype::kF32, CompileConvolution);
}

}  // namespace ropewalk::mlrunner
