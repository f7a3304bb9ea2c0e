#include "mlrunner/gpu/nccl_sequence.h"

#include <fmt/format.h>

#include "mlrunner/gpu/gpu.h"

namespace ropewalk::mlrunner {
namespace {

gpu::Sum SumOf(collective::ReduceOp op) {
  switch (op) {
    case collective::ReduceOp::kSum:
      return gpu::Sum::kSum;
    case collective::ReduceOp::kMin:
      return gpu::Sum::kMin;
    case collective::ReduceOp::kMax:
      return gpu::Sum::kMax;
    case collective::ReduceOp::kProd:
      return gpu::Sum::kProd;
    case collective::ReduceOp::kAvg:
      return gpu::Sum::kAvg;
  }
  return gpu::Sum::kSum;
}

std::string Describe(const NcclCall& call) {
  return fmt::format("{} {} of {} {}", call.kind == NcclCall::Kind::kAllReduce ? "allreduce" : "broadcast", call.number, call.count,
                     Name(call.dtype));
}

}  // namespace

Status NcclSequence::Add(const NcclCall& call) {
  RETURN_IF_ERROR(failed_);
  gpu::Element element;
  if (!ToElement(call.dtype, &element) || call.count < 0)
    return Status(Code::kInvalid, "GPU06", "NCCL has no " + Describe(call), "its type is none of NCCL's, or it has less than no elements",
                  "send f32, f64, f16, bf16, i32, i64 or u8, and 0 elements or more");
  if (call.number < started_ || waiting_.contains(call.number))
    return Status(Code::kInvalid, "GPU06", "a second collective with the number of " + Describe(call),
                  fmt::format("each number is a call's own, and all below {} have started", started_),
                  "count calls on: all ranks give the same call the same number");
  if (waiting_.size() >= kWaitingMax && call.number != started_)  // the one that is missing always has room
    return Status(Code::kResourceExhausted, "GPU06", fmt::format("{} collectives wait to be started", waiting_.size()),
                  fmt::format("number {} has not come", started_), "make that call, or stop numbering calls that are not made");
  waiting_.emplace(call.number, call);
  return StartWhole();
}

Status NcclSequence::StartWhole() {
  std::uint64_t end = started_;
  while (waiting_.contains(end)) {
    const bool ends = waiting_.at(end).ends_group || end - started_ + 1 == kGroupMax;
    ++end;
    if (ends) RETURN_IF_ERROR(StartGroup(end));
  }
  return {};
}

Status NcclSequence::StartGroup(std::uint64_t end) {
  const std::string group = fmt::format("collectives {} to {}", started_, end - 1);
  if (std::int32_t code = table_->group_begin(); code != 0) return Fail(code, "the group of " + group);
  Status status;
  for (; started_ < end; ++started_) {
    if (status.ok()) status = Start(waiting_.at(started_));
    waiting_.erase(started_);
  }
  // A group that was begun is ended, whatever happened in it: the thread's next one would lie within it.
  const std::int32_t code = table_->group_end();
  if (status.ok() && code != 0) status = Fail(code, "the group of " + group);
  return status;
}

Status NcclSequence::Start(const NcclCall& call) {
  gpu::Element element = {};
  ToElement(call.dtype, &element);
  const auto count = static_cast<std::size_t>(call.count);
  const std::int32_t code = call.kind == NcclCall::Kind::kAllReduce
                                ? table_->all_reduce(call.in, call.out, count, element, SumOf(call.op), comm_, stream_)
                                : table_->broadcast(call.in, call.out, count, element, call.root, comm_, stream_);
  return code == 0 ? Status() : Fail(code, Describe(call));
}

Status NcclSequence::Check() {
  RETURN_IF_ERROR(failed_);
  std::int32_t error = 0;
  if (std::int32_t code = table_->async_error(comm_, &error); code != 0) return Fail(code, "asking a communicator how it is");
  return error == 0 ? Status() : Fail(error, "a collective that was started");
}

Status NcclSequence::Fail(std::int32_t code, const std::string& what) {
  failed_ = Status(Code::kUnavailable, "GPU06", "NCCL failed: " + what, fmt::format("{} (code {})", table_->text(code), code),
                   "the gang is formed anew");
  return failed_;
}

}  // namespace ropewalk::mlrunner
