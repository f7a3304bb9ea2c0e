// A network as data: hosts, switches, directed links of a rate and a latency each, and how a way through them is chosen. Builders write
// the usual ones; what they cannot say is said by changing the value (another rate for one link) or by writing links by hand.
//
//   Star       every host on one switch
//   Racks      switches of racks under one core, each by one uplink of any rate
//   FatTree    three levels of equal switches with as many ways as there are switches above; oversubscribed where fewer go up than come in
//   Torus      hosts with their neighbours in one to many dimensions, no switches
//
// Ticks are nanoseconds: the event queue only orders numbers, and a network's world counts finer than a scheduler's.
//
// Thread rule: values.
#pragma once

#include <cstdint>
#include <vector>

#include "base/sim/event_queue.h"
#include "base/status.h"

namespace ropewalk::sim {

enum class Routing : std::uint8_t {
  // A way of fewest links. Of several the next link is drawn at each node by a hash of the two hosts, as switches do with a flow's
  // addresses (equal-cost multi-path, RFC 2992): a pair always takes the same way, and two pairs may meet though another way is free.
  kShortestPaths,
  // Tori: the first dimension is walked to its end before the second, each the shorter way round (Dally and Seitz 1987).
  kDimensionOrder,
};

// What a link takes: `ns_per_byte` for each byte (0: no limit), `latency_ns` for the first one.
struct LinkSpeed {
  double ns_per_byte = 0;
  TimeUs latency_ns = 0;
};

struct Topology {
  struct Link : LinkSpeed {
    std::int32_t from = 0, to = 0;  // nodes; one direction
  };
  // Nodes are counted through: hosts are 0 to hosts - 1, switches come behind.
  std::int32_t hosts = 0, switches = 0;
  std::vector<Link> links;
  Routing routing = Routing::kShortestPaths;
  std::vector<std::int32_t> extents;  // kDimensionOrder: host = x + extents[0] · (y + extents[1] · (z + ...))
  std::uint64_t seed = 0;             // of the choice among ways of equal length

  std::int32_t nodes() const { return hosts + switches; }
  void Connect(std::int32_t from, std::int32_t to, LinkSpeed speed) { links.push_back({speed, from, to}); }
  void ConnectBothWays(std::int32_t a, std::int32_t b, LinkSpeed speed) {
    Connect(a, b, speed);
    Connect(b, a, speed);
  }
};

// kInvalid (SIM01) when a link names no node or a negative speed, the extents do not multiply to the hosts, or there is a host that
// another one cannot reach.
Status Check(const Topology& topology);

// `link` is half of the way between any two hosts: its latency is taken once, by the half towards the switch.
Topology Star(std::int32_t hosts, LinkSpeed link);

// Host h stands in rack_of_host[h]. A message between racks takes both uplinks, whose latency comes on top.
Topology Racks(const std::vector<std::int32_t>& rack_of_host, LinkSpeed host, LinkSpeed uplink);

// Pods of edge and aggregation switches under cores (Leiserson 1985; Al-Fares, Loukissas and Vahdat 2008). Each edge switch has a link to
// each aggregation switch of its pod, each aggregation switch to its own `cores_per_aggregation` cores, which it shares with those of its
// place in the other pods.
struct FatTreeOptions {
  std::int32_t pods = 4, edges_per_pod = 2, hosts_per_edge = 2, aggregations_per_pod = 2, cores_per_aggregation = 2;
  LinkSpeed host, fabric;  // of hosts' links; of all others

  // The tree of switches with k ports each, k even. All have as much above as below, but that `oversubscription` times the hosts hang on
  // each edge switch.
  static FatTreeOptions OfPorts(std::int32_t k, LinkSpeed speed, std::int32_t oversubscription = 1);
  std::int32_t hosts() const { return pods * edges_per_pod * hosts_per_edge; }
};
Topology FatTree(const FatTreeOptions& options);

// A host has a link to the next and one to the previous host of each dimension (one to both where there are two).
Topology Torus(const std::vector<std::int32_t>& extents, LinkSpeed link);

// Makes links take `factor` times as long for a byte: those from one node to another; or all of a host's, both ways. Says how many.
std::int32_t SlowLink(Topology* topology, std::int32_t from, std::int32_t to, double factor);
std::int32_t SlowHost(Topology* topology, std::int32_t host, double factor);

}  // namespace ropewalk::sim
