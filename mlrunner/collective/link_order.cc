#include "mlrunner/collective/link_order.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>
#include <vector>

namespace ropewalk::collective {
namespace {

constexpr double kMessageBytes = 64 << 10;
constexpr double kGainMin = 1.15, kJumpMin = 2;
// Beginnings of the search among many ranks, beside the ranks' own order.
constexpr std::int32_t kBeginningsMax = 4;
constexpr double kNever = std::numeric_limits<double>::infinity();

double MessageNs(const Line& line) { return line.ns + line.ns_per_byte * kMessageBytes; }

// Round trips over all stops. A chain has a stop beside its ranks, number 0, to and from which it costs nothing: cut there, the trip is a
// chain. So both are one problem, the travelling salesman's, with the slowest hop in front of the sum.
class Trips {
 public:
  Trips(const PairLines& pairs, Follows follows)
      : is_chain_(follows == Follows::kChain),
        stops_(static_cast<std::int32_t>(pairs.size()) + (is_chain_ ? 1 : 0)),
        hops_(static_cast<std::size_t>(stops_) * static_cast<std::size_t>(stops_)) {
    const std::int32_t first = is_chain_ ? 1 : 0;
    for (std::int32_t from = first; from < stops_; ++from)
      for (std::int32_t to = first; to < stops_; ++to) {
        if (from == to) continue;
        const Line &there = pairs[from - first][to - first], &back = pairs[to - first][from - first];
        Hop& hop = hops_[Index(from, to)];
        hop = {there.ns_per_byte, MessageNs(there)};
        if (is_chain_) hop = {std::max(hop.ns_per_byte, back.ns_per_byte), std::max(hop.message_ns, MessageNs(back))};
      }
  }

  using Trip = std::vector<std::int32_t>;
  std::int32_t stops() const { return stops_; }

  OrderCost CostOf(const Trip& trip) const {
    OrderCost cost;
    for (std::size_t at = 0; at < trip.size() && trip.size() > 1; ++at) {
      const Hop& hop = hops_[Index(trip[at], trip[at + 1 < trip.size() ? at + 1 : 0])];
      cost.ns_per_byte = std::max(cost.ns_per_byte, hop.ns_per_byte);
      cost.message_ns += hop.message_ns;
    }
    return cost;
  }

  Trip TripOf(const Order& order) const {
    Trip trip;
    if (is_chain_) trip.push_back(0);
    for (std::int32_t rank : order) trip.push_back(rank + (is_chain_ ? 1 : 0));
    return trip;
  }
  // From stop 0 on, which is rank 0 or where a chain is cut.
  Order OrderOf(Trip trip) const {
    std::rotate(trip.begin(), std::find(trip.begin(), trip.end(), 0), trip.end());
    if (is_chain_) {
      trip.erase(trip.begin());
      for (std::int32_t& stop : trip) --stop;
    }
    return trip;
  }

  // First the least slowest hop of any trip, then the least sum of those that have no slower one.
  Trip Cheapest() const {
    const double slowest =
        Best([](const Hop& hop) { return hop.ns_per_byte; }, [](double so_far, double more) { return std::max(so_far, more); }).cost;
    return Best([&](const Hop& hop) { return hop.ns_per_byte <= slowest ? hop.message_ns : kNever; },
                [](double so_far, double more) { return so_far + more; })
        .trip;
  }

  // Always to the nearest stop that is left.
  Trip Nearest(std::int32_t begin) const {
    Trip trip(static_cast<std::size_t>(stops_));
    std::iota(trip.begin(), trip.end(), 0);
    std::swap(trip[0], trip[static_cast<std::size_t>(begin)]);
    for (std::size_t at = 1; at < trip.size(); ++at) {
      auto nearer = [&](std::int32_t a, std::int32_t b) {
        const Hop &to_a = hops_[Index(trip[at - 1], a)], &to_b = hops_[Index(trip[at - 1], b)];
        return std::tie(to_a.ns_per_byte, to_a.message_ns, a) < std::tie(to_b.ns_per_byte, to_b.message_ns, b);
      };
      std::iter_swap(trip.begin() + static_cast<std::ptrdiff_t>(at),
                     std::min_element(trip.begin() + static_cast<std::ptrdiff_t>(at), trip.end(), nearer));
    }
    return trip;
  }

  // Parts are reversed as long as that makes it cheaper. Each time it does the cost falls, so it ends.
  void Improve(Trip* trip) const {
    OrderCost cost = CostOf(*trip);
    for (bool has_gained = true; has_gained;) {
      has_gained = false;
      for (auto from = trip->begin(); from != trip->end(); ++from)
        for (auto to = from + 1; to != trip->end(); ++to) {
          std::reverse(from, to + 1);
          if (const OrderCost changed = CostOf(*trip); changed < cost) {
            cost = changed;
            has_gained = true;
          } else {
            std::reverse(from, to + 1);
          }
        }
    }
  }

 private:
  struct Hop {
    double ns_per_byte = 0, message_ns = 0;
  };
  std::size_t Index(std::int32_t from, std::int32_t to) const {
    return static_cast<std::size_t>(from) * static_cast<std::size_t>(stops_) + static_cast<std::size_t>(to);
  }

  struct Found {
    double cost = kNever;
    Trip trip;
  };
  // By which stops have been visited since stop 0 and which is the last of them: the least cost so far, and the stop before (Held and Karp
  // 1962). `join` must not make a smaller cost the larger one.
  template <class OfHop, class Join>
  Found Best(OfHop of_hop, Join join) const {
    struct Cell {
      double cost = kNever;
      std::int32_t before = kNone;
    };
    const std::uint32_t all = (1U << (stops_ - 1)) - 1;  // stop s is bit s - 1
    std::vector<std::vector<Cell>> cells(all + 1, std::vector<Cell>(static_cast<std::size_t>(stops_)));
    for (std::int32_t stop = 1; stop < stops_; ++stop) cells[1U << (stop - 1)][stop] = {of_hop(hops_[Index(0, stop)]), 0};
    auto go = [&](std::uint32_t visited, std::int32_t from, std::int32_t to, Cell* cell) {
      const double cost = join(cells[visited][from].cost, of_hop(hops_[Index(from, to)]));
      if (cost < cell->cost) *cell = {cost, from};
    };
    for (std::uint32_t visited = 1; visited < all; ++visited)
      for (std::int32_t to = 1; to < stops_; ++to) {
        const std::uint32_t bit = 1U << (to - 1);
        if ((visited & bit) != 0) continue;
        for (std::int32_t from = 1; from < stops_; ++from)
          if ((visited >> (from - 1) & 1) != 0) go(visited, from, to, &cells[visited | bit][to]);
      }
    Cell home;
    for (std::int32_t last = 1; last < stops_; ++last) go(all, last, 0, &home);
    Found found{.cost = home.cost, .trip = {}};
    std::uint32_t visited = all;
    for (std::int32_t stop = home.before; stop > 0;) {
      found.trip.push_back(stop);
      const std::int32_t before = cells[visited][stop].before;
      visited &= ~(1U << (stop - 1));
      stop = before;
    }
    found.trip.push_back(0);
    std::reverse(found.trip.begin(), found.trip.end());
    return found;
  }

  const bool is_chain_;
  const std::int32_t stops_;
  std::vector<Hop> hops_;
};

Order OfTheRanks(std::size_t ranks) {
  Order order(ranks);
  std::iota(order.begin(), order.end(), 0);
  return order;
}

// The same round trip, or chain, the other way round, if that is as good and looks more like the ranks' own.
Order TheLower(const Trips& trips, Order order, Follows follows) {
  Order other(order.rbegin(), order.rend());
  if (follows == Follows::kRing) std::rotate(other.begin(), other.end() - 1, other.end());  // rank 0 first again
  return other < order && trips.CostOf(trips.TripOf(other)) <= trips.CostOf(trips.TripOf(order)) ? other : order;
}

// The dearer way of each pair.
std::vector<std::vector<double>> MessagesNs(const PairLines& pairs) {
  std::vector<std::vector<double>> ns(pairs.size(), std::vector<double>(pairs.size()));
  for (std::size_t a = 0; a < pairs.size(); ++a)
    for (std::size_t b = 0; b < pairs.size(); ++b)
      if (a != b) ns[a][b] = std::max(MessageNs(pairs[a][b]), MessageNs(pairs[b][a]));
  return ns;
}

}  // namespace

OrderCost CostOf(const PairLines& pairs, const Order& order, Follows follows) {
  const Trips trips(pairs, follows);
  return trips.CostOf(trips.TripOf(order.empty() ? OfTheRanks(pairs.size()) : order));
}

Order FindOrder(const PairLines& pairs, Follows follows) {
  const Order own = OfTheRanks(pairs.size());
  if (pairs.size() < 3) return own;
  const Trips trips(pairs, follows);
  Trips::Trip best = trips.TripOf(own);
  auto take = [&](Trips::Trip trip) {
    if (trips.CostOf(trip) < trips.CostOf(best)) best = std::move(trip);
  };
  if (trips.stops() <= kExactStopsMax) {
    take(trips.Cheapest());
  } else {
    Trips::Trip improved = best;
    trips.Improve(&improved);
    take(std::move(improved));
    for (std::int32_t beginning = 0; beginning < kBeginningsMax; ++beginning) {
      Trips::Trip trip = trips.Nearest(trips.stops() * beginning / kBeginningsMax);
      trips.Improve(&trip);
      take(std::move(trip));
    }
  }
  if (best == trips.TripOf(own)) return own;
  return TheLower(trips, trips.OrderOf(std::move(best)), follows);
}

Orders OrdersFor(const PairLines& pairs) {
  auto worth_it = [&](Follows follows) {
    Order found = FindOrder(pairs, follows);
    const OrderCost own = CostOf(pairs, {}, follows), with = CostOf(pairs, found, follows);
    return own.ns_per_byte > kGainMin * with.ns_per_byte || own.message_ns > kGainMin * with.message_ns ? found : Order();
  };
  return {.ring = worth_it(Follows::kRing), .chain = worth_it(Follows::kChain)};
}

const Order& OrderOf(const Orders& orders, const Algorithm& algorithm, const Request& request) {
  static const Order kTheRanks;
  if (algorithm.follows == Follows::kNothing || (request.deterministic && Folds(request.collective))) return kTheRanks;
  return algorithm.follows == Follows::kRing ? orders.ring : orders.chain;
}

Nodes FindNodes(const PairLines& pairs) {
  const std::vector<std::vector<double>> ns = MessagesNs(pairs);
  std::vector<double> row;
  for (std::size_t a = 0; a < ns.size(); ++a)
    for (std::size_t b = 0; b < a; ++b) row.push_back(ns[a][b]);
  std::sort(row.begin(), row.end());
  double jump = kJumpMin, near_ns = -1;
  for (std::size_t i = 1; i < row.size(); ++i)
    if (row[i] >= jump * row[i - 1] && row[i] > row[i - 1]) {
      jump = row[i] / row[i - 1];
      near_ns = row[i - 1];
    }
  if (near_ns < 0) return {};
  Nodes nodes(ns.size(), kNone);
  std::int32_t next = 0;
  for (std::size_t first = 0; first < ns.size(); ++first) {
    if (nodes[first] != kNone) continue;
    for (std::size_t other = first; other < ns.size(); ++other)
      if (nodes[other] == kNone && ns[first][other] <= near_ns) nodes[other] = next;
    ++next;
  }
  for (std::size_t a = 0; a < ns.size(); ++a)
    for (std::size_t b = 0; b < a; ++b)
      if ((nodes[a] == nodes[b]) != (ns[a][b] <= near_ns)) return {};
  return nodes;
}

bool AreOfOneSize(const Nodes& nodes) {
  std::map<std::int32_t, int> ranks_of;
  for (std::int32_t node : nodes) ++ranks_of[node];
  return std::all_of(ranks_of.begin(), ranks_of.end(), [&](const auto& node) { return node.second == ranks_of.begin()->second; });
}

}  // namespace ropewalk::collective
