#include "mlrunner/collective/simulate.h"

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <tuple>
#include <utility>

#include "mlrunner/collective/check/check.h"
#include "mlrunner/collective/interpreter.h"

namespace ropewalk::collective {
namespace {

constexpr std::uint64_t kEventsMax = 200'000'000;

// All ranks in virtual time. A rank has one processor: what a step costs, no other step of the rank gets.
class TimeMachine : public Machine {
 public:
  TimeMachine(const Plan& plan, const SimulateOptions& options, std::vector<Layout>* layouts)
      : plan_(plan), options_(options), network_(&queue_, plan.header.request.ranks, options.network) {
    const std::int32_t ranks = plan.header.request.ranks;
    ranks_.resize(ranks);
    report_.ends_ns.resize(ranks);
    report_.sent_bytes.resize(ranks);
    report_.sent_messages.resize(ranks);
    report_.trace.resize(ranks);
    for (const Program& program : plan.programs) {
      for (const Edge& edge : program.edges) lines_[{program.rank, edge.peer, edge.channel}].slots = edge.slots;
      interpreters_.push_back(std::make_unique<Interpreter>(&program, &(*layouts)[program.rank]));
    }
  }

  Result<SimulateReport> Run() {
    for (std::int32_t rank = 0; rank < plan_.header.request.ranks; ++rank) {
      std::int64_t start = options_.start_ns.empty() ? 0 : options_.start_ns[rank];
      SetCalled(rank, start == 0);
      if (start > 0)
        queue_.At(start, [this, rank] {
          SetCalled(rank, true);
          Go(rank);
        });
      queue_.At(0, [this, rank] { Go(rank); });
    }
    for (std::uint64_t n = 0; queue_.RunOne(INT64_MAX); ++n)
      if (n > kEventsMax) return Stuck("does not come to an end");
    for (std::int32_t rank = 0; rank < plan_.header.request.ranks; ++rank)
      for (std::int32_t channel = 0; channel < plan_.header.channel_count; ++channel)
        if (!interpreters_[rank]->ended(channel)) return Stuck("rank " + std::to_string(rank) + " waits for ever");
    for (std::int32_t rank = 0; rank < plan_.header.request.ranks; ++rank) {
      report_.end_ns = std::max(report_.end_ns, report_.ends_ns[rank]);
      report_.steps += interpreters_[rank]->steps_done();
    }
    report_.trace = options_.trace ? ByChannel(std::move(report_.trace)) : Trace{};
    return std::move(report_);
  }

  Outcome Try(const Interpreter& at, const Step& step) override {
    Rank& mine = ranks_[at.rank()];
    if (queue_.now() < mine.busy_until) return Outcome::kBlocked;
    switch (step.op) {
      case Op::kWait:
        return counters_[{at.rank(), step.counter}] >= step.threshold ? Outcome::kDone : Outcome::kBlocked;
      case Op::kFlush: {
        const Line& line = lines_[{at.rank(), step.to, at.channel()}];
        return line.unconsumed == 0 && line.one_sided == 0 ? Outcome::kDone : Outcome::kBlocked;
      }
      case Op::kPut:
      case Op::kGet:
      case Op::kAccumulate:
      case Op::kNotify:
        OneSided(at, step);
        return Outcome::kDone;
      case Op::kContribute:
        if (mine.called) ++report_.contributed;
        Work(at.rank(), options_.copy_ns_per_byte * Bytes(at, step.dst));
        return Outcome::kDone;
      case Op::kCounts:
        return Outcome::kDone;
      case Op::kNative:
        return Native(at, step);
      default:
        return Data(at, step);
    }
  }

 private:
  struct Line {
    std::int64_t slots = 0, unconsumed = 0, one_sided = 0;
    std::deque<std::int64_t> arrived;  // bytes
  };
  struct Rank {
    sim::TimeUs busy_until = 0;
    bool called = true;
  };

  Status Stuck(const std::string& why) const {
    return Status(Code::kInvalid, "COLL03", plan_.header.algorithm + " does not end in virtual time", why, "check the plan");
  }
  void SetCalled(std::int32_t rank, bool called) {
    ranks_[rank].called = called;
    const Program& program = plan_.programs[rank];
    for (std::size_t channel = 0; channel < program.channels.size(); ++channel)
      if (program.channels[channel].start == Start::kLocalCall) interpreters_[rank]->SetStarted(static_cast<std::int32_t>(channel), called);
  }
  double Bytes(const Interpreter& at, std::int32_t chunk) const {
    return static_cast<double>(at.At(chunk).count * at.layout().BytesOfElement(at.program().chunks[chunk].buffer));
  }
  void Go(std::int32_t rank) {
    std::uint64_t before = interpreters_[rank]->steps_done();
    interpreters_[rank]->Advance(*this);
    if (interpreters_[rank]->steps_done() != before) report_.ends_ns[rank] = std::max(queue_.now(), ranks_[rank].busy_until);
  }
  // The rank's processor is taken for so long, beginning now.
  void Work(std::int32_t rank, double ns) {
    auto ticks = static_cast<sim::TimeUs>(ns + 0.5);
    if (ticks <= 0) return;
    ranks_[rank].busy_until = std::max(queue_.now(), ranks_[rank].busy_until) + ticks;
    queue_.At(ranks_[rank].busy_until, [this, rank] { Go(rank); });
  }
  void Sent(std::int32_t rank, std::int32_t channel, std::int32_t peer, std::int64_t bytes) {
    report_.sent_bytes[rank] += bytes;
    ++report_.sent_messages[rank];
    if (options_.trace) report_.trace[rank].push_back({true, channel, peer, bytes});
  }

  Outcome Data(const Interpreter& at, const Step& step) {
    const std::int32_t rank = at.rank(), channel = at.channel();
    const Operand* operands = at.program().operands.data() + step.first_operand;
    std::map<Line*, std::size_t> wanted;
    for (std::int32_t i = 0; i < step.operand_count; ++i) {
      if (operands[i].peer == kNone) continue;
      Line* line = &lines_[{operands[i].peer, rank, channel}];
      if (line->arrived.size() < ++wanted[line]) return Outcome::kBlocked;
    }
    Line* out = step.to == kNone ? nullptr : &lines_[{rank, step.to, channel}];
    if (out != nullptr && out->unconsumed >= out->slots) return Outcome::kBlocked;

    double ns = 0;
    for (std::int32_t i = 0; i < step.operand_count; ++i) {
      const Operand& operand = operands[i];
      if (i > 0) ns += options_.reduce_ns_per_byte * (step.dst != kNone ? Bytes(at, step.dst) : Bytes(at, operand.chunk));
      if (operand.decode) ns += options_.code_ns_per_byte * Bytes(at, step.dst);
      if (operand.peer == kNone) continue;
      ns += static_cast<double>(options_.overhead_ns);
      Line& line = lines_[{operand.peer, rank, channel}];
      if (options_.trace) report_.trace[rank].push_back({false, channel, operand.peer, line.arrived.front()});
      line.arrived.pop_front();
      --line.unconsumed;
      // A slot is free: the sender may go on, if it waited for that.
      queue_.At(queue_.now(), [this, peer = operand.peer] { Go(peer); });
    }
    if (step.op == Op::kCopy) ns += options_.copy_ns_per_byte * Bytes(at, step.dst);
    if (step.op == Op::kEncode) ns += options_.code_ns_per_byte * Bytes(at, operands[0].chunk);
    if (out == nullptr) {
      Work(rank, ns);
      return Outcome::kDone;
    }
    Work(rank, ns + static_cast<double>(options_.overhead_ns));
    auto bytes = static_cast<std::int64_t>(Bytes(at, step.dst != kNone ? step.dst : operands[0].chunk));
    ++out->unconsumed;
    Sent(rank, channel, step.to, bytes);
    queue_.At(ranks_[rank].busy_until, [this, rank, to = step.to, bytes, out] {
      network_.Send(rank, to, bytes, [this, to, bytes, out] {
        out->arrived.push_back(bytes);
        Go(to);
      });
    });
    return Outcome::kDone;
  }

  void OneSided(const Interpreter& at, const Step& step) {
    const std::int32_t rank = at.rank(), to = step.to;
    Work(rank, static_cast<double>(options_.overhead_ns));
    sim::TimeUs when = std::max(queue_.now(), ranks_[rank].busy_until);
    if (step.op == Op::kNotify) {
      auto raise = [this, to, counter = step.counter] {
        ++counters_[{to, counter}];
        Go(to);
      };
      if (rank == to) {
        queue_.At(when, raise);
        return;
      }
      Sent(rank, at.channel(), to, 0);
      queue_.At(when, [this, rank, to, raise] { network_.Send(rank, to, 0, raise); });
      return;
    }
    Line* line = &lines_[{rank, to, at.channel()}];
    ++line->one_sided;
    auto bytes = static_cast<std::int64_t>(Bytes(at, step.remote));
    auto done = [this, rank, line] {
      --line->one_sided;
      Go(rank);
    };
    if (step.op == Op::kGet) {
      // The peer's memory is read; nothing of its program knows.
      report_.sent_bytes[to] += bytes;
      ++report_.sent_messages[to];
      if (options_.trace) report_.trace[rank].push_back({false, at.channel(), to, bytes});
      queue_.At(when, [this, rank, to, bytes, done] {
        network_.Send(rank, to, 0, [this, rank, to, bytes, done] { network_.Send(to, rank, bytes, done); });
      });
      return;
    }
    Sent(rank, at.channel(), to, bytes);
    queue_.At(when, [this, rank, to, bytes, done] { network_.Send(rank, to, bytes, done); });
  }

  // A library's collective, taken as direct: two rounds in which each byte is sent and received once.
  Outcome Native(const Interpreter& at, const Step& step) {
    auto& meeting = natives_[{step.group, at.channel()}];
    if (meeting.released.count(at.rank()) > 0) {
      meeting.released.erase(at.rank());
      return Outcome::kDone;
    }
    std::size_t size = step.group == kNone ? plan_.header.request.ranks : plan_.header.groups[step.group].size();
    if (!meeting.arrived.insert({at.rank(), true}).second || meeting.arrived.size() < size) return Outcome::kBlocked;
    double part = Bytes(at, step.dst) * static_cast<double>(size - 1) / static_cast<double>(size);
    auto ns = static_cast<sim::TimeUs>(2 * (static_cast<double>(options_.network.latency_ns) + part * options_.network.ns_per_byte));
    std::vector<std::int32_t> ranks;
    for (const auto& [rank, here] : meeting.arrived) ranks.push_back(rank);
    for (std::int32_t rank : ranks)
      Sent(rank, at.channel(), rank, NativeBytes(static_cast<std::int64_t>(Bytes(at, step.dst)), static_cast<std::int64_t>(size)));
    queue_.After(ns, [this, ranks, key = std::pair(step.group, at.channel())] {
      natives_[key].arrived.clear();
      for (std::int32_t rank : ranks) natives_[key].released[rank] = true;
      for (std::int32_t rank : ranks) Go(rank);
    });
    return Outcome::kBlocked;
  }

  struct Meeting {
    std::map<std::int32_t, bool> arrived, released;
  };
  const Plan& plan_;
  const SimulateOptions& options_;
  sim::EventQueue queue_;
  sim::Network network_;
  std::vector<std::unique_ptr<Interpreter>> interpreters_;
  std::vector<Rank> ranks_;
  std::map<std::tuple<std::int32_t, std::int32_t, std::int32_t>, Line> lines_;
  std::map<std::pair<std::int32_t, std::int32_t>, std::int64_t> counters_;
  std::map<std::pair<std::int32_t, std::int32_t>, Meeting> natives_;
  SimulateReport report_;
};

}  // namespace

Trace ByChannel(Trace trace) {
  for (auto& entries : trace)
    std::stable_sort(entries.begin(), entries.end(), [](const TraceEntry& a, const TraceEntry& b) { return a.channel < b.channel; });
  return trace;
}

Result<std::uint64_t> CountSteps(const Header& header, const Program& program, const Sizes& sizes) {
  class : public Machine {
    Outcome Try(const Interpreter& /*at*/, const Step& /*step*/) override { return Outcome::kDone; }
  } never_waits;
  ASSIGN_OR_RETURN(Layout layout, Layout::Make(header, program, sizes));
  Interpreter interpreter(&program, &layout);
  (void)interpreter.Advance(never_waits);
  return interpreter.steps_done();
}

Result<SimulateReport> Simulate(const Plan& plan, const SimulateOptions& options) {
  const auto ranks = static_cast<std::size_t>(plan.header.request.ranks);
  if (plan.programs.size() != ranks || (!options.start_ns.empty() && options.start_ns.size() != ranks))
    return Status(Code::kInvalid, "COLL02", "simulate: a program and a start for each rank are needed",
                  "for " + std::to_string(ranks) + " ranks there are " + std::to_string(plan.programs.size()) + " programs and " +
                      std::to_string(options.start_ns.size()) + " starts",
                  "simulate what BuildPlan() returned, and give as many starts as ranks, or none: then all start at 0");
  std::vector<Layout> layouts;
  for (const Program& program : plan.programs) {
    RETURN_IF_ERROR(CheckProgram(plan.header, program));
    ASSIGN_OR_RETURN(Layout layout, Layout::Make(plan.header, program, options.sizes));
    layouts.push_back(std::move(layout));
  }
  return TimeMachine(plan, options, &layouts).Run();
}

Result<Cost> EstimateCost(const Plan& plan, const CostOptions& options) {
  // With a latency of one tick and nothing else that takes time, the end is the longest chain of messages; with only folding, the ends are
  // each rank's folded bytes along the way.
  SimulateOptions hops{.sizes = options.sizes, .network = {.latency_ns = 1, .ns_per_byte = 0}};
  ASSIGN_OR_RETURN(SimulateReport counted, Simulate(plan, hops));
  SimulateOptions folds{.sizes = options.sizes, .network = {.latency_ns = 0, .ns_per_byte = 0}, .reduce_ns_per_byte = 1};
  ASSIGN_OR_RETURN(SimulateReport folded, Simulate(plan, folds));
  Cost cost{.rounds = counted.end_ns, .folded_bytes_max = folded.end_ns};
  for (std::size_t rank = 0; rank < counted.sent_bytes.size(); ++rank) {
    cost.sent_bytes_max = std::max(cost.sent_bytes_max, counted.sent_bytes[rank]);
    cost.sent_bytes_total += counted.sent_bytes[rank];
    cost.sent_messages_max = std::max(cost.sent_messages_max, counted.sent_messages[rank]);
    ASSIGN_OR_RETURN(Layout layout, Layout::Make(plan.header, plan.programs[rank], options.sizes));
    std::int64_t scratch = 0;
    for (std::size_t b = 0; b < plan.header.buffers.size(); ++b) {
      const Role role = plan.header.buffers[b].role;
      if (role == Role::kScratch || role == Role::kWindow || role == Role::kState)
        scratch += layout.ElementsOf(static_cast<std::int32_t>(b)) * layout.BytesOfElement(static_cast<std::int32_t>(b));
    }
    cost.scratch_bytes_max = std::max(cost.scratch_bytes_max, scratch);
  }
  cost.ns = static_cast<double>(cost.rounds) * options.latency_ns + static_cast<double>(cost.sent_bytes_max) * options.ns_per_byte +
            static_cast<double>(cost.folded_bytes_max) * options.reduce_ns_per_byte +
            static_cast<double>(cost.sent_messages_max) * options.overhead_ns;
  return cost;
}

}  // namespace ropewalk::collective
