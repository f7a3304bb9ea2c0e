// Which layouts the CPU's kernels want: images with their channels in blocks as wide as a vector register, where convolutions make them,
// and on from there for as long as they are images.
#include <algorithm>

#include "mlrunner/graph/infer.h"
#include "mlrunner/graph/op_def.h"
#include "mlrunner/graph/ops.h"
#include "mlrunner/kernels/kernel.h"

namespace ropewalk::mlrunner {
namespace {

// Channels of a block; 0: blocks are of no use.
std::int32_t BlockOfThisProcessor() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return 16;
  if (__builtin_cpu_supports("avx2")) return 8;
#endif
  return 0;
}

class Wishes {
 public:
  Wishes(const Graph& graph, const Op& op, const std::vector<Layout>& have, std::int32_t block)
      : graph_(graph), op_(op), have_(have), blocked_{{}, {{1, block}}} {}

  std::vector<Layout> Of() const {
    const OpDef* def = op_.def;
    // Images that go into convolutions are put into blocks, and stay so.
    if (def == &kConv2D || def == &kConv2DInputGrad) return InBlocks(1, 1);
    if (def == &kConv2DWeightGrad) return InBlocks(2, 0);
    // A pool's own gradient may come from a vector of channels, which has no layout to follow.
    if (def == &kAvgPool2DGrad) return InBlocks(1, 1);
    if (have_.empty() || !(have_[0] == blocked_)) return {};
    if (def == &kMaxPool2D || def == &kAvgPool2D || def == &kBatchNorm || def == &kBatchNormInference) return InBlocks(1, 1);
    if (def == &kMaxPool2DGrad || def == &kBatchNormInputGrad) return InBlocks(2, 1);
    if (def == &kBatchMoments) return InBlocks(1, 0);
    if (def == &kBatchNormSums) return InBlocks(2, 0);
    const bool sums_channels = def == &kReduceSum && Axes(op_, Type(op_.inputs[0]).shape.size()) == std::vector<int>{0, 2, 3};
    return sums_channels ? InBlocks(1, 0) : std::vector<Layout>();
  }

 private:
  const TensorType& Type(ValueId value) const { return graph_.value(value).type; }
  bool IsWhole(ValueId value) const {
    const TensorType& type = Type(value);
    if ((type.dtype != Dtype::kF32 && !IsHalf(type.dtype)) || type.shape.size() != 4) return false;
    const auto channels = type.shape[1].Constant();
    return channels && *channels > 0 && *channels % blocked_.blocks[0].size == 0;
  }
  // The first so many inputs and outputs, of those that are whole blocks.
  std::vector<Layout> InBlocks(std::size_t inputs, std::size_t outputs) const {
    std::vector<Layout> wish(op_.inputs.size() + op_.outputs.size());
    for (std::size_t i = 0; i < inputs; ++i) {
      if (IsWhole(op_.inputs[i])) wish[i] = blocked_;
    }
    for (std::size_t i = 0; i < outputs; ++i) {
      if (IsWhole(op_.outputs[i])) wish[op_.inputs.size() + i] = blocked_;
    }
    return wish;
  }

  const Graph& graph_;
  const Op& op_;
  const std::vector<Layout>& have_;
  const Layout blocked_;
};

}  // namespace

PreferredLayout CpuLayouts() {
  return [block = BlockOfThisProcessor()](const Graph& graph, const Op& op, const std::vector<Layout>& have) {
    return block == 0 || op.half != Half::kWhole ? std::vector<Layout>() : Wishes(graph, op, have, block).Of();
  };
}

}  // namespace ropewalk::mlrunner
