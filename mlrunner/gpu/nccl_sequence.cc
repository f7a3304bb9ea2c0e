#include "mlrunner/gpu/nccl_sequence.h"

#include <algorithm>
#include <string_view>

#include <fmt/format.h>

#include "mlrunner/collective/layout.h"
#include "mlrunner/gpu/gpu.h"

namespace ropewalk::mlrunner {
namespace {

std::string_view NameOf(NcclCall::Kind kind) {
  switch (kind) {
    case NcclCall::Kind::kAllReduce:
      return "allreduce";
    case NcclCall::Kind::kBroadcast:
      return "broadcast";
    case NcclCall::Kind::kReduce:
      return "reduce";
    case NcclCall::Kind::kReduceScatter:
      return "reduce_scatter";
    case NcclCall::Kind::kAllGather:
      return "allgather";
  }
  return "?";
}

std::string Describe(const NcclCall& call) {
  return fmt::format("{} {} of {} {}", NameOf(call.kind), call.number, call.count, Name(call.dtype));
}

}  // namespace

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
  waiting_.emplace(call.number, Waiting{call, {call.group.begin(), call.group.end()}});
  return StartWhole();
}

Status NcclSequence::Pass(std::uint64_t number) {
  RETURN_IF_ERROR(failed_);
  if (number != started_ || !waiting_.empty())
    return Status(Code::kInvalid, "GPU06", fmt::format("call {} is started out of its order", number),
                  fmt::format("{} have started, and {} wait to be", started_, waiting_.size()),
                  "start calls in the order of their numbers");
  ++started_;
  return {};
}

Status NcclSequence::StartWhole() {
  std::uint64_t end = started_;
  while (waiting_.contains(end)) {
    const bool ends = waiting_.at(end).call.ends_group || end - started_ + 1 == kGroupMax;
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

Status NcclSequence::Start(const Waiting& waiting) {
  const NcclCall& call = waiting.call;
  gpu::Element element = {};
  ToElement(call.dtype, &element);
  const auto count = static_cast<std::size_t>(call.count);
  std::int32_t code = 0;
  switch (call.kind) {
    case NcclCall::Kind::kAllReduce:
      code = table_->all_reduce(call.in, call.out, count, element, SumOf(call.op), comm_, stream_);
      break;
    case NcclCall::Kind::kBroadcast:
      code = table_->broadcast(call.in, call.out, count, element, call.root, comm_, stream_);
      break;
    case NcclCall::Kind::kReduce:
      code = table_->reduce(call.in, call.out, count, element, SumOf(call.op), call.root, comm_, stream_);
      break;
    case NcclCall::Kind::kReduceScatter:
    case NcclCall::Kind::kAllGather:
      code = StartParts(call, waiting.group, element);
      break;
  }
  return code == 0 ? Status() : Fail(code, Describe(call));
}

// NCCL's own forms are for parts of one length in the order of ranks. Any others are a collective for each part, within the group.
std::int32_t NcclSequence::StartParts(const NcclCall& call, std::span<const std::int32_t> group, gpu::Element element) {
  const bool scatters = call.kind == NcclCall::Kind::kReduceScatter;
  const auto ranks = static_cast<std::int32_t>(group.size());
  if (call.count % ranks == 0 && std::is_sorted(group.begin(), group.end())) {
    const auto each = static_cast<std::size_t>(call.count / ranks);
    return scatters ? table_->reduce_scatter(call.in, call.out, each, element, SumOf(call.op), comm_, stream_)
                    : table_->all_gather(call.in, call.out, each, element, comm_, stream_);
  }
  for (std::int32_t place = 0; place < ranks; ++place) {
    const collective::Extent part = collective::PartOf(call.count, ranks, place);
    if (part.count == 0) continue;  // on all ranks
    const bool is_mine = group[place] == call.rank;
    const auto count = static_cast<std::size_t>(part.count);
    const auto offset = static_cast<std::size_t>(part.offset) * SizeOf(call.dtype);
    const std::int32_t code = scatters ? table_->reduce(static_cast<const char*>(call.in) + offset, is_mine ? call.out : nullptr, count,
                                                        element, SumOf(call.op), group[place], comm_, stream_)
                                       : table_->broadcast(is_mine ? call.in : nullptr, static_cast<char*>(call.out) + offset, count,
                                                           element, group[place], comm_, stream_);
    if (code != 0) return code;
  }
  return 0;
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
