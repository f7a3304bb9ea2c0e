// The table of NCCL's functions: the calls as they are, with our numbers for types and sums.
#include "mlrunner/gpu/plugin/context.h"

#ifdef ROPEWALK_NCCL
#include <nccl.h>

#include <cstring>
#endif

namespace ropewalk::gpu {

#ifdef ROPEWALK_NCCL
namespace {

static_assert(sizeof(NcclId) == sizeof(ncclUniqueId));

ncclDataType_t TypeOf(Element element) {
  switch (element) {
    case Element::kF32:
      return ncclFloat32;
    case Element::kF64:
      return ncclFloat64;
    case Element::kF16:
      return ncclFloat16;
    case Element::kBF16:
      return ncclBfloat16;
    case Element::kI32:
      return ncclInt32;
    case Element::kI64:
      return ncclInt64;
    case Element::kU8:
      return ncclUint8;
  }
  return ncclNumTypes;  // NCCL refuses it
}

ncclRedOp_t SumOf(Sum sum) {
  switch (sum) {
    case Sum::kSum:
      return ncclSum;
    case Sum::kMin:
      return ncclMin;
    case Sum::kMax:
      return ncclMax;
    case Sum::kProd:
      return ncclProd;
    case Sum::kAvg:
      return ncclAvg;
  }
  return ncclNumOps;
}

ncclComm_t CommOf(NcclComm comm) { return static_cast<ncclComm_t>(comm); }

std::int32_t MakeId(NcclId* id) {
  ncclUniqueId made;
  const ncclResult_t result = ncclGetUniqueId(&made);
  std::memcpy(id, &made, sizeof made);
  return result;
}
std::int32_t Connect(NcclComm* comm, std::int32_t ranks, const NcclId* id, std::int32_t rank) {
  ncclUniqueId theirs;
  std::memcpy(&theirs, id, sizeof theirs);
  ncclComm_t made = nullptr;
  const ncclResult_t result = ncclCommInitRank(&made, ranks, theirs, rank);
  *comm = made;
  return result;
}
std::int32_t AsyncError(NcclComm comm, std::int32_t* error) {
  ncclResult_t found = ncclSuccess;
  const ncclResult_t result = ncclCommGetAsyncError(CommOf(comm), &found);
  *error = found;
  return result;
}
std::int32_t AllReduce(const void* in, void* out, std::size_t count, Element element, Sum sum, NcclComm comm, void* stream) {
  return ncclAllReduce(in, out, count, TypeOf(element), SumOf(sum), CommOf(comm), static_cast<cudaStream_t>(stream));
}
std::int32_t Broadcast(const void* in, void* out, std::size_t count, Element element, std::int32_t root, NcclComm comm, void* stream) {
  return ncclBroadcast(in, out, count, TypeOf(element), root, CommOf(comm), static_cast<cudaStream_t>(stream));
}
std::int32_t Reduce(const void* in, void* out, std::size_t count, Element element, Sum sum, std::int32_t root, NcclComm comm,
                    void* stream) {
  return ncclReduce(in, out, count, TypeOf(element), SumOf(sum), root, CommOf(comm), static_cast<cudaStream_t>(stream));
}
std::int32_t ReduceScatter(const void* in, void* out, std::size_t count, Element element, Sum sum, NcclComm comm, void* stream) {
  return ncclReduceScatter(in, out, count, TypeOf(element), SumOf(sum), CommOf(comm), static_cast<cudaStream_t>(stream));
}
std::int32_t AllGather(const void* in, void* out, std::size_t count, Element element, NcclComm comm, void* stream) {
  return ncclAllGather(in, out, count, TypeOf(element), CommOf(comm), static_cast<cudaStream_t>(stream));
}
std::int32_t Send(const void* in, std::size_t count, Element element, std::int32_t peer, NcclComm comm, void* stream) {
  return ncclSend(in, count, TypeOf(element), peer, CommOf(comm), static_cast<cudaStream_t>(stream));
}
std::int32_t Receive(void* out, std::size_t count, Element element, std::int32_t peer, NcclComm comm, void* stream) {
  return ncclRecv(out, count, TypeOf(element), peer, CommOf(comm), static_cast<cudaStream_t>(stream));
}

constexpr NcclTable kNccl = {
    .make_id = MakeId,
    .connect = Connect,
    .disconnect = [](NcclComm comm) -> std::int32_t { return ncclCommDestroy(CommOf(comm)); },
    .abort = [](NcclComm comm) -> std::int32_t { return ncclCommAbort(CommOf(comm)); },
    .async_error = AsyncError,
    .group_begin = []() -> std::int32_t { return ncclGroupStart(); },
    .group_end = []() -> std::int32_t { return ncclGroupEnd(); },
    .all_reduce = AllReduce,
    .broadcast = Broadcast,
    .reduce = Reduce,
    .reduce_scatter = ReduceScatter,
    .all_gather = AllGather,
    .send = Send,
    .receive = Receive,
    .text = [](std::int32_t code) { return ncclGetErrorString(static_cast<ncclResult_t>(code)); },
};

}  // namespace

const NcclTable* Nccl(Message*) { return &kNccl; }
#else
const NcclTable* Nccl(Message* why) {
  Fail(Failure::kUnsupported, why, "the plugin was built on a machine without NCCL");
  return nullptr;
}
#endif

}  // namespace ropewalk::gpu
