#include "mlrunner/gpu/nccl_backend.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "mlrunner/collective/layout.h"
#include "mlrunner/gpu/gpu.h"

namespace ropewalk::mlrunner {
namespace {

// How long an abort lets a call that is under way in NCCL come back by itself. One that does not waits for the rank that is lost, and only
// the abort ends it.
constexpr std::chrono::milliseconds kAbortPatience{200};

Status DeviceFailed(const gpu::Message& why) {
  return Status(Code::kUnavailable, "GPU04", "the GPU has failed", std::string(why.text, strnlen(why.text, sizeof why.text)),
                "the gang is formed anew");
}

bool KindOf(collective::Collective collective, NcclCall::Kind* kind) {
  switch (collective) {
    case collective::Collective::kAllreduce:
      return *kind = NcclCall::Kind::kAllReduce, true;
    case collective::Collective::kBroadcast:
      return *kind = NcclCall::Kind::kBroadcast, true;
    case collective::Collective::kReduce:
      return *kind = NcclCall::Kind::kReduce, true;
    case collective::Collective::kReduceScatter:
      return *kind = NcclCall::Kind::kReduceScatter, true;
    case collective::Collective::kAllgather:
      return *kind = NcclCall::Kind::kAllGather, true;
    default:
      return false;
  }
}

}  // namespace

// A call until it is done. Its end is told by a thread of CUDA's.
struct NcclBackend::Begun {
  std::mutex mutex;
  bool is_done = false;
  std::function<void()> wake;
  static void Done(void* data) {
    auto* begun = static_cast<Begun*>(data);
    // Under the mutex: who has seen that it is done may take away what `wake` touches.
    std::lock_guard lock(begun->mutex);
    begun->is_done = true;
    begun->wake();
  }
};

struct NcclBackend::Stream {
  std::int32_t channel = 0;
  gpu::NcclComm comm = nullptr;  // null: aborted
  void* stream = nullptr;
  std::unique_ptr<NcclSequence> sequence;
  std::map<std::uint64_t, std::unique_ptr<Begun>> begun;  // of the caller's thread
};

NcclBackend::NcclBackend(const NcclMeans& means, std::int32_t rank, std::int32_t ranks) : means_(means), rank_(rank), ranks_(ranks) {}

Result<std::unique_ptr<NcclBackend>> NcclBackend::Connect(const NcclMeans& means, const NcclRanks& ranks) {
  std::unique_ptr<NcclBackend> backend(new NcclBackend(means, ranks.rank, ranks.ranks));
  std::vector<gpu::NcclId> ids(ranks.channels.size());
  if (ranks.rank == 0) {
    for (gpu::NcclId& id : ids) {
      if (std::int32_t code = means.nccl->make_id(&id); code != 0)
        return Status(Code::kUnavailable, "GPU06", "NCCL failed: where its ranks meet", means.nccl->text(code));
    }
  }
  const std::size_t bytes = ids.size() * sizeof(gpu::NcclId);
  ASSIGN_OR_RETURN(std::vector<std::string> all,
                   ranks.exchange(ranks.rank == 0 ? std::string(reinterpret_cast<const char*>(ids.data()), bytes) : std::string()));
  if (all.empty() || all[0].size() != bytes)
    return Status(Code::kInvalid, "GPU06", "rank 0 has other channels for NCCL",
                  fmt::format("{} bytes came, and {} are {} channels", all.empty() ? 0 : all[0].size(), bytes, ids.size()),
                  "name the same channels on all ranks, and run one version on all");
  std::memcpy(ids.data(), all[0].data(), bytes);
  means.api->stream(means.context);  // this thread's device, where the communicators will live
  for (std::size_t i = 0; i < ids.size(); ++i) RETURN_IF_ERROR(backend->MakeStream(ranks.channels[i], ranks.rank, ids[i]));
  return backend;
}

Status NcclBackend::MakeStream(std::int32_t channel, std::int32_t rank, const gpu::NcclId& id) {
  auto stream = std::make_unique<Stream>();
  stream->channel = channel;
  gpu::Message why = {};
  if (means_.api->make_stream(means_.context, &stream->stream, &why) != gpu::Failure::kNone) return DeviceFailed(why);
  streams_.push_back(std::move(stream));
  Stream& made = *streams_.back();
  if (std::int32_t code = means_.nccl->connect(&made.comm, ranks_, &id, rank); code != 0) {
    made.comm = nullptr;
    return Status(Code::kUnavailable, "GPU06", fmt::format("NCCL failed: rank {} of {} is not connected", rank, ranks_),
                  means_.nccl->text(code), "the gang is formed anew");
  }
  made.sequence = std::make_unique<NcclSequence>(means_.nccl, made.comm, made.stream);
  return {};
}

NcclBackend::~NcclBackend() {
  const bool is_busy = std::any_of(streams_.begin(), streams_.end(), [](const auto& stream) { return !stream->begun.empty(); });
  if (is_busy) Abort(Status(Code::kCancelled, "GPU06", "NCCL's communicators are given up"));
  for (const auto& stream : streams_) {
    if (stream->comm != nullptr) means_.nccl->disconnect(stream->comm);  // nothing is left to fail
    means_.api->free_stream(means_.context, stream->stream);
  }
}

NcclBackend::Stream* NcclBackend::Find(std::int32_t channel) const {
  auto found = std::find_if(streams_.begin(), streams_.end(), [&](const auto& stream) { return stream->channel == channel; });
  return found == streams_.end() ? nullptr : found->get();
}

bool NcclBackend::IsAll(std::span<const std::int32_t> group) const {
  std::vector<bool> seen(static_cast<std::size_t>(ranks_), false);
  for (std::int32_t rank : group) {
    if (rank >= 0 && rank < ranks_) seen[static_cast<std::size_t>(rank)] = true;
  }
  return static_cast<std::int32_t>(group.size()) == ranks_ && std::find(seen.begin(), seen.end(), false) == seen.end();
}

Status NcclBackend::Check(const collective::NativeCall& call) {
  auto refuse = [&](const std::string& why) {
    return Status(Code::kInvalid, "COLL12", fmt::format("a native {} of {} cannot be run", Name(call.collective), Name(call.dtype)), why,
                  "choose another algorithm");
  };
  NcclCall::Kind kind = {};
  if (!KindOf(call.collective, &kind)) return refuse("NCCL is used for allreduce, reduce_scatter, allgather, broadcast and reduce");
  gpu::Element element = {};
  if (!ToElement(call.dtype, &element)) return refuse("NCCL has no such type");
  if (!IsAll(call.group)) return refuse("its group is not all ranks, and only they have a communicator");
  return {};
}

// Whose parts are as long as the library cuts them; all of them tell that of themselves.
Status NcclBackend::CheckParts(const collective::NativeCall& call) const {
  const bool scatters = call.collective == collective::Collective::kReduceScatter;
  if (!scatters && call.collective != collective::Collective::kAllgather) return {};
  const std::int64_t whole = scatters ? call.in_count : call.out_count, part = scatters ? call.out_count : call.in_count;
  const auto place = static_cast<std::int32_t>(std::find(call.group.begin(), call.group.end(), rank_) - call.group.begin());
  const std::int64_t expected = collective::PartOf(whole, ranks_, place).count;
  if (part == expected) return {};
  return Status(Code::kInvalid, "COLL12", fmt::format("a native {} with a part of {} elements", Name(call.collective), part),
                fmt::format("of {} elements for {} ranks {} are this one's", whole, ranks_, expected),
                "cut the vector as PartOf() does, or choose another algorithm");
}

Status NcclBackend::CheckMemory(const collective::NativeCall& call) const {
  // Only the root's vector is read in a broadcast, and no count says so.
  const bool reads = call.in_count > 0 && (call.collective != collective::Collective::kBroadcast || call.group[0] == rank_);
  for (const void* memory : {reads ? call.in : nullptr, call.out_count > 0 ? static_cast<const void*>(call.out) : nullptr}) {
    if (memory != nullptr && means_.api->is_on_device(means_.context, memory) == 0)
      return Status(Code::kInvalid, "COLL12", "a native collective of a vector in the host's memory", "NCCL reads and writes device memory",
                    "choose another algorithm");
  }
  return {};
}

Status NcclBackend::Aborted() {
  std::lock_guard lock(why_mutex_);
  return why_;
}

Status NcclBackend::Start(std::span<const collective::NativeCall> calls, const std::function<void()>& wake) {
  std::lock_guard lock(nccl_mutex_);
  RETURN_IF_ERROR(Aborted());
  for (const collective::NativeCall& call : calls) {
    RETURN_IF_ERROR(Check(call));
    RETURN_IF_ERROR(CheckParts(call));
    RETURN_IF_ERROR(CheckMemory(call));
    Stream* stream = Find(call.channel);
    if (stream == nullptr || stream->sequence->started() != call.sequence)
      return Status(Code::kInternal, "GPU06", fmt::format("NCCL is given call {} of channel {}", call.sequence, call.channel),
                    stream == nullptr ? "no communicator is for that channel"
                                      : fmt::format("the next of that channel is {}", stream->sequence->started()));
  }
  means_.api->stream(means_.context);
  // One group: were they begun one by one, NCCL might wait in the first for a rank that has begun another one first.
  RETURN_IF_ERROR(Group([&]() -> Status {
    for (const collective::NativeCall& call : calls) {
      NcclCall::Kind kind = {};
      KindOf(call.collective, &kind);  // Check() has seen that it is one
      RETURN_IF_ERROR(Find(call.channel)
                          ->sequence->Add({.kind = kind,
                                           .number = call.sequence,
                                           .in = call.in,
                                           .out = call.out,
                                           .count = std::max(call.in_count, call.out_count),
                                           .dtype = call.dtype,
                                           .op = call.op,
                                           .root = call.group[0],
                                           .rank = rank_,
                                           .group = call.group}));
    }
    return {};
  }));
  for (const collective::NativeCall& call : calls) RETURN_IF_ERROR(TellTheEnd(Find(call.channel), call.sequence, wake));
  return {};
}

Status NcclBackend::Group(const std::function<Status()>& calls) {
  auto failed = [&](std::int32_t code) {
    return code == 0 ? Status()
                     : Status(Code::kUnavailable, "GPU06", "NCCL failed: a group", means_.nccl->text(code), "the gang is formed anew");
  };
  RETURN_IF_ERROR(failed(means_.nccl->group_begin()));
  Status status = calls();
  // Ended whatever happened in it: the thread's next group would lie within it.
  Status ended = failed(means_.nccl->group_end());
  return status.ok() ? ended : status;
}

Status NcclBackend::TellTheEnd(Stream* stream, std::uint64_t sequence, const std::function<void()>& wake) {
  auto& begun = stream->begun[sequence];
  begun = std::make_unique<Begun>();
  begun->wake = wake;
  gpu::Message why = {};
  if (means_.api->notify(means_.context, stream->stream, Begun::Done, begun.get(), &why) != gpu::Failure::kNone) return DeviceFailed(why);
  return {};
}

// ---- rounds ----------------------------------------------------------------------------------------------------------------------------

Status NcclBackend::CheckRounds(const collective::NativeRounds& call) {
  auto refuse = [](const std::string& why) {
    return Status(Code::kInvalid, "COLL12", "rounds of sends and receives cannot be run by NCCL", why, "choose another algorithm");
  };
  if (!IsAll(call.group)) return refuse("they are not of all ranks, and only they have a communicator");
  for (const collective::RoundFold& fold : call.rounds->folds) {
    if (fold.row_count > gpu::kFoldRowsMax)
      return refuse(fmt::format("one folds {} vectors at once, and a kernel takes {}", fold.row_count, gpu::kFoldRowsMax));
  }
  return {};
}

Result<void*> NcclBackend::Allocate(std::size_t bytes) {
  void* memory = nullptr;
  gpu::Message why = {};
  const gpu::Failure failure = means_.api->allocate(means_.context, bytes, &memory, &why);
  if (failure == gpu::Failure::kOutOfMemory)
    return Status(Code::kResourceExhausted, "COLL13", fmt::format("no room for {} bytes of scratch on the device", bytes),
                  std::string(why.text, strnlen(why.text, sizeof why.text)), "give the device's pool more, or use smaller segments");
  // What had the memory before may still be at work, on the context's own stream, which ours do not wait for.
  if (failure != gpu::Failure::kNone || means_.api->synchronize(means_.context, &why) != gpu::Failure::kNone) return DeviceFailed(why);
  return memory;
}

void NcclBackend::Free(void* memory) { means_.api->release(means_.context, memory); }

Status NcclBackend::StartRounds(const collective::NativeRounds& call, const std::function<void()>& wake) {
  std::lock_guard lock(nccl_mutex_);
  RETURN_IF_ERROR(Aborted());
  RETURN_IF_ERROR(CheckRounds(call));
  for (std::size_t memory = 0; memory < call.memories.size(); ++memory) {
    if (call.rounds->memory_bytes[memory] > 0 && means_.api->is_on_device(means_.context, call.memories[memory]) == 0)
      return Status(Code::kInvalid, "COLL12", "rounds on a vector in the host's memory", "NCCL reads and writes device memory",
                    "choose another algorithm");
  }
  Stream* stream = Find(call.channel);
  if (stream == nullptr)
    return Status(Code::kInternal, "GPU06", fmt::format("NCCL is given rounds on channel {}", call.channel),
                  "no communicator is for that channel");
  RETURN_IF_ERROR(stream->sequence->Pass(call.sequence));
  means_.api->stream(means_.context);
  for (const collective::Round& round : call.rounds->rounds) {
    for (std::int32_t fold = round.first_fold; fold < round.first_fold + round.fold_count; ++fold)
      RETURN_IF_ERROR(StartFold(call, call.rounds->folds[static_cast<std::size_t>(fold)], stream));
    if (round.transfer_count > 0) RETURN_IF_ERROR(Group([&] { return StartGroup(call, round, stream); }));
  }
  return TellTheEnd(stream, call.sequence, wake);
}

Status NcclBackend::StartFold(const collective::NativeRounds& call, const collective::RoundFold& fold, Stream* stream) {
  auto at = [&](const collective::RoundPlace& place) {
    return static_cast<char*>(call.memories[static_cast<std::size_t>(place.memory)]) + place.offset_bytes;
  };
  gpu::FoldRow rows[gpu::kFoldRowsMax];
  for (std::int32_t i = 0; i < fold.row_count; ++i) {
    const collective::RoundRow& row = call.rounds->rows[static_cast<std::size_t>(fold.first_row + i)];
    rows[i] = {.data = at(row.from), .scale = row.scale, .element = {}};
    ToElement(row.dtype, &rows[i].element);
  }
  gpu::FoldCall told = {.sum = SumOf(call.op),
                        .accumulator = {},
                        .element = {},
                        .row_count = fold.row_count,
                        .rows = rows,
                        .scale = fold.scale,
                        .count = fold.count,
                        .out = at(fold.out)};
  ToElement(call.accumulator, &told.accumulator);
  ToElement(fold.dtype, &told.element);
  gpu::Message why = {};
  if (means_.api->fold(means_.context, stream->stream, &told, &why) != gpu::Failure::kNone) return DeviceFailed(why);
  return {};
}

Status NcclBackend::StartGroup(const collective::NativeRounds& call, const collective::Round& round, Stream* stream) {
  for (std::int32_t t = round.first_transfer; t < round.first_transfer + round.transfer_count; ++t) {
    const collective::Transfer& transfer = call.rounds->transfers[static_cast<std::size_t>(t)];
    char* at = static_cast<char*>(call.memories[static_cast<std::size_t>(transfer.place.memory)]) + transfer.place.offset_bytes;
    const auto count = static_cast<std::size_t>(transfer.count);
    gpu::Element element = {};
    ToElement(transfer.dtype, &element);
    const std::int32_t code = transfer.sends ? means_.nccl->send(at, count, element, transfer.peer, stream->comm, stream->stream)
                                             : means_.nccl->receive(at, count, element, transfer.peer, stream->comm, stream->stream);
    if (code != 0)
      return Status(Code::kUnavailable, "GPU06",
                    fmt::format("NCCL failed: {} of {} {} with rank {}", transfer.sends ? "a send" : "a receive", transfer.count,
                                Name(transfer.dtype), transfer.peer),
                    means_.nccl->text(code), "the gang is formed anew");
  }
  return {};
}

Result<bool> NcclBackend::IsDone(const collective::NativeCall& call) {
  Stream* stream = Find(call.channel);
  auto found = stream == nullptr ? std::map<std::uint64_t, std::unique_ptr<Begun>>::iterator() : stream->begun.find(call.sequence);
  if (stream == nullptr || found == stream->begun.end())
    return Status(Code::kInternal, "GPU06", fmt::format("NCCL is asked for call {} of channel {}", call.sequence, call.channel),
                  "it was not begun, or was done already");
  RETURN_IF_ERROR(Aborted());
  bool is_done = false;
  {
    std::lock_guard lock(found->second->mutex);
    is_done = found->second->is_done;
  }
  // Has it failed? An abort that is under way tells that by itself. A call that failed may look done.
  if (std::unique_lock lock(nccl_mutex_, std::try_to_lock); lock.owns_lock()) {
    RETURN_IF_ERROR(Aborted());
    RETURN_IF_ERROR(stream->sequence->Check());
    std::int32_t idle = 0;
    gpu::Message why = {};
    if (means_.api->is_idle(means_.context, stream->stream, &idle, &why) != gpu::Failure::kNone) return DeviceFailed(why);
  } else {
    return false;
  }
  if (is_done) stream->begun.erase(found);
  return is_done;
}

void NcclBackend::Abort(const Status& why) {
  std::lock_guard one(abort_mutex_);
  {
    std::lock_guard lock(why_mutex_);
    if (why_.ok()) why_ = why;
  }
  std::unique_lock lock(nccl_mutex_, std::try_to_lock);
  // By looks, since ThreadSanitizer does not see the waits of a timed_mutex.
  for (const auto until = std::chrono::steady_clock::now() + kAbortPatience; !lock && std::chrono::steady_clock::now() < until;) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    (void)lock.try_lock();
  }
  for (const auto& stream : streams_) {
    // Ends its kernels on the device; and with it goes the communicator.
    if (stream->comm != nullptr) means_.nccl->abort(std::exchange(stream->comm, nullptr));
  }
  for (const auto& stream : streams_) {
    gpu::Message failure = {};
    // A device that has failed touches no memory any more: either way the vectors are the caller's again.
    (void)means_.api->wait_stream(means_.context, stream->stream, &failure);
  }
}

}  // namespace ropewalk::mlrunner
