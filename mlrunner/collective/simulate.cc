#include "mlrunner/collective/simulate.h"

#include <algorithm>
#include <functional>
#include <map>
#include <unordered_map>
#include <utility>

#include "mlrunner/collective/folded.h"
#include "mlrunner/collective/interpreter.h"

namespace ropewalk::collective {
namespace {

// Steps, and for each at most: its processor's end, its way into the network, a settlement there, its end and its arrival, and whom it
// frees. So a plan whose loops end takes fewer events; this is a guard against our own mistakes.
constexpr std::uint64_t kEventsOfStepMax = 32;

// All ranks in virtual time. A rank has one processor: what a step costs, no other step of the rank gets.
class TimeMachine : public Machine {
 public:
  TimeMachine(const Header& header, const FoldedPrograms& programs, sim::Topology topology, const SimulateOptions& options)
      : header_(header), programs_(programs), options_(options), network_(&queue_, std::move(topology)) {
    const std::int32_t ranks = header.request.ranks;
    ranks_.resize(ranks);
    there_.resize(static_cast<std::size_t>(ranks) * header.channel_count);
    report_.ends_ns.resize(ranks);
    report_.sent_bytes.resize(ranks);
    report_.sent_messages.resize(ranks);
    if (options.trace) report_.trace.resize(ranks);
    interpreters_.reserve(ranks);
    for (std::int32_t rank = 0; rank < ranks; ++rank) interpreters_.push_back(programs.MakeInterpreter(rank));
  }

  Result<SimulateReport> Run() {
    const std::int32_t ranks = header_.request.ranks;
    for (std::int32_t rank = 0; rank < ranks; ++rank) {
      std::int64_t start = options_.start_ns.empty() ? 0 : options_.start_ns[rank];
      SetCalled(rank, start == 0);
      if (start > 0)
        queue_.At(start, [this, rank] {
          SetCalled(rank, true);
          Go(rank);
        });
      queue_.At(0, [this, rank] { Go(rank); });
    }
    const std::uint64_t events_max = (static_cast<std::uint64_t>(programs_.steps_of_all_runs()) + 4 * ranks) * kEventsOfStepMax;
    for (std::uint64_t n = 0; queue_.RunOne(INT64_MAX); ++n)
      if (n > events_max) return Stuck("does not come to an end");
    for (std::int32_t rank = 0; rank < ranks; ++rank)
      for (std::int32_t channel = 0; channel < header_.channel_count; ++channel)
        if (!interpreters_[rank].ended(channel)) return Stuck("rank " + std::to_string(rank) + " waits for ever");
    for (std::int32_t rank = 0; rank < ranks; ++rank) {
      report_.end_ns = std::max(report_.end_ns, report_.ends_ns[rank]);
      report_.steps += interpreters_[rank].steps_done();
    }
    report_.trace = ByChannel(std::move(report_.trace));
    report_.programs_kept = programs_.kinds();
    report_.steps_kept = programs_.steps_kept();
    report_.edges_used = static_cast<std::int64_t>(lines_.size());
    report_.events = queue_.steps();
    report_.network = network_.counters();
    return std::move(report_);
  }

  Outcome Try(const Interpreter& at, const Step& step) override {
    Rank& mine = ranks_[at.rank()];
    if (queue_.now() < mine.busy_until) return Outcome::kBlocked;
    switch (step.op) {
      case Op::kWait:
        return counters_[{at.rank(), step.counter}] >= step.threshold ? Outcome::kDone : Outcome::kBlocked;
      case Op::kFlush: {
        Line* line = LineOf(at.rank(), Peer(at, step.to), at.channel());
        if (line->unconsumed == 0 && line->one_sided == 0) return Outcome::kDone;
        line->sender_waits = true;
        return Outcome::kBlocked;
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
  // What is between two ranks on a channel.
  struct Line {
    std::int32_t from = 0, to = 0;
    std::int32_t slots = 0, unconsumed = 0, arrived = 0, one_sided = 0;
    std::int32_t wanted = 0;  // of what has arrived: what the receiver's step has found so far
    // A rank is looked at again when what one of its channels stands at can have changed, not whenever something comes.
    bool receiver_waits = false, sender_waits = false;
    std::vector<std::int64_t> bytes;  // of unconsumed messages, for the trace
  };
  struct Rank {
    sim::TimeUs busy_until = 0;
    bool called = true;
  };

  Status Stuck(const std::string& why) const {
    return Status(Code::kInvalid, "COLL03", header_.algorithm + " does not end in virtual time", why, "check the plan");
  }
  void SetCalled(std::int32_t rank, bool called) {
    ranks_[rank].called = called;
    const Program& program = programs_.program(rank);
    for (std::size_t channel = 0; channel < program.channels.size(); ++channel)
      if (program.channels[channel].start == Start::kLocalCall) interpreters_[rank].SetStarted(static_cast<std::int32_t>(channel), called);
  }
  std::int32_t HostOf(std::int32_t rank) const { return options_.host_of_rank.empty() ? rank : options_.host_of_rank[rank]; }
  std::int32_t Peer(const Interpreter& at, std::int32_t distance) const { return programs_.PeerOf(at.rank(), distance); }
  Line* LineOf(std::int32_t from, std::int32_t to, std::int32_t channel) {
    const auto ranks = static_cast<std::uint64_t>(header_.request.ranks), channels = static_cast<std::uint64_t>(header_.channel_count);
    auto [found, is_new] = lines_.try_emplace((static_cast<std::uint64_t>(from) * ranks + to) * channels + channel);
    Line* line = &found->second;
    if (is_new) {
      line->from = from;
      line->to = to;
      for (const Edge& edge : programs_.program(from).edges)
        if (edge.channel == channel && programs_.PeerOf(from, edge.peer) == to) line->slots = edge.slots;
    }
    return line;
  }
  double Bytes(const Interpreter& at, std::int32_t chunk) const {
    return static_cast<double>(at.At(chunk).count * at.layout().BytesOfElement(at.program().chunks[chunk].buffer));
  }
  void Go(std::int32_t rank) {
    std::uint64_t before = interpreters_[rank].steps_done();
    interpreters_[rank].Advance(*this);
    if (interpreters_[rank].steps_done() != before) report_.ends_ns[rank] = std::max(queue_.now(), ranks_[rank].busy_until);
  }
  // The rank's processor is taken for so long, beginning now.
  void Work(std::int32_t rank, double ns) {
    if (!options_.slowness.empty()) ns *= options_.slowness[rank];
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

  // Whether every message that the step takes is there. Those that were found are not looked for again.
  bool AllArrived(const Interpreter& at, const Step& step, std::int32_t* there) {
    const Operand* operands = at.program().operands.data() + step.first_operand;
    for (; *there < step.operand_count; ++*there) {
      if (operands[*there].peer == kNone) continue;
      Line* line = LineOf(Peer(at, operands[*there].peer), at.rank(), at.channel());
      if (line->arrived <= line->wanted) {
        line->receiver_waits = true;
        return false;
      }
      ++line->wanted;
    }
    return true;
  }

  Outcome Data(const Interpreter& at, const Step& step) {
    const std::int32_t rank = at.rank(), channel = at.channel();
    const Operand* operands = at.program().operands.data() + step.first_operand;
    std::int32_t& there = there_[static_cast<std::size_t>(rank) * header_.channel_count + channel];
    if (!AllArrived(at, step, &there)) return Outcome::kBlocked;
    Line* out = step.to == kNone ? nullptr : LineOf(rank, Peer(at, step.to), channel);
    if (out != nullptr && out->unconsumed >= out->slots) {
      out->sender_waits = true;
      return Outcome::kBlocked;
    }

    there = 0;
    double ns = 0;
    for (std::int32_t i = 0; i < step.operand_count; ++i) {
      const Operand& operand = operands[i];
      if (i > 0) ns += options_.reduce_ns_per_byte * (step.dst != kNone ? Bytes(at, step.dst) : Bytes(at, operand.chunk));
      if (operand.decode) ns += options_.code_ns_per_byte * Bytes(at, step.dst);
      if (operand.peer == kNone) continue;
      ns += static_cast<double>(options_.overhead_ns);
      Take(rank, channel, LineOf(Peer(at, operand.peer), rank, channel));
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
    if (options_.trace) out->bytes.push_back(bytes);
    Sent(rank, channel, out->to, bytes);
    Post(rank, out->to, bytes, [this, out] {
      ++out->arrived;
      if (!out->receiver_waits) return;
      out->receiver_waits = false;
      Go(out->to);
    });
    return Outcome::kDone;
  }

  void Take(std::int32_t rank, std::int32_t channel, Line* line) {
    if (options_.trace) {
      report_.trace[rank].push_back({false, channel, line->from, line->bytes.front()});
      line->bytes.erase(line->bytes.begin());
    }
    --line->arrived;
    --line->wanted;
    --line->unconsumed;
    if (!line->sender_waits) return;
    line->sender_waits = false;
    queue_.At(queue_.now(), [this, line] { Go(line->from); });
  }

  // As soon as the rank's processor is done with it.
  void Post(std::int32_t rank, std::int32_t to, std::int64_t bytes, std::function<void()> deliver) {
    if (ranks_[rank].busy_until <= queue_.now()) {
      network_.Send(HostOf(rank), HostOf(to), bytes, std::move(deliver));
      return;
    }
    queue_.At(ranks_[rank].busy_until, [this, rank, to, bytes, deliver = std::move(deliver)]() mutable {
      network_.Send(HostOf(rank), HostOf(to), bytes, std::move(deliver));
    });
  }

  void OneSided(const Interpreter& at, const Step& step) {
    const std::int32_t rank = at.rank(), to = Peer(at, step.to);
    Work(rank, static_cast<double>(options_.overhead_ns));
    if (step.op == Op::kNotify) {
      auto raise = [this, to, counter = step.counter] {
        ++counters_[{to, counter}];
        Go(to);
      };
      if (rank != to) Sent(rank, at.channel(), to, 0);
      Post(rank, to, 0, raise);
      return;
    }
    Line* line = LineOf(rank, to, at.channel());
    ++line->one_sided;
    auto bytes = static_cast<std::int64_t>(Bytes(at, step.remote));
    auto done = [this, line] {
      --line->one_sided;
      Go(line->from);
    };
    if (step.op == Op::kGet) {
      // The peer's memory is read; nothing of its program knows.
      report_.sent_bytes[to] += bytes;
      ++report_.sent_messages[to];
      if (options_.trace) report_.trace[rank].push_back({false, at.channel(), to, bytes});
      Post(rank, to, 0, [this, rank, to, bytes, done] { network_.Send(HostOf(to), HostOf(rank), bytes, done); });
      return;
    }
    Sent(rank, at.channel(), to, bytes);
    Post(rank, to, bytes, done);
  }

  // A library's collective, taken as direct: a round (an allreduce: two) in which each byte is sent and received once, over the ways from
  // each rank to the next.
  Outcome Native(const Interpreter& at, const Step& step) {
    auto& meeting = natives_[{step.group, at.channel()}];
    if (meeting.released.count(at.rank()) > 0) {
      meeting.released.erase(at.rank());
      return Outcome::kDone;
    }
    std::size_t size = step.group == kNone ? header_.request.ranks : header_.groups[step.group].size();
    if (!meeting.arrived.insert({at.rank(), true}).second || meeting.arrived.size() < size) return Outcome::kBlocked;
    std::vector<std::int32_t> ranks;
    for (const auto& [rank, here] : meeting.arrived) ranks.push_back(rank);
    double latency_ns = 0, ns_per_byte = 0;
    for (std::size_t i = 0; i < size; ++i) {
      const sim::Network::Path path = network_.PathOf(HostOf(ranks[i]), HostOf(ranks[(i + 1) % size]));
      latency_ns = std::max(latency_ns, static_cast<double>(path.latency_ns));
      ns_per_byte = std::max(ns_per_byte, path.ns_per_byte);
    }
    const std::int64_t bytes =
        NativeBytes(step.native, static_cast<std::int64_t>(Bytes(at, at.program().operands[step.first_operand].chunk)),
                    static_cast<std::int64_t>(Bytes(at, step.dst)), static_cast<std::int64_t>(size));
    const double rounds = step.native == Collective::kAllreduce ? 2 : 1;
    auto ns = static_cast<sim::TimeUs>(rounds * latency_ns + static_cast<double>(bytes) * ns_per_byte);
    for (std::int32_t rank : ranks) Sent(rank, at.channel(), rank, bytes);
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
  const Header& header_;
  const FoldedPrograms& programs_;
  const SimulateOptions& options_;
  sim::EventQueue queue_;
  sim::Network network_;
  std::vector<Interpreter> interpreters_;
  std::vector<Rank> ranks_;
  std::vector<std::int32_t> there_;                // by rank and channel: operands of its step whose messages were found
  std::unordered_map<std::uint64_t, Line> lines_;  // by sender, receiver and channel
  std::map<std::pair<std::int32_t, std::int32_t>, std::int64_t> counters_;
  std::map<std::pair<std::int32_t, std::int32_t>, Meeting> natives_;
  SimulateReport report_;
};

// Starts and the like are for each rank or not given.
Status CheckOptions(std::int32_t ranks, const SimulateOptions& options) {
  auto fits = [ranks](std::size_t given) { return given == 0 || given == static_cast<std::size_t>(ranks); };
  if (!fits(options.start_ns.size()) || !fits(options.slowness.size()) || !fits(options.host_of_rank.size()))
    return Status(Code::kInvalid, "COLL02", "simulate: a start, a slowness and a host for each rank are needed",
                  "for " + std::to_string(ranks) + " ranks there are " + std::to_string(options.start_ns.size()) + " starts, " +
                      std::to_string(options.slowness.size()) + " slownesses and " + std::to_string(options.host_of_rank.size()) + " hosts",
                  "give as many as ranks, or none: then all start at 0, are equally fast, and stand on the host of their number");
  if (options.topology != nullptr) RETURN_IF_ERROR(sim::Check(*options.topology));
  const std::int32_t hosts = options.topology != nullptr ? options.topology->hosts : ranks;
  std::vector<bool> taken(static_cast<std::size_t>(hosts));
  for (std::int32_t rank = 0; rank < ranks; ++rank) {
    const std::int32_t host = options.host_of_rank.empty() ? rank : options.host_of_rank[rank];
    if (host < 0 || host >= hosts || taken[host])
      return Status(Code::kInvalid, "COLL02", "simulate: rank " + std::to_string(rank) + " has no host of its own",
                    "it should stand on host " + std::to_string(host) + " of " + std::to_string(hosts) +
                        ", which does not exist or is another rank's",
                    "give a topology with a host for each rank, and name each host once; hosts that are left over do nothing");
    taken[host] = true;
  }
  return {};
}

Result<SimulateReport> Run(const Header& header, const FoldedPrograms& programs, const SimulateOptions& options) {
  sim::Topology topology = options.topology != nullptr ? *options.topology : sim::PlainTopology(header.request.ranks, options.network);
  return TimeMachine(header, programs, std::move(topology), options).Run();
}

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
  FoldedPrograms programs(&plan.header, &options.sizes);
  for (const Program& program : plan.programs) RETURN_IF_ERROR(programs.Add(program));
  return Simulate(plan.header, programs, options);
}

Result<SimulateReport> Simulate(const Header& header, const FoldedPrograms& programs, const SimulateOptions& options) {
  const std::int32_t ranks = header.request.ranks;
  if (programs.ranks() != ranks)
    return Status(Code::kInvalid, "COLL02", "simulate: a program for each rank is needed",
                  "for " + std::to_string(ranks) + " ranks there are " + std::to_string(programs.ranks()) + " programs",
                  "simulate what BuildPlan() returned");
  RETURN_IF_ERROR(CheckOptions(ranks, options));
  return Run(header, programs, options);
}

Result<SimulateReport> Simulate(std::string_view algorithm, const Request& request, const SimulateOptions& options) {
  ASSIGN_OR_RETURN(const Algorithm* found, FindAlgorithm(Algorithms(), algorithm));
  return Simulate(*found, request, options);
}

Result<SimulateReport> Simulate(const Algorithm& algorithm, const Request& request, const SimulateOptions& options) {
  ASSIGN_OR_RETURN(const Header header, BuildHeader(algorithm, request));  // it says whether that can be a number of ranks
  RETURN_IF_ERROR(CheckOptions(request.ranks, options));
  FoldedPrograms programs(&header, &options.sizes);
  for (std::int32_t rank = 0; rank < request.ranks; ++rank) RETURN_IF_ERROR(programs.Add(BuildProgram(algorithm, header, rank)));
  return Run(header, programs, options);
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
