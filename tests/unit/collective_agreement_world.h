// Ranks that agree on a network that is a value, and every order of what may happen to them.
//
// Thread rule: values.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "mlrunner/collective/run/agreement.h"

namespace ropewalk::collective::testing {

// Ranks that agree one after the other, as often as they are told to. Messages of one rank to another keep their order; the end of a rank
// comes behind those that get through.
class World {
 public:
  using Message = Agreements::Message;
  using Messages = Agreements::Messages;
  // What goes wrong with the machine or the network in controls.
  enum class Fault { kNone, kNoAnswers, kNothingAfterDeaths };

  World(std::int32_t ranks, std::uint64_t agreements, Fault fault = Fault::kNone)
      : ranks_(ranks), agreements_(agreements), fault_(fault), queues_(static_cast<std::size_t>(ranks) * ranks), nodes_() {
    for (std::int32_t rank = 0; rank < ranks; ++rank) nodes_.push_back({.machine = Agreements(rank, ranks), .agreed = {}});
  }

  // What may happen next: a rank that proposes, or the first of a queue that comes.
  struct Event {
    std::int32_t from = -1, to = 0;  // from < 0: `to` proposes
  };
  std::vector<Event> Possible() const {
    std::vector<Event> events;
    for (std::int32_t to = 0; to < ranks_; ++to) {
      if (!nodes_[to].lives) continue;
      if (nodes_[to].agreed.size() == nodes_[to].proposed && nodes_[to].proposed < agreements_) events.push_back({-1, to});
      for (std::int32_t from = 0; from < ranks_; ++from)
        if (!QueueOf(from, to).empty()) events.push_back({from, to});
    }
    return events;
  }
  // With `dies_after` < 0 the rank lives on; otherwise it dies when it has sent so many of the messages that come of it.
  void Do(const Event& event, int dies_after = -1) {
    Node& node = nodes_[event.to];
    Messages out;
    bool is_death = false;
    if (event.from < 0) {
      node.machine.Propose(node.proposed, Word(event.to, node.proposed), std::vector<bool>(ranks_), &out);
      ++node.proposed;
    } else {
      const Item item = QueueOf(event.from, event.to).front();
      QueueOf(event.from, event.to).pop_front();
      is_death = item.is_end;
      if (item.is_end)
        node.machine.Over(event.from, &out);
      else
        EXPECT_TRUE(node.machine.Hear(event.from, item.message.kind, item.message.number, item.message.bytes, &out));
    }
    const bool answers = event.from >= 0 && !is_death;
    int sent = 0;
    for (Message& message : out) {
      if (dies_after >= 0 && sent == dies_after) break;
      ++sent;
      if (fault_ == Fault::kNoAnswers && answers && message.kind == Agreements::Kind::kAgreed && !Gathers(event.to)) continue;
      if (fault_ == Fault::kNothingAfterDeaths && is_death && message.kind == Agreements::Kind::kAgreed) continue;
      ++messages;
      const std::int32_t to = message.to;
      if (nodes_[to].lives) QueueOf(event.to, to).push_back({.message = std::move(message)});
    }
    if (dies_after < 0) {
      while (const Agreed* agreed = node.agreed.size() < node.proposed ? node.machine.Find(node.agreed.size()) : nullptr)
        node.agreed.push_back(*agreed);
    } else {
      Kill(event.to);
    }
  }
  void Kill(std::int32_t rank) {
    nodes_[rank].lives = false;
    for (std::int32_t to = 0; to < ranks_; ++to) {
      QueueOf(to, rank).clear();
      if (to != rank && nodes_[to].lives) QueueOf(rank, to).push_back({.is_end = true});
    }
  }
  // The last ones of those that a dead rank sent to this one do not get through.
  void Lose(std::int32_t dead, std::int32_t to, std::size_t keeps) {
    auto& queue = QueueOf(dead, to);
    if (!queue.empty() && queue.size() > keeps + 1) queue.erase(queue.begin() + static_cast<std::ptrdiff_t>(keeps), queue.end() - 1);
  }
  std::size_t Waiting(std::int32_t from, std::int32_t to) const { return QueueOf(from, to).size(); }

  bool lives(std::int32_t rank) const { return nodes_[rank].lives; }
  std::int32_t ranks() const { return ranks_; }

  // Once nothing can happen any more. Empty: all is as promised.
  std::string Wrong() const {
    std::vector<const std::vector<Agreed>*> all;
    for (std::int32_t rank = 0; rank < ranks_; ++rank) {
      const Node& node = nodes_[rank];
      if (!node.lives) continue;
      if (node.agreed.size() != agreements_) return "rank " + std::to_string(rank) + " waits for ever";
      for (std::uint64_t number = 0; number < agreements_; ++number) {
        const Agreed& mine = node.agreed[number];
        if (!all.empty() && ((*all[0])[number].words != mine.words || (*all[0])[number].missed != mine.missed))
          return "rank " + std::to_string(rank) + " has another outcome of " + std::to_string(number);
        if (mine.is_given_up()) return "somebody was missed";
        for (std::int32_t peer = 0; peer < ranks_; ++peer) {
          if (nodes_[peer].lives && !mine.words[peer].has_value()) return "the word of a rank that lives is missing";
          if (mine.words[peer].has_value() && mine.words[peer] != Word(peer, number)) return "a word that nobody said";
        }
      }
      all.push_back(&node.agreed);
    }
    return "";
  }

  std::uint64_t messages = 0;

 private:
  struct Item {
    Message message{};
    bool is_end = false;
  };
  struct Node {
    Agreements machine;
    std::vector<Agreed> agreed;  // by number
    std::uint64_t proposed = 0;
    bool lives = true;
  };
  static std::string Word(std::int32_t rank, std::uint64_t number) {
    return "rank " + std::to_string(rank) + " at " + std::to_string(number);
  }
  bool Gathers(std::int32_t rank) const { return nodes_[rank].machine.gatherer() == rank; }
  std::deque<Item>& QueueOf(std::int32_t from, std::int32_t to) { return queues_[static_cast<std::size_t>(from * ranks_ + to)]; }
  const std::deque<Item>& QueueOf(std::int32_t from, std::int32_t to) const {
    return queues_[static_cast<std::size_t>(from * ranks_ + to)];
  }

  std::int32_t ranks_;
  std::uint64_t agreements_;
  Fault fault_;
  std::vector<std::deque<Item>> queues_;  // by sender and receiver
  std::vector<Node> nodes_;
};

// Every order of events of a few ranks, with deaths at every moment, also between any two messages of one rank.
struct Explored {
  std::uint64_t runs = 0;
  std::string wrong;
};
inline void Explore(const World& world, int deaths, Explored* explored) {
  const std::vector<World::Event> events = world.Possible();
  if (events.empty()) {
    ++explored->runs;
    if (explored->wrong.empty()) explored->wrong = world.Wrong();
    return;
  }
  for (const World::Event& event : events) {
    World next = world;
    next.Do(event);
    Explore(next, deaths, explored);
    // After none, or one, of its messages; after all of them it is as good as a death at its next event.
    for (int sent = 0; deaths > 0 && sent < world.ranks() - 1; ++sent) {
      World dead = world;
      dead.Do(event, sent);
      Explore(dead, deaths - 1, explored);
    }
  }
}
inline void ExpectEveryOrderHolds(std::int32_t ranks, std::uint64_t agreements, int deaths) {
  Explored explored;
  Explore(World(ranks, agreements), deaths, &explored);
  EXPECT_EQ(explored.wrong, "");
  std::printf("%d ranks, %llu agreements, up to %d deaths: %llu runs\n", ranks, static_cast<unsigned long long>(agreements), deaths,
              static_cast<unsigned long long>(explored.runs));
}

}  // namespace ropewalk::collective::testing
