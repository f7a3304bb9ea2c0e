#include <algorithm>
#include <string>

#include "mlrunner/collective/simulate.h"

namespace ropewalk::collective {
namespace {

std::string Number(std::int64_t scale, std::int64_t add) {
  std::string text = scale == 0 ? "" : scale == 1 ? "N" : std::to_string(scale) + "N";
  if (add != 0 || text.empty()) text += (text.empty() ? "" : "+") + std::to_string(add);
  return text;
}

std::string RangeText(const Shapes& shapes, std::int32_t id) {
  const Range& range = shapes.ranges[id];
  auto of = [&](std::int32_t other) { return RangeText(shapes, other); };
  switch (range.kind) {
    case RangeKind::kNothing:
      return "nothing";
    case RangeKind::kSpan:
      if (range.offset_scale == 0 && range.offset_add == 0 && range.count_scale == 1 && range.count_add == 0) return "all";
      return Number(range.offset_scale, range.offset_add) + ", +" + Number(range.count_scale, range.count_add);
    case RangeKind::kPart:
      return (range.run == 1 ? "part " + std::to_string(range.index)
                             : "parts " + std::to_string(range.index) + "-" + std::to_string(range.index + range.run - 1)) +
             "/" + std::to_string(range.parts) + (shapes.ranges[range.of].kind == RangeKind::kSpan ? "" : " of " + of(range.of));
    case RangeKind::kSegment:
      return of(range.of) + ", segment" +
             (range.lanes > 1 ? " lane " + std::to_string(range.lane) + "/" + std::to_string(range.lanes) : "");
    case RangeKind::kPlaced:
      return std::string(range.codec == kNone ? "" : "encoded ") + of(range.of) + " @" + std::to_string(range.index);
    case RangeKind::kTable:
      return "table " + std::to_string(range.row) + "→" + std::to_string(range.column);
    case RangeKind::kParameter:
      return "parameters " + std::to_string(range.row) + ", " + std::to_string(range.column);
  }
  return "?";
}

std::string ChunkText(const Header& header, const Shapes& shapes, std::int32_t id) {
  const Chunk& chunk = shapes.chunks[id];
  return header.buffers[chunk.buffer].name + "[" + RangeText(shapes, chunk.range) + "]";
}

std::string ScaleText(const Header& header, std::int32_t scale) {
  if (scale == kNone) return "";
  std::string text = std::to_string(header.scales[scale]);
  while (text.size() > 1 && text.back() == '0') text.pop_back();
  return text + "·";
}

std::string OperandsText(const Header& header, const Program& program, const Step& step) {
  std::string text;
  for (std::int32_t i = 0; i < step.operand_count; ++i) {
    const Operand& operand = program.operands[step.first_operand + i];
    if (i > 0) text += " + ";
    text += ScaleText(header, operand.scale);
    std::string value = operand.peer == kNone ? ChunkText(header, program, operand.chunk)
                                              : "rank " + std::to_string(operand.peer) + "'s " + ChunkText(header, program, operand.chunk);
    text += operand.decode ? "decoded(" + value + ")" : value;
  }
  return text;
}

std::string StepText(const Header& header, const Program& program, const Step& step) {
  std::string text(Name(step.op));
  text.resize(std::max<std::size_t>(text.size(), 17), ' ');
  switch (step.op) {
    case Op::kNotify:
      return text + "rank " + std::to_string(step.to) + ", counter " + std::to_string(step.counter);
    case Op::kWait:
      return text + "counter " + std::to_string(step.counter) + " ≥ " + std::to_string(step.threshold);
    case Op::kFlush:
      return text + "rank " + std::to_string(step.to);
    case Op::kNative:
      text += std::string(Name(step.native)) + " ";
      break;
    case Op::kGet:
      return text + ChunkText(header, program, step.dst) + " = rank " + std::to_string(step.to) + "'s " +
             ChunkText(header, program, step.remote);
    default:
      break;
  }
  std::string value = OperandsText(header, program, step);
  if (step.scale != kNone) value = ScaleText(header, step.scale) + "(" + value + ")";
  if (step.dst != kNone) text += ChunkText(header, program, step.dst) + " = ";
  text += value;
  if (step.remote != kNone) return text + " → rank " + std::to_string(step.to) + "'s " + ChunkText(header, program, step.remote);
  if (step.to != kNone) text += " → rank " + std::to_string(step.to);
  return text;
}

}  // namespace

std::string Explain(const Plan& plan, std::int32_t rank) {
  const Header& header = plan.header;
  const Request& request = header.request;
  std::string text = std::string(Name(request.collective)) + " by " + header.algorithm + ": " + std::string(Name(request.dtype)) + " " +
                     std::string(Name(request.op)) + ", " + std::to_string(request.ranks) + " ranks" +
                     (request.deterministic ? ", left fold over ranks" : "") + (plan.post.identical ? ", same bits everywhere" : "") + "\n";
  if (!request.order.empty()) {
    text += "  in the order of ranks";
    for (std::int32_t one : request.order) text += " " + std::to_string(one);
    text += "\n";
  }
  for (const Buffer& buffer : header.buffers)
    text += "  " + buffer.name + " (" + std::string(Name(buffer.role)) + ")" +
            (buffer.may_alias == kNone
                 ? ""
                 : (buffer.alias_at_part ? ", may be its part of " : ", may be ") + header.buffers[buffer.may_alias].name) +
            "\n";
  const Program& program = plan.programs[rank];
  text += "rank " + std::to_string(rank) + "\n";
  for (std::size_t c = 0; c < program.channels.size(); ++c) {
    const Channel& channel = program.channels[c];
    if (channel.step_count == 0) continue;
    text += "  channel " + std::to_string(c) + (channel.start == Start::kMessage ? ", started by a message" : "");
    for (const Edge& edge : program.edges)
      if (edge.channel == static_cast<std::int32_t>(c))
        text += ", " + std::to_string(edge.slots) + " slots to " + std::to_string(edge.peer);
    text += "\n";
    std::string indent = "  ";
    for (std::int32_t s = 0; s < channel.step_count; ++s) {
      const Step& step = program.steps[channel.first_step + s];
      if (step.op == Op::kEndLoop) indent.resize(indent.size() - 2);
      std::string number = std::to_string(s);
      text += std::string(number.size() < 4 ? 4 - number.size() : 0, ' ') + number + indent;
      if (step.op == Op::kLoop) {
        const Loop& loop = program.loops[step.loop];
        text +=
            loop.segment_bytes > 0 ? "for each segment of at most " + std::to_string(loop.segment_bytes) + " bytes" : std::string("once");
        indent += "  ";
      } else if (step.op == Op::kEndLoop) {
        text += "end";
      } else {
        text += StepText(header, program, step);
      }
      for (std::int32_t d = 0; d < step.dependency_count; ++d) {
        const Dependency& dependency = program.dependencies[step.first_dependency + d];
        text += "   after channel " + std::to_string(dependency.channel) + " step " + std::to_string(dependency.step);
      }
      text += "\n";
    }
  }
  return text;
}

}  // namespace ropewalk::collective
