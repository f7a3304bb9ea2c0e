#include "mlrunner/collective/rounds.h"

#include <algorithm>
#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <utility>

#include "mlrunner/collective/interpreter.h"

namespace ropewalk::collective {
namespace {

constexpr std::int64_t kAlign = 64;

// What the steps of a plan need that rounds do not have; empty: nothing.
std::string WhyNot(const Plan& plan) {
  if (LearnsCounts(plan.header.request.collective))
    return "how long its messages are is learned from messages, and rounds are queued before";
  for (const Program& program : plan.programs)
    for (const Channel& channel : program.channels)
      if (channel.start != Start::kLocalCall) return "it begins without the call of this rank, which nothing on a stream can";
  if (plan.header.counter_count > 0) return "it counts, and a counter is raised without a call of who reads it";
  for (const Buffer& buffer : plan.header.buffers)
    if (buffer.role == Role::kWindow) return "it has a window, and only one side of a put or get makes a call";
  for (const Program& program : plan.programs) {
    for (const Step& step : program.steps) {
      switch (step.op) {
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
          break;
        case Op::kEncode:
        case Op::kDecode:
          return "its numbers travel encoded, and codecs run on the host";
        case Op::kContribute:
          return "who takes part in it is seen while it runs";
        case Op::kCounts:
          return "how long its messages are is learned from messages, and rounds are queued before";
        case Op::kNative:
          return "it is a library's own already";
        case Op::kPut:
        case Op::kGet:
        case Op::kAccumulate:
        case Op::kNotify:
        case Op::kWait:
          return "only one side of it makes a call";
      }
      const bool is_plain = step.op == Op::kSend && step.scale == kNone && program.operands[step.first_operand].scale == kNone;
      if (step.to != kNone && step.dst == kNone && step.op != Op::kFlush && !is_plain) return "a result is sent and not stored";
    }
  }
  return "";
}

std::int64_t BytesOf(std::int64_t count, Dtype dtype) { return count * static_cast<std::int64_t>(SizeOf(dtype)); }

struct Stretch {
  std::int32_t memory = 0;
  std::int64_t begin = 0, end = 0;
};
Stretch StretchOf(const RoundPlace& place, std::int64_t count, Dtype dtype) {
  return {place.memory, place.offset_bytes, place.offset_bytes + BytesOf(count, dtype)};
}
bool Overlap(const Stretch& a, const Stretch& b) { return a.memory == b.memory && a.begin < b.end && b.begin < a.end; }
// Whether they share memory in any form in which the caller may bind it.
bool MayOverlap(const Stretch& a, const Stretch& b, const std::vector<RoundAlias>& aliases) {
  if (Overlap(a, b)) return true;
  return std::any_of(aliases.begin(), aliases.end(), [&](const RoundAlias& alias) {
    auto within = [&](Stretch s) {
      return s.memory == alias.memory ? Stretch{alias.of, s.begin + alias.offset_bytes, s.end + alias.offset_bytes} : s;
    };
    return Overlap(within(a), within(b));
  });
}

// ---- the schedule ----------------------------------------------------------------------------------------------------------------------

class Maker : public Machine {
 public:
  explicit Maker(const Plan& plan) : plan_(plan), landing_(static_cast<std::int32_t>(plan.header.buffers.size())) {}

  Result<Rounds> Make(const Sizes& sizes) {
    for (const Program& program : plan_.programs) {
      ASSIGN_OR_RETURN(Layout layout, Layout::Make(plan_.header, program, sizes));
      layouts_.push_back(std::move(layout));
    }
    made_.ranks.resize(plan_.programs.size());
    ranks_.resize(plan_.programs.size());
    for (const Program& program : plan_.programs) {
      interpreters_.push_back(std::make_unique<Interpreter>(&program, &layouts_[program.rank]));
      for (const Edge& edge : program.edges) lines_[{program.rank, edge.peer, edge.channel}].slots = edge.slots;
      DescribeMemory(program.rank);
    }
    for (;;) {
      RETURN_IF_ERROR(GoOn());
      if (!CloseRound()) break;
    }
    for (const auto& interpreter : interpreters_)
      for (std::int32_t channel = 0; channel < plan_.header.channel_count; ++channel)
        if (!interpreter->ended(channel))
          return Status(Code::kInvalid, "COLL03",
                        plan_.header.algorithm + ": rank " + std::to_string(interpreter->rank()) + ", channel " + std::to_string(channel) +
                            " waits for ever at step " + std::to_string(interpreter->step_of(channel)),
                        "no message comes, or no slot becomes free", "prove the plan before it is made into rounds (CheckAll)");
    for (std::int32_t rank = 0; rank < static_cast<std::int32_t>(ranks_.size()); ++rank) Finish(rank);
    return std::move(made_);
  }

  Outcome Try(const Interpreter& at, const Step& step) override {
    if (step.op != Op::kFlush) return Data(at, step);
    auto line = lines_.find({at.rank(), step.to, at.channel()});
    return line == lines_.end() || line->second.messages.empty() ? Outcome::kDone : Outcome::kBlocked;
  }

 private:
  struct Message {
    std::int64_t number = 0, count = 0;
    Dtype dtype = Dtype::kF32;
    std::int64_t round = 0;    // whose group brings it
    bool is_left_out = false;  // it has no elements
    bool is_sign = false;
  };
  struct Line {
    std::int64_t slots = 0, arrived = 0, posted = 0;
    std::deque<Message> messages;  // not consumed
  };
  using LineId = std::tuple<std::int32_t, std::int32_t, std::int32_t>;  // from, to, channel
  struct Access {
    std::int64_t round = 0;
    bool in_group = false;  // else before it
    Stretch stretch;
  };
  struct Landing {
    std::int32_t index = 0;
    std::int64_t bytes = 0;
  };
  struct Rank {
    std::vector<std::vector<Transfer>> groups = std::vector<std::vector<Transfer>>(1);  // by round
    std::vector<std::int32_t> folds_end;                                                // by round that is closed
    std::vector<Access> accesses;                                                       // by round
    std::map<LineId, Landing> landings;                                                 // by sender, channel and slot
    bool has_signs = false;
  };

  void DescribeMemory(std::int32_t rank) {
    RankRounds& made = made_.ranks[rank];
    const Layout& layout = layouts_[rank];
    for (std::int32_t b = 0; b < landing_; ++b) {
      made.memory_bytes.push_back(layout.ElementsOf(b) * layout.BytesOfElement(b));
      const Buffer& buffer = plan_.header.buffers[b];
      if (buffer.may_alias != kNone)
        made.aliases.push_back({b, buffer.may_alias, layout.AliasOffset(b, rank) * layout.BytesOfElement(buffer.may_alias)});
    }
  }

  // All ranks as far as they come with what has arrived. One may wait for a slot that another frees within the round: what is folded comes
  // before the group on both.
  Status GoOn() {
    for (bool moved = true; moved;) {
      moved = false;
      for (auto& interpreter : interpreters_) {
        const std::uint64_t before = interpreter->steps_done();
        if (interpreter->Advance(*this) == Outcome::kFailed) return failure_;
        steps_ += static_cast<std::int64_t>(interpreter->steps_done() - before);
        moved = moved || interpreter->steps_done() != before;
      }
      if (steps_ > kRoundStepsMax)
        return Status(Code::kResourceExhausted, "COLL12", plan_.header.algorithm + " makes too many rounds",
                      "its ranks do more than " + std::to_string(kRoundStepsMax) + " steps, all of which are queued at once",
                      "cut the vector into fewer segments (segment_bytes)");
    }
    return {};
  }

  // False: nothing is under way.
  bool CloseRound() {
    if (under_way_.empty()) return false;
    for (Line* line : std::exchange(under_way_, {})) ++line->arrived;
    if (!has_group_) return true;  // only messages without elements: the round goes on
    has_group_ = false;
    ++made_.groups;
    ++round_;
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      // Of two ranks both halves stand in one order, whatever the order in which the two came to them.
      std::sort(ranks_[r].groups.back().begin(), ranks_[r].groups.back().end(), [](const Transfer& a, const Transfer& b) {
        return std::tuple(!a.sends, a.peer, a.channel, a.number) < std::tuple(!b.sends, b.peer, b.channel, b.number);
      });
      ranks_[r].groups.emplace_back();
      ranks_[r].folds_end.push_back(static_cast<std::int32_t>(made_.ranks[r].folds.size()));
    }
    return true;
  }

  RoundPlace PlaceOf(const Interpreter& at, std::int32_t chunk) const {
    const std::int32_t buffer = at.program().chunks[chunk].buffer;
    return {buffer, at.At(chunk).offset * at.layout().BytesOfElement(buffer)};
  }
  Dtype DtypeOfChunk(const Interpreter& at, std::int32_t chunk) const { return DtypeOf(plan_.header, at.program().chunks[chunk].buffer); }
  double ScaleOf(std::int32_t scale) const { return scale == kNone ? 1 : plan_.header.scales[scale]; }

  void Note(std::int32_t rank, bool in_group, const Stretch& stretch) {
    if (stretch.begin < stretch.end) ranks_[rank].accesses.push_back({round_, in_group, stretch});
  }

  // Whether what was received in `round` may have been stored there at once: nothing has touched the memory since.
  bool IsUntouched(std::int32_t rank, const Stretch& stretch, std::int64_t round) const {
    const auto& accesses = ranks_[rank].accesses;
    for (auto access = accesses.rbegin(); access != accesses.rend() && access->round >= round; ++access)
      if ((access->round > round || access->in_group) && MayOverlap(access->stretch, stretch, made_.ranks[rank].aliases)) return false;
    return true;
  }
  void NoteReceived(std::int32_t rank, const Stretch& stretch, std::int64_t round) {
    auto& accesses = ranks_[rank].accesses;
    const auto behind =
        std::upper_bound(accesses.begin(), accesses.end(), round, [](std::int64_t of, const Access& access) { return of < access.round; });
    accesses.insert(behind, Access{round, true, stretch});
  }

  Transfer& Received(std::int32_t rank, std::int32_t from, std::int32_t channel, const Message& message) {
    auto& group = ranks_[rank].groups[static_cast<std::size_t>(message.round)];
    return *std::find_if(group.begin(), group.end(), [&](const Transfer& transfer) {
      return !transfer.sends && transfer.peer == from && transfer.channel == channel && transfer.number == message.number;
    });
  }

  // Where the message lands that waits to be folded. Offsets are not known yet: the place says which of the landings.
  RoundPlace Land(std::int32_t rank, std::int32_t from, std::int32_t channel, const Message& message, std::int64_t slots) {
    auto& landings = ranks_[rank].landings;
    const auto slot = static_cast<std::int32_t>(message.number % slots);
    const auto key = LineId{from, channel, slot};
    const Landing fresh{static_cast<std::int32_t>(landings.size()), 0};
    Landing& landing = landings.emplace(key, fresh).first->second;
    landing.bytes = std::max(landing.bytes, message.is_sign ? 1 : BytesOf(message.count, message.dtype));
    const RoundPlace place{landing_, landing.index};
    Received(rank, from, channel, message).place = place;
    if (!message.is_sign) ++made_.landed;
    return place;
  }

  Outcome Data(const Interpreter& at, const Step& step) {
    const std::int32_t rank = at.rank(), channel = at.channel();
    const Operand* operands = at.program().operands.data() + step.first_operand;
    std::map<Line*, std::int64_t> wanted;
    for (std::int32_t i = 0; i < step.operand_count; ++i) {
      if (operands[i].peer == kNone) continue;
      auto line = lines_.find({operands[i].peer, rank, channel});
      if (line == lines_.end() || line->second.arrived < ++wanted[&line->second]) return Outcome::kBlocked;
    }
    Line* out = step.to == kNone ? nullptr : &lines_[{rank, step.to, channel}];
    if (out != nullptr && static_cast<std::int64_t>(out->messages.size()) >= out->slots) return Outcome::kBlocked;

    RankRounds& made = made_.ranks[rank];
    const bool only_stores = step.operand_count == 1 && operands[0].peer != kNone && operands[0].scale == kNone && step.scale == kNone &&
                             step.dst != kNone && DtypeOfChunk(at, operands[0].chunk) == DtypeOfChunk(at, step.dst);
    std::vector<RoundRow> rows;
    bool is_stored = false;
    for (std::int32_t i = 0; i < step.operand_count; ++i) {
      const Operand& operand = operands[i];
      const std::int64_t count = at.At(operand.chunk).count;
      RoundRow row{{}, DtypeOfChunk(at, operand.chunk), ScaleOf(operand.scale)};
      if (operand.peer == kNone) {
        row.from = PlaceOf(at, operand.chunk);
        if (step.dst != kNone) Note(rank, false, StretchOf(row.from, count, row.dtype));
        rows.push_back(row);
        continue;
      }
      Line& line = lines_.find({operand.peer, rank, channel})->second;
      const Message message = line.messages.front();
      line.messages.pop_front();
      --line.arrived;
      if (message.count != count || message.dtype != row.dtype) {
        failure_ = Status(Code::kInvalid, "COLL03",
                          plan_.header.algorithm + ": rank " + std::to_string(operand.peer) + " sends " + std::to_string(message.count) +
                              " elements, and rank " + std::to_string(rank) + " takes " + std::to_string(count),
                          "sender and receiver see another length or type", "prove the plan before it is made into rounds (CheckAll)");
        return Outcome::kFailed;
      }
      if (message.is_left_out) continue;
      const Stretch into = only_stores ? StretchOf(PlaceOf(at, step.dst), count, row.dtype) : Stretch{};
      is_stored = only_stores && !message.is_sign && IsUntouched(rank, into, message.round);
      if (is_stored) {
        Received(rank, operand.peer, channel, message).place = PlaceOf(at, step.dst);
        NoteReceived(rank, into, message.round);
        continue;
      }
      row.from = Land(rank, operand.peer, channel, message, line.slots);
      if (!message.is_sign) rows.push_back(row);
    }
    if (step.dst != kNone && !is_stored) {
      const RoundFold fold{.out = PlaceOf(at, step.dst),
                           .dtype = DtypeOfChunk(at, step.dst),
                           .scale = ScaleOf(step.scale),
                           .count = at.At(step.dst).count,
                           .first_row = static_cast<std::int32_t>(made.rows.size()),
                           .row_count = static_cast<std::int32_t>(rows.size())};
      const bool stays =
          rows.size() == 1 && rows[0].from == fold.out && rows[0].dtype == fold.dtype && rows[0].scale == 1 && fold.scale == 1;
      if (fold.count > 0 && !stays) {
        Note(rank, false, StretchOf(fold.out, fold.count, fold.dtype));
        made.rows.insert(made.rows.end(), rows.begin(), rows.end());
        made.folds.push_back(fold);
      }
    }
    if (out != nullptr) Post(at, step.to, step.dst != kNone ? step.dst : operands[0].chunk, out);
    return Outcome::kDone;
  }

  void Post(const Interpreter& at, std::int32_t to, std::int32_t chunk, Line* line) {
    const std::int32_t rank = at.rank(), channel = at.channel();
    Message message{.number = line->posted++, .count = at.At(chunk).count, .dtype = DtypeOfChunk(at, chunk), .round = round_};
    message.is_sign = at.program().ranges[at.program().chunks[chunk].range].kind == RangeKind::kNothing;
    message.is_left_out = message.count == 0 && !message.is_sign;
    line->messages.push_back(message);
    under_way_.push_back(line);
    if (message.is_left_out) return;
    has_group_ = true;
    Transfer transfer{.sends = true,
                      .is_sign = message.is_sign,
                      .peer = to,
                      .place = message.is_sign ? RoundPlace{landing_, kNone} : PlaceOf(at, chunk),
                      .dtype = message.is_sign ? Dtype::kU8 : message.dtype,
                      .count = message.is_sign ? 1 : message.count,
                      .channel = channel,
                      .number = message.number};
    ++made_.messages;
    made_.bytes += BytesOf(transfer.count, transfer.dtype);
    if (message.is_sign)
      ranks_[rank].has_signs = true;
    else
      Note(rank, true, StretchOf(transfer.place, transfer.count, transfer.dtype));
    ranks_[rank].groups.back().push_back(transfer);
    transfer.sends = false;
    transfer.peer = rank;
    transfer.place = {};  // known when it is taken
    ranks_[to].groups.back().push_back(transfer);
  }

  // Landings get their offsets, and groups their places in one list.
  void Finish(std::int32_t rank) {
    Rank& of = ranks_[rank];
    RankRounds& made = made_.ranks[rank];
    std::vector<std::int64_t> offsets(of.landings.size());
    std::int64_t bytes = of.has_signs ? kAlign : 0;  // what is sent as a sign lies first
    for (const auto& [key, landing] : of.landings) {
      offsets[static_cast<std::size_t>(landing.index)] = bytes;
      bytes += (landing.bytes + kAlign - 1) / kAlign * kAlign;
    }
    made.memory_bytes.push_back(bytes);
    auto settle = [&](RoundPlace* place) {
      if (place->memory == landing_)
        place->offset_bytes = place->offset_bytes == kNone ? 0 : offsets[static_cast<std::size_t>(place->offset_bytes)];
    };
    for (RoundRow& row : made.rows) settle(&row.from);
    of.folds_end.push_back(static_cast<std::int32_t>(made.folds.size()));
    std::int32_t folds = 0;
    for (std::size_t round = 0; round < of.groups.size(); ++round) {
      made.rounds.push_back({.first_fold = folds,
                             .fold_count = of.folds_end[round] - folds,
                             .first_transfer = static_cast<std::int32_t>(made.transfers.size()),
                             .transfer_count = static_cast<std::int32_t>(of.groups[round].size())});
      folds = of.folds_end[round];
      for (Transfer& transfer : of.groups[round]) {
        settle(&transfer.place);
        made.transfers.push_back(transfer);
      }
    }
  }

  const Plan& plan_;
  const std::int32_t landing_;
  std::vector<Layout> layouts_;
  std::vector<std::unique_ptr<Interpreter>> interpreters_;
  std::map<LineId, Line> lines_;
  std::vector<Line*> under_way_;
  std::vector<Rank> ranks_;
  std::int64_t round_ = 0, steps_ = 0;
  bool has_group_ = false;
  Rounds made_;
  Status failure_;
};

// ---- the proof -------------------------------------------------------------------------------------------------------------------------

std::string Describe(std::int32_t rank, std::size_t round) { return "rank " + std::to_string(rank) + ", round " + std::to_string(round); }

class Checker {
 public:
  explicit Checker(const Rounds& rounds) : rounds_(rounds) {}

  Status Check() const {
    for (std::int32_t rank = 0; rank < Ranks(); ++rank) {
      RETURN_IF_ERROR(CheckIndices(rank));
      RETURN_IF_ERROR(CheckMemory(rank));
    }
    return Meet();
  }

 private:
  std::int32_t Ranks() const { return static_cast<std::int32_t>(rounds_.ranks.size()); }
  static Status Bad(const char* tag, const std::string& what, const std::string& why) {
    return Status(Code::kInvalid, tag, what, why, "take the rounds from MakeRounds()");
  }

  Status CheckIndices(std::int32_t rank) const {
    const RankRounds& own = rounds_.ranks[rank];
    if (own.memory_bytes.empty() || own.rounds.size() != rounds_.ranks[0].rounds.size())
      return Bad("COLL02", "rank " + std::to_string(rank) + " has no memory, or other rounds than rank 0", "all have as many");
    auto is_within = [](std::int32_t first, std::int32_t count, std::size_t size) {
      return first >= 0 && count >= 0 && static_cast<std::size_t>(first) + static_cast<std::size_t>(count) <= size;
    };
    auto is_bound = [&](const RoundPlace& place, std::int64_t count, Dtype dtype) {
      if (place.memory < 0 || static_cast<std::size_t>(place.memory) >= own.memory_bytes.size() || place.offset_bytes < 0 || count < 0)
        return false;
      return place.offset_bytes + BytesOf(count, dtype) <= own.memory_bytes[static_cast<std::size_t>(place.memory)];
    };
    for (const RoundAlias& alias : own.aliases)
      if (!is_bound({alias.memory, 0}, 0, Dtype::kU8) || !is_bound({alias.of, 0}, 0, Dtype::kU8))
        return Bad("COLL02", "rank " + std::to_string(rank) + ": an alias of no memory", "it names memory that is none");
    for (std::size_t r = 0; r < own.rounds.size(); ++r) {
      const Round& round = own.rounds[r];
      if (!is_within(round.first_fold, round.fold_count, own.folds.size()) ||
          !is_within(round.first_transfer, round.transfer_count, own.transfers.size()))
        return Bad("COLL02", Describe(rank, r) + " names folds or transfers that are none", "its lists are shorter");
      for (const RoundFold& fold : FoldsOf(rank, r)) {
        bool good =
            is_bound(fold.out, fold.count, fold.dtype) && fold.row_count > 0 && is_within(fold.first_row, fold.row_count, own.rows.size());
        for (std::int32_t i = fold.first_row; good && i < fold.first_row + fold.row_count; ++i)
          good = is_bound(own.rows[static_cast<std::size_t>(i)].from, fold.count, own.rows[static_cast<std::size_t>(i)].dtype);
        if (!good) return Bad("COLL02", Describe(rank, r) + ": a fold outside of its memory", "it reads or stores beyond what is bound");
      }
      for (const Transfer& transfer : GroupOf(rank, r)) {
        if (transfer.peer < 0 || transfer.peer >= Ranks() || transfer.peer == rank)
          return Bad("COLL02", Describe(rank, r) + ": a transfer with rank " + std::to_string(transfer.peer), "that is no other rank");
        if (!is_bound(transfer.place, transfer.count, transfer.dtype))
          return Bad("COLL02", Describe(rank, r) + ": a transfer outside of its memory", "it reads or stores beyond what is bound");
      }
    }
    return {};
  }

  std::span<const RoundFold> FoldsOf(std::int32_t rank, std::size_t round) const {
    const RankRounds& own = rounds_.ranks[rank];
    const Round& of = own.rounds[round];
    return std::span(own.folds).subspan(static_cast<std::size_t>(of.first_fold), static_cast<std::size_t>(of.fold_count));
  }
  std::span<const Transfer> GroupOf(std::int32_t rank, std::size_t round) const {
    const RankRounds& own = rounds_.ranks[rank];
    const Round& of = own.rounds[round];
    return std::span(own.transfers).subspan(static_cast<std::size_t>(of.first_transfer), static_cast<std::size_t>(of.transfer_count));
  }

  Status CheckMemory(std::int32_t rank) const {
    const RankRounds& own = rounds_.ranks[rank];
    const auto landing = static_cast<std::int32_t>(own.memory_bytes.size()) - 1;
    std::map<std::int64_t, Stretch> unread;  // by where they begin: messages that have landed
    for (std::size_t r = 0; r < own.rounds.size(); ++r) {
      for (const RoundFold& fold : FoldsOf(rank, r)) {
        for (std::int32_t i = fold.first_row; i < fold.first_row + fold.row_count; ++i) {
          const RoundRow& row = own.rows[static_cast<std::size_t>(i)];
          if (row.from.memory != landing) continue;
          auto message = unread.find(row.from.offset_bytes);
          if (message == unread.end() || message->second.end != StretchOf(row.from, fold.count, row.dtype).end)
            return Bad("COLL05", Describe(rank, r) + ": a fold reads a message that has not landed",
                       "no group before it receives it there");
          unread.erase(message);
        }
      }
      const std::span<const Transfer> group = GroupOf(rank, r);
      for (std::size_t i = 0; i < group.size(); ++i) {
        if (group[i].sends) continue;
        const Stretch into = StretchOf(group[i].place, group[i].count, group[i].dtype);
        for (std::size_t j = 0; j < group.size(); ++j) {
          const bool is_pair_seen = !group[j].sends && j <= i;
          if (!is_pair_seen && MayOverlap(into, StretchOf(group[j].place, group[j].count, group[j].dtype), own.aliases))
            return Bad("COLL04",
                       Describe(rank, r) + ": what comes from rank " + std::to_string(group[i].peer) + " is stored where rank " +
                           std::to_string(group[j].peer) + (group[j].sends ? " is sent from" : "'s message is stored"),
                       "transfers of one group go on together");
        }
        if (into.memory != landing || group[i].is_sign) continue;
        for (const auto& [begin, message] : unread)
          if (Overlap(into, message))
            return Bad("COLL04",
                       Describe(rank, r) + ": what comes from rank " + std::to_string(group[i].peer) + " lands on what is not read yet",
                       "no fold has taken the message that lies there");
        unread[into.begin] = into;
      }
    }
    return {};
  }

  // All ranks as the library would run them: a transfer is done when both ranks are in the groups that hold its halves, a group when its
  // transfers are, and then the rank goes on. What can be done does not depend on who goes first.
  Status Meet() const {
    struct At {
      std::size_t round = 0;
      std::int64_t left = 0;  // transfers of its group that are not done
    };
    std::vector<At> at(static_cast<std::size_t>(Ranks()));
    using Pair = std::pair<std::int32_t, std::int32_t>;           // from, to
    std::map<Pair, std::deque<const Transfer*>> sends, receives;  // that wait, in their order
    std::vector<std::int32_t> fresh;                              // ranks that have come to a group
    auto enter = [&](std::int32_t rank) {
      At& here = at[static_cast<std::size_t>(rank)];
      const std::size_t rounds = rounds_.ranks[rank].rounds.size();
      while (here.round < rounds && GroupOf(rank, here.round).empty()) ++here.round;
      if (here.round == rounds) return;
      for (const Transfer& transfer : GroupOf(rank, here.round)) {
        ++here.left;
        (transfer.sends ? sends[{rank, transfer.peer}] : receives[{transfer.peer, rank}]).push_back(&transfer);
      }
      fresh.push_back(rank);
    };
    for (std::int32_t rank = 0; rank < Ranks(); ++rank) enter(rank);
    while (!fresh.empty()) {
      for (std::int32_t rank : std::exchange(fresh, {})) {
        if (at[static_cast<std::size_t>(rank)].left == 0) continue;  // it has ended meanwhile
        for (const Transfer& transfer : GroupOf(rank, at[static_cast<std::size_t>(rank)].round)) {
          const Pair pair = transfer.sends ? Pair{rank, transfer.peer} : Pair{transfer.peer, rank};
          auto send = sends.find(pair), receive = receives.find(pair);
          while (send != sends.end() && receive != receives.end() && !send->second.empty() && !receive->second.empty()) {
            const Transfer &out = *send->second.front(), &in = *receive->second.front();
            if (out.count != in.count || out.dtype != in.dtype)
              return Bad("COLL03",
                         Describe(pair.first, at[static_cast<std::size_t>(pair.first)].round) + " sends rank " +
                             std::to_string(pair.second) + " " + std::to_string(out.count) + " " + std::string(Name(out.dtype)) +
                             ", which takes " + std::to_string(in.count) + " " + std::string(Name(in.dtype)),
                         "the halves of a message differ");
            send->second.pop_front();
            receive->second.pop_front();
            for (std::int32_t half : {pair.first, pair.second}) {
              At& here = at[static_cast<std::size_t>(half)];
              if (--here.left > 0) continue;
              ++here.round;
              enter(half);
            }
          }
        }
      }
    }
    for (std::int32_t rank = 0; rank < Ranks(); ++rank) {
      const At& here = at[static_cast<std::size_t>(rank)];
      if (here.left == 0) continue;
      std::string peers;
      for (const auto& [pair, left] : sends)
        if (pair.first == rank && !left.empty()) peers += " to send to rank " + std::to_string(pair.second) + ",";
      for (const auto& [pair, left] : receives)
        if (pair.second == rank && !left.empty()) peers += " to hear from rank " + std::to_string(pair.first) + ",";
      peers.pop_back();
      return Bad(
          "COLL03", Describe(rank, here.round) + ": deadlock: it waits for ever" + peers,
          "the other half is in no group, or in one behind a group that waits for this one; what must go on together belongs into one");
    }
    return {};
  }

  const Rounds& rounds_;
};

}  // namespace

Status CheckRounds(const Rounds& rounds) { return Checker(rounds).Check(); }

Result<Rounds> MakeRounds(const Plan& plan, const Sizes& sizes) {
  if (std::string why = WhyNot(plan); !why.empty())
    return Status(Code::kInvalid, "COLL12", plan.header.algorithm + " cannot be run as rounds of sends and receives", std::move(why),
                  "run it over a communicator's own transports, or choose another algorithm");
  ASSIGN_OR_RETURN(Rounds rounds, Maker(plan).Make(sizes));
  RETURN_IF_ERROR(CheckRounds(rounds));
  return rounds;
}

}  // namespace ropewalk::collective
