// A library's own collectives (NCCL) as one step each. Who a vector starts or ends with is the first of the step's group.
#include "mlrunner/collective/builders/builders.h"

#include <string>
#include <vector>

namespace ropewalk::collective {
namespace {

Status RefuseMean(const Header& header) {
  if (header.request.op != ReduceOp::kAvg) return {};
  return Status(Code::kInvalid, "COLL10",
                header.algorithm + ": a library's " + std::string(Name(header.request.collective)) + " makes no mean",
                "a native step is not scaled, and libraries differ in when they divide: NCCL multiplies before it adds, plans mostly after",
                "ask for the sum and divide it afterwards, in a step of its own or in the program");
}

Status DeclareAllreduce(Header* header) {
  RETURN_IF_ERROR(RefuseMean(*header));
  DeclareInOut(header);
  return {};
}
void WriteAllreduce(Writer& w) { w.Native(Collective::kAllreduce, w.At(kIn, w.Whole()), w.At(kOut, w.Whole())); }

Status DeclareReduceScatter(Header* header) {
  RETURN_IF_ERROR(RefuseMean(*header));
  DeclareInPartOut(header);
  return {};
}
void WriteReduceScatter(Writer& w) { w.Native(Collective::kReduceScatter, w.At(kIn, w.Whole()), w.At(kOut, PartAlone(w, w.rank()))); }

Status DeclareAllgather(Header* header) {
  DeclarePartInOut(header);
  return {};
}
void WriteAllgather(Writer& w) { w.Native(Collective::kAllgather, w.At(kIn, PartAlone(w, w.rank())), w.At(kOut, w.Whole())); }

// All ranks, from the root on.
void DeclareRooted(Header* header) {
  DeclareInOut(header);
  const std::int32_t ranks = header->request.ranks;
  std::vector<std::int32_t>& group = header->groups.emplace_back();
  for (std::int32_t place = 0; place < ranks; ++place) group.push_back((header->request.root + place) % ranks);
}
constexpr std::int32_t kFromRoot = 0;

Status DeclareBroadcast(Header* header) {
  DeclareRooted(header);
  return {};
}
void WriteBroadcast(Writer& w) { w.Native(Collective::kBroadcast, w.At(kIn, w.Whole()), w.At(kOut, w.Whole()), kFromRoot); }

Status DeclareReduce(Header* header) {
  RETURN_IF_ERROR(RefuseMean(*header));
  DeclareRooted(header);
  return {};
}
// Nobody but the root gets anything.
void WriteReduce(Writer& w) {
  const RangeId mine = w.rank() == w.request().root ? w.Whole() : w.Nothing();
  w.Native(Collective::kReduce, w.At(kIn, w.Whole()), w.At(kOut, mine), kFromRoot);
}

}  // namespace

const Algorithm kNativeAllreduce{"native", Collective::kAllreduce, false, DeclareAllreduce, WriteAllreduce, PromiseAllreduce};
const Algorithm kNativeReduceScatter{"native_reduce_scatter", Collective::kReduceScatter, false,
                                     DeclareReduceScatter,    WriteReduceScatter,         PromiseReduceScatter};
const Algorithm kNativeAllgather{"native_allgather", Collective::kAllgather, true, DeclareAllgather, WriteAllgather, PromiseAllgather};
const Algorithm kNativeBroadcast{"native_broadcast", Collective::kBroadcast, true, DeclareBroadcast, WriteBroadcast, PromiseBroadcast};
const Algorithm kNativeReduce{"native_reduce", Collective::kReduce, false, DeclareReduce, WriteReduce, PromiseReduce};

}  // namespace ropewalk::collective
