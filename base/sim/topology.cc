#include "base/sim/topology.h"

#include <algorithm>
#include <cmath>
#include <string>

namespace ropewalk::sim {
namespace {

Status Bad(const std::string& what, const std::string& why, const std::string& fix) {
  return Status(Code::kInvalid, "SIM01", what, why, fix);
}

// Whether every node that has to be is reached from host 0, over links as they are or turned round.
std::int32_t FirstHostNotReached(const Topology& topology, bool turned) {
  std::vector<std::vector<std::int32_t>> next(static_cast<std::size_t>(topology.nodes()));
  for (const Topology::Link& link : topology.links) next[turned ? link.to : link.from].push_back(turned ? link.from : link.to);
  std::vector<bool> reached(next.size());
  std::vector<std::int32_t> queue = {0};
  reached[0] = true;
  for (std::size_t i = 0; i < queue.size(); ++i)
    for (std::int32_t node : next[queue[i]])
      if (!reached[node]) {
        reached[node] = true;
        queue.push_back(node);
      }
  for (std::int32_t host = 0; host < topology.hosts; ++host)
    if (!reached[host]) return host;
  return -1;
}

}  // namespace

Status Check(const Topology& topology) {
  if (topology.hosts < 1 || topology.switches < 0)
    return Bad("a network of " + std::to_string(topology.hosts) + " hosts and " + std::to_string(topology.switches) + " switches",
               "messages go from host to host", "give one host or more");
  for (std::size_t i = 0; i < topology.links.size(); ++i) {
    const Topology::Link& link = topology.links[i];
    auto is_node = [&](std::int32_t node) { return node >= 0 && node < topology.nodes(); };
    const std::string what =
        "link " + std::to_string(i) + " from node " + std::to_string(link.from) + " to node " + std::to_string(link.to);
    if (!is_node(link.from) || !is_node(link.to) || link.from == link.to)
      return Bad(what, "nodes are 0 to " + std::to_string(topology.nodes() - 1) + ", and a link joins two", "mend the link");
    if (!(link.ns_per_byte >= 0) || !std::isfinite(link.ns_per_byte) || link.latency_ns < 0)
      return Bad(
          what + " takes " + std::to_string(link.ns_per_byte) + " ns for a byte and " + std::to_string(link.latency_ns) + " ns before",
          "neither is negative or without end", "mend the link, or leave out one that carries nothing");
  }
  if (topology.routing == Routing::kDimensionOrder) {
    std::int64_t product = 1;
    for (std::int32_t extent : topology.extents) product *= std::max(0, extent);
    if (product != topology.hosts || topology.switches > 0)
      return Bad("extents that multiply to " + std::to_string(product) + " for " + std::to_string(topology.hosts) + " hosts and " +
                     std::to_string(topology.switches) + " switches",
                 "ways by dimension are those of a grid of hosts", "give extents whose product is the hosts, or take shortest paths");
    const Topology whole = Torus(topology.extents, {});
    auto joins = [](const Topology::Link& link) { return std::pair(link.from, link.to); };
    std::vector<std::pair<std::int32_t, std::int32_t>> there;
    for (const Topology::Link& link : topology.links) there.push_back(joins(link));
    std::sort(there.begin(), there.end());
    for (const Topology::Link& link : whole.links)
      if (!std::binary_search(there.begin(), there.end(), joins(link)))
        return Bad("there is no link from host " + std::to_string(link.from) + " to its neighbour " + std::to_string(link.to),
                   "ways by dimension go from neighbour to neighbour and round no hole", "add the link, or take shortest paths");
    return {};
  }
  for (bool turned : {false, true}) {
    const std::int32_t host = FirstHostNotReached(topology, turned);
    if (host < 0) continue;
    return Bad("there is no way from host " + std::to_string(turned ? host : 0) + " to host " + std::to_string(turned ? 0 : host),
               "every host has to reach every other", "add the links that are missing; each is one direction");
  }
  return {};
}

Topology Star(std::int32_t hosts, LinkSpeed link) {
  Topology star{.hosts = hosts, .switches = 1};
  for (std::int32_t host = 0; host < hosts; ++host) {
    star.Connect(host, hosts, link);
    star.Connect(hosts, host, {link.ns_per_byte, 0});
  }
  return star;
}

Topology Racks(const std::vector<std::int32_t>& rack_of_host, LinkSpeed host, LinkSpeed uplink) {
  Topology racks{.hosts = static_cast<std::int32_t>(rack_of_host.size())};
  std::int32_t count = 1;
  for (std::int32_t rack : rack_of_host) count = std::max(count, rack + 1);
  racks.switches = count + 1;
  const std::int32_t first = racks.hosts, core = racks.hosts + count;
  for (std::int32_t one = 0; one < racks.hosts; ++one) {
    racks.Connect(one, first + rack_of_host[one], host);
    racks.Connect(first + rack_of_host[one], one, {host.ns_per_byte, 0});
  }
  for (std::int32_t rack = 0; rack < count; ++rack) {
    racks.Connect(first + rack, core, uplink);
    racks.Connect(core, first + rack, {uplink.ns_per_byte, 0});
  }
  return racks;
}

FatTreeOptions FatTreeOptions::OfPorts(std::int32_t k, LinkSpeed speed, std::int32_t oversubscription) {
  return {.pods = k,
          .edges_per_pod = k / 2,
          .hosts_per_edge = k / 2 * oversubscription,
          .aggregations_per_pod = k / 2,
          .cores_per_aggregation = k / 2,
          .host = speed,
          .fabric = speed};
}

Topology FatTree(const FatTreeOptions& options) {
  const std::int32_t edges = options.pods * options.edges_per_pod, aggregations = options.pods * options.aggregations_per_pod;
  const std::int32_t cores = options.aggregations_per_pod * options.cores_per_aggregation;
  Topology tree{.hosts = options.hosts(), .switches = edges + aggregations + cores};
  const std::int32_t first_edge = tree.hosts, first_aggregation = first_edge + edges, first_core = first_aggregation + aggregations;
  for (std::int32_t host = 0; host < tree.hosts; ++host)
    tree.ConnectBothWays(host, first_edge + host / options.hosts_per_edge, options.host);
  for (std::int32_t pod = 0; pod < options.pods; ++pod)
    for (std::int32_t a = 0; a < options.aggregations_per_pod; ++a) {
      const std::int32_t aggregation = first_aggregation + pod * options.aggregations_per_pod + a;
      for (std::int32_t e = 0; e < options.edges_per_pod; ++e)
        tree.ConnectBothWays(first_edge + pod * options.edges_per_pod + e, aggregation, options.fabric);
      for (std::int32_t c = 0; c < options.cores_per_aggregation; ++c)
        tree.ConnectBothWays(aggregation, first_core + a * options.cores_per_aggregation + c, options.fabric);
    }
  return tree;
}

Topology Torus(const std::vector<std::int32_t>& extents, LinkSpeed link) {
  Topology torus{.hosts = 1, .routing = Routing::kDimensionOrder, .extents = extents};
  for (std::int32_t extent : extents) torus.hosts *= extent;
  for (std::int32_t host = 0; host < torus.hosts; ++host) {
    std::int32_t stride = 1;
    for (std::int32_t extent : extents) {
      const std::int32_t at = host / stride % extent;
      if (extent > 1) torus.Connect(host, host + ((at + 1) % extent - at) * stride, link);
      if (extent > 2) torus.Connect(host, host + ((at + extent - 1) % extent - at) * stride, link);
      stride *= extent;
    }
  }
  return torus;
}

std::int32_t SlowLink(Topology* topology, std::int32_t from, std::int32_t to, double factor) {
  std::int32_t changed = 0;
  for (Topology::Link& link : topology->links)
    if (link.from == from && link.to == to) {
      link.ns_per_byte *= factor;
      ++changed;
    }
  return changed;
}

std::int32_t SlowHost(Topology* topology, std::int32_t host, double factor) {
  std::int32_t changed = 0;
  for (Topology::Link& link : topology->links)
    if (link.from == host || link.to == host) {
      link.ns_per_byte *= factor;
      ++changed;
    }
  return changed;
}

}  // namespace ropewalk::sim
