// What messages between each two ranks cost says something about plans: in which order rings and chains had best pass messages on, and
// which ranks are near each other.
//
//   a ring   all of its links carry as much at the same time, so the slowest is what counts
//   a chain  likewise, both ways; who stands at an end uses one link and not two, so that is the place for a rank whose links are all slow
//
// Thread rule: pure functions.
#pragma once

#include <compare>
#include <cstdint>

#include "mlrunner/collective/algorithms.h"
#include "mlrunner/collective/link_model.h"
#include "mlrunner/collective/plan.h"

namespace ropewalk::collective {

// What an order is compared by: first its slowest link, then all of them.
struct OrderCost {
  double ns_per_byte = 0;  // of its slowest link
  double message_ns = 0;   // until a message of 64 KiB has gone over all of its links, one after the other
  auto operator<=>(const OrderCost&) const = default;
};

// `follows`: kRing or kChain. A chain's link costs what its dearer direction does. An empty order: that of the ranks.
OrderCost CostOf(const PairLines& pairs, const Order& order, Follows follows);

// Up to so many stops (ranks; of a chain one more) the cheapest order is found, beyond one that no reversal of a part makes cheaper (2-opt,
// from several beginnings: Croes 1958), and that is no dearer than the ranks' own.
inline constexpr std::int32_t kExactStopsMax = 9;

// That of the ranks where none is cheaper. Of those that cost the same a ring begins with rank 0, a chain with the lower one of its ends.
Order FindOrder(const PairLines& pairs, Follows follows);

// What a communicator's calls go by. Empty ones: the ranks' own.
struct Orders {
  Order ring, chain;
  bool operator==(const Orders&) const = default;
};
// Where an order is cheaper than the ranks' own by more than a measurement of equal links might say: its slowest link by a seventh, or, if
// that is as fast, all of them together.
Orders OrdersFor(const PairLines& pairs);

// Which of them a plan gets: none that its algorithm does not follow, and none that deterministic mode refuses.
const Order& OrderOf(const Orders& orders, const Algorithm& algorithm, const Request& request);

// Ranks with fast links to each other. What a message of 64 KiB takes between two ranks (the dearer way) is put in a row for all pairs;
// where it jumps most, by a factor of two at least, near ends and far begins. A node are ranks that are near each other, numbered as their
// first ranks come. Empty where links show no nodes: there is no such jump, or a rank is near two that are far from each other.
Nodes FindNodes(const PairLines& pairs);

// Whether as many ranks are on each of them, which hierarchical algorithms ask for.
bool AreOfOneSize(const Nodes& nodes);

}  // namespace ropewalk::collective
