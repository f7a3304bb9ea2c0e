#include "mlrunner/collective/run/call_label.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/escape.h"
#include "base/hash.h"

namespace ropewalk::collective {

std::uint64_t PlanFingerprint(const Header& header) {
  const Request& request = header.request;
  std::uint64_t hash = KeyHash64(header.algorithm);
  auto add = [&](std::uint64_t value) { hash = HashCombine(hash, value); };
  add(static_cast<std::uint64_t>(request.collective) | static_cast<std::uint64_t>(request.dtype) << 8 |
      static_cast<std::uint64_t>(request.op) << 16);
  add(static_cast<std::uint64_t>(request.root) << 32 | static_cast<std::uint32_t>(request.peer));
  add(static_cast<std::uint64_t>(request.segment_bytes));
  add(static_cast<std::uint64_t>(request.channels) << 32 | static_cast<std::uint32_t>(request.quorum) << 1 | request.deterministic);
  for (const Codec& codec : request.codecs) {
    add(KeyHash64(codec.name));
    add(static_cast<std::uint64_t>(codec.bits) << 32 | static_cast<std::uint64_t>(codec.bucket_elements));
    add(codec.error_feedback);
  }
  for (const auto& row : request.mixing)
    for (double weight : row) add(std::bit_cast<std::uint64_t>(weight));
  for (const auto& row : request.neighbors) {
    add(row.size());
    for (std::int32_t from : row) add(static_cast<std::uint64_t>(from));
  }
  for (const auto* ranks : {&request.nodes, &request.order}) {
    add(ranks->size());
    for (std::int32_t one : *ranks) add(static_cast<std::uint64_t>(one));
  }
  return hash;
}

CallLabel LabelOf(const Header& header, std::int64_t count, std::string_view name, std::uint64_t sequence) {
  return LabelOf(header, PlanFingerprint(header), count, name, sequence);
}

CallLabel LabelOf(const Header& header, std::uint64_t plan_fingerprint, std::int64_t count, std::string_view name, std::uint64_t sequence) {
  const Request& request = header.request;
  CallLabel label{.sequence = sequence,
                  .count = count,
                  .root = request.root,
                  .collective = static_cast<std::uint8_t>(request.collective),
                  .dtype = static_cast<std::uint8_t>(request.dtype),
                  .op = static_cast<std::uint8_t>(request.op),
                  .coded = static_cast<std::uint8_t>(!request.codecs.empty())};
  name.copy(label.name, sizeof(label.name));  // a name may be of no memory
  const std::uint64_t hash = HashCombine(HashCombine(plan_fingerprint, KeyHash64(name)), static_cast<std::uint64_t>(count));
  label.fingerprint = hash == 0 ? 1 : hash;
  return label;
}

CallLabel LabelOfWindow(const Header& header, std::uint64_t plan_fingerprint, std::int64_t count, std::string_view name,
                        std::int32_t window) {
  const bool is_relaxed = std::any_of(header.buffers.begin(), header.buffers.end(), [](const Buffer& buffer) { return buffer.relaxed; });
  CallLabel label = LabelOf(header, plan_fingerprint, count, is_relaxed ? std::string_view() : name, is_relaxed ? kUncounted : 0);
  name.copy(label.name, sizeof(label.name));  // a name may be of no memory
  label.fingerprint = HashCombine(label.fingerprint, static_cast<std::uint64_t>(window));
  if (label.fingerprint == 0) label.fingerprint = 1;
  return label;
}

std::string Describe(const CallLabel& label) {
  if (label.fingerprint == 0) return "no call";
  std::string name(label.name, strnlen(label.name, sizeof(label.name)));
  const bool is_known = label.collective <= static_cast<std::uint8_t>(kLastCollective);
  std::string text = is_known ? std::string(Name(Collective{label.collective})) : std::string("an unknown operation");
  if (!name.empty()) text += " \"" + EscapeForLog(name, sizeof(label.name)) + "\"";
  text += label.sequence == kUncounted ? std::string(" (") : " (call " + std::to_string(label.sequence) + ": ";
  if (is_known && Folds(Collective{label.collective}) && label.op <= static_cast<std::uint8_t>(ReduceOp::kAvg))
    text += std::string(Name(ReduceOp{label.op})) + " of ";
  text += std::to_string(label.count) + " ";
  text += label.dtype <= static_cast<std::uint8_t>(Dtype::kHandle) ? Name(Dtype{label.dtype}) : "elements";
  if (label.root != 0) text += ", root " + std::to_string(label.root);
  if (label.coded != 0) text += ", with a codec";
  return text + ")";
}

Status Mismatch(std::int32_t peer, const CallLabel& theirs, std::int32_t rank, const CallLabel& mine) {
  std::string there = Describe(theirs), here = Describe(mine);
  return Status(Code::kInvalid, "COLL21",
                "rank " + std::to_string(peer) + " is at " + there + ", rank " + std::to_string(rank) + " at " + here,
                there == here ? "they differ in algorithm, codec, destination, segments, mixing matrix, neighbours, order or window"
                              : "the ranks call different collectives",
                "make all ranks call the same in the same order");
}

}  // namespace ropewalk::collective
