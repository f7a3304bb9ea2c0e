// A library's own allreduce (NCCL) as one step.
#include "mlrunner/collective/builders/builders.h"

namespace ropewalk::collective {
namespace {

Status DeclareNative(Header* header) {
  if (header->request.op == ReduceOp::kAvg)
    return Status(Code::kInvalid, "COLL10", "native: a library's allreduce makes no average",
                  "a native step is not scaled, and libraries differ in when they divide",
                  "ask for the sum and divide it afterwards, in a step of its own or in the program");
  DeclareInOut(header);
  return {};
}

void WriteNative(Writer& w) { w.Native(Collective::kAllreduce, w.At(kIn, w.Whole()), w.At(kOut, w.Whole())); }

}  // namespace

const Algorithm kNativeAllreduce{"native", Collective::kAllreduce, false, DeclareNative, WriteNative, PromiseAllreduce};

}  // namespace ropewalk::collective
