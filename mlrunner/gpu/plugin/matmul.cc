// Products by cuBLASLt. The algorithm is chosen once for a shape, by the library's own prediction; nothing is timed.
#include <memory>

#include "mlrunner/gpu/geometry.h"
#include "mlrunner/gpu/plugin/context.h"

namespace ropewalk::gpu {
namespace {

// What the library may use beside the operands; its manual asks for so much on Hopper.
constexpr std::size_t kWorkspaceBytes = std::size_t{32} << 20;
constexpr std::uint32_t kAlignment = 16;

bool IsAligned(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer) % kAlignment == 0; }

}  // namespace

struct MatMul {
  explicit MatMul(Context* context) : context(context) {}
  ~MatMul() {
    for (cublasLtMatrixLayout_t layout : {first, second, result}) {
      if (layout != nullptr) cublasLtMatrixLayoutDestroy(layout);
    }
    if (operation != nullptr) cublasLtMatmulDescDestroy(operation);
    if (workspace != nullptr) context->pool.Release(workspace);
  }
  Context* context;
  cublasLtMatmulDesc_t operation = nullptr;
  cublasLtMatrixLayout_t first = nullptr, second = nullptr, result = nullptr;
  cublasLtMatmulHeuristicResult_t chosen = {};
  void* workspace = nullptr;
};

namespace {

Failure MakeLayout(const ColumnMajor& matrix, cudaDataType_t type, std::int64_t batch, cublasLtMatrixLayout_t* layout, Message* why) {
  RETURN_IF_FAILED(Check(cublasLtMatrixLayoutCreate(layout, type, static_cast<std::uint64_t>(matrix.rows),
                                                    static_cast<std::uint64_t>(matrix.columns), matrix.leading),
                         "cublasLtMatrixLayoutCreate", why));
  if (batch == 1) return Failure::kNone;
  const auto count = static_cast<std::int32_t>(batch);
  RETURN_IF_FAILED(Check(cublasLtMatrixLayoutSetAttribute(*layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count),
                         "the batch of a layout", why));
  return Check(cublasLtMatrixLayoutSetAttribute(*layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &matrix.stride, sizeof matrix.stride),
               "the stride of a layout", why);
}

Failure Transpose(cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t which, bool transposed, Message* why) {
  const cublasOperation_t value = transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
  return Check(cublasLtMatmulDescSetAttribute(operation, which, &value, sizeof value), "the transpose of an operand", why);
}

Failure Choose(MatMul* product, Message* why) {
  cublasLtMatmulPreference_t preference = nullptr;
  RETURN_IF_FAILED(Check(cublasLtMatmulPreferenceCreate(&preference), "cublasLtMatmulPreferenceCreate", why));
  std::unique_ptr<cublasLtMatmulPreferenceOpaque_t, cublasStatus_t (*)(cublasLtMatmulPreference_t)> owner(preference,
                                                                                                          cublasLtMatmulPreferenceDestroy);
  RETURN_IF_FAILED(Check(
      cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &kWorkspaceBytes, sizeof kWorkspaceBytes),
      "the workspace of a product", why));
  for (auto which : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                     CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
    RETURN_IF_FAILED(
        Check(cublasLtMatmulPreferenceSetAttribute(preference, which, &kAlignment, sizeof kAlignment), "the alignment of a product", why));
  }
  int found = 0;
  RETURN_IF_FAILED(Check(cublasLtMatmulAlgoGetHeuristic(product->context->blas, product->operation, product->first, product->second,
                                                        product->result, product->result, preference, 1, &product->chosen, &found),
                         "cublasLtMatmulAlgoGetHeuristic", why));
  if (found == 0) return Fail(Failure::kUnsupported, why, "cuBLASLt has no algorithm for the product");
  return Failure::kNone;
}

}  // namespace

Failure MakeMatMul(Context* context, const MatMulShape* shape, MatMul** made, Message* why) {
  RETURN_IF_FAILED(Enter(context, why));
  if (!IsLegal(*shape))
    return Fail(Failure::kInvalid, why, "no product of (%lld, %lld, %lld) with (%lld, %lld, %lld)", static_cast<long long>(shape->batch),
                static_cast<long long>(shape->m), static_cast<long long>(shape->k), static_cast<long long>(shape->batch),
                static_cast<long long>(shape->k), static_cast<long long>(shape->n));
  auto product = std::make_unique<MatMul>(context);
  const ColumnMajorProduct matrices = AsColumnMajor(*shape);
  const cudaDataType_t type = shape->element == Element::kF32 ? CUDA_R_32F : CUDA_R_16BF;
  // Sums in f32 for both; f32 factors are not cut to TF32.
  RETURN_IF_FAILED(Check(cublasLtMatmulDescCreate(&product->operation, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescCreate", why));
  RETURN_IF_FAILED(Transpose(product->operation, CUBLASLT_MATMUL_DESC_TRANSA, matrices.first.transposed, why));
  RETURN_IF_FAILED(Transpose(product->operation, CUBLASLT_MATMUL_DESC_TRANSB, matrices.second.transposed, why));
  RETURN_IF_FAILED(MakeLayout(matrices.first, type, shape->batch, &product->first, why));
  RETURN_IF_FAILED(MakeLayout(matrices.second, type, shape->batch, &product->second, why));
  RETURN_IF_FAILED(MakeLayout(matrices.result, type, shape->batch, &product->result, why));
  RETURN_IF_FAILED(Choose(product.get(), why));
  if (product->chosen.workspaceSize > 0) {
    product->workspace = context->pool.Allocate(product->chosen.workspaceSize);
    if (product->workspace == nullptr)
      return Fail(Failure::kOutOfMemory, why, "no room for the %zu bytes of a product's workspace", product->chosen.workspaceSize);
  }
  *made = product.release();
  return Failure::kNone;
}

Failure RunMatMul(MatMul* product, const void* a, const void* b, void* c, Message* why) {
  Context* context = product->context;
  RETURN_IF_FAILED(Enter(context, why));
  if (!IsAligned(a) || !IsAligned(b) || !IsAligned(c))
    return Fail(Failure::kInvalid, why, "an operand of a product is not aligned to %u bytes", kAlignment);
  const float one = 1, zero = 0;
  return Check(cublasLtMatmul(context->blas, product->operation, &one, b, product->first, a, product->second, &zero, c, product->result, c,
                              product->result, &product->chosen.algo, product->workspace, product->chosen.workspaceSize, context->stream),
               "cublasLtMatmul", why);
}

void FreeMatMul(MatMul* product) { delete product; }

}  // namespace ropewalk::gpu
