// An allreduce that does not wait for everybody: when a quorum of ranks has called, all are told, and each gives what it has: its gradient
// if the call came, else what it still owes from earlier (its stale state). A counter travels as one more element of the vector and says
// how many fresh contributions are in the sum. After the idea of eager-SGD's partial allreduce, details ours.
#include "mlrunner/collective/builders/builders.h"

#include <string>
#include <vector>

namespace ropewalk::collective {
namespace {

constexpr std::int32_t kStale = 2, kMine = 3, kSum = 4, kCounter = 5;
constexpr std::int32_t kReady = 0, kGo = 1;  // counters
constexpr std::int32_t kCallChannel = 0, kSumChannel = 1, kQuorumChannel = 2;

Status DeclareEager(Header* header) {
  if (header->request.op != ReduceOp::kSum || header->request.quorum < 1 || header->request.quorum > header->request.ranks)
    return Status(Code::kInvalid, "COLL10", "eager: a sum and a quorum of 1 to ranks are needed",
                  "asked for are the " + std::string(Name(header->request.op)) + " and a quorum of " +
                      std::to_string(header->request.quorum) + " of " + std::to_string(header->request.ranks) +
                      " ranks; who comes late is added to a later result, which only a sum allows",
                  "ask for a sum and such a quorum; for an average divide by the counter afterwards");
  DeclareInOut(header);
  header->buffers[kOut].may_alias = kNone;  // the call may come while the sum is on its way
  header->buffers.push_back({.name = "stale", .role = Role::kState});
  DeclareScratch(header, "mine");
  DeclareScratch(header, "sum");
  header->buffers.push_back({.name = "counter", .role = Role::kOut});
  header->channel_count = 3;
  header->counter_count = 2;
  return {};
}

void WriteEager(Writer& w) {
  const std::int32_t ranks = w.ranks(), rank = w.rank();
  const RangeId vector = w.Whole(), counter = w.Span(0, 1, 1, 0), both = w.Span(1, 1);
  w.OnChannel(kCallChannel);
  w.Notify(0, kReady);

  w.OnChannel(kQuorumChannel, Start::kMessage);
  if (rank == 0) {
    w.Wait(kReady, w.request().quorum);
    for (std::int32_t to = 0; to < ranks; ++to) w.Notify(to, kGo);
  }

  w.OnChannel(kSumChannel, Start::kMessage);
  w.Wait(kGo, 1);
  w.Fold(Op::kContribute, {Local(w.At(kIn, vector)), Local(w.At(kStale, vector))},
         {.dst = w.At(kMine, vector), .aux = w.At(kMine, counter)});
  auto part = [&](std::int32_t buffer, std::int32_t of) { return w.At(buffer, w.Part(both, ranks, of)); };
  for (std::int32_t d = 1; d < ranks; ++d) w.Send(part(kMine, w.Around(d)), w.Around(d));
  std::vector<Operand> operands;
  for (std::int32_t from = 0; from < ranks; ++from)
    operands.push_back(from == rank ? Local(part(kMine, rank)) : From(from, part(kMine, rank)));
  w.Fold(ranks == 1 ? Op::kReduce : Op::kRecvReduce, operands, {.dst = part(kSum, rank)});
  for (std::int32_t d = 1; d < ranks; ++d) w.Send(part(kSum, rank), w.Around(d));
  for (std::int32_t d = 1; d < ranks; ++d) w.Recv(w.Around(-d), part(kSum, w.Around(-d)));
  w.Copy(w.At(kSum, vector), w.At(kOut, vector));
  w.Copy(w.At(kSum, counter), w.At(kCounter, w.Span(0, 1)));
}

void PromiseEager(PostWriter& post) {
  post.Add({.kind = ClaimKind::kQuorum,
            .out = post.At(kOut, post.Whole()),
            .counter = post.At(kCounter, post.Span(0, 1)),
            .state = post.At(kStale, post.Whole())},
           {{.rank = kEveryRank, .chunk = post.At(kIn, post.Whole())}});
  post.post().identical = true;
}

}  // namespace

const Algorithm kEager{"eager", Collective::kAllreduce, false, DeclareEager, WriteEager, PromiseEager};

}  // namespace ropewalk::collective
