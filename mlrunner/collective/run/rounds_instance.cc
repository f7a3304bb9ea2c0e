#include "mlrunner/collective/run/rounds_instance.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <string>
#include <utility>

namespace ropewalk::collective {

RoundsInstance::RoundsInstance(const Header* header, const RankRounds* rounds, NativeBackend* library)
    : header_(header), rounds_(rounds), library_(library), memories_(rounds->memory_bytes.size()) {
  for (std::int32_t rank = 0; rank < header->request.ranks; ++rank) group_.push_back(rank);
}

Result<std::unique_ptr<RoundsInstance>> RoundsInstance::Make(const Header* header, const RankRounds* rounds, NativeBackend* library) {
  std::unique_ptr<RoundsInstance> instance(new RoundsInstance(header, rounds, library));
  RETURN_IF_ERROR(library->CheckRounds(
      {.rounds = rounds, .op = header->op, .accumulator = header->accumulator, .group = instance->group_, .memories = {}}));
  for (std::size_t memory = 0; memory < instance->memories_.size(); ++memory) {
    const bool is_ours = memory >= header->buffers.size() || header->buffers[memory].role == Role::kScratch;
    if (!is_ours || rounds->memory_bytes[memory] == 0) continue;
    ASSIGN_OR_RETURN(instance->memories_[memory], library->Allocate(static_cast<std::size_t>(rounds->memory_bytes[memory])));
  }
  return instance;
}

RoundsInstance::~RoundsInstance() {
  // The library must not write to memory that goes with this object, or that the caller takes back.
  if (is_running_)
    library_->Abort(Status(Code::kCancelled, "COLL20", header_->algorithm + " is given up", "its instance was destroyed", ""));
  for (std::size_t memory = 0; memory < memories_.size(); ++memory) {
    const bool is_ours = memory >= header_->buffers.size() || header_->buffers[memory].role == Role::kScratch;
    if (is_ours && memories_[memory] != nullptr) library_->Free(memories_[memory]);
  }
}

// Rounds were proved for buffers apart and for those that lie in each other as the plan says, and for nothing else.
Status RoundsInstance::CheckPlaces() const {
  for (std::size_t a = 0; a < header_->buffers.size(); ++a)
    for (std::size_t b = 0; b < a; ++b) {
      const auto begin_a = reinterpret_cast<std::uintptr_t>(memories_[a]), begin_b = reinterpret_cast<std::uintptr_t>(memories_[b]);
      const auto bytes_a = static_cast<std::uintptr_t>(rounds_->memory_bytes[a]),
                 bytes_b = static_cast<std::uintptr_t>(rounds_->memory_bytes[b]);
      if (bytes_a == 0 || bytes_b == 0 || begin_a >= begin_b + bytes_b || begin_b >= begin_a + bytes_a) continue;
      const bool is_in_place = std::any_of(rounds_->aliases.begin(), rounds_->aliases.end(), [&](const RoundAlias& alias) {
        const auto inner = static_cast<std::size_t>(alias.memory), outer = static_cast<std::size_t>(alias.of);
        return ((inner == a && outer == b) || (inner == b && outer == a)) &&
               static_cast<char*>(memories_[inner]) == static_cast<char*>(memories_[outer]) + alias.offset_bytes;
      });
      if (is_in_place) continue;
      return Status(Code::kInvalid, "COLL10",
                    header_->algorithm + ": " + header_->buffers[b].name + " and " + header_->buffers[a].name + " overlap",
                    "they share memory in another way than in place, and results would be stored where numbers are still to be read",
                    "give each memory of its own, or lay one in the other as the plan allows it");
    }
  return {};
}

Status RoundsInstance::Bind(std::span<void* const> buffers) {
  for (std::size_t b = 0; b < std::min(buffers.size(), header_->buffers.size()); ++b)
    if (header_->buffers[b].role != Role::kScratch) memories_[b] = buffers[b];
  return CheckPlaces();
}

Status RoundsInstance::Start(const Call& call, const std::function<void()>& wake) {
  call_ = {.group = group_, .channel = call.channel, .sequence = call.sequence};
  RETURN_IF_ERROR(library_->StartRounds({.rounds = rounds_,
                                         .op = header_->op,
                                         .accumulator = header_->accumulator,
                                         .group = group_,
                                         .channel = call.channel,
                                         .sequence = call.sequence,
                                         .memories = memories_},
                                        wake));
  is_running_ = true;
  return {};
}

Result<bool> RoundsInstance::IsDone() {
  ASSIGN_OR_RETURN(const bool is_done, library_->IsDone(call_));
  if (is_done) is_running_ = false;
  return is_done;
}

Status RoundsInstance::Run(const Call& call) {
  struct Bell {
    std::mutex mutex;
    std::condition_variable rung;
    std::uint64_t rings = 0;
  } bell;
  auto run = [&]() -> Status {
    RETURN_IF_ERROR(Start(call, [&bell] {
      std::lock_guard lock(bell.mutex);
      ++bell.rings;
      bell.rung.notify_all();
    }));
    for (std::uint64_t heard = 0;;) {
      ASSIGN_OR_RETURN(const bool is_done, IsDone());
      if (is_done) return {};
      std::unique_lock lock(bell.mutex);
      // A device that has failed rings no more: looked at again now and then.
      bell.rung.wait_for(lock, std::chrono::milliseconds(100), [&] { return bell.rings != heard; });
      heard = bell.rings;
    }
  };
  Status status = run();
  if (!status.ok()) {
    // Nobody rings the bell from here on, and it goes.
    library_->Abort(status);
    is_running_ = false;
  }
  return status;
}

}  // namespace ropewalk::collective
