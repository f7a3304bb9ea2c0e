#include "mlrunner/collective/run/candidates.h"

#include <algorithm>
#include <set>
#include <utility>

#include "mlrunner/collective/layout.h"
#include "mlrunner/collective/run/engine.h"

namespace ropewalk::collective {
namespace {

// Beside the one that fixed sizes give: shorter ones fill a pipeline sooner.
constexpr std::int64_t kShorter = 4;

// Several nodes, and several ranks on some: else what is hierarchical is one of its two halves, which stands in the table already.
bool HasLevels(const Ground& ground) {
  const auto nodes = std::set<std::int32_t>(ground.nodes.begin(), ground.nodes.end()).size();
  return nodes > 1 && nodes < static_cast<std::size_t>(ground.ranks);
}

// Whether the length of its segments changes anything.
bool IsCut(const Plan& plan) {
  for (const Program& program : plan.programs)
    for (const Loop& loop : program.loops)
      if (loop.segment_bytes > 0) return true;
  return false;
}

}  // namespace

Request RequestOf(const Request& asked, const Choice& choice, const Ground& ground) {
  Request request = asked;
  request.ranks = ground.ranks;
  request.nodes = ground.nodes;
  request.segment_bytes = choice.segment_bytes;
  request.channels = choice.channels;
  return request;
}

std::vector<Candidate> CandidatesFor(const Request& asked, const Ground& ground) {
  // What fixed sizes give to long vectors.
  const Choice usual = Choose(asked, false, std::int64_t{1} << 30, ground.shares_memory, ground.segment_bytes);
  std::vector<std::int64_t> segments = {usual.segment_bytes};
  if (ground.segment_bytes == 0) segments.push_back(usual.segment_bytes / kShorter);
  // Over shared memory there is nothing that could travel while something else is folded.
  const std::int32_t channels_max = ground.shares_memory ? 1 : Engine::kChannelsOfLane;
  std::vector<Candidate> candidates;
  for (const Algorithm& algorithm : ground.algorithms) {
    if (algorithm.collective != asked.collective || algorithm.codecs != Codecs::kNone) continue;
    std::int32_t channels_before = 0;
    for (std::int32_t channels = 1; channels <= channels_max; ++channels)
      for (const std::int64_t segment_bytes : segments) {
        Candidate candidate{.choice = {.algorithm = algorithm.name, .segment_bytes = segment_bytes, .channels = channels}};
        Request request = RequestOf(asked, candidate.choice, ground);
        request.order = OrderOf(ground.orders, algorithm, request);
        auto plan = BuildPlan(algorithm, request);
        if (!plan.ok() || !WhyNoPlainCall(*plan).empty() || plan->header.channel_count > Engine::kChannelsOfLane) continue;
        if (!plan->header.groups.empty() && !HasLevels(ground)) continue;
        const bool is_first = segment_bytes == segments[0];
        if (is_first && plan->header.channel_count == channels_before) break;  // one channel more is none
        if (!is_first && !IsCut(*plan)) break;
        if (is_first) channels_before = plan->header.channel_count;
        candidate.plan = *std::move(plan);
        candidates.push_back(std::move(candidate));
      }
  }
  return candidates;
}

Result<double> NsOf(const LinkModel& model, const Candidate& candidate, std::int64_t count) {
  const Header& header = candidate.plan.header;
  const Sizes sizes{.count = count};
  for (const Program& program : candidate.plan.programs) {
    ASSIGN_OR_RETURN(const Layout layout, Layout::Make(header, program, sizes));
    std::int64_t scratch_bytes = 0;
    for (std::size_t b = 0; b < header.buffers.size(); ++b) {
      const auto buffer = static_cast<std::int32_t>(b);
      if (header.buffers[b].role == Role::kScratch) scratch_bytes += layout.ElementsOf(buffer) * layout.BytesOfElement(buffer);
    }
    if (scratch_bytes > kChosenScratchBytesMax)
      return Status(
          Code::kResourceExhausted, "COLL13",
          header.algorithm + " of " + std::to_string(count) + " elements takes " + std::to_string(scratch_bytes) + " bytes of scratch",
          "what is chosen takes " + std::to_string(kChosenScratchBytesMax) + " at most", "name it, if it is to run");
  }
  return PredictNs(model, candidate.plan, sizes);
}

std::string WhyNoPlainCall(const Plan& plan) {
  constexpr std::size_t kIn = 0, kOut = 1;  // all plans have them first
  const std::vector<Buffer>& buffers = plan.header.buffers;
  if (buffers.size() < 2 || buffers[kIn].role != Role::kIn || buffers[kOut].role != Role::kOut)
    return "its first two vectors are not what goes in and what comes out";
  for (const Buffer& buffer : buffers) {
    if (buffer.role == Role::kWindow) return "it needs a window";
    if (buffer.role == Role::kState) return "it needs memory that lives on from call to call";
    if (buffer.role == Role::kIn && buffer.element == Element::kCount && !LearnsCounts(plan.header.request.collective))
      return "it needs counts of each rank";
  }
  for (const Program& program : plan.programs) {
    for (const Channel& channel : program.channels)
      if (channel.start != Start::kLocalCall) return "it begins without the ranks' calls";
    for (const Step& step : program.steps)
      if (step.op == Op::kNative) return "it needs a library";
  }
  return "";
}

}  // namespace ropewalk::collective
