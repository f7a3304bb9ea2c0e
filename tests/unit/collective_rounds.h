// A plan's figures: what it does when a message takes one round and nothing else takes time, slots are never short, and nothing is cut.
// Counted on the steps that ship, by a machine that moves no bytes and shares nothing with virtual time.
//
// Thread rule: one thread.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <numeric>
#include <tuple>
#include <utility>
#include <vector>

#include "mlrunner/collective/interpreter.h"
#include "mlrunner/collective/layout.h"
#include "mlrunner/collective/plan.h"

namespace ropewalk::collective::testing {

struct Figures {
  std::int64_t rounds = 0;               // the longest chain of messages
  std::int64_t fan_in = 0;               // the most messages that reach one rank in one round
  std::vector<std::int64_t> sent_bytes;  // by rank
  std::int64_t total() const { return std::accumulate(sent_bytes.begin(), sent_bytes.end(), std::int64_t{0}); }
  std::int64_t most() const { return *std::max_element(sent_bytes.begin(), sent_bytes.end()); }
};

// Everything but native steps, which say nothing of their messages.
class RoundMachine : public Machine {
 public:
  static Figures FiguresOf(const Plan& plan, const Sizes& sizes) {
    RoundMachine machine(plan.header.request.ranks);
    std::vector<Layout> layouts;
    for (const Program& program : plan.programs) {
      auto layout = Layout::Make(plan.header, program, sizes);
      EXPECT_TRUE(layout.ok()) << layout.status().ToString();
      if (!layout.ok()) return machine.figures_;
      layouts.push_back(*std::move(layout));
    }
    std::vector<std::unique_ptr<Interpreter>> ranks;
    for (const Program& program : plan.programs) ranks.push_back(std::make_unique<Interpreter>(&program, &layouts[ranks.size()]));
    auto all = [&] {
      Outcome outcome = Outcome::kDone;
      for (auto& rank : ranks)
        if (Outcome one = rank->Advance(machine); one != Outcome::kDone) outcome = one;
      return outcome;
    };
    auto steps_done = [&] {
      std::uint64_t steps = 0;
      for (const auto& rank : ranks) steps += rank->steps_done();
      return steps;
    };
    Outcome outcome;
    do {
      // Within a round a rank may wait for another one that takes what lies there.
      std::uint64_t before;
      do {
        before = steps_done();
        outcome = all();
      } while (steps_done() != before);
    } while (machine.NextRound());
    EXPECT_EQ(outcome, Outcome::kDone) << plan.header.algorithm << " does not end";
    return machine.figures_;
  }

  Outcome Try(const Interpreter& at, const Step& step) override {
    const std::int32_t rank = at.rank();
    switch (step.op) {
      case Op::kWait:
        return counters_[{rank, step.counter}] >= step.threshold ? Outcome::kDone : Outcome::kBlocked;
      case Op::kNotify:
        if (step.to == rank)
          ++counters_[{rank, step.counter}];
        else
          under_way_.push_back({.to = step.to, .counter = &counters_[{step.to, step.counter}]});
        return Outcome::kDone;
      case Op::kFlush:
        return pending_[{rank, step.to, at.channel()}] == 0 ? Outcome::kDone : Outcome::kBlocked;
      case Op::kPut:
      case Op::kAccumulate: {
        std::int64_t& pending = pending_[{rank, step.to, at.channel()}];
        ++pending;
        figures_.sent_bytes[rank] += Bytes(at, step.remote);
        under_way_.push_back({.to = step.to, .pending = &pending});
        return Outcome::kDone;
      }
      case Op::kGet:
        ADD_FAILURE() << "a get takes two rounds, which nobody has needed to count yet";
        return Outcome::kFailed;
      case Op::kCounts:
      case Op::kContribute:
        return Outcome::kDone;
      default:
        return Data(at, step);
    }
  }

 private:
  using Line = std::tuple<std::int32_t, std::int32_t, std::int32_t>;  // from, to, channel
  struct Message {
    std::int32_t to = 0;
    std::int64_t* arrived = nullptr;  // of a line
    std::int64_t* counter = nullptr;
    std::int64_t* pending = nullptr;  // of one-sided work: what is done when it is there
  };

  explicit RoundMachine(std::int32_t ranks) { figures_.sent_bytes.resize(ranks); }

  static std::int64_t Bytes(const Interpreter& at, std::int32_t chunk) {
    return at.At(chunk).count * at.layout().BytesOfElement(at.program().chunks[chunk].buffer);
  }

  Outcome Data(const Interpreter& at, const Step& step) {
    const Operand* operands = at.program().operands.data() + step.first_operand;
    std::map<Line, std::int64_t> wanted;
    for (std::int32_t i = 0; i < step.operand_count; ++i)
      if (operands[i].peer != kNone) ++wanted[{operands[i].peer, at.rank(), at.channel()}];
    for (const auto& [line, messages] : wanted)
      if (arrived_[line] < messages) return Outcome::kBlocked;
    for (const auto& [line, messages] : wanted) {
      arrived_[line] -= messages;
      pending_[line] -= messages;
    }
    if (step.to == kNone) return Outcome::kDone;
    const Line line{at.rank(), step.to, at.channel()};
    ++pending_[line];
    figures_.sent_bytes[at.rank()] += Bytes(at, step.dst != kNone ? step.dst : operands[0].chunk);
    under_way_.push_back({.to = step.to, .arrived = &arrived_[line]});
    return Outcome::kDone;
  }

  // What is under way arrives. False: nothing is.
  bool NextRound() {
    if (under_way_.empty()) return false;
    std::map<std::int32_t, std::int64_t> at_once;
    for (const Message& message : std::exchange(under_way_, {})) {
      figures_.fan_in = std::max(figures_.fan_in, ++at_once[message.to]);
      if (message.arrived != nullptr) ++*message.arrived;
      if (message.counter != nullptr) ++*message.counter;
      if (message.pending != nullptr) --*message.pending;
    }
    ++figures_.rounds;
    return true;
  }

  Figures figures_;
  std::vector<Message> under_way_;
  std::map<Line, std::int64_t> arrived_, pending_;
  std::map<std::pair<std::int32_t, std::int32_t>, std::int64_t> counters_;
};

}  // namespace ropewalk::collective::testing
