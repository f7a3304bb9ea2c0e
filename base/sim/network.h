// A network of hosts in virtual time, on any topology. What a host has yet to send to another is one *flow*: a queue of messages, of which
// the first is under way. Flows that want the same link share it max-min fairly: each gets what the scarcest link on its way leaves it when
// all that are held there get the same, and what one cannot use the others get (progressive filling; Bertsekas and Gallager, Data
// Networks, 6.5.2). A flow takes all links of its way at once, and a message arrives the latencies of its links after its last byte left:
// alone it takes the latencies and its bytes on the slowest link.
//
// Why fair shares of a fluid and not queues of messages: what travels in training are few and long transfers, and TCP as well as RDMA
// with congestion control give those that meet about equal shares; so 1:k oversubscription slows k flows by k whatever the order in which
// they came, and what comes out does not depend on how messages are cut or on which of two equal times is looked at first. This is what
// SimGrid does (Casanova, Giersch, Legrand, Quinson and Suter 2014); where such models hold and where they fail (short transfers, which
// slow start sets, and acknowledgements of the other direction) was studied against packets (Velho, Schnorr, Casanova and Legrand 2013).
// What it costs: a change touches all flows that are coupled by full links, so a thousand flows over a few of them, each ending at a time
// of its own, are slow to simulate; where no two flows meet on a full link, a message is a few operations.
//
// What it does not know: packets, slow start, queues that build up and what is lost when they overflow (incast is a fair share, no
// collapse), a bias towards short ways, ways that follow the load, several connections of one pair that get more than one.
//
// Links may change their rate, and all of the topology may be exchanged (an optical switch that turns, a ring that is rewired): what is
// under way goes on over the new one.
//
// Owner: a simulation. Thread rule: single-threaded. Must outlive the queue's run.
#pragma once

#include <cstdint>
#include <functional>
#include <unordered_map>
#include <vector>

#include "base/sim/event_queue.h"
#include "base/sim/routes.h"
#include "base/sim/topology.h"

namespace ropewalk::sim {

// The plain network: one switch, or racks with an uplink each.
struct NetworkOptions {
  TimeUs latency_ns = 50'000;     // from host to host
  double ns_per_byte = 8;         // of a host's link, each way; 0: no limit
  std::vector<int> rack;          // of each host; empty: all in one
  double uplink_ns_per_byte = 0;  // of a rack's link to the others, each way; 0: no limit
};
Topology PlainTopology(int hosts, const NetworkOptions& options);

class Network {
 public:
  // The topology must be sound (Check).
  Network(EventQueue* queue, Topology topology);
  Network(EventQueue* queue, int hosts, const NetworkOptions& options) : Network(queue, PlainTopology(hosts, options)) {}
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  // Calls `deliver` when the last byte is there. Messages between the same hosts arrive in order; from a host to itself it takes no time.
  void Send(int from, int to, std::int64_t bytes, std::function<void()> deliver);

  // What one message alone would find on its way now.
  struct Path {
    TimeUs latency_ns = 0;
    double ns_per_byte = 0;  // of its slowest link
    std::int32_t links = 0;
  };
  Path PathOf(int from, int to);

  // From now on the link takes so long for a byte. Both the old and the new rate are finite (no 0).
  void SetRate(std::int32_t link, double ns_per_byte);
  // From now on nothing moves for `dark_ns`; then all goes on by the ways of `topology`, which must be sound and have as many hosts. What
  // has left arrives.
  void Reconfigure(Topology topology, TimeUs dark_ns);

  const Topology& topology() const { return topology_; }

  // What the simulation did, for those who ask what it costs.
  struct Counters {
    std::uint64_t messages = 0;
    std::uint64_t settlements = 0;  // moments at which rates were computed anew
    std::uint64_t rates = 0;        // rates that were computed in them
    std::uint64_t flows_max = 0;    // at one time
  };
  const Counters& counters() const { return counters_; }

 private:
  struct Message {
    std::int64_t bytes = 0;
    std::function<void()> deliver;
  };
  struct Flow {
    std::uint64_t pair = 0;  // of hosts
    std::vector<Message> messages;
    std::size_t first = 0;            // of those: what is under way
    std::vector<std::int32_t> route;  // links that have a limit
    TimeUs latency_ns = 0;
    double most = 0, most_ns_per_byte = 0;  // bytes per ns by its slowest link alone, and the other way round
    double rate = 0;                        // bytes per ns; 0: not settled yet
    double left = 0;                        // bytes of what is under way, at `since`
    TimeUs since = 0;
    EventQueue::Handle ends;
    bool active = false;
    double settled = -1;  // the rate that this settlement has found; -1: none yet
    std::uint64_t reached = 0;
  };
  struct Link {
    double capacity = 0;  // bytes per ns
    double wanted = 0;    // what its flows could take if it had no limit
    std::vector<std::int32_t> flows;
    bool touched = false;  // in touched_
    std::uint64_t reached = 0;
    double free = 0;  // while rates are computed
    std::int32_t open = 0;
  };

  void TakeLinks();
  // A full link couples its flows; one that could carry all that they want does not.
  bool IsFull(const Link& link) const { return link.wanted > link.capacity * (1 + 1e-9); }
  void Join(std::int32_t flow);
  void Leave(std::int32_t flow);
  void Touch(std::int32_t link);
  void Advance(Flow* flow);
  bool BringHead(Flow* flow);
  void Arrives(const Flow& flow, std::function<void()> deliver);
  void Drop(std::int32_t flow);
  void Ended(std::int32_t flow);
  void Schedule(std::int32_t flow);
  void WantSettlement();
  void Settle();
  void Reach(std::int32_t flow);
  void Fill();
  void Fix(Flow* flow, double rate);
  void GoOn();

  EventQueue* queue_;
  Topology topology_;
  Routes routes_;
  std::vector<Link> links_;
  std::vector<Flow> flows_;
  std::vector<std::int32_t> free_flows_;
  std::unordered_map<std::uint64_t, std::int32_t> flow_of_pair_;
  std::vector<std::int32_t> touched_, fresh_;  // links whose flows, and flows that, need a new rate
  bool settlement_is_wanted_ = false;
  std::uint64_t settlement_ = 0;
  std::vector<std::int32_t> reached_flows_, reached_links_;
  TimeUs arrivals_from_ = 0, arrivals_to_ = 0;  // no message that leaves now arrives before; the last arrival of what has left
  bool is_dark_ = false;
  std::uint64_t turns_ = 0;
  Counters counters_;
};

}  // namespace ropewalk::sim
