// Products and convolutions by oneDNN. Primitives are made when a kernel is compiled; a run binds pointers.
#include <dnnl.hpp>

#include <algorithm>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "mlrunner/graph/infer.h"
#include "mlrunner/graph/ops.h"
#include "mlrunner/kernels/cpu.h"
#include "mlrunner/kernels/padded_product.h"

namespace ropewalk::mlrunner {
namespace {

using Tag = dnnl::memory::format_tag;

dnnl::memory::data_type TypeOf(const ConcreteType& type) {
  using Type = dnnl::memory::data_type;
  return type.dtype == Dtype::kBF16 ? Type::bf16 : type.dtype == Dtype::kF16 ? Type::f16 : Type::f32;
}
bool HasHalves(const KernelRequest& r) {
  for (const auto* list : {&r.in, &r.out}) {
    for (const ConcreteType& type : *list) {
      if (IsHalf(type.dtype)) return true;
    }
  }
  return false;
}
// oneDNN has its products of 16 bits where the processor has instructions for them, or for what they are put together from. Its plain loops
// for all other cases are slower than f32 with roundings around it.
void RefusePlainLoops(const KernelRequest& r, const char* implementation) {
  if (HasHalves(r) && std::string_view(implementation).starts_with("ref")) throw dnnl::error(dnnl_unimplemented, "only plain loops");
}

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

CompiledKernel Runs(const std::shared_ptr<Bound>& bound) {
  return CompiledKernel{[bound](const KernelCall& call) {
    try {
      for (std::size_t i = 0; i < bound->in.size(); ++i) bound->in[i].set_data_handle(call.in[i]);
      for (std::size_t i = 0; i < bound->out.size(); ++i) bound->out[i].set_data_handle(call.out[i]);
      for (Bound::Step& step : bound->steps) step.primitive.execute(bound->stream, step.arguments);
      bound->stream.wait();
    } catch (const dnnl::error& error) {
      return OneDnnFailed(error.what());
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
    return status == dnnl_success ? Status() : OneDnnFailed("sgemm");
  }};
}

bool IsUnsupported(const dnnl::error& error) { return error.status == dnnl_unimplemented || error.status == dnnl_invalid_arguments; }

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
    if (transpose_a && !transpose_b && !HasHalves(r)) {
      if (auto padded = PaddedProduct(m, n, k, r.num_threads)) return *std::move(padded);
    }
    if (IsWide(n, k) && !HasHalves(r)) return Gemm(transpose_a ? 'T' : 'N', transpose_b ? 'T' : 'N', m, n, k);
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
    return dnnl::memory::desc(dims, TypeOf(type), strides);
  };
  try {
    auto bound = std::make_shared<Bound>();
    auto a = desc(r.in[0], transpose_a), b = desc(r.in[1], transpose_b);
    auto c = desc(r.out[0], false);
    dnnl::matmul::primitive_desc pd(dnnl::matmul::desc(a, b, c), bound->engine);
    RefusePlainLoops(r, pd.impl_info_str());
    bound->in = {Unbound(a, bound->engine), Unbound(b, bound->engine)};
    bound->out = {Unbound(c, bound->engine)};
    bound->steps.push_back(
        {dnnl::matmul(pd), {{DNNL_ARG_SRC, bound->in[0]}, {DNNL_ARG_WEIGHTS, bound->in[1]}, {DNNL_ARG_DST, bound->out[0]}}});
    return Runs(bound);
  } catch (const dnnl::error& error) {
    return HasHalves(r) && IsUnsupported(error) ? Declined() : OneDnnFailed(error.what());
  }
}

// A row-major tensor of four dimensions, or one whose channels are in blocks.
std::optional<Tag> TagOf(const Layout& layout) {
  if (layout.IsRowMajor()) return Tag::abcd;
  if (layout == Layout{{}, {{1, 16}}}) return Tag::aBcd16b;
  if (layout == Layout{{}, {{1, 8}}}) return Tag::aBcd8b;
  return std::nullopt;
}

// The three convolutions: (x, w[, bias]) -> y; (y, w) -> x; (x, y) -> w. `keeps`: the primitive works in the blocked layouts that images
// come and go in; otherwise oneDNN chooses. Reorders stand where its layouts and ours differ.
CompiledKernel Convolution(const KernelRequest& r, bool keeps) {
  const bool forward = r.op.def == &kConv2D, to_input = r.op.def == &kConv2DInputGrad;
  const ConcreteType& x = to_input ? r.out[0] : r.in[0];
  const ConcreteType& w = forward || to_input ? r.in[1] : r.out[0];
  const ConcreteType& y = forward ? r.out[0] : to_input ? r.in[0] : r.in[1];
  const ConvWindow window = ConvWindowOf(r.op);
  Dims kernels = w.dims, high = window.padding, dilation = window.dilation;
  for (int i = 0; i < 2; ++i) {
    // oneDNN wants sizes to fit exactly; what our floor leaves over is taken off the far padding (it may become negative: then it
    // declines).
    high[i] = (y.dims[2 + i] - 1) * window.stride[i] + (w.dims[2 + i] - 1) * dilation[i] + 1 - x.dims[2 + i] - window.padding[i];
    dilation[i] -= 1;  // it counts what lies between
  }
  if (window.groups > 1) {
    kernels[0] /= window.groups;
    kernels.insert(kernels.begin(), window.groups);
  }
  using Desc = dnnl::memory::desc;
  auto given = [](const ConcreteType& image) { return Desc(image.dims, TypeOf(image), *TagOf(image.layout)); };
  auto wished = [&](const ConcreteType& image) {
    return keeps && !image.layout.IsRowMajor() ? given(image) : Desc(image.dims, TypeOf(image), Tag::any);
  };
  // Of the forward convolution, which the two others take for a hint: a result of theirs may be wider than what they read.
  auto hinted = [&](const ConcreteType& image) {
    ConcreteType type = image;
    if (!forward) type.dtype = r.in[0].dtype;
    return wished(type);
  };
  const Desc hinted_kernels(kernels, TypeOf(forward ? w : r.in[0]), Tag::any);
  const Desc any_kernels(kernels, TypeOf(w), Tag::any), plain_kernels(kernels, TypeOf(w), window.groups > 1 ? Tag::abcde : Tag::abcd);
  const bool has_bias = forward && r.in.size() > 2;
  const Desc bias = has_bias ? Desc(r.in[2].dims, TypeOf(r.in[2]), Tag::a) : Desc();
  constexpr auto kAlgorithm = dnnl::algorithm::convolution_direct;

  auto bound = std::make_shared<Bound>();
  const dnnl::engine& engine = bound->engine;
  dnnl::convolution_forward::primitive_desc fwd(
      dnnl::convolution_forward::desc(dnnl::prop_kind::forward_training, kAlgorithm, hinted(x), hinted_kernels, bias, hinted(y),
                                      window.stride, dilation, window.padding, high),
      engine);
  // Appends a reorder where the layouts differ; gives the memory that the primitive uses.
  auto input = [&](const Desc& have, const Desc& wanted) {
    bound->in.push_back(Unbound(have, engine));
    if (wanted == have) return bound->in.back();
    dnnl::memory own(wanted, engine);
    bound->own.push_back(own);
    bound->steps.push_back({dnnl::reorder(bound->in.back(), own), {{DNNL_ARG_FROM, bound->in.back()}, {DNNL_ARG_TO, own}}});
    return own;
  };
  auto output = [&](const Desc& have, const Desc& wanted, const dnnl::primitive& primitive, std::unordered_map<int, dnnl::memory> arguments,
                    int name) {
    bound->out.push_back(Unbound(have, engine));
    if (wanted == have) {
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
    RefusePlainLoops(r, fwd.impl_info_str());
    std::unordered_map<int, dnnl::memory> arguments{{DNNL_ARG_SRC, input(given(x), fwd.src_desc())}};
    arguments[DNNL_ARG_WEIGHTS] = input(plain_kernels, fwd.weights_desc());
    if (has_bias) arguments[DNNL_ARG_BIAS] = input(bias, fwd.bias_desc());
    output(given(y), fwd.dst_desc(), dnnl::convolution_forward(fwd), arguments, DNNL_ARG_DST);
  } else if (to_input) {
    dnnl::convolution_backward_data::primitive_desc pd(
        dnnl::convolution_backward_data::desc(kAlgorithm, wished(x), any_kernels, wished(y), window.stride, dilation, window.padding, high),
        engine, fwd);
    RefusePlainLoops(r, pd.impl_info_str());
    dnnl::memory diff = input(given(y), pd.diff_dst_desc()), weights = input(plain_kernels, pd.weights_desc());
    output(given(x), pd.diff_src_desc(), dnnl::convolution_backward_data(pd), {{DNNL_ARG_DIFF_DST, diff}, {DNNL_ARG_WEIGHTS, weights}},
           DNNL_ARG_DIFF_SRC);
  } else {
    dnnl::convolution_backward_weights::primitive_desc pd(
        dnnl::convolution_backward_weights::desc(kAlgorithm, wished(x), any_kernels, wished(y), window.stride, dilation, window.padding,
                                                 high),
        engine, fwd);
    RefusePlainLoops(r, pd.impl_info_str());
    dnnl::memory src = input(given(x), pd.src_desc()), diff = input(given(y), pd.diff_dst_desc());
    output(plain_kernels, pd.diff_weights_desc(), dnnl::convolution_backward_weights(pd), {{DNNL_ARG_SRC, src}, {DNNL_ARG_DIFF_DST, diff}},
           DNNL_ARG_DIFF_WEIGHTS);
  }
  return Runs(bound);
}

Result<CompiledKernel> CompileConvolution(const KernelRequest& r) {
  bool blocked = false;
  for (const auto* list : {&r.in, &r.out}) {
    for (const ConcreteType& type : *list) {
      const bool is_image = type.dims.size() == 4;
      if (!type.layout.IsRowMajor() && (!is_image || !TagOf(type.layout))) return Declined();
      blocked = blocked || !type.layout.IsRowMajor();
    }
  }
  if (IsOverNothing(r)) {
    if (r.in.size() > 2 || blocked) return Declined();
    return Zeros(NumElements(r.out[0].dims));
  }
  for (bool keeps : {true, false}) {
    try {
      return Convolution(r, keeps);
    } catch (const dnnl::error& error) {
      if (!IsUnsupported(error)) return OneDnnFailed(error.what());
    }
    if (!blocked) break;
  }
  return Declined();
}

// The same image in another layout.
Result<CompiledKernel> CompileRelayout(const KernelRequest& r) {
  const auto from = TagOf(r.in[0].layout), to = TagOf(r.out[0].layout);
  if (!from || !to || r.in[0].dims.size() != 4 || NumElements(r.in[0].dims) == 0) return Declined();
  try {
    auto bound = std::make_shared<Bound>();
    bound->in = {Unbound(dnnl::memory::desc(r.in[0].dims, TypeOf(r.in[0]), *from), bound->engine)};
    bound->out = {Unbound(dnnl::memory::desc(r.out[0].dims, TypeOf(r.out[0]), *to), bound->engine)};
    bound->steps.push_back({dnnl::reorder(bound->in[0], bound->out[0]), {{DNNL_ARG_FROM, bound->in[0]}, {DNNL_ARG_TO, bound->out[0]}}});
    return Runs(bound);
  } catch (const dnnl::error& error) {
    return OneDnnFailed(error.what());
  }
}

// oneDNN's own product of 16 bits where there is one for this processor, else that of f32 with each operand widened and the result rounded.
KernelMaker OfHalves(const KernelMaker& maker) {
  return [maker, widened = WidenedKernel(maker)](const KernelRequest& r) -> Result<CompiledKernel> {
    if (!IsOverNothing(r)) {
      Result<CompiledKernel> own = maker(r);
      if (!IsDeclined(own)) return own;
    }
    return widened(r);
  };
}

}  // namespace

void AddProductKernels(KernelTable& table) {
  table.Add(kRelayout, Device::kCpu, Dtype::kF32, CompileRelayout);
  const std::pair<const OpDef*, KernelMaker> products[] = {{&kMatMul, CompileMatMul},
                                                           {&kConv2D, CompileConvolution},
                                                           {&kConv2DInputGrad, CompileConvolution},
                                                           {&kConv2DWeightGrad, CompileConvolution}};
  for (const auto& [def, maker] : products) {
    table.Add(*def, Device::kCpu, Dtype::kF32, maker);
    for (Dtype half : {Dtype::kBF16, Dtype::kF16}) table.Add(*def, Device::kCpu, half, OfHalves(maker));
  }
}

}  // namespace ropewalk::mlrunner
