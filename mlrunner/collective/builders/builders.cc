#include "mlrunner/collective/builders/builders.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "mlrunner/collective/builders/phases.h"

namespace ropewalk::collective {
namespace {

// "ring, chain": those of `table` that `fits` says yes to.
std::string NamesOf(std::span<const Algorithm> table, const std::function<bool(const Algorithm&)>& fits) {
  std::string names;
  for (const Algorithm& algorithm : table)
    if (fits(algorithm)) names += (names.empty() ? "" : ", ") + std::string(algorithm.name);
  return names;
}

// What no step of a program looks at must not be asked for: it would be left out without a word.
Status CheckForm(const Algorithm& algorithm, const Request& request) {
  const std::string name(algorithm.name);
  const std::size_t given = request.codecs.size();
  if (request.collective != Collective::kMix && !request.mixing.empty())
    return Status(Code::kInvalid, "COLL10", name + " mixes by no matrix",
                  "it does " + std::string(Name(request.collective)) + ", in which all vectors count alike", "leave the matrix out");
  if (request.collective != Collective::kNeighborExchange && !request.neighbors.empty())
    return Status(Code::kInvalid, "COLL10", name + " knows no neighbours",
                  "it does " + std::string(Name(request.collective)) + ", in which all ranks have part",
                  "leave the neighbours out, or exchange with them (neighbor_exchange)");
  if (algorithm.codecs == Codecs::kNone && given > 0) {
    const std::string takers =
        NamesOf(Algorithms(), [&](const Algorithm& one) { return one.collective == request.collective && one.codecs != Codecs::kNone; });
    return Status(Code::kInvalid, "COLL10", name + " takes no codec",
                  "it sends numbers as they are, and \"" + request.codecs[0].name + "\" is asked for",
                  "leave the codec out" + (takers.empty() ? "" : ", or name an algorithm that encodes: " + takers));
  }
  if (algorithm.codecs != Codecs::kNone && given != 1)
    return Status(Code::kInvalid, "COLL10", name + ": one codec is needed",
                  "it sends everything encoded, and " + std::to_string(given) + " codecs are given",
                  "give one (MinMaxCodec, SignCodec), or take an algorithm that sends numbers as they are, such as direct");
  if (algorithm.codecs == Codecs::kAdditive && !request.codecs[0].additive)
    return Status(Code::kInvalid, "COLL10", name + " takes additive codecs only",
                  "it encodes at every hop, and what \"" + request.codecs[0].name + "\" leaves out would add up",
                  "give an additive codec, or take an algorithm that encodes twice at most, such as sra");
  return {};
}

Status CheckOrder(const Algorithm& algorithm, const Request& request) {
  const Order& order = request.order;
  if (order.empty()) return {};
  const std::string name(algorithm.name);
  if (algorithm.follows == Follows::kNothing) {
    const std::string followers = NamesOf(
        Algorithms(), [&](const Algorithm& one) { return one.collective == request.collective && one.follows != Follows::kNothing; });
    return Status(Code::kInvalid, "COLL10", name + " follows no order of ranks", "its messages do not go from each rank to the next one",
                  "leave the order out" + (followers.empty() ? "" : ", or name an algorithm that passes messages on: " + followers));
  }
  auto refuse = [&](const std::string& why) {
    return Status(Code::kInvalid, "COLL10", name + ": the order does not have each rank once", why,
                  "give the ranks from 0 to ranks - 1 in the order in which they are to pass messages on, or none: then it is this one");
  };
  if (static_cast<std::int32_t>(order.size()) != request.ranks)
    return refuse("there are " + std::to_string(request.ranks) + " ranks, and it has " + std::to_string(order.size()));
  std::vector<bool> is_there(order.size());
  for (std::int32_t rank : order) {
    if (rank < 0 || rank >= request.ranks)
      return refuse("it has a rank " + std::to_string(rank) + ", and there are " + std::to_string(request.ranks));
    if (is_there[rank]) return refuse("rank " + std::to_string(rank) + " is in it twice");
    is_there[rank] = true;
  }
  if (const auto wrong = std::is_sorted_until(order.begin(), order.end());
      request.deterministic && Folds(request.collective) && wrong != order.end())
    return Status(Code::kInvalid, "COLL10", name + ": in deterministic mode ranks have no order but their own",
                  "it would add rank " + std::to_string(*wrong) + "'s numbers behind rank " + std::to_string(*(wrong - 1)) +
                      "'s; deterministic mode fixes the left fold over the ranks",
                  "leave the order out, or do without deterministic mode");
  return {};
}

Status Declare(const Algorithm& algorithm, const Request& request, Header* header) {
  header->algorithm = algorithm.name;
  header->request = request;
  header->accumulator = AccumulatorOf(request.dtype);
  header->op = request.op == ReduceOp::kAvg ? ReduceOp::kSum : request.op;
  header->channel_count = 1;
  std::string name(algorithm.name);
  if (request.collective != algorithm.collective) {
    const std::string names = NamesOf(Algorithms(), [&](const Algorithm& one) { return one.collective == request.collective; });
    return Status(Code::kInvalid, "COLL10", name + " does no " + std::string(Name(request.collective)),
                  "it is for " + std::string(Name(algorithm.collective)),
                  names.empty() ? "give an Algorithm of your own; none of the table's does it" : "name one that does: " + names);
  }
  if (request.ranks < 1 || request.root < 0 || request.root >= request.ranks || request.channels < 1 || request.slots < 1 ||
      request.segment_bytes < 0)
    return Status(Code::kInvalid, "COLL10", name + ": ranks, root, channels, slots or segment_bytes is out of range",
                  "ranks is " + std::to_string(request.ranks) + ", root " + std::to_string(request.root) + ", channels " +
                      std::to_string(request.channels) + ", slots " + std::to_string(request.slots) + ", segment_bytes " +
                      std::to_string(request.segment_bytes),
                  "give 1 or more ranks, channels and slots, a root from 0 to ranks - 1, and segment_bytes of 0 (uncut) or more");
  if (!IsNumber(request.dtype))
    return Status(Code::kInvalid, "COLL10", name + ": elements of type " + std::string(Name(request.dtype)) + " cannot be added up",
                  "collectives are for numbers: f32, f64, f16, bf16, i32, i64 and u8", "convert the vector; flags travel as u8");
  if (request.op == ReduceOp::kAvg && !IsFloat(request.dtype) && Folds(request.collective))
    return Status(Code::kInvalid, "COLL10", name + ": no mean of whole numbers",
                  "the mean of elements of type " + std::string(Name(request.dtype)) +
                      " is none of that type in general, and whoever rounds it decides what is lost",
                  "sum them (ReduceOp::kSum) and divide as it suits, or convert the vector to f32 or f64");
  if (request.deterministic && !algorithm.deterministic)
    return Status(Code::kInvalid, "COLL10", name + " is not possible in deterministic mode",
                  "it adds in an order of its own; deterministic mode fixes the left fold over the ranks",
                  "name one that keeps it: " + NamesOf(Algorithms(), [&](const Algorithm& one) {
                    return one.collective == request.collective && one.deterministic;
                  }));
  RETURN_IF_ERROR(CheckForm(algorithm, request));
  RETURN_IF_ERROR(CheckOrder(algorithm, request));
  return algorithm.declare(header);
}

Program Write(const Algorithm& algorithm, const Header& header, std::int32_t rank) {
  Program program;
  program.rank = rank;
  Writer writer(header, &program);
  algorithm.write(writer);
  writer.Finish();
  return program;
}

}  // namespace

std::span<const Algorithm> Algorithms() {
  static const std::vector<Algorithm> kAll = [] {
    std::vector<Algorithm> all = {kDirectAllreduce,
                                  kRingAllreduce,
                                  kDoublingAllreduce,
                                  kChainAllreduce,
                                  kTreeBroadcast,
                                  kChainBroadcast,
                                  kDisseminationBarrier,
                                  kPointToPoint,
                                  kSra,
                                  kAllToAllV,
                                  kEager,
                                  kWindow,
                                  kWindowRelaxed,
                                  kNativeAllreduce,
                                  kHalvingDoublingAllreduce,
                                  kTreeAllreduce,
                                  kDoubleTreeAllreduce,
                                  kCentralAllreduce,
                                  kDirectReduceScatter,
                                  kRingReduceScatter,
                                  kDirectAllgather,
                                  kRingAllgather,
                                  kAllgatherV,
                                  kDirectReduce,
                                  kTreeReduce,
                                  kDirectGather,
                                  kTreeGather,
                                  kDirectScatter,
                                  kTreeScatter,
                                  kAllToAll,
                                  kNeighborExchange,
                                  kNativeReduceScatter,
                                  kNativeAllgather,
                                  kNativeBroadcast,
                                  kNativeReduce};
    all.insert(all.end(), kHierarchicalAllreduces.begin(), kHierarchicalAllreduces.end());
    return all;
  }();
  return kAll;
}

Result<const Algorithm*> FindAlgorithm(std::span<const Algorithm> table, std::string_view name) {
  for (const Algorithm& algorithm : table)
    if (algorithm.name == name) return &algorithm;
  return Status(Code::kNotFound, "COLL11", "there is no algorithm \"" + std::string(name) + "\"",
                "there are " + NamesOf(table, [](const Algorithm&) { return true; }),
                "name one of these, or none: then one is chosen by size and wire");
}

Result<Plan> BuildPlan(std::string_view name, const Request& request) {
  ASSIGN_OR_RETURN(const Algorithm* algorithm, FindAlgorithm(Algorithms(), name));
  return BuildPlan(*algorithm, request);
}

Result<Plan> BuildPlan(const Algorithm& algorithm, const Request& request) {
  Plan plan;
  RETURN_IF_ERROR(Declare(algorithm, request, &plan.header));
  for (std::int32_t rank = 0; rank < request.ranks; ++rank) plan.programs.push_back(Write(algorithm, plan.header, rank));
  PostWriter post(plan.header, &plan.post);
  algorithm.promise(post);
  return plan;
}

Result<RankPlan> BuildProgram(std::string_view name, const Request& request, std::int32_t rank) {
  ASSIGN_OR_RETURN(const Algorithm* algorithm, FindAlgorithm(Algorithms(), name));
  return BuildProgram(*algorithm, request, rank);
}

Result<RankPlan> BuildProgram(const Algorithm& algorithm, const Request& request, std::int32_t rank) {
  RankPlan plan;
  RETURN_IF_ERROR(Declare(algorithm, request, &plan.header));
  if (rank < 0 || rank >= request.ranks)
    return Status(Code::kInvalid, "COLL10", "there is no rank " + std::to_string(rank),
                  "the request is for " + std::to_string(request.ranks) + " ranks, which count from 0",
                  "build the program of the communicator's own rank, for as many ranks as it has");
  plan.program = Write(algorithm, plan.header, rank);
  return plan;
}

Result<Header> BuildHeader(const Algorithm& algorithm, const Request& request) {
  Header header;
  RETURN_IF_ERROR(Declare(algorithm, request, &header));
  return header;
}

Program BuildProgram(const Algorithm& algorithm, const Header& header, std::int32_t rank) { return Write(algorithm, header, rank); }

Group AllRanks(const Writer& w) {
  Group all{.ranks = std::vector<std::int32_t>(w.ranks()), .place = w.rank()};
  std::iota(all.ranks.begin(), all.ranks.end(), 0);
  return all;
}

Group InOrder(const Writer& w) {
  Group all = AllRanks(w);
  if (w.request().order.empty()) return all;
  all.ranks = w.request().order;
  all.place = PlaceOf(w.request(), w.rank());
  return all;
}

std::int32_t RankAt(const Request& request, std::int32_t place) {
  const std::int32_t wrapped = ((place % request.ranks) + request.ranks) % request.ranks;
  return request.order.empty() ? wrapped : request.order[wrapped];
}

std::int32_t PlaceOf(const Request& request, std::int32_t rank) {
  if (request.order.empty()) return rank;
  return static_cast<std::int32_t>(std::find(request.order.begin(), request.order.end(), rank) - request.order.begin());
}

void DeclareInOut(Header* header) {
  header->buffers.push_back({.name = "in", .role = Role::kIn});
  header->buffers.push_back({.name = "out", .role = Role::kOut, .may_alias = kIn});
}

void DeclareInPartOut(Header* header) {
  DeclareInOut(header);
  header->buffers[kOut].alias_at_part = true;
}

void DeclarePartInOut(Header* header) {
  header->buffers.push_back({.name = "in", .role = Role::kIn, .may_alias = kOut, .alias_at_part = true});
  header->buffers.push_back({.name = "out", .role = Role::kOut});
}

RangeId PartOfWhole(ShapeWriter& w, std::int32_t rank) { return w.Part(w.Whole(), w.ranks(), rank); }

RangeId PartAlone(ShapeWriter& w, std::int32_t rank) {
  const RangeId part = PartOfWhole(w, rank);
  return w.Placed(part, part, 0);
}

Status NeedTwoSlots(const Header& header) {
  if (header.request.slots >= 2 || header.request.ranks == 1) return {};
  return Status(Code::kInvalid, "COLL10", header.algorithm + ": two slots are needed", "every rank would wait for the next one's slot",
                "give the request 2 slots or more (it has " + std::to_string(header.request.slots) + "), or take another algorithm");
}

std::int32_t DeclareScratch(Header* header, const char* name, Element element) {
  header->buffers.push_back({.name = name, .role = Role::kScratch, .element = element});
  return static_cast<std::int32_t>(header->buffers.size()) - 1;
}

std::int32_t DeclareScale(Header* header, double scale) {
  header->scales.push_back(scale);
  return static_cast<std::int32_t>(header->scales.size()) - 1;
}

Scales ScalesOf(const Header& header, bool partial_sums_are_stored) {
  if (header.request.op != ReduceOp::kAvg) return {};
  bool before = partial_sums_are_stored && header.request.dtype == Dtype::kF16;
  return before ? Scales{.before = 0} : Scales{.after = 0};
}

Scales DeclareAverage(Header* header, bool partial_sums_are_stored) {
  if (header->request.op == ReduceOp::kAvg) DeclareScale(header, 1.0 / header->request.ranks);
  return ScalesOf(*header, partial_sums_are_stored);
}

Term OfAll(const PostWriter& post, ChunkId chunk) {
  return {.rank = kEveryRank, .chunk = chunk, .coefficient = post.request().op == ReduceOp::kAvg ? 1.0 / post.ranks() : 1};
}

void PromiseAllreduce(PostWriter& post) {
  post.Fold(kEveryRank, post.At(kOut, post.Whole()), {OfAll(post, post.At(kIn, post.Whole()))});
  post.post().identical = true;
}

}  // namespace ropewalk::collective
