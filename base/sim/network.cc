#include "base/sim/network.h"

#include <algorithm>
#include <cmath>
#include <queue>
#include <utility>

namespace ropewalk::sim {
namespace {

std::uint64_t PairOf(int from, int to) {
  return static_cast<std::uint64_t>(static_cast<std::uint32_t>(from)) << 32 | static_cast<std::uint32_t>(to);
}

}  // namespace

Topology PlainTopology(int hosts, const NetworkOptions& options) {
  const LinkSpeed host{options.ns_per_byte, options.latency_ns};
  if (options.rack.empty() || options.uplink_ns_per_byte <= 0) return Star(hosts, host);
  return Racks(options.rack, host, {options.uplink_ns_per_byte, 0});
}

Network::Network(EventQueue* queue, Topology topology) : queue_(queue), topology_(std::move(topology)), routes_(&topology_) { TakeLinks(); }

void Network::TakeLinks() {
  links_.clear();
  links_.resize(topology_.links.size());
  for (std::size_t i = 0; i < links_.size(); ++i)
    if (topology_.links[i].ns_per_byte > 0) links_[i].capacity = 1 / topology_.links[i].ns_per_byte;
}

Network::Path Network::PathOf(int from, int to) {
  Path path;
  for (std::int32_t link : routes_.Find(from, to)) {
    path.latency_ns += topology_.links[link].latency_ns;
    path.ns_per_byte = std::max(path.ns_per_byte, topology_.links[link].ns_per_byte);
    ++path.links;
  }
  return path;
}

void Network::Send(int from, int to, std::int64_t bytes, std::function<void()> deliver) {
  ++counters_.messages;
  if (from == to) {
    queue_->At(queue_->now(), std::move(deliver));
    return;
  }
  auto [found, is_new] = flow_of_pair_.try_emplace(PairOf(from, to), 0);
  if (!is_new) {
    flows_[found->second].messages.push_back({bytes, std::move(deliver)});
    return;
  }
  std::int32_t id = 0;
  if (free_flows_.empty()) {
    id = static_cast<std::int32_t>(flows_.size());
    flows_.emplace_back();
  } else {
    id = free_flows_.back();
    free_flows_.pop_back();
  }
  found->second = id;
  counters_.flows_max = std::max<std::uint64_t>(counters_.flows_max, flow_of_pair_.size());
  Flow& flow = flows_[id];
  flow.pair = PairOf(from, to);
  flow.active = true;
  flow.messages.push_back({bytes, std::move(deliver)});
  if (!is_dark_) Join(id);  // else GoOn() does it
}

// The flow looks up its way and takes its links, unless nothing that it has needs them. What is at the head of its queue may have been
// begun over another way.
void Network::Join(std::int32_t id) {
  Flow& flow = flows_[id];
  flow.latency_ns = 0;
  flow.most_ns_per_byte = 0;
  flow.rate = 0;
  for (std::int32_t link : routes_.Find(static_cast<int>(flow.pair >> 32), static_cast<int>(flow.pair & UINT32_MAX))) {
    flow.latency_ns += topology_.links[link].latency_ns;
    if (topology_.links[link].ns_per_byte <= 0) continue;
    flow.route.push_back(link);
    flow.most_ns_per_byte = std::max(flow.most_ns_per_byte, topology_.links[link].ns_per_byte);
  }
  if (!BringHead(&flow)) {
    flow.route.clear();
    Drop(id);
    return;
  }
  flow.most = 1 / flow.most_ns_per_byte;
  for (std::int32_t link : flow.route) {
    links_[link].flows.push_back(id);
    links_[link].wanted += flow.most;
  }
  fresh_.push_back(id);
  WantSettlement();
}

void Network::Leave(std::int32_t id) {
  Flow& flow = flows_[id];
  for (std::int32_t at : flow.route) {
    Link& link = links_[at];
    if (IsFull(link)) Touch(at);
    link.flows.erase(std::find(link.flows.begin(), link.flows.end(), id));
    link.wanted = link.flows.empty() ? 0 : link.wanted - flow.most;
  }
  flow.route.clear();
}

// The link's flows may get another share.
void Network::Touch(std::int32_t link) {
  if (!links_[link].touched) touched_.push_back(link);
  links_[link].touched = true;
  WantSettlement();
}

// What has nothing to wait for is on its way at once, up to the first message that takes time. False: there is none.
bool Network::BringHead(Flow* flow) {
  for (; flow->first < flow->messages.size(); ++flow->first) {
    Message& message = flow->messages[flow->first];
    if (message.bytes > 0 && !flow->route.empty()) {
      if (flow->left <= 0) flow->left = static_cast<double>(message.bytes);
      flow->since = queue_->now();
      return true;
    }
    flow->left = 0;
    Arrives(*flow, std::move(message.deliver));
  }
  return false;
}

void Network::Arrives(const Flow& flow, std::function<void()> deliver) {
  const TimeUs at = std::max(queue_->now() + flow.latency_ns, arrivals_from_);
  arrivals_to_ = std::max(arrivals_to_, at);
  queue_->At(at, std::move(deliver));
}

void Network::Drop(std::int32_t id) {
  Flow& flow = flows_[id];
  flow.messages.clear();
  flow.first = 0;
  flow.left = flow.rate = 0;
  flow.active = false;
  flow_of_pair_.erase(flow.pair);
  free_flows_.push_back(id);
}

void Network::Ended(std::int32_t id) {
  Flow& flow = flows_[id];
  Arrives(flow, std::move(flow.messages[flow.first].deliver));
  flow.left = 0;
  if (++flow.first == 64) {  // a flow that never runs dry would grow for ever
    flow.messages.erase(flow.messages.begin(), flow.messages.begin() + 64);
    flow.first = 0;
  }
  if (BringHead(&flow)) {
    Schedule(id);
    return;
  }
  Leave(id);
  Drop(id);
}

// By the rate that it has now; the end of a message is a whole tick.
void Network::Schedule(std::int32_t id) {
  Flow& flow = flows_[id];
  const double ns = flow.rate == flow.most ? flow.left * flow.most_ns_per_byte : flow.left / flow.rate;
  flow.ends = queue_->At(flow.since + static_cast<TimeUs>(std::llround(ns)), [this, id] { Ended(id); });
}

void Network::Advance(Flow* flow) {
  const TimeUs now = queue_->now();
  flow->left = std::max(0.0, flow->left - flow->rate * static_cast<double>(now - flow->since));
  flow->since = now;
}

// Behind what else happens now, so that a thousand ranks which all send at this moment cost one settlement.
void Network::WantSettlement() {
  if (settlement_is_wanted_) return;
  settlement_is_wanted_ = true;
  queue_->At(queue_->now(), [this] { Settle(); });
}

void Network::Settle() {
  settlement_is_wanted_ = false;
  ++settlement_;
  ++counters_.settlements;
  reached_flows_.clear();
  reached_links_.clear();
  for (std::int32_t link : touched_) {
    links_[link].touched = false;
    for (std::int32_t flow : links_[link].flows) Reach(flow);
  }
  for (std::int32_t flow : fresh_)
    if (!flows_[flow].route.empty()) Reach(flow);
  touched_.clear();
  fresh_.clear();
  for (std::size_t i = 0; i < reached_flows_.size(); ++i)
    for (std::int32_t at : flows_[reached_flows_[i]].route) {
      Link& link = links_[at];
      if (link.reached == settlement_ || !IsFull(link)) continue;
      link.reached = settlement_;
      reached_links_.push_back(at);
      for (std::int32_t flow : link.flows) Reach(flow);
    }
  counters_.rates += reached_flows_.size();
  Fill();
  for (std::int32_t id : reached_flows_) {
    Flow& flow = flows_[id];
    if (flow.settled == flow.rate) continue;
    if (flow.rate > 0) {
      Advance(&flow);
      queue_->Cancel(flow.ends);
    }
    flow.since = queue_->now();
    flow.rate = flow.settled;
    Schedule(id);
  }
}

void Network::Reach(std::int32_t id) {
  Flow& flow = flows_[id];
  if (flow.reached == settlement_) return;
  flow.reached = settlement_;
  flow.settled = -1;
  reached_flows_.push_back(id);
}

// Progressive filling: all rates rise together; a flow stops at its own limit or when a full link on its way has no more.
void Network::Fill() {
  if (reached_links_.empty()) {
    for (std::int32_t id : reached_flows_) flows_[id].settled = flows_[id].most;
    return;
  }
  using Share = std::pair<double, std::int32_t>;  // of a link to each of its open flows when it was last looked at: it only grows
  std::priority_queue<Share, std::vector<Share>, std::greater<>> shares;
  for (std::int32_t at : reached_links_) {
    Link& link = links_[at];
    link.free = link.capacity;
    link.open = static_cast<std::int32_t>(link.flows.size());
    shares.emplace(link.free / link.open, at);
  }
  std::vector<std::int32_t> by_most = reached_flows_;
  std::sort(by_most.begin(), by_most.end(),
            [this](std::int32_t a, std::int32_t b) { return flows_[a].most != flows_[b].most ? flows_[a].most < flows_[b].most : a < b; });
  auto limited = by_most.begin();
  double level = 0;  // never falls, whatever rounding does
  while (!shares.empty()) {
    const std::int32_t at = shares.top().second;
    Link& link = links_[at];
    if (link.open == 0) {
      shares.pop();
      continue;
    }
    const double share = std::max(level, link.free / link.open);
    if (share > shares.top().first) {
      shares.pop();
      shares.emplace(share, at);
      if (shares.top().second != at) continue;
    }
    while (limited != by_most.end() && flows_[*limited].settled >= 0) ++limited;
    if (limited != by_most.end() && flows_[*limited].most <= share) {
      level = std::max(level, flows_[*limited].most);
      Fix(&flows_[*limited], flows_[*limited].most);
      continue;
    }
    level = share;
    shares.pop();
    for (std::int32_t id : link.flows)
      if (flows_[id].settled < 0) Fix(&flows_[id], share);
  }
  for (std::int32_t id : reached_flows_)
    if (flows_[id].settled < 0) flows_[id].settled = flows_[id].most;
}

void Network::Fix(Flow* flow, double rate) {
  flow->settled = rate;
  for (std::int32_t at : flow->route) {
    Link& link = links_[at];
    if (link.reached != settlement_) continue;
    link.free = std::max(0.0, link.free - rate);
    --link.open;
  }
}

void Network::SetRate(std::int32_t at, double ns_per_byte) {
  topology_.links[at].ns_per_byte = ns_per_byte;
  Link& link = links_[at];
  Touch(at);
  link.capacity = 1 / ns_per_byte;
  for (std::int32_t id : link.flows) {
    Flow& flow = flows_[id];
    const double before = flow.most;
    flow.most_ns_per_byte = 0;
    for (std::int32_t one : flow.route) flow.most_ns_per_byte = std::max(flow.most_ns_per_byte, topology_.links[one].ns_per_byte);
    flow.most = 1 / flow.most_ns_per_byte;
    for (std::int32_t one : flow.route) {
      if (IsFull(links_[one])) Touch(one);
      links_[one].wanted += flow.most - before;
      if (IsFull(links_[one])) Touch(one);
    }
  }
}

void Network::Reconfigure(Topology topology, TimeUs dark_ns) {
  for (Flow& flow : flows_) {
    if (!flow.active) continue;
    if (flow.rate > 0) {
      Advance(&flow);
      queue_->Cancel(flow.ends);
      flow.left = std::max(flow.left, 1e-9);  // it has not arrived, and 0 would be another message's beginning
    }
    flow.rate = 0;
    flow.route.clear();
  }
  touched_.clear();
  fresh_.clear();
  topology_ = std::move(topology);
  routes_ = Routes(&topology_);
  TakeLinks();
  is_dark_ = true;
  arrivals_from_ = arrivals_to_;  // what takes a shorter way from now on overtakes nothing
  queue_->After(dark_ns, [this, mine = ++turns_] {
    if (mine == turns_) GoOn();
  });
}

void Network::GoOn() {
  is_dark_ = false;
  for (std::size_t id = 0; id < flows_.size(); ++id)
    if (flows_[id].active) Join(static_cast<std::int32_t>(id));
}

}  // namespace ropewalk::sim
