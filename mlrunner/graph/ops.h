// The built-in ops. Their definitions are in ops_*.cc, by kind.
//
// Thread rule: constants.
#pragma once

#include <vector>

#include "mlrunner/graph/op_def.h"

namespace ropewalk::mlrunner {

extern const OpDef kInput, kFirstVersion, kRead, kAssign, kIdentity, kStopGradient, kCustomGradient;
extern const OpDef kAdd, kSub, kMul, kDiv, kMaximum, kMinimum, kPow, kLess, kGreater, kEqual, kSelect;
extern const OpDef kNeg, kExp, kLog, kSqrt, kRsqrt, kTanh, kSigmoid, kErf, kSin, kCos, kAbs, kSign, kRelu, kIsFinite, kCast;
extern const OpDef kReshape, kTranspose, kBroadcastTo, kSlice, kPad, kConcat, kAt, kSetAt, kRelayout;
extern const OpDef kConstant, kFill, kIota, kDimSize, kRandomUniform;
extern const OpDef kReduceSum, kReduceMax, kArgMax, kMatMul;
extern const OpDef kConv2D, kConv2DInputGrad, kConv2DWeightGrad, kMaxPool2D, kMaxPool2DGrad, kAvgPool2D, kAvgPool2DGrad;
extern const OpDef kGather, kScatterAdd, kOneHot;
extern const OpDef kGelu, kGeluGrad, kGeluErf, kGeluErfGrad, kSoftmax, kSoftmaxGrad, kLogSoftmax, kCrossEntropy, kCrossEntropyGrad,
    kLayerNorm, kLayerNormGrad;
extern const OpDef kLstm, kLstmGrad;
extern const OpDef kSumRows, kBagsOf, kStackedRows, kAddRows, kAdagradRows, kPairDots, kPairDotsGrad;
extern const OpDef kTopK, kTopKGrad, kExpertSlots;
extern const OpDef kBinaryCrossEntropy, kBinaryCrossEntropyGrad;
extern const OpDef kBatchMoments, kBatchNorm, kBatchNormInference, kBatchNormSums, kBatchNormInputGrad;
extern const OpDef kAdamW, kMap;
extern const OpDef kWhile, kCond;
extern const OpDef kAllReduce, kAllGather, kReduceScatter, kSend, kRecv;
extern const OpDef kBucket;

const std::vector<const OpDef*>& BuiltinOps();

}  // namespace ropewalk::mlrunner
