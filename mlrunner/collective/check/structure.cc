#include <algorithm>
#include <string>
#include <vector>

#include "mlrunner/collective/check/check.h"

namespace ropewalk::collective {
namespace {

// Which parts an operation has; everything else must be absent.
struct Form {
  int local_min, local_max, peer_min, peer_max;  // operands
  bool dst_needed, dst_allowed, to_needed, remote_needed;
};

constexpr int kMany = 1 << 20;

Form FormOf(Op op) {
  switch (op) {
    case Op::kSend:
      return {1, 1, 0, 0, false, false, true, false};
    case Op::kRecv:
    case Op::kRecvCopy:
      return {0, 0, 1, 1, true, true, false, false};
    case Op::kCopy:
      return {1, 1, 0, 0, true, true, false, false};
    case Op::kReduce:
      return {1, kMany, 0, 0, true, true, false, false};
    case Op::kRecvReduce:
      return {0, kMany, 1, kMany, true, true, false, false};
    case Op::kRecvReduceSend:
      return {0, kMany, 1, kMany, false, true, true, false};
    case Op::kRecvCopySend:
      return {0, 0, 1, 1, false, true, true, false};
    case Op::kEncode:
      return {1, 1, 0, 0, true, true, false, false};
    case Op::kDecode:
      return {0, kMany, 0, kMany, true, true, false, false};
    case Op::kPut:
    case Op::kAccumulate:
      return {1, 1, 0, 0, false, false, true, true};
    case Op::kGet:
      return {0, 0, 0, 0, true, true, true, true};
    case Op::kNotify:
    case Op::kFlush:
      return {0, 0, 0, 0, false, false, true, false};
    case Op::kWait:
    case Op::kLoop:
    case Op::kEndLoop:
      return {0, 0, 0, 0, false, false, false, false};
    case Op::kContribute:
      return {1, 2, 0, 0, true, true, false, false};
    case Op::kCounts:
      return {1, 1, 0, 0, false, false, false, false};
    case Op::kNative:
      return {1, 1, 0, 0, true, true, false, false};
  }
  return {};
}

class Structure {
 public:
  Structure(const Header& header, const Program& program) : header_(header), program_(program) {}

  Status Check() {
    if (!Is(program_.rank, header_.request.ranks)) return Bad("the program of rank " + std::to_string(program_.rank));
    std::int32_t next = 0;
    if (static_cast<std::int32_t>(program_.channels.size()) != header_.channel_count) return Bad("the number of channels");
    for (std::size_t c = 0; c < program_.channels.size(); ++c) {
      const Channel& channel = program_.channels[c];
      if (channel.first_step != next || channel.step_count < 0) return Bad("channels do not follow each other");
      next += channel.step_count;
      if (next > static_cast<std::int32_t>(program_.steps.size())) return Bad("channels have more steps than there are");
      std::vector<std::int32_t> open;
      for (std::int32_t s = 0; s < channel.step_count; ++s) {
        channel_ = static_cast<std::int32_t>(c);
        open_loops_.clear();
        for (std::int32_t begin : open) open_loops_.push_back(program_.steps[channel.first_step + begin].loop);
        const Step& step = program_.steps[channel.first_step + s];
        RETURN_IF_ERROR(CheckStep(step).WithContext("rank " + std::to_string(program_.rank) + ", channel " + std::to_string(c) + ", step " +
                                                    std::to_string(s) + " (" + std::string(Name(step.op)) + ")"));
        if (step.op == Op::kLoop) open.push_back(s);
        if (step.op == Op::kEndLoop) {
          if (open.empty() || step.jump != open.back() || program_.steps[channel.first_step + open.back()].loop != step.loop)
            return Bad("a loop that ends and did not begin");
          open.pop_back();
        }
      }
      if (!open.empty()) return Bad("a loop that never ends");
    }
    if (next != static_cast<std::int32_t>(program_.steps.size())) return Bad("steps that belong to no channel");
    for (const Edge& edge : program_.edges)
      if (!IsPeer(edge.peer) || !Is(edge.channel, header_.channel_count) || edge.slots < 0) return Bad("an edge");
    return {};
  }

 private:
  static bool Is(std::int32_t index, std::size_t size) { return index >= 0 && index < static_cast<std::int32_t>(size); }
  bool IsPeer(std::int32_t rank) const { return Is(rank, header_.request.ranks) && rank != program_.rank; }
  bool IsChunk(std::int32_t chunk) const {
    return Is(chunk, program_.chunks.size()) && Is(program_.chunks[chunk].buffer, header_.buffers.size()) &&
           Is(program_.chunks[chunk].range, program_.ranges.size()) && StandsInItsLoops(program_.chunks[chunk].range);
  }
  // A segment of a loop that the channel is not in would depend on how far another channel has come.
  bool StandsInItsLoops(std::int32_t id) const {
    const Range& range = program_.ranges[id];
    if (range.kind == RangeKind::kSegment && std::find(open_loops_.begin(), open_loops_.end(), range.loop) == open_loops_.end())
      return false;
    bool of = range.of < 0 || range.of >= id || StandsInItsLoops(range.of);
    return of && (range.stride_of < 0 || range.stride_of >= id || StandsInItsLoops(range.stride_of));
  }
  bool IsScale(std::int32_t scale) const { return scale == kNone || Is(scale, header_.scales.size()); }
  Element ElementOf(std::int32_t chunk) const { return header_.buffers[program_.chunks[chunk].buffer].element; }
  static Status Bad(const std::string& what) {
    return Status(Code::kInvalid, "COLL02", what, "the program names what does not exist", "mend the builder");
  }

  Status CheckStep(const Step& step) {
    const Form form = FormOf(step.op);
    const std::size_t operands_end = static_cast<std::size_t>(step.first_operand) + step.operand_count;
    const std::size_t dependencies_end = static_cast<std::size_t>(step.first_dependency) + step.dependency_count;
    if (step.first_operand < 0 || step.operand_count < 0 || operands_end > program_.operands.size()) return Bad("operands");
    if (step.first_dependency < 0 || step.dependency_count < 0 || dependencies_end > program_.dependencies.size())
      return Bad("dependencies");
    int local = 0, remote = 0;
    for (std::size_t i = step.first_operand; i < operands_end; ++i) {
      const Operand& operand = program_.operands[i];
      if (!IsChunk(operand.chunk) || !IsScale(operand.scale)) return Bad("an operand");
      if (operand.peer != kNone && !IsPeer(operand.peer)) return Bad("an operand's peer");
      if (operand.decode && (step.op != Op::kDecode || ElementOf(operand.chunk) != Element::kByte)) return Bad("what is decoded");
      if (!operand.decode && step.op != Op::kEncode && step.operand_count > 1 && ElementOf(operand.chunk) == Element::kByte)
        return Bad("bytes cannot be folded");
      ++(operand.peer == kNone ? local : remote);
    }
    if (local < form.local_min || local > form.local_max || remote < form.peer_min || remote > form.peer_max ||
        (local + remote == 0 && form.local_max + form.peer_max > 0))
      return Bad("number of operands");
    if (step.dst == kNone ? form.dst_needed : !form.dst_allowed || !IsChunk(step.dst)) return Bad("dst");
    const bool to_self = step.op == Op::kNotify || step.op == Op::kPut || step.op == Op::kAccumulate || step.op == Op::kGet;
    const bool to_allowed = form.to_needed || step.op == Op::kEncode;
    if (step.to == kNone ? form.to_needed : !to_allowed || !(to_self ? Is(step.to, header_.request.ranks) : IsPeer(step.to)))
      return Bad("to");
    if (form.remote_needed != (step.remote != kNone) || (form.remote_needed && !IsChunk(step.remote))) return Bad("remote");
    if (step.aux != kNone && (!IsChunk(step.aux) || (step.op != Op::kEncode && step.op != Op::kContribute))) return Bad("aux");
    if (!IsScale(step.scale)) return Bad("scale");
    if (step.op == Op::kEncode || step.op == Op::kDecode) {
      if (!Is(step.codec, header_.request.codecs.size())) return Bad("codec");
      if (step.op == Op::kEncode && ElementOf(step.dst) != Element::kByte) return Bad("encoded into what are not bytes");
    }
    if (step.op == Op::kNotify || step.op == Op::kWait)
      if (!Is(step.counter, header_.counter_count)) return Bad("counter");
    if (step.op == Op::kCounts && ElementOf(program_.operands[step.first_operand].chunk) != Element::kCount) return Bad("counts");
    if (step.column != kNone && (step.op != Op::kCounts || !Is(step.column, header_.request.ranks)))
      return Bad("a column of the count table");
    if (IsLoop(step.op) && !Is(step.loop, program_.loops.size())) return Bad("loop");
    if (step.group != kNone && !Is(step.group, header_.groups.size())) return Bad("group");
    for (std::size_t i = step.first_dependency; i < dependencies_end; ++i) {
      const Dependency& dependency = program_.dependencies[i];
      if (!Is(dependency.channel, program_.channels.size()) || !Is(dependency.step, program_.channels[dependency.channel].step_count) ||
          dependency.lag < kAllTrips)
        return Bad("a dependency");
      const std::size_t target = static_cast<std::size_t>(program_.channels[dependency.channel].first_step) + dependency.step;
      if (target >= program_.steps.size() || IsLoop(program_.steps[target].op)) return Bad("a dependency on no step");
    }
    if (form.to_needed && step.op != Op::kNotify && step.op != Op::kFlush && step.remote == kNone && !HasEdge(step.to))
      return Bad("there is no edge to " + std::to_string(step.to));
    return {};
  }

  bool HasEdge(std::int32_t peer) const {
    for (const Edge& edge : program_.edges)
      if (edge.peer == peer && edge.channel == channel_) return true;
    return false;
  }

  const Header& header_;
  const Program& program_;
  std::int32_t channel_ = 0;
  std::vector<std::int32_t> open_loops_;
};

}  // namespace

Status CheckProgram(const Header& header, const Program& program) { return Structure(header, program).Check(); }

}  // namespace ropewalk::collective
