#include "mlrunner/collective/check/symbolic_machine.h"

#include <algorithm>
#include <utility>

namespace ropewalk::collective {
namespace {

std::int64_t Length(const Pieces& pieces) {
  std::int64_t count = 0;
  for (const Piece& piece : pieces) count += piece.count;
  return count;
}

Value At(const Piece& piece, std::int64_t offset) {
  Value value = piece.value;
  if (value.node > 1) value.at += offset;
  return value;
}

// Calls `with(value a, value b, count)` for each stretch on which both are one piece.
template <class F>
void Zip(const Pieces& a, const Pieces& b, F with) {
  std::size_t i = 0, j = 0;
  std::int64_t in_a = 0, in_b = 0;
  while (i < a.size() && j < b.size()) {
    std::int64_t count = std::min(a[i].count - in_a, b[j].count - in_b);
    with(At(a[i], in_a), At(b[j], in_b), count);
    if ((in_a += count) == a[i].count) ++i, in_a = 0;
    if ((in_b += count) == b[j].count) ++j, in_b = 0;
  }
}

template <class F>
Pieces Mapped(const Pieces& pieces, F change) {
  Pieces result;
  for (const Piece& piece : pieces) Expressions::Append(&result, piece.count, change(piece.value));
  return result;
}

}  // namespace

SymbolicMachine::SymbolicMachine(const Plan& plan, const CheckOptions& options, std::vector<Layout>* layouts)
    : plan_(plan), options_(options), layouts_(*layouts), expressions_(plan.header) {
  const Header& header = plan.header;
  const std::int32_t ranks = header.request.ranks;
  const auto threads = static_cast<std::size_t>(ThreadOf(ranks, 0));
  clocks_.assign(threads, Clock(threads));
  posted_.resize(threads);
  for (std::size_t thread = 0; thread < threads; ++thread) Tick(static_cast<std::int32_t>(thread));

  // How long each buffer must be: as long as any rank uses it (peers put into it, too).
  std::vector<std::int64_t> lengths(header.buffers.size());
  for (std::size_t buffer = 0; buffer < lengths.size(); ++buffer)
    for (const Layout& layout : layouts_) lengths[buffer] = std::max(lengths[buffer], layout.ElementsOf(static_cast<std::int32_t>(buffer)));

  memories_.assign(static_cast<std::size_t>(ranks) * header.buffers.size(), Memory(&posts_));
  for (std::int32_t rank = 0; rank < ranks; ++rank)
    for (std::size_t b = 0; b < header.buffers.size(); ++b) {
      const Buffer& buffer = header.buffers[b];
      Place place{static_cast<std::int32_t>(places_.size()), 0};
      if (options.in_place && buffer.may_alias != kNone) {
        place.memory = rank * static_cast<std::int32_t>(header.buffers.size()) + buffer.may_alias;
        place.shift = layouts_[rank].AliasOffset(static_cast<std::int32_t>(b), rank);
      }
      places_.push_back(place);
    }
  for (std::int32_t rank = 0; rank < ranks; ++rank)
    for (std::size_t b = 0; b < header.buffers.size(); ++b) {
      const Role role = header.buffers[b].role;
      if (role != Role::kIn && role != Role::kState && role != Role::kWindow) continue;
      Place place = PlaceOf(rank, static_cast<std::int32_t>(b));
      if (lengths[b] > 0)
        memories_[place.memory].Fill(place.shift, {{lengths[b], expressions_.Leaf(rank, static_cast<std::int32_t>(b), 0)}});
    }

  for (const Program& program : plan.programs) {
    for (const Edge& edge : program.edges) lines_[{program.rank, edge.peer, edge.channel}].slots = edge.slots;
    for (const Dependency& dependency : program.dependencies) history_[{program.rank, dependency.channel, dependency.step}];
    interpreters_.push_back(std::make_unique<Interpreter>(&program, &layouts_[program.rank]));
    for (const Step& step : program.steps)
      if (step.op == Op::kCounts) counts_known_[program.rank] = {0, UINT32_MAX};
    if (IsAbsent(program.rank))
      for (std::size_t channel = 0; channel < program.channels.size(); ++channel)
        if (program.channels[channel].start == Start::kLocalCall)
          interpreters_.back()->SetStarted(static_cast<std::int32_t>(channel), false);
    for (std::size_t channel = 0; channel < program.channels.size(); ++channel)
      for (std::int32_t i = 0; i < program.channels[channel].step_count; ++i) {
        const Step& step = program.steps[program.channels[channel].first_step + i];
        if (step.op == Op::kNotify && !interpreters_.back()->ended(static_cast<std::int32_t>(channel)))
          totals_[{step.to, step.counter}] += interpreters_.back()->times_of(program.channels[channel].first_step + i);
      }
  }
}

bool SymbolicMachine::IsAbsent(std::int32_t rank) const {
  return std::find(options_.absent.begin(), options_.absent.end(), rank) != options_.absent.end();
}

Status SymbolicMachine::Fail(const Interpreter& at, const Step& step, const char* tag, const std::string& what,
                             const std::string& why) const {
  return Status(Code::kInvalid, tag,
                plan_.header.algorithm + ": rank " + std::to_string(at.rank()) + ", channel " + std::to_string(at.channel()) + ", step " +
                    std::to_string(at.step_of(at.channel())) + " (" + std::string(Name(step.op)) + "): " + what,
                why, "mend the builder");
}

Status SymbolicMachine::FailAccess(const Interpreter& at, const Step& step, const Buffer& buffer, std::int32_t owner,
                                   const std::string& how) const {
  const bool is_unwritten = how.find("never") != std::string::npos;
  return Fail(at, step, is_unwritten ? "COLL05" : "COLL04", buffer.name + " of rank " + std::to_string(owner) + ": " + how,
              is_unwritten ? "no step that is known to come before stores there"
                           : "nothing orders the two: no message leads from one to the other");
}

SymbolicMachine::Line* SymbolicMachine::LineOf(std::int32_t from, std::int32_t to, std::int32_t channel) {
  auto found = lines_.find({from, to, channel});
  return found == lines_.end() ? nullptr : &found->second;
}

Status SymbolicMachine::Run() {
  for (bool moved = true; moved;) {
    moved = false;
    for (auto& interpreter : interpreters_) {
      std::uint64_t before = interpreter->steps_done();
      if (interpreter->Advance(*this) == Outcome::kFailed) return failure_;
      moved = moved || interpreter->steps_done() != before;
    }
  }
  for (auto& interpreter : interpreters_) report_.steps += interpreter->steps_done();
  for (auto& interpreter : interpreters_)
    for (std::int32_t channel = 0; channel < plan_.header.channel_count; ++channel) {
      if (interpreter->ended(channel)) continue;
      const Program& program = interpreter->program();
      // A channel that only a message starts may have had none: then it stands at its first step.
      bool waits_for_start =
          program.channels[channel].start == Start::kMessage && !options_.absent.empty() && interpreter->step_of(channel) == 0;
      if (waits_for_start) continue;
      std::int32_t at = interpreter->step_of(channel);
      const Step& step = program.steps[program.channels[channel].first_step + at];
      std::string for_whom = step.to != kNone ? " to rank " + std::to_string(step.to) : "";
      for (std::int32_t i = 0; i < step.operand_count; ++i)
        if (std::int32_t peer = program.operands[step.first_operand + i].peer; peer != kNone)
          for_whom += " from rank " + std::to_string(peer);
      return Status(Code::kInvalid, "COLL03",
                    plan_.header.algorithm + ": deadlock: rank " + std::to_string(program.rank) + ", channel " + std::to_string(channel) +
                        " waits for ever at step " + std::to_string(at) + " (" + std::string(Name(step.op)) + for_whom + ")",
                    "no message comes, or no slot becomes free", "mend the builder, or give the edge more slots");
    }
  for (const auto& [key, line] : lines_)
    if (!line.messages.empty())
      return Status(Code::kInvalid, "COLL03",
                    plan_.header.algorithm + ": " + std::to_string(line.messages.size()) + " messages from rank " +
                        std::to_string(std::get<0>(key)) + " to rank " + std::to_string(std::get<1>(key)) + " on channel " +
                        std::to_string(std::get<2>(key)) + " are never received",
                    "more sends than receives", "mend the builder");
  return {};
}

void SymbolicMachine::JoinDependencies(const Interpreter& at, const Step& step, Clock* clock) {
  for (std::int32_t i = 0; i < step.dependency_count; ++i) {
    const Dependency& dependency = at.program().dependencies[step.first_dependency + i];
    std::int64_t needed = at.NeededOf(dependency);
    if (needed > 0) Join(clock, history_[{at.rank(), dependency.channel, dependency.step}][needed - 1]);
  }
}

// Whether the lengths of the step's chunks are known by then, of programs that learn their count table on the way.
bool SymbolicMachine::CountsAreKnown(const Interpreter& at, const Step& step) {
  auto learns = counts_known_.find(at.rank());
  if (learns == counts_known_.end()) return true;
  const Program& program = at.program();
  bool needs = false;
  auto look = [&](std::int32_t chunk) {
    if (chunk == kNone) return;
    for (std::int32_t range = program.chunks[chunk].range; range != kNone; range = program.ranges[range].of)
      needs = needs || (program.ranges[range].kind == RangeKind::kTable && program.ranges[range].by_column);
  };
  for (std::int32_t i = 0; i < step.operand_count; ++i) look(program.operands[step.first_operand + i].chunk);
  look(step.dst);
  look(step.remote);
  if (!needs || learns->second.IsBefore(clocks_[ThreadOf(at.rank(), at.channel())])) return true;
  failure_ = Fail(at, step, "COLL05", "a length of the count table is used before it is known", "nothing orders the step behind `counts`");
  return false;
}

Outcome SymbolicMachine::Try(const Interpreter& at, const Step& step) {
  const std::int32_t thread = ThreadOf(at.rank(), at.channel());
  // Joining is harmless when the step then has to wait: it will only know more.
  if (step.dependency_count > 0) JoinDependencies(at, step, &clocks_[thread]);
  if (!failure_.ok() || !CountsAreKnown(at, step)) return Outcome::kFailed;
  Outcome outcome = Outcome::kFailed;
  switch (step.op) {
    case Op::kPut:
    case Op::kGet:
    case Op::kAccumulate:
    case Op::kNotify:
      outcome = TryOneSided(at, step);
      break;
    case Op::kWait:
      outcome = TryWait(at, step);
      break;
    case Op::kFlush:
      outcome = TryFlush(at, step);
      break;
    case Op::kContribute:
      outcome = TryContribute(at, step);
      break;
    case Op::kCounts:
      outcome = TryCounts(at, step);
      break;
    case Op::kNative:
      outcome = TryNative(at, step);
      break;
    default:
      outcome = TryData(at, step);
  }
  if (outcome == Outcome::kDone) {
    auto watched = history_.find({at.rank(), at.channel(), at.step_of(at.channel())});
    if (watched != history_.end()) watched->second.push_back(clocks_[thread]);
  }
  return outcome;
}

void SymbolicMachine::Consume(Message* message, std::int32_t thread) {
  Join(&clocks_[thread], message->clock);
  Moment now = Tick(thread);
  if (message->post != kNone) posts_[message->post] = {true, now};
}

std::optional<Pieces> SymbolicMachine::Read(const Interpreter& at, const Step& step, std::int32_t owner, std::int32_t chunk,
                                            std::int32_t thread, std::int32_t post) {
  const Chunk& named = at.program().chunks[chunk];
  const Buffer& buffer = plan_.header.buffers[named.buffer];
  Extent extent = at.At(chunk);
  Place place = PlaceOf(owner, named.buffer);
  std::string why;
  if (buffer.relaxed) {
    Pieces pieces;
    Expressions::Append(&pieces, extent.count, expressions_.Leaf(owner, named.buffer, extent.offset));
    return pieces;
  }
  auto pieces = memories_[place.memory].Read({extent.offset + place.shift, extent.count}, {thread, clocks_[thread][thread]},
                                             clocks_[thread], post, &why);
  if (!pieces) failure_ = FailAccess(at, step, buffer, owner, why);
  return pieces;
}

bool SymbolicMachine::MayStore(const Interpreter& at, const Step& step, std::int32_t chunk) {
  const Buffer& buffer = BufferOf(at, chunk);
  if (buffer.role != Role::kIn) return true;
  failure_ = Fail(at, step, "COLL04", buffer.name + " is the caller's and only read", "a step stores into it");
  return false;
}

bool SymbolicMachine::Write(const Interpreter& at, const Step& step, std::int32_t owner, std::int32_t chunk, const Pieces& pieces,
                            std::int32_t thread, bool accumulate) {
  const Chunk& named = at.program().chunks[chunk];
  const Buffer& buffer = plan_.header.buffers[named.buffer];
  Extent extent = at.At(chunk);
  if (Length(pieces) != extent.count) {
    failure_ = Fail(at, step, "COLL03", std::to_string(Length(pieces)) + " elements for a chunk of " + std::to_string(extent.count),
                    "a step stores as many elements as its dst has");
    return false;
  }
  if (!MayStore(at, step, chunk)) return false;
  if (buffer.relaxed) {
    if (Status status = CheckWindowPut(owner, named.buffer, extent.offset, pieces); !status.ok()) {
      failure_ = Fail(at, step, "COLL06", status.what(), status.why());
      return false;
    }
    return true;
  }
  Place place = PlaceOf(owner, named.buffer);
  Moment now{thread, clocks_[thread][thread]};
  std::string why;
  bool written = accumulate
                     ? memories_[place.memory].Accumulate(extent.offset + place.shift, pieces, &expressions_, now, clocks_[thread], &why)
                     : memories_[place.memory].Write(extent.offset + place.shift, pieces, now, clocks_[thread], &why);
  if (!written) failure_ = FailAccess(at, step, buffer, owner, why);
  return written;
}

std::optional<Pieces> SymbolicMachine::Decode(const Interpreter& at, const Step& step, const Pieces& bytes, std::int64_t count) {
  if (count == 0) return Pieces{};
  Expressions::BlobView blob;
  if (bytes.size() == 1 && bytes[0].value.at == 0) blob = expressions_.AsBlob(bytes[0].value);
  std::int64_t holds = blob.pieces == nullptr ? -1 : Length(*blob.pieces);
  bool whole = holds == count && blob.codec == step.codec && bytes[0].count == EncodedBytes(plan_.header.request.codecs[step.codec], count);
  if (!whole) {
    failure_ = Fail(at, step, "COLL03", "what is decoded is no whole encoded chunk of " + std::to_string(count) + " elements",
                    "a code is read as one piece, by the codec that wrote it, at the border where it begins");
    return std::nullopt;
  }
  return *blob.pieces;
}

Outcome SymbolicMachine::TryData(const Interpreter& at, const Step& step) {
  const std::int32_t thread = ThreadOf(at.rank(), at.channel());
  const Program& program = at.program();
  const Operand* operands = program.operands.data() + step.first_operand;
  std::map<Line*, std::size_t> wanted;
  for (std::int32_t i = 0; i < step.operand_count; ++i) {
    if (operands[i].peer == kNone) continue;
    Line* line = LineOf(operands[i].peer, at.rank(), at.channel());
    if (line == nullptr || line->messages.size() < ++wanted[line]) return Outcome::kBlocked;
  }
  Line* out = step.to == kNone ? nullptr : LineOf(at.rank(), step.to, at.channel());
  if (out != nullptr && static_cast<std::int64_t>(out->messages.size()) >= out->slots) return Outcome::kBlocked;
  Tick(thread);

  const std::int32_t typed_by = step.dst != kNone ? step.dst : operands[0].chunk;
  const Element element = BufferOf(at, typed_by).element;
  const std::int64_t count = step.op == Op::kEncode ? at.At(operands[0].chunk).count : at.At(typed_by).count;
  const bool posts_memory =
      step.to != kNone && (step.dst != kNone || (step.op == Op::kSend && operands[0].scale == kNone && step.scale == kNone));
  std::int32_t post = kNone;
  if (posts_memory) {
    post = static_cast<std::int32_t>(posts_.size());
    posts_.push_back({});
  }

  Pieces result;
  bool converted = false, stays = false;
  for (std::int32_t i = 0; i < step.operand_count; ++i) {
    const Operand& operand = operands[i];
    const Element type = BufferOf(at, operand.chunk).element;
    std::optional<Pieces> pieces;
    if (operand.peer == kNone) {
      // A send reads its memory until the message is consumed, which is noted below as its post.
      pieces = Read(at, step, at.rank(), operand.chunk, thread, step.op == Op::kSend && posts_memory ? post : kNone);
      if (pieces && step.dst != kNone && step.op != Op::kEncode) {
        Extent from = at.At(operand.chunk), into = at.At(step.dst);
        Place a = PlaceOf(at.rank(), program.chunks[operand.chunk].buffer), b = PlaceOf(at.rank(), program.chunks[step.dst].buffer);
        std::int64_t x = from.offset + a.shift, y = into.offset + b.shift;
        // A copy onto itself writes nothing (FoldRows).
        stays = step.op == Op::kCopy && a.memory == b.memory && x == y && type == element && operand.scale == kNone && step.scale == kNone;
        if (a.memory == b.memory && x != y && x < y + into.count && y < x + from.count)
          return Stop(
              Fail(at, step, "COLL04", "an operand and dst overlap and do not coincide", "the step would read what it has stored already"));
      }
    } else {
      Line* line = LineOf(operand.peer, at.rank(), at.channel());
      Message message = std::move(line->messages.front());
      line->messages.pop_front();
      Consume(&message, thread);
      if (message.element != type || message.count != at.At(operand.chunk).count)
        return Stop(Fail(at, step, "COLL03",
                         "a message of " + std::to_string(message.count) + " elements from rank " + std::to_string(operand.peer) +
                             " is taken for " + std::to_string(at.At(operand.chunk).count),
                         "sender and receiver see another length or type"));
      pieces = std::move(message.pieces);
    }
    if (!pieces) return Outcome::kFailed;
    if (operand.decode) {
      pieces = Decode(at, step, *pieces, count);
      if (!pieces) return Outcome::kFailed;
    }
    if (Length(*pieces) != count)
      return Stop(
          Fail(at, step, "COLL03",
               "operand " + std::to_string(i) + " has " + std::to_string(Length(*pieces)) + " elements, not " + std::to_string(count),
               "all operands of a step are as long as its dst"));
    if (operand.scale != kNone) {
      double scale = plan_.header.scales[operand.scale];
      pieces = Mapped(*pieces, [&](Value value) { return expressions_.Scaled(value, scale); });
      converted = true;
    }
    converted = converted || type != element;
    if (i == 0) {
      result = std::move(*pieces);
      continue;
    }
    Pieces folded;
    Zip(result, *pieces, [&](Value a, Value b, std::int64_t length) { Expressions::Append(&folded, length, expressions_.Fold(a, b)); });
    result = std::move(folded);
  }
  if (step.scale != kNone) {
    double scale = plan_.header.scales[step.scale];
    result = Mapped(result, [&](Value value) { return expressions_.Scaled(value, scale); });
    converted = true;
  }
  if (step.op == Op::kEncode) {
    Pieces residual;
    if (step.aux != kNone) {
      auto state = Read(at, step, at.rank(), step.aux, thread, kNone);
      if (!state) return Outcome::kFailed;
      residual = std::move(*state);
      if (Length(residual) != count)
        return Stop(Fail(at, step, "COLL03", "the residual has another length",
                         std::to_string(Length(residual)) + " elements for " + std::to_string(count) + " that are encoded"));
    } else {
      Expressions::Append(&residual, count, expressions_.Zero());
    }
    Pieces coded, left;
    Zip(result, residual, [&](Value value, Value before, std::int64_t length) {
      Expressions::Append(&coded, length, expressions_.Coded(value, step.codec, before));
      Expressions::Append(&left, length, expressions_.Residual(value, step.codec, before));
    });
    if (step.aux != kNone && !Write(at, step, at.rank(), step.aux, left, thread, false)) return Outcome::kFailed;
    std::int64_t bytes = EncodedBytes(plan_.header.request.codecs[step.codec], count);
    result.clear();
    if (bytes > 0) result.push_back({bytes, expressions_.Blob(step.codec, std::move(coded))});
  } else if (element == Element::kPayload && (converted || step.operand_count > 1) && IsHalf(plan_.header.request.dtype)) {
    result = Mapped(result, [&](Value value) { return expressions_.Rounded(value); });
  }

  if (step.dst != kNone && !(stays ? MayStore(at, step, step.dst) : Write(at, step, at.rank(), step.dst, result, thread, false)))
    return Outcome::kFailed;
  if (out == nullptr) return Outcome::kDone;
  // What was just written is what the receiver reads, until it has.
  if (step.dst != kNone && !Read(at, step, at.rank(), step.dst, thread, post)) return Outcome::kFailed;
  Message message{.post = post, .pieces = std::move(result), .element = element, .count = 0, .clock = clocks_[thread]};
  message.count = Length(message.pieces);
  ++report_.messages;
  report_.bytes += static_cast<std::uint64_t>(message.count * at.layout().BytesOfElement(program.chunks[typed_by].buffer));
  posted_[thread].push_back(post);
  out->messages.push_back(std::move(message));
  return Outcome::kDone;
}

Outcome SymbolicMachine::TryContribute(const Interpreter& at, const Step& step) {
  const std::int32_t thread = ThreadOf(at.rank(), at.channel());
  Tick(thread);
  const Operand* operands = at.program().operands.data() + step.first_operand;
  std::int64_t count = at.At(step.dst).count;
  std::optional<Pieces> pieces = Pieces{};
  Expressions::Append(&*pieces, count, expressions_.Zero());
  bool absent = IsAbsent(at.rank());
  if (!absent || step.operand_count > 1) pieces = Read(at, step, at.rank(), operands[absent ? 1 : 0].chunk, thread, kNone);
  if (!pieces || !Write(at, step, at.rank(), step.dst, *pieces, thread, false)) return Outcome::kFailed;
  if (step.aux == kNone) return Outcome::kDone;
  Pieces counter;
  Expressions::Append(&counter, at.At(step.aux).count, absent ? expressions_.Zero() : expressions_.One());
  return Write(at, step, at.rank(), step.aux, counter, thread, false) ? Outcome::kDone : Outcome::kFailed;
}

Outcome SymbolicMachine::TryOneSided(const Interpreter& at, const Step& step) {
  const std::int32_t thread = ThreadOf(at.rank(), at.channel()), agent = thread + 1;
  Tick(thread);
  // The agent starts the work at some time after the step, in order; the channel knows that it is done only after a flush.
  Join(&clocks_[agent], clocks_[thread]);
  Tick(agent);
  if (step.op == Op::kNotify) {
    raises_[{step.to, step.counter}].push_back({agent, clocks_[agent]});
    return Outcome::kDone;
  }
  std::int32_t source = step.op == Op::kGet ? step.remote : at.program().operands[step.first_operand].chunk;
  std::int32_t target = step.op == Op::kGet ? step.dst : step.remote;
  auto pieces = Read(at, step, step.op == Op::kGet ? step.to : at.rank(), source, agent, kNone);
  if (!pieces) return Outcome::kFailed;
  if (!Write(at, step, step.op == Op::kGet ? at.rank() : step.to, target, *pieces, agent, step.op == Op::kAccumulate))
    return Outcome::kFailed;
  report_.bytes += static_cast<std::uint64_t>(Length(*pieces) * at.layout().BytesOfElement(at.program().chunks[source].buffer));
  ++report_.messages;
  return Outcome::kDone;
}

Outcome SymbolicMachine::TryWait(const Interpreter& at, const Step& step) {
  const std::vector<Raise>& raises = raises_[{at.rank(), step.counter}];
  if (static_cast<std::int64_t>(raises.size()) < step.threshold) return Outcome::kBlocked;
  const std::int32_t thread = ThreadOf(at.rank(), at.channel());
  Tick(thread);
  if (step.threshold == 0) return Outcome::kDone;
  bool one_source = std::all_of(raises.begin(), raises.end(), [&](const Raise& raise) { return raise.agent == raises[0].agent; });
  auto total = totals_.find({at.rank(), step.counter});
  bool all = total != totals_.end() && total->second == step.threshold;
  // Of several sources nothing says whose notifications came first, so only "all of them" says something about any of them.
  if (all || one_source)
    for (std::int64_t i = 0; i < step.threshold; ++i) Join(&clocks_[thread], raises[i].clock);
  return Outcome::kDone;
}

Outcome SymbolicMachine::TryFlush(const Interpreter& at, const Step& step) {
  if (Line* line = LineOf(at.rank(), step.to, at.channel()); line != nullptr && !line->messages.empty()) return Outcome::kBlocked;
  const std::int32_t thread = ThreadOf(at.rank(), at.channel());
  Tick(thread);
  Join(&clocks_[thread], clocks_[thread + 1]);
  for (std::int32_t post : posted_[thread])
    // Another peer may have consumed what was sent to it in this order of events, and not in the next one.
    if (post != kNone && posts_[post].consumed && posts_[post].when.thread == ThreadOf(step.to, at.channel())) {
      // Only what the flush is about: that this message was consumed, not what its receiver knew.
      std::uint32_t& known = clocks_[thread][posts_[post].when.thread];
      known = std::max(known, posts_[post].when.time);
    }
  return Outcome::kDone;
}

Outcome SymbolicMachine::TryCounts(const Interpreter& at, const Step& step) {
  const std::int32_t thread = ThreadOf(at.rank(), at.channel());
  counts_known_[at.rank()] = Tick(thread);
  std::int32_t chunk = at.program().operands[step.first_operand].chunk;
  auto pieces = Read(at, step, at.rank(), chunk, thread, kNone);
  if (!pieces) return Outcome::kFailed;
  std::int64_t from = 0;
  const std::int32_t column = step.column != kNone ? step.column : at.rank();
  for (const Piece& piece : *pieces) {
    for (std::int64_t i = 0; i < piece.count; ++i) {
      // Entry p must be what rank p said of this rank, or of the column.
      const auto& terms = expressions_.TermsOf(piece.value.node);
      Value expected = expressions_.Leaf(static_cast<std::int32_t>(from + i), 0, column);
      for (std::size_t b = 0; b < plan_.header.buffers.size(); ++b)
        if (plan_.header.buffers[b].role == Role::kIn && plan_.header.buffers[b].element == Element::kCount)
          expected = expressions_.Leaf(static_cast<std::int32_t>(from + i), static_cast<std::int32_t>(b), column);
      if (terms.size() != 1 || terms[0].leaf != expected.node || piece.value.at + i != expected.at)
        return Stop(Fail(at, step, "COLL06", "entry " + std::to_string(from + i) + " is not what that rank has for this one",
                         "it holds another count, or one that was changed on the way"));
    }
    from += piece.count;
  }
  if (from != plan_.header.request.ranks)
    return Stop(Fail(at, step, "COLL03", "as many counts as ranks are needed",
                     "there are " + std::to_string(from) + " for " + std::to_string(plan_.header.request.ranks) + " ranks"));
  return Outcome::kDone;
}

Outcome SymbolicMachine::TryNative(const Interpreter& at, const Step& step) {
  std::vector<std::int32_t> group;
  if (step.group == kNone)
    for (std::int32_t rank = 0; rank < plan_.header.request.ranks; ++rank) group.push_back(rank);
  else
    group = plan_.header.groups[step.group];
  if (std::find(group.begin(), group.end(), at.rank()) == group.end())
    return Stop(Fail(at, step, "COLL02", "the rank is not of the group", "a native step is done by the ranks of its group only"));
  Rendezvous& meeting = natives_[{step.group, at.channel()}];
  if (meeting.released.erase(at.rank()) > 0) return Outcome::kDone;
  meeting.arrived.insert(at.rank());
  if (meeting.arrived.size() < group.size()) return Outcome::kBlocked;

  // The last one does the work of all.
  std::vector<Pieces> in;
  Clock all(clocks_.size());
  for (std::int32_t rank : group) {
    std::int32_t thread = ThreadOf(rank, at.channel());
    Tick(thread);
    Join(&all, clocks_[thread]);
    const Interpreter& other = *interpreters_[rank];
    const Step& theirs = other.program().steps[other.program().channels[at.channel()].first_step + other.step_of(at.channel())];
    if (theirs.op != Op::kNative || theirs.native != step.native || theirs.group != step.group)
      return Stop(
          Fail(at, step, "COLL03", "rank " + std::to_string(rank) + " does something else",
               "all ranks of a group do the same native step at that place of the channel; it is at " + std::string(Name(theirs.op))));
    auto pieces = Read(other, theirs, rank, other.program().operands[theirs.first_operand].chunk, thread, kNone);
    if (!pieces) return Outcome::kFailed;
    in.push_back(std::move(*pieces));
  }
  Pieces result;
  if (Folds(step.native)) {
    result = in[0];
    for (std::size_t i = 1; i < in.size(); ++i) {
      if (Length(in[i]) != Length(result))
        return Stop(Fail(at, step, "COLL03", "ranks of a native collective have other lengths",
                         "rank " + std::to_string(group[i]) + " gives " + std::to_string(Length(in[i])) + " elements, those before it " +
                             std::to_string(Length(result))));
      Pieces folded;
      Zip(result, in[i], [&](Value a, Value b, std::int64_t count) {
        Expressions::Append(&folded, count, expressions_.NativeFold(meeting.instance, a, b));
      });
      result = std::move(folded);
    }
  } else if (step.native == Collective::kAllgather) {
    for (const Pieces& pieces : in)
      for (const Piece& piece : pieces) Expressions::Append(&result, piece.count, piece.value);
  } else if (step.native == Collective::kBroadcast) {
    result = in[0];
  } else {
    return Stop(Fail(at, step, "COLL02", "no native form of this is known",
                     "libraries do allreduce, reduce_scatter, allgather, broadcast and reduce"));
  }
  ++meeting.instance;
  const Clock of_first = clocks_[ThreadOf(group[0], at.channel())];
  std::int64_t from = 0;
  for (std::int32_t rank : group) {
    std::int32_t thread = ThreadOf(rank, at.channel());
    // Who gets nothing of a rank has not waited for it: the first of a broadcast for nobody, the others of a reduce neither.
    if (step.native == Collective::kBroadcast)
      Join(&clocks_[thread], of_first);
    else if (step.native != Collective::kReduce || rank == group[0])
      Join(&clocks_[thread], all);
    Tick(thread);
    const Interpreter& other = *interpreters_[rank];
    const Step& theirs = other.program().steps[other.program().channels[at.channel()].first_step + other.step_of(at.channel())];
    Pieces mine = result;
    if (step.native == Collective::kReduce && rank != group[0]) mine.clear();
    if (step.native == Collective::kReduceScatter) {
      std::int64_t count = other.At(theirs.dst).count, skip = from, take = count;
      mine.clear();
      for (const Piece& piece : result) {
        std::int64_t begin = std::min(piece.count, skip), length = std::min(piece.count - begin, take);
        Expressions::Append(&mine, length, At(piece, begin));
        skip -= begin;
        take -= length;
      }
      from += count;
    }
    if (!Write(other, theirs, rank, theirs.dst, mine, thread, false)) return Outcome::kFailed;
    if (rank != at.rank()) meeting.released.insert(rank);
  }
  meeting.arrived.clear();
  return Outcome::kDone;
}

}  // namespace ropewalk::collective
