// A library's own allreduce (NCCL) as one step.
#include "mlrunner/collective/builders/builders.h"

namespace ropewalk::collective {
namespace {

Status DeclareNative(Header* header) {
  if (header->request.op == ReduceOp::kAvg)
    return Status(Code::kInvalid, "COLL10", "native: scale the sum of a native allreduce in a step of its own");
  DeclareInOut(header);
  return {};
}

void WriteNative(Writer& w) { w.Native(Collective::kAllreduce, w.At(kIn, w.Whole()), w.At(kOut, w.Whole())); }

}  // namespace

const Algorithm kNativeAllreduce{"native", Collective::kAllreduce, false, DeclareNative, WriteNative, PromiseAllreduce};

}  // namespace ropewalk::collective
