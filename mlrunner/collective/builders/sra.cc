// Scatter-reduce-allgather with a codec: parts travel encoded to their owners, who decode, sum, encode the sum once and send it to all.
// The owner decodes its own bytes, too, so that all ranks hold the same. A value is encoded twice at most, however many ranks there are.
// With error feedback each rank keeps what its two encodings left out, of its own vector and of the sums that it owns.
#include "mlrunner/collective/builders/builders.h"

#include <algorithm>
#include <string>
#include <vector>

namespace ropewalk::collective {
namespace {

constexpr std::int32_t kParts = 2, kSum = 3, kCodedSum = 4, kResidual = 5, kSumResidual = 6;

Status DeclareSra(Header* header) {
  DeclareInOut(header);
  DeclareScratch(header, "parts", Element::kByte);
  DeclareScratch(header, "sum", Element::kAccumulator);
  DeclareScratch(header, "coded_sum", Element::kByte);
  if (header->request.codecs[0].error_feedback)
    for (const char* name : {"residual", "sum_residual"})
      header->buffers.push_back({.name = name, .role = Role::kState, .element = Element::kAccumulator});
  DeclareAverage(header, false);
  return {};
}

void WriteSra(Writer& w) {
  const std::int32_t ranks = w.ranks(), rank = w.rank();
  // A codec's bucket must not be split between two owners.
  const auto align = static_cast<std::int32_t>(std::max<std::int64_t>(1, w.request().codecs[0].bucket_elements));
  auto range = [&](std::int32_t of) { return w.Part(w.Whole(), ranks, of, align); };
  auto part = [&](std::int32_t buffer, std::int32_t of) { return w.At(buffer, range(of)); };
  auto coded = [&](std::int32_t buffer, std::int32_t of) { return w.At(buffer, w.Placed(range(of), range(0), of, 0)); };
  const RangeId of_sum = w.Placed(range(rank), range(0), 0);
  const ChunkId sum = w.At(kSum, of_sum);
  const bool keeps = w.request().codecs[0].error_feedback;

  for (std::int32_t d = 1; d < ranks; ++d) {
    const std::int32_t to = w.Around(d);
    w.Fold(Op::kEncode, {Local(part(kIn, to))},
           {.dst = coded(kParts, to), .to = to, .aux = keeps ? part(kResidual, to) : kNone, .codec = 0});
  }
  std::vector<Operand> operands;
  for (std::int32_t from = 0; from < ranks; ++from)
    operands.push_back(from == rank ? Local(part(kIn, rank)) : Decoded(From(from, coded(kParts, rank))));
  w.Fold(Op::kDecode, operands, {.dst = sum, .scale = ScalesOf(w.header(), false).after, .codec = 0});
  w.Fold(Op::kEncode, {Local(sum)}, {.dst = coded(kCodedSum, rank), .aux = keeps ? w.At(kSumResidual, of_sum) : kNone, .codec = 0});
  for (std::int32_t d = 1; d < ranks; ++d) w.Send(coded(kCodedSum, rank), w.Around(d));
  w.Fold(Op::kDecode, {Decoded(Local(coded(kCodedSum, rank)))}, {.dst = part(kOut, rank), .codec = 0});
  for (std::int32_t d = 1; d < ranks; ++d) {
    const std::int32_t from = w.Around(-d);
    w.Fold(Op::kDecode, {Decoded(From(from, coded(kCodedSum, from)))}, {.dst = part(kOut, from), .codec = 0});
  }
}

void PromiseSra(PostWriter& post) {
  PromiseAllreduce(post);
  post.post().encodings_max = 2;
}

}  // namespace

const Algorithm kSra{"sra", Collective::kAllreduce, false, DeclareSra, WriteSra, PromiseSra, Codecs::kAny};

}  // namespace ropewalk::collective
