#include "mlrunner/collective/run/instance.h"

#include <algorithm>
#include <string>
#include <utility>

#include "mlrunner/collective/check/check.h"

namespace ropewalk::collective {
namespace {

constexpr std::size_t kAlign = 64;

bool CanRun(Op op) {
  switch (op) {
    case Op::kSend:
    case Op::kRecv:
    case Op::kCopy:
    case Op::kReduce:
    case Op::kRecvReduce:
    case Op::kRecvCopy:
    case Op::kRecvReduceSend:
    case Op::kRecvCopySend:
    case Op::kFlush:
    case Op::kLoop:
    case Op::kEndLoop:
      return true;
    default:
      return false;
  }
}

}  // namespace

Instance::Instance(const Header* header, const Program* program, Layout layout, Transport* transport)
    : header_(header), program_(program), layout_(std::move(layout)), transport_(transport) {}

Result<std::unique_ptr<Instance>> Instance::Make(const Header* header, const Program* program, const Sizes& sizes, Transport* transport) {
  RETURN_IF_ERROR(CheckProgram(*header, *program));
  for (const Step& step : program->steps) {
    bool slot_memory = step.to != kNone && step.dst == kNone &&
                       !(step.op == Op::kSend && step.scale == kNone && program->operands[step.first_operand].scale == kNone);
    if (!CanRun(step.op) || (slot_memory && step.op != Op::kFlush))
      return Status(Code::kInvalid, "COLL12", header->algorithm + ": " + std::string(Name(step.op)) + " cannot be run",
                    slot_memory ? "the result is sent and not stored" : "such steps are proved and simulated so far");
  }
  ASSIGN_OR_RETURN(Layout layout, Layout::Make(*header, *program, sizes));
  std::unique_ptr<Instance> instance(new Instance(header, program, std::move(layout), transport));
  const Layout& bound = instance->layout_;
  instance->interpreter_ = std::make_unique<Interpreter>(program, &instance->layout_);

  for (std::size_t b = 0; b < header->buffers.size(); ++b) {
    instance->memory_.push_back(nullptr);
    if (header->buffers[b].role != Role::kScratch) continue;
    const auto buffer = static_cast<std::int32_t>(b);
    auto bytes = static_cast<std::size_t>(bound.ElementsOf(buffer) * bound.BytesOfElement(buffer));
    if (bytes == 0) continue;
    instance->memory_.back() = transport->Allocate(bytes);
    if (instance->memory_.back() == nullptr)
      return Status(Code::kResourceExhausted, "COLL13", header->algorithm + ": no room for " + std::to_string(bytes) + " bytes of scratch",
                    "the transport's pool is full", "give it a larger pool, or cut the vector into segments");
  }

  instance->Prepare();
  return instance;
}

void Instance::Prepare() {
  const std::vector<std::int64_t> first(program_->loops.size());
  landings_.resize(program_->operands.size());
  turns_.resize(program_->operands.size());
  slots_.assign(program_->steps.size(), 1);
  std::size_t landing_bytes = 0, operands_max = 1;
  // Channels interleave, so each has its own place to land; steps of one channel share theirs.
  for (std::size_t c = 0; c < program_->channels.size(); ++c) {
    const Channel& channel = program_->channels[c];
    std::size_t begin = landing_bytes;
    for (std::int32_t s = channel.first_step; s < channel.first_step + channel.step_count; ++s) {
      const Step& step = program_->steps[s];
      operands_max = std::max<std::size_t>(operands_max, step.operand_count);
      for (const Edge& edge : program_->edges)
        if (edge.peer == step.to && edge.channel == static_cast<std::int32_t>(c)) slots_[s] = edge.slots;
      std::size_t at = begin;
      for (std::int32_t i = step.first_operand; i < step.first_operand + step.operand_count; ++i) {
        const Operand& operand = program_->operands[i];
        if (operand.peer == kNone) continue;
        for (std::int32_t j = step.first_operand; j < i; ++j) turns_[i] += program_->operands[j].peer == operand.peer;
        landings_[i] = at;
        // Segments get no longer: the first iteration's is the longest.
        std::int64_t longest =
            layout_.OfChunk(operand.chunk, first.data()).count * layout_.BytesOfElement(program_->chunks[operand.chunk].buffer);
        at += (static_cast<std::size_t>(longest) + kAlign - 1) / kAlign * kAlign;
      }
      landing_bytes = std::max(landing_bytes, at);
    }
  }
  if (landing_bytes > 0) landing_ = ProcessPages().Take(landing_bytes);
  rows_.resize(operands_max);
}

void Instance::Bind(std::span<void* const> buffers) {
  for (std::size_t b = 0; b < buffers.size() && b < memory_.size(); ++b)
    if (header_->buffers[b].role != Role::kScratch) memory_[b] = static_cast<char*>(buffers[b]);
}

Status Instance::Run() {
  Status status = RunToTheEnd();
  if (!status.ok()) transport_->Abort();
  return status;
}

Status Instance::RunToTheEnd() {
  interpreter_->Restart();
  for (;;) {
    Outcome outcome = interpreter_->Advance(*this);
    if (!transport_->status().ok()) return transport_->status();
    if (outcome == Outcome::kDone) break;
    transport_->Wait();
  }
  // The caller may write to its buffers as soon as this returns.
  for (const Edge& edge : program_->edges)
    while (!transport_->IsFlushed(edge.peer, edge.channel)) {
      if (!transport_->status().ok()) return transport_->status();
      transport_->Wait();
    }
  return {};
}

Dtype Instance::DtypeOf(std::int32_t buffer) const {
  switch (header_->buffers[buffer].element) {
    case Element::kPayload:
      return header_->request.dtype;
    case Element::kAccumulator:
      return header_->accumulator;
    case Element::kByte:
      return Dtype::kU8;
    case Element::kCount:
      return Dtype::kI64;
  }
  return Dtype::kU8;
}

char* Instance::PlaceOf(const Interpreter& at, std::int32_t chunk) const {
  std::int32_t buffer = program_->chunks[chunk].buffer;
  return memory_[buffer] + at.At(chunk).offset * layout_.BytesOfElement(buffer);
}

std::size_t Instance::BytesOf(const Interpreter& at, std::int32_t chunk) const {
  return static_cast<std::size_t>(at.At(chunk).count * layout_.BytesOfElement(program_->chunks[chunk].buffer));
}

Outcome Instance::Try(const Interpreter& at, const Step& step) {
  const std::int32_t channel = at.channel();
  if (step.op == Op::kFlush) return transport_->IsFlushed(step.to, channel) ? Outcome::kDone : Outcome::kBlocked;
  const Operand* operands = program_->operands.data() + step.first_operand;
  if (step.to != kNone && !transport_->HasSlot(step.to, channel, slots_[&step - program_->steps.data()])) return Outcome::kBlocked;

  // A message that is only stored lands where it belongs.
  const bool lands_in_place = step.operand_count == 1 && step.dst != kNone && operands[0].peer != kNone && operands[0].scale == kNone &&
                              step.scale == kNone &&
                              DtypeOf(program_->chunks[operands[0].chunk].buffer) == DtypeOf(program_->chunks[step.dst].buffer);
  for (std::int32_t i = 0; i < step.operand_count; ++i) {
    const Operand& operand = operands[i];
    Row& row = rows_[i];
    row.dtype = DtypeOf(program_->chunks[operand.chunk].buffer);
    row.scale = operand.scale == kNone ? 1 : header_->scales[operand.scale];
    if (operand.peer == kNone) {
      row.data = PlaceOf(at, operand.chunk);
      continue;
    }
    char* landing = lands_in_place ? PlaceOf(at, step.dst) : landing_.data() + landings_[step.first_operand + i];
    row.data = transport_->Peek(operand.peer, channel, static_cast<std::size_t>(turns_[step.first_operand + i]), landing,
                                BytesOf(at, operand.chunk));
    if (row.data == nullptr) return transport_->status().ok() ? Outcome::kBlocked : Outcome::kFailed;
  }
  if (step.dst != kNone)
    FoldRows(header_->op, header_->accumulator, {rows_.data(), static_cast<std::size_t>(step.operand_count)},
             step.scale == kNone ? 1 : header_->scales[step.scale], DtypeOf(program_->chunks[step.dst].buffer), PlaceOf(at, step.dst),
             at.At(step.dst).count);
  for (std::int32_t i = 0; i < step.operand_count; ++i) {
    if (operands[i].peer == kNone) continue;
    transport_->Consume(operands[i].peer, channel);
    if (trace_ != nullptr) trace_->push_back({false, channel, operands[i].peer, static_cast<std::int64_t>(BytesOf(at, operands[i].chunk))});
  }
  if (step.to != kNone) {
    const std::int32_t chunk = step.dst != kNone ? step.dst : operands[0].chunk;
    const std::size_t bytes = BytesOf(at, chunk);
    transport_->Post(step.to, channel, PlaceOf(at, chunk), bytes);
    if (trace_ != nullptr) trace_->push_back({true, channel, step.to, static_cast<std::int64_t>(bytes)});
  }
  return Outcome::kDone;
}

}  // namespace ropewalk::collective
