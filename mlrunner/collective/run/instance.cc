#include "mlrunner/collective/run/instance.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <string>
#include <utility>

#include "mlrunner/collective/check/check.h"
#include "mlrunner/collective/run/codecs.h"

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
    case Op::kEncode:
    case Op::kDecode:
    case Op::kCounts:
    case Op::kFlush:
    case Op::kContribute:
    case Op::kPut:
    case Op::kGet:
    case Op::kAccumulate:
    case Op::kNotify:
    case Op::kWait:
    case Op::kNative:
    case Op::kLoop:
    case Op::kEndLoop:
      return true;
  }
  return false;
}

// What goes past the edges.
bool IsOneSided(Op op) { return op == Op::kPut || op == Op::kGet || op == Op::kAccumulate || op == Op::kNotify; }

// A message that is only stored lands where it belongs.
bool LandsInPlace(const Step& step, const Program& program) {
  const Operand& operand = program.operands[step.first_operand];
  return step.op != Op::kDecode && step.operand_count == 1 && step.dst != kNone && operand.peer != kNone && operand.scale == kNone &&
         step.scale == kNone;
}

// The chunk that goes to `to`; kNone: none does.
std::int32_t SentBy(const Step& step, const Program& program) {
  if (step.to == kNone || step.op == Op::kFlush || IsOneSided(step.op)) return kNone;
  return step.dst != kNone ? step.dst : program.operands[step.first_operand].chunk;
}

}  // namespace

Instance::Instance(const Header* header, const Program* program, Layout layout, Transport* transport, const Means& means)
    : header_(header),
      plan_fingerprint_(PlanFingerprint(*header)),
      program_(program),
      layout_(std::move(layout)),
      transport_(transport),
      means_(means),
      natives_(program->channels.size()),
      native_calls_(program->channels.size()),
      missing_(program->channels.size(), kNone) {
  for (std::int32_t rank = 0; rank < header->request.ranks; ++rank) all_ranks_.push_back(rank);
  ready_.reserve(program->channels.size());
  windows_.assign(header->buffers.size(), -1);
  const bool has_windows =
      std::any_of(header->buffers.begin(), header->buffers.end(), [](const Buffer& buffer) { return buffer.role == Role::kWindow; });
  is_one_sided_ = has_windows || header->counter_count > 0;
  if (has_windows && header->counter_count > 0) to_tell_ = ToTell();
  // A label is shown on all that messages may come on, also where this rank takes none.
  channels_ = is_one_sided_ ? CountChannels() : header->channel_count;
  column_ = program->rank;
  for (const Step& step : program->steps) {
    if (step.op == Op::kContribute) contribution_ = &step;
    is_native_ = is_native_ || step.op == Op::kNative;
    if (step.op == Op::kCounts && step.column != kNone) column_ = step.column;
  }
  for (std::size_t b = 0; b < header->buffers.size(); ++b)
    if (header->buffers[b].role == Role::kIn && header->buffers[b].element == Element::kCount)
      counts_ = layout_.ElementsOf(static_cast<std::int32_t>(b));
}

// Channels whose steps only wait, put or notify need none of the transport's.
std::int32_t Instance::CountChannels() const {
  std::int32_t count = 0;
  for (const Edge& edge : program_->edges) count = std::max(count, edge.channel + 1);
  for (std::size_t c = 0; c < program_->channels.size(); ++c)
    for (std::int32_t s = 0; s < program_->channels[c].step_count; ++s) {
      const Step& step = program_->steps[program_->channels[c].first_step + s];
      bool needs = step.op == Op::kNative;
      for (std::int32_t i = step.first_operand; i < step.first_operand + step.operand_count; ++i)
        needs = needs || program_->operands[i].peer != kNone;
      if (needs) count = std::max(count, static_cast<std::int32_t>(c) + 1);
    }
  return count;
}

// Who is told by a put, a counter or a message before needs no more.
std::vector<std::int32_t> Instance::ToTell() const {
  std::vector<bool> is_told(header_->request.ranks);
  for (const Step& step : program_->steps) {
    if (step.op == Op::kWait) break;
    if (step.to != kNone && step.op != Op::kFlush) is_told[step.to] = true;
  }
  std::vector<std::int32_t> to_tell;
  for (std::int32_t peer = 0; peer < static_cast<std::int32_t>(means_.raises.size()); ++peer)
    if (peer != program_->rank && means_.raises[peer] > 0 && !is_told[peer]) to_tell.push_back(peer);
  return to_tell;
}

Result<std::unique_ptr<Instance>> Instance::Make(const Header* header, const Program* program, const Sizes& sizes, Transport* transport,
                                                 const Means& means) {
  RETURN_IF_ERROR(CheckProgram(*header, *program));
  for (const Step& step : program->steps) {
    bool slot_memory = step.to != kNone && step.dst == kNone &&
                       !(step.op == Op::kSend && step.scale == kNone && program->operands[step.first_operand].scale == kNone);
    if (!CanRun(step.op) || (slot_memory && step.op != Op::kFlush && !IsOneSided(step.op)))
      return Status(Code::kInvalid, "COLL12", header->algorithm + ": " + std::string(Name(step.op)) + " cannot be run",
                    slot_memory ? "the result is sent and not stored" : "there is no machine for such steps",
                    slot_memory ? "mend the builder: give the step a scratch buffer as `dst`; it is sent from there"
                                : "mend the builder: make it of steps that can be run, or add a machine in run/instance.cc");
  }
  for (const Codec& codec : header->request.codecs) RETURN_IF_ERROR(CheckCodec(codec));
  if (!header->request.codecs.empty() && header->accumulator != Dtype::kF32)
    return Status(Code::kInvalid, "COLL12",
                  header->algorithm + ": codecs of " + std::string(Name(header->request.dtype)) + " cannot be run",
                  "they are for f32, f16 and bf16", "convert the vector to one of these, or leave the codec out");
  ASSIGN_OR_RETURN(Layout layout, Layout::Make(*header, *program, sizes));
  for (const Step& step : program->steps)
    for (std::int32_t i = step.first_operand; i < step.first_operand + step.operand_count; ++i)
      if (program->operands[i].peer != kNone && !LandsInPlace(step, *program) &&
          layout.IsCounted(program->chunks[program->operands[i].chunk].range))
        return Status(Code::kInvalid, "COLL12", header->algorithm + ": " + std::string(Name(step.op)) + " cannot be run",
                      "its message has a length that is learned at run time, and no place to land",
                      "mend the builder: receive it unscaled into a buffer (recv), and use it from there");
  std::unique_ptr<Instance> instance(new Instance(header, program, std::move(layout), transport, means));
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

  if (instance->is_one_sided_ && means.one_sided == nullptr)
    return Status(Code::kInvalid, "COLL12", header->algorithm + ": windows and counters cannot be run", "nobody here does one-sided work",
                  "run it through a communicator");
  for (const Step& step : program->steps) {
    if (step.op == Op::kNative) RETURN_IF_ERROR(instance->CheckNative(step));
    if (IsOneSided(step.op) && step.op != Op::kNotify) RETURN_IF_ERROR(instance->CheckOneSided(step));
  }
  RETURN_IF_ERROR(instance->Prepare());
  return instance;
}

Instance::~Instance() {
  // The library must not write to memory that goes with this object, or that the caller takes back.
  if (std::find(natives_.begin(), natives_.end(), Native::kStarted) != natives_.end())
    means_.native->Abort(Status(Code::kCancelled, "COLL20", header_->algorithm + " is given up", "its instance was destroyed", ""));
  for (std::size_t b = 0; b < memory_.size(); ++b)
    if (header_->buffers[b].role == Role::kScratch) transport_->Free(memory_[b]);
  for (Stage& stage : stages_) transport_->Free(stage.memory);
  transport_->Free(landing_);
}

bool Instance::IsInScratch(std::int32_t chunk) const {
  const Chunk& sent = program_->chunks[chunk];
  return header_->buffers[sent.buffer].role == Role::kScratch || program_->ranges[sent.range].kind == RangeKind::kNothing;
}

void Instance::MeasureStages() {
  const std::vector<std::int64_t> first(program_->loops.size());
  for (Stage& stage : stages_) stage.each_bytes = 0;
  for (std::size_t s = 0; s < program_->steps.size(); ++s) {
    const std::int32_t sent = SentBy(program_->steps[s], *program_);
    if (sent == kNone) continue;
    const std::int64_t bytes = layout_.OfChunk(sent, first.data()).count * layout_.BytesOfElement(program_->chunks[sent].buffer);
    Stage& stage = stages_[edges_[s]];
    stage.each_bytes = std::max(stage.each_bytes, (static_cast<std::size_t>(bytes) + kAlign - 1) / kAlign * kAlign);
  }
}

Status Instance::Prepare() {
  const std::vector<std::int64_t> first(program_->loops.size());
  landings_.resize(program_->operands.size());
  turns_.resize(program_->operands.size());
  edges_.assign(program_->steps.size(), 0);
  stages_.resize(program_->edges.size());
  leaves_scratch_.assign(program_->edges.size(), means_.leaves_scratch);
  left_.reserve(program_->edges.size());
  is_private_.resize(header_->buffers.size());
  std::size_t landing_bytes = 0, operands_max = 1;
  std::int64_t decoded_count = 0;
  // Channels interleave, so each has its own place to land; steps of one channel share theirs.
  for (std::size_t c = 0; c < program_->channels.size(); ++c) {
    const Channel& channel = program_->channels[c];
    std::size_t begin = landing_bytes;
    for (std::int32_t s = channel.first_step; s < channel.first_step + channel.step_count; ++s) {
      const Step& step = program_->steps[s];
      operands_max = std::max<std::size_t>(operands_max, step.operand_count);
      for (std::size_t e = 0; e < program_->edges.size(); ++e) {
        const Edge& edge = program_->edges[e];
        if (edge.peer != step.to || edge.channel != static_cast<std::int32_t>(c)) continue;
        edges_[s] = static_cast<std::int32_t>(e);
        const std::int32_t sent = SentBy(step, *program_);
        leaves_scratch_[e] = leaves_scratch_[e] && (sent == kNone || IsInScratch(sent));
      }
      if (step.op == Op::kEncode)
        decoded_count = std::max(decoded_count, layout_.OfChunk(program_->operands[step.first_operand].chunk, first.data()).count);
      if (step.op == Op::kDecode)
        decoded_count = std::max(decoded_count, layout_.OfChunk(step.dst, first.data()).count * step.operand_count);
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
  if (landing_bytes > 0 && transport_->LandsMessages()) {
    landing_ = transport_->Allocate(landing_bytes);
    if (landing_ == nullptr)
      return Status(Code::kResourceExhausted, "COLL13",
                    header_->algorithm + ": no room for " + std::to_string(landing_bytes) + " bytes where messages land",
                    "the transport's pool is full", "give it a larger pool (pool_bytes), or use smaller segments (segment_bytes)");
  }
  decoded_.resize(static_cast<std::size_t>(decoded_count));
  rows_.resize(operands_max);
  MeasureStages();
  return {};
}

Status Instance::SetCounts(std::span<const std::int64_t> counts, std::int64_t room) {
  const auto needed = static_cast<std::size_t>(counts_);
  const auto negative = std::find_if(counts.begin(), counts.end(), [](std::int64_t count) { return count < 0; });
  if (counts.size() != needed || negative != counts.end())
    return Status(Code::kInvalid, "COLL01", header_->algorithm + ": counts needed: " + std::to_string(needed) + ", none of them negative",
                  counts.size() != needed ? "given: " + std::to_string(counts.size())
                                          : "number " + std::to_string(negative - counts.begin()) + " is " + std::to_string(*negative),
                  "say for each rank how many elements it gets (allgather-v: for all of them at once); 0 for none");
  layout_.SetRow(program_->rank, counts);
  room_ = room;
  MeasureStages();
  return {};
}

// What the caller gives or has room for, in elements.
std::int64_t Instance::LengthOf(std::int32_t buffer) const {
  const Buffer& given = header_->buffers[buffer];
  if (counts_ == 0 || given.element != Element::kPayload) return layout_.ElementsOf(buffer);
  if (given.role == Role::kOut) return room_;
  const std::int64_t* row = layout_.sizes().table.data() + static_cast<std::ptrdiff_t>(program_->rank) * header_->request.ranks;
  return std::accumulate(row, row + counts_, std::int64_t{0});
}

// In place is where the plan allows it, and nowhere else: a result would overwrite what is still to be read.
Status Instance::CheckPlaces() const {
  const auto count = static_cast<std::int32_t>(memory_.size());
  for (std::int32_t out = 0; out < count; ++out)
    for (std::int32_t in = 0; in < count; ++in) {
      const Buffer &written = header_->buffers[out], &read = header_->buffers[in];
      if (written.role != Role::kOut || read.role != Role::kIn) continue;
      const std::int64_t written_bytes = LengthOf(out) * layout_.BytesOfElement(out),
                         read_bytes = LengthOf(in) * layout_.BytesOfElement(in);
      const auto a = reinterpret_cast<std::uintptr_t>(memory_[out]), b = reinterpret_cast<std::uintptr_t>(memory_[in]);
      if (written_bytes == 0 || read_bytes == 0 || a >= b + static_cast<std::uintptr_t>(read_bytes) ||
          b >= a + static_cast<std::uintptr_t>(written_bytes))
        continue;
      const bool inside = written.may_alias == in, around = read.may_alias == out;
      const std::int32_t placed = inside ? out : in;
      const std::int64_t place = layout_.AliasOffset(placed, program_->rank);
      const auto offset = static_cast<std::uintptr_t>(place * layout_.BytesOfElement(placed));
      if ((inside && a == b + offset) || (around && b == a + offset)) continue;
      const std::string at = " begins at element " + std::to_string(place) + " of ";
      return Status(
          Code::kInvalid, "COLL10",
          header_->algorithm + ": " + read.name + " and " + written.name + " of rank " + std::to_string(program_->rank) + " overlap",
          inside || around ? "they share memory in another way than in place"
                           : "results would be stored where numbers are still to be read",
          "give each memory of its own" + (inside   ? ", or memory in which " + written.name + at + read.name
                                           : around ? ", or memory in which " + read.name + at + written.name
                                                    : std::string()));
    }
  return {};
}

Status Instance::Bind(std::span<void* const> buffers) {
  bool any_is_private = false;
  for (std::size_t b = 0; b < buffers.size() && b < memory_.size(); ++b) {
    if (header_->buffers[b].role == Role::kScratch || windows_[b] >= 0) continue;
    const auto buffer = static_cast<std::int32_t>(b);
    memory_[b] = static_cast<char*>(buffers[b]);
    // Lengths that are learned at run time are not known yet: then the place decides.
    const std::int64_t bytes = std::max<std::int64_t>(counts_ > 0 ? 1 : 0, layout_.ElementsOf(buffer) * layout_.BytesOfElement(buffer));
    is_private_[b] = bytes > 0 && !transport_->CanPost(memory_[b], static_cast<std::size_t>(bytes));
    any_is_private = any_is_private || is_private_[b];
  }
  RETURN_IF_ERROR(CheckPlaces());
  if (!any_is_private) return {};
  for (std::size_t e = 0; e < stages_.size(); ++e) {
    Stage& stage = stages_[e];
    if (stage.each_bytes <= stage.room_bytes) continue;
    transport_->Free(std::exchange(stage.memory, nullptr));
    stage.room_bytes = 0;
    const auto slots = static_cast<std::size_t>(std::min(program_->edges[e].slots, kSlotsMax));
    stage.memory = transport_->Allocate(stage.each_bytes * slots);
    if (stage.memory == nullptr)
      return Status(Code::kResourceExhausted, "COLL13",
                    header_->algorithm + ": no room for " + std::to_string(stage.each_bytes * slots) + " bytes to stage a buffer",
                    "the transport's pool is full", "take the buffer from the pool, give it a larger pool, or use smaller segments");
    stage.room_bytes = stage.each_bytes;
  }
  return {};
}

Status Instance::BindWindow(std::int32_t buffer, std::int32_t window) {
  const std::int64_t bytes = layout_.ElementsOf(buffer) * layout_.BytesOfElement(buffer);
  if (means_.one_sided->BytesOf(window) < bytes)
    return Status(Code::kInvalid, "COLL27",
                  header_->algorithm + ": a window of " + std::to_string(means_.one_sided->BytesOf(window)) + " bytes is too short",
                  std::to_string(bytes) + " are needed", "make it as long on all ranks");
  windows_[buffer] = window;
  memory_[buffer] = means_.one_sided->MemoryOf(window);
  return {};
}

void Instance::Start(std::int32_t first_channel, const CallLabel& label, bool is_called) {
  interpreter_->Restart();
  first_channel_ = first_channel;
  label_ = label;
  has_ended_ = has_contributed_ = false;
  std::fill(natives_.begin(), natives_.end(), Native::kNone);
  // On one channel at least: a peer that is at a call with messages may find out there.
  transport_->SetLabel(first_channel, std::max(channels_, 1), label);
  for (std::size_t b = 0; is_one_sided_ && b < windows_.size(); ++b)
    if (windows_[b] >= 0 && header_->buffers[b].relaxed) means_.one_sided->Use(windows_[b], first_channel);
  if (header_->counter_count > 0) {
    call_ = {.lane = first_channel, .number = means_.one_sided->Begin(first_channel, label)};
    if (first_channel == 0 && label.sequence != kUncounted)
      for (std::int32_t peer : to_tell_) means_.one_sided->Announce(call_, peer, label);
  }
  is_called_ = is_called;
  for (std::size_t c = 0; c < program_->channels.size(); ++c)
    if (program_->channels[c].start == collective::Start::kLocalCall) interpreter_->SetStarted(static_cast<std::int32_t>(c), is_called);
}

std::vector<std::int32_t> Instance::WaitsFor() {
  std::vector<std::int32_t> ranks;
  auto add = [&](std::int32_t rank) {
    if (rank != kNone && rank != program_->rank && std::find(ranks.begin(), ranks.end(), rank) == ranks.end()) ranks.push_back(rank);
  };
  for (const Left& left : left_)
    if (!transport_->IsFlushed(left.peer, left.channel, left.messages)) add(left.peer);
  for (std::size_t c = 0; c < program_->channels.size(); ++c) {
    const auto channel = static_cast<std::int32_t>(c);
    if (!interpreter_->IsReady(channel)) continue;
    const Step& step = program_->steps[program_->channels[c].first_step + interpreter_->step_of(channel)];
    if (step.op == Op::kNative) continue;  // that is the library's affair
    if (step.op == Op::kWait) {
      for (std::int32_t peer : means_.one_sided->Missing(call_, means_.raises)) add(peer);
    } else if (step.op == Op::kFlush || IsOneSided(step.op)) {
      add(step.to);
    } else if (step.to != kNone &&
               !transport_->HasSlot(step.to, first_channel_ + channel, program_->edges[edges_[&step - program_->steps.data()]].slots)) {
      add(step.to);
    } else {
      add(missing_[c]);
    }
  }
  if (!has_ended_) return ranks;
  // Its steps are done: what it posted has not been taken.
  for (const Edge& edge : program_->edges) {
    const std::int32_t channel = first_channel_ + edge.channel;
    if (!transport_->IsFlushed(edge.peer, channel, transport_->Posted(edge.peer, channel))) add(edge.peer);
  }
  for (std::int32_t channel = 0; is_one_sided_ && channel < header_->channel_count; ++channel)
    for (std::int32_t peer = 0; peer < header_->request.ranks; ++peer)
      if (!means_.one_sided->IsDone(first_channel_, channel, peer)) add(peer);
  return ranks;
}

bool Instance::IsAtRest() const {
  return std::all_of(left_.begin(), left_.end(),
                     [&](const Left& left) { return transport_->IsFlushed(left.peer, left.channel, left.messages); });
}

bool Instance::IsTaken(const Left& posted) {
  if (transport_->IsFlushed(posted.peer, posted.channel, posted.messages)) return true;
  if (!transport_->HasLeft(posted.peer, posted.channel)) return false;
  // Asked again: it may have taken it as its last deed.
  if (transport_->IsFlushed(posted.peer, posted.channel, posted.messages)) return true;
  if (failure_.ok())
    failure_ = Status(Code::kUnavailable, "COLL20", "rank " + std::to_string(posted.peer) + " is lost",
                      "its program has ended, and it has not taken what was sent to it", "");
  return false;
}

bool Instance::IsFlushed() {
  left_.clear();
  for (std::size_t e = 0; e < program_->edges.size(); ++e) {
    const Left posted{program_->edges[e].peer, first_channel_ + program_->edges[e].channel,
                      transport_->Posted(program_->edges[e].peer, first_channel_ + program_->edges[e].channel)};
    if (leaves_scratch_[e])
      left_.push_back(posted);
    else if (!IsTaken(posted))
      return false;
  }
  if (!is_one_sided_) return true;
  for (std::int32_t channel = 0; channel < header_->channel_count; ++channel)
    for (std::int32_t peer = 0; peer < header_->request.ranks; ++peer)
      if (!means_.one_sided->IsDone(first_channel_, channel, peer)) return false;
  return means_.one_sided->IsIdle(first_channel_);
}

Outcome Instance::Advance() {
  if (!has_ended_) {
    for (; !left_.empty(); left_.pop_back())
      if (!IsTaken(left_.back())) return status().ok() ? Outcome::kBlocked : Outcome::kFailed;
    const Outcome outcome = interpreter_->AdvanceToBorder(*this);
    if (!status().ok() || !StartNatives()) return Outcome::kFailed;
    if (outcome != Outcome::kDone) return outcome;
    has_ended_ = true;
  }
  // The caller may write to its buffers as soon as it is done.
  const bool is_flushed = IsFlushed();
  if (!status().ok()) return Outcome::kFailed;
  return is_flushed ? Outcome::kDone : Outcome::kBlocked;
}

Status Instance::Run() {
  Status status = RunToTheEnd();
  if (!status.ok() && means_.native != nullptr) means_.native->Abort(status);
  if (!status.ok()) transport_->Abort();
  return status;
}

Status Instance::RunToTheEnd() {
  Start(0, LabelOf(*header_, plan_fingerprint_, layout_.sizes().count, "", kUncounted));
  for (;;) {
    switch (Advance()) {
      case Outcome::kDone:
        if (IsAtRest()) return {};
        [[fallthrough]];
      case Outcome::kBlocked:
        if (is_one_sided_ && means_.one_sided->Serve()) break;
        transport_->Wait(true);
        if (!transport_->status().ok()) return transport_->status();
        break;
      case Outcome::kYielded:
        break;
      case Outcome::kFailed:
        return status();
    }
  }
}

char* Instance::PlaceOf(const Interpreter& at, std::int32_t chunk) const {
  std::int32_t buffer = program_->chunks[chunk].buffer;
  return memory_[buffer] + at.At(chunk).offset * layout_.BytesOfElement(buffer);
}

std::size_t Instance::BytesOf(const Interpreter& at, std::int32_t chunk) const {
  return static_cast<std::size_t>(at.At(chunk).count * layout_.BytesOfElement(program_->chunks[chunk].buffer));
}

void Instance::Post(const Interpreter& at, const Step& step, std::int32_t chunk) {
  const std::int32_t buffer = program_->chunks[chunk].buffer;
  const std::size_t bytes = BytesOf(at, chunk);
  const char* from = PlaceOf(at, chunk);
  const std::int32_t e = edges_[&step - program_->steps.data()];
  if (is_private_[buffer] && bytes > 0) {
    // There was a slot, so this copy's last message has been consumed.
    Stage& stage = stages_[e];
    char* copy =
        stage.memory + stage.each_bytes * (stage.posted++ % static_cast<std::uint64_t>(std::min(program_->edges[e].slots, kSlotsMax)));
    std::memcpy(copy, from, bytes);
    from = copy;
  }
  transport_->Post(step.to, first_channel_ + at.channel(), from, bytes);
  if (trace_ != nullptr) trace_->push_back({true, at.channel(), step.to, static_cast<std::int64_t>(bytes)});
}

void Instance::DecodeRows(const Interpreter& at, const Step& step) {
  const std::int64_t count = at.At(step.dst).count;
  for (std::int32_t i = 0; i < step.operand_count; ++i) {
    if (!program_->operands[step.first_operand + i].decode) continue;
    float* decoded = decoded_.data() + i * count;
    Decode(header_->request.codecs[step.codec], static_cast<const char*>(rows_[i].data), count, decoded);
    rows_[i].data = decoded;
    rows_[i].dtype = Dtype::kF32;
  }
}

void Instance::EncodeRow(const Interpreter& at, const Step& step) {
  const std::int64_t count = at.At(program_->operands[step.first_operand].chunk).count;
  FoldRows(header_->op, Dtype::kF32, {rows_.data(), 1}, 1, Dtype::kF32, decoded_.data(), count);
  Encode(header_->request.codecs[step.codec], decoded_.data(), count,
         step.aux == kNone ? nullptr : reinterpret_cast<float*>(PlaceOf(at, step.aux)), PlaceOf(at, step.dst));
}

Outcome Instance::LearnCounts(const Interpreter& at, const Step& step) {
  const auto* counts = reinterpret_cast<const std::int64_t*>(PlaceOf(at, program_->operands[step.first_operand].chunk));
  std::int64_t left = room_;
  for (std::int32_t from = 0; from < header_->request.ranks; ++from) {
    // A peer's word: it says how much this rank will write to `out`.
    if (counts[from] >= 0 && counts[from] <= left) {
      left -= counts[from];
      continue;
    }
    failure_ = Status(Code::kInvalid, "COLL26",
                      header_->algorithm + ": rank " + std::to_string(from) + " has " + std::to_string(counts[from]) +
                          " elements for rank " + std::to_string(program_->rank) + ", where there is room for " + std::to_string(left),
                      "all ranks together have more than `out` can hold", "give more room");
    return Outcome::kFailed;
  }
  layout_.SetColumn(column_, counts);
  return Outcome::kDone;
}

// ---- one-sided and eager steps ---------------------------------------------------------------------------------------------------------

std::vector<std::int64_t> RaisesOf(const Plan& plan, std::int32_t rank) {
  std::vector<std::int64_t> raises(plan.programs.size());
  for (const Program& program : plan.programs) {
    // Loops are bound to sizes that are not known here, but each is done at least once.
    for (const Step& step : program.steps) raises[program.rank] += step.op == Op::kNotify && step.to == rank;
  }
  return raises;
}

Status Instance::CheckOneSided(const Step& step) const {
  const std::int32_t local = step.op == Op::kGet ? step.dst : program_->operands[step.first_operand].chunk;
  const bool scaled = step.scale != kNone || (step.op != Op::kGet && program_->operands[step.first_operand].scale != kNone);
  const Buffer& remote = header_->buffers[program_->chunks[step.remote].buffer];
  if (remote.role == Role::kWindow && !scaled && DtypeOf(program_->chunks[step.remote].buffer) == DtypeOf(program_->chunks[local].buffer))
    return {};
  return Status(Code::kInvalid, "COLL12", header_->algorithm + ": " + std::string(Name(step.op)) + " cannot be run",
                remote.name + " is no window, or the chunk is scaled or of another type", "copy it to scratch first");
}

Outcome Instance::TryOneSided(const Interpreter& at, const Step& step) {
  OneSided& one_sided = *means_.one_sided;
  if (step.op == Op::kNotify) {
    if (one_sided.Notify(call_, step.to, step.counter, label_) == Outcome::kBlocked) return Outcome::kBlocked;
    if (trace_ != nullptr && step.to != program_->rank) trace_->push_back({true, at.channel(), step.to, 0});
    return Outcome::kDone;
  }
  const std::int32_t buffer = program_->chunks[step.remote].buffer;
  const std::int64_t element_bytes = layout_.BytesOfElement(buffer);
  const std::int32_t local = step.op == Op::kGet ? step.dst : program_->operands[step.first_operand].chunk;
  OneSided::Work work{.op = step.op,
                      .lane = first_channel_,
                      .channel = at.channel(),
                      .peer = step.to,
                      .window = windows_[buffer],
                      .offset_bytes = at.At(step.remote).offset * element_bytes,
                      .bytes = at.At(step.remote).count * element_bytes,
                      .relaxed = header_->buffers[buffer].relaxed,
                      .dtype = DtypeOf(buffer),
                      .accumulator = AccumulatorOf(DtypeOf(buffer)),
                      .fold = header_->op};
  (step.op == Op::kGet ? work.into : const_cast<char*&>(work.from)) = PlaceOf(at, local);
  const Outcome outcome = one_sided.Do(work, label_);
  if (outcome == Outcome::kDone && trace_ != nullptr) trace_->push_back({step.op != Op::kGet, at.channel(), step.to, work.bytes});
  return outcome;
}

Outcome Instance::TryWait(const Step& step) {
  if (means_.one_sided->CountOf(call_, step.counter) >= step.threshold) return Outcome::kDone;
  means_.one_sided->MissWhoLeft(call_, means_.raises);
  return means_.one_sided->status().ok() ? Outcome::kBlocked : Outcome::kFailed;
}

Outcome Instance::TryContribute(const Interpreter& at, const Step& step) {
  const Operand* operands = program_->operands.data() + step.first_operand;
  const std::size_t bytes = BytesOf(at, step.dst);
  char* to = PlaceOf(at, step.dst);
  if (is_called_) {
    std::memcpy(to, PlaceOf(at, operands[0].chunk), bytes);
  } else if (step.operand_count > 1) {
    // It is owed no longer.
    char* state = PlaceOf(at, operands[1].chunk);
    std::memcpy(to, state, bytes);
    std::memset(state, 0, bytes);
  } else {
    std::memset(to, 0, bytes);
  }
  if (step.aux != kNone) {
    const std::int32_t fresh = is_called_ ? 1 : 0;
    const Row row{&fresh, Dtype::kI32, 1};
    const Dtype dtype = DtypeOf(program_->chunks[step.aux].buffer);
    FoldRows(ReduceOp::kSum, AccumulatorOf(dtype), {&row, 1}, 1, dtype, PlaceOf(at, step.aux), at.At(step.aux).count);
  }
  has_contributed_ = true;
  return Outcome::kDone;
}

bool Instance::Come() {
  is_called_ = true;
  has_ended_ = false;
  for (std::size_t c = 0; c < program_->channels.size(); ++c)
    if (program_->channels[c].start == collective::Start::kLocalCall) interpreter_->SetStarted(static_cast<std::int32_t>(c), true);
  if (!has_contributed_) return true;
  if (contribution_->operand_count > 1) {
    const Operand* operands = program_->operands.data() + contribution_->first_operand;
    // At most one vector is owed: that this rank was missed has given away what was owed before.
    std::memcpy(PlaceOf(*interpreter_, operands[1].chunk), PlaceOf(*interpreter_, operands[0].chunk),
                BytesOf(*interpreter_, operands[0].chunk));
  }
  return false;
}

std::int32_t Instance::RelaxedRead(const Step& step) const {
  for (std::int32_t i = step.first_operand; i < step.first_operand + step.operand_count; ++i) {
    const std::int32_t buffer = program_->chunks[program_->operands[i].chunk].buffer;
    if (program_->operands[i].peer == kNone && header_->buffers[buffer].relaxed) return windows_[buffer];
  }
  return -1;
}

// ---- native steps ----------------------------------------------------------------------------------------------------------------------

std::span<const std::int32_t> Instance::GroupOf(const Step& step) const {
  return step.group == kNone ? std::span(all_ranks_) : std::span(header_->groups[step.group]);
}

Status Instance::CheckNative(const Step& step) const {
  const Operand& operand = program_->operands[step.first_operand];
  const Dtype dtype = DtypeOf(program_->chunks[operand.chunk].buffer);
  const auto group = GroupOf(step);
  if (std::find(group.begin(), group.end(), program_->rank) == group.end() || operand.scale != kNone || step.scale != kNone ||
      dtype != DtypeOf(program_->chunks[step.dst].buffer))
    return Status(Code::kInvalid, "COLL12", header_->algorithm + ": native cannot be run",
                  "its rank is not of the group, it is scaled, or it changes the type", "mend the builder");
  if (means_.native == nullptr) return NativeDesk(nullptr, transport_).Check({.collective = step.native});
  return means_.native->Check({.collective = step.native, .dtype = dtype, .op = header_->op, .group = group});
}

Outcome Instance::TryNative(const Interpreter& at, const Step& step) {
  Native& native = natives_[at.channel()];
  NativeCall& call = native_calls_[at.channel()];
  if (native == Native::kReady) return Outcome::kBlocked;
  if (native == Native::kNone) {
    const std::int32_t in = program_->operands[step.first_operand].chunk;
    call = {.collective = step.native,
            .dtype = DtypeOf(program_->chunks[in].buffer),
            .op = header_->op,
            .group = GroupOf(step),
            .channel = first_channel_ + at.channel(),
            .in = PlaceOf(at, in),
            .out = PlaceOf(at, step.dst),
            .in_count = at.At(in).count,
            .out_count = at.At(step.dst).count};
    native = Native::kReady;
    return Outcome::kBlocked;
  }
  Result<bool> is_done = means_.native->IsDone(call);
  if (!is_done.ok()) {
    failure_ = is_done.status();
    return Outcome::kFailed;
  }
  if (!*is_done) return Outcome::kBlocked;
  native = Native::kNone;
  if (trace_ != nullptr)
    trace_->push_back({true, at.channel(), program_->rank,
                       NativeBytes(step.native, static_cast<std::int64_t>(BytesOf(at, program_->operands[step.first_operand].chunk)),
                                   static_cast<std::int64_t>(BytesOf(at, step.dst)), static_cast<std::int64_t>(call.group.size()))});
  return Outcome::kDone;
}

bool Instance::StartNatives() {
  ready_.clear();
  for (std::size_t channel = 0; channel < natives_.size(); ++channel)
    if (natives_[channel] == Native::kReady) ready_.push_back(native_calls_[channel]);
  if (ready_.empty()) return true;
  failure_ = means_.native->Start(ready_);
  if (!failure_.ok()) return false;
  for (const NativeCall& call : ready_) {
    native_calls_[call.channel - first_channel_] = call;  // it has its number now
    natives_[call.channel - first_channel_] = Native::kStarted;
  }
  return true;
}

Outcome Instance::Try(const Interpreter& at, const Step& step) {
  const std::int32_t channel = first_channel_ + at.channel();
  if (step.op == Op::kFlush) {
    const bool is_done = (!is_one_sided_ || means_.one_sided->IsDone(first_channel_, at.channel(), step.to)) &&
                         (at.channel() >= channels_ || IsTaken({step.to, channel, transport_->Posted(step.to, channel)}));
    if (is_done) return Outcome::kDone;
    return status().ok() ? Outcome::kBlocked : Outcome::kFailed;
  }
  if (IsOneSided(step.op)) return TryOneSided(at, step);
  if (step.op == Op::kWait) return TryWait(step);
  if (step.op == Op::kContribute) return TryContribute(at, step);
  if (step.op == Op::kCounts) return LearnCounts(at, step);
  if (step.op == Op::kNative) return TryNative(at, step);
  const Operand* operands = program_->operands.data() + step.first_operand;
  if (step.to != kNone && !transport_->HasSlot(step.to, channel, program_->edges[edges_[&step - program_->steps.data()]].slots))
    return Outcome::kBlocked;

  const bool lands_in_place =
      LandsInPlace(step, *program_) && DtypeOf(program_->chunks[operands[0].chunk].buffer) == DtypeOf(program_->chunks[step.dst].buffer);
  for (std::int32_t i = 0; i < step.operand_count; ++i) {
    const Operand& operand = operands[i];
    Row& row = rows_[i];
    row.dtype = DtypeOf(program_->chunks[operand.chunk].buffer);
    row.scale = operand.scale == kNone ? 1 : header_->scales[operand.scale];
    if (operand.peer == kNone) {
      row.data = PlaceOf(at, operand.chunk);
      continue;
    }
    char* landing = lands_in_place ? PlaceOf(at, step.dst) : landing_ + landings_[step.first_operand + i];
    row.data = transport_->Peek(operand.peer, channel, static_cast<std::size_t>(turns_[step.first_operand + i]), landing,
                                BytesOf(at, operand.chunk));
    if (row.data == nullptr) {
      missing_[at.channel()] = operand.peer;
      return transport_->status().ok() ? Outcome::kBlocked : Outcome::kFailed;
    }
  }
  const std::int32_t locked = RelaxedRead(step);
  if (locked >= 0)
    if (const Outcome outcome = means_.one_sided->Lock(locked, first_channel_, label_); outcome != Outcome::kDone) return outcome;
  if (step.op == Op::kDecode) DecodeRows(at, step);
  if (step.op == Op::kEncode)
    EncodeRow(at, step);
  else if (step.dst != kNone)
    FoldRows(header_->op, header_->accumulator, {rows_.data(), static_cast<std::size_t>(step.operand_count)},
             step.scale == kNone ? 1 : header_->scales[step.scale], DtypeOf(program_->chunks[step.dst].buffer), PlaceOf(at, step.dst),
             at.At(step.dst).count);
  if (locked >= 0) means_.one_sided->Unlock(locked);
  // A rank that fails gives its memory back while this one may be reading it. Then the step waits for the failure and is not done again.
  for (std::int32_t i = 0; i < step.operand_count; ++i)
    if (operands[i].peer != kNone && !transport_->IsSound(operands[i].peer)) {
      missing_[at.channel()] = operands[i].peer;
      return Outcome::kBlocked;
    }
  for (std::int32_t i = 0; i < step.operand_count; ++i) {
    if (operands[i].peer == kNone) continue;
    transport_->Consume(operands[i].peer, channel);
    if (trace_ != nullptr)
      trace_->push_back({false, at.channel(), operands[i].peer, static_cast<std::int64_t>(BytesOf(at, operands[i].chunk))});
  }
  if (step.to != kNone) Post(at, step, SentBy(step, *program_));
  return Outcome::kDone;
}

}  // namespace ropewalk::collective
