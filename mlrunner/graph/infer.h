// Helpers of the op definitions: errors that show the shapes, the common inference rules, and what primitive forms share.
//
// Thread rule: pure functions.
#pragma once

#include <string>
#include <vector>

#include "mlrunner/graph/op_def.h"

namespace ropewalk::mlrunner {

using Types = std::vector<TensorType>;

// "MatMul of (128, 784) f32 and (512, 10) f32", with the reason.
Status Misfit(const InferContext& c, std::string why, std::string fix);
// The same for kAxis, which is none of `input`'s; for shapes that do not broadcast; for element types that differ or hold no bytes.
Status NoSuchAxis(const InferContext& c, const TensorType& input);
Status NoBroadcast(const InferContext& c);
Status TypesDiffer(const InferContext& c);
Status HoldsNoNumbers(const InferContext& c);  // a token or a handle

Result<Types> InferLikeFirst(const InferContext& c);       // the type of input 0
Result<Types> InferFloatUnary(const InferContext& c);      // input 0, which must be floating
Result<Types> InferBroadcast(const InferContext& c);       // all inputs of one dtype; shapes broadcast
Result<Types> InferCompare(const InferContext& c);         // the same, to bool
Result<Types> InferFromAttributes(const InferContext& c);  // dtype and shape from the attributes

// Of numbers that are computed with for tensors of `dtype`: f32 for the types of 16 bits, else the same.
constexpr Dtype AtLeastF32(Dtype dtype) { return IsHalf(dtype) ? Dtype::kF32 : dtype; }

// Numbers of rows (...), beside the rows (..., n) that they are of: (..., 1).
Value AsColumn(const Value& rows);

// The axis counted from the front; -1 when it is out of range.
int Axis(std::int64_t axis, std::size_t rank);
// kAxis of `input`; -1 where it is none of its axes. Kernels read the attribute as it stands, so it must count from the front: the
// functions of the maths see to that.
int AxisOf(const InferContext& c, const TensorType& input);
// All reduced axes, sorted, from kAxes (empty: all).
std::vector<int> Axes(const Op& op, std::size_t rank);

// What a convolution's attributes say of height and width.
struct ConvWindow {
  std::vector<std::int64_t> stride, padding, dilation = {1, 1};  // dilation: how far elements of the kernel lie apart
  std::int64_t groups = 1;
};
ConvWindow ConvWindowOf(const Op& op);
// The same of a pooling; what is padded counts as the least number for a maximum, as 0 for a mean.
struct PoolWindow {
  std::vector<std::int64_t> kernel, stride, padding = {0, 0};
};
PoolWindow PoolWindowOf(const Op& op);

}  // namespace ropewalk::mlrunner
