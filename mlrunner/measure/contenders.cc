#include "mlrunner/measure/contenders.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/escape.h"
#include "base/nearest.h"
#include "mlrunner/collective/run/candidates.h"
#include "mlrunner/collective/run/choose.h"

namespace ropewalk::measure {
namespace {

using collective::Algorithm;

// Some size that is cut into segments.
constexpr std::int64_t kSomeBytes = 1 << 20;

// Each hears from both that are beside it.
collective::Neighbors AroundRing(std::int32_t ranks) {
  collective::Neighbors neighbors(static_cast<std::size_t>(ranks));
  for (std::int32_t rank = 0; rank < ranks; ++rank) {
    std::vector<std::int32_t>& from = neighbors[static_cast<std::size_t>(rank)];
    if (ranks > 1) from.push_back((rank + ranks - 1) % ranks);
    if (ranks > 2) from.push_back((rank + 1) % ranks);
  }
  return neighbors;
}

// With what only some algorithms ask for, so that what they are refused for is what the bench lacks.
collective::Request RequestToTry(const BenchJob& job) {
  collective::Request request = RequestOf(job);
  request.segment_bytes = kSomeBytes / 4;
  request.quorum = job.ranks;
  const auto ranks = static_cast<std::size_t>(job.ranks);
  if (job.collective == collective::Collective::kMix)
    request.mixing.assign(ranks, std::vector<double>(ranks, 1.0 / static_cast<double>(job.ranks)));
  return request;
}

// Empty: it can take part.
std::string WhyNotMeasured(const Algorithm& algorithm, const BenchJob& job) {
  if (algorithm.codecs != collective::Codecs::kNone) return "it takes numbers encoded only";
  const Result<collective::Plan> plan = BuildPlan(algorithm, RequestToTry(job));
  return plan.ok() ? WhyNoPlainCall(*plan) : plan.status().why();
}

// Whether it can do with more ranks on one machine than on another: where they will stand is known on the cluster only.
bool GoesAnywhere(const Algorithm& algorithm, const BenchJob& job) {
  if (job.ranks < 3) return true;
  collective::Request request = RequestToTry(job);
  request.nodes.assign(static_cast<std::size_t>(job.ranks), 0);
  request.nodes.back() = 1;
  return BuildPlan(algorithm, request).ok();
}

Status Bad(const std::string& what, const std::string& why, const std::string& fix) {
  return Status(Code::kInvalid, "BENCH21", "--algorithms: " + what, why, fix);
}

}  // namespace

collective::Request RequestOf(const BenchJob& job) {
  collective::Request request{.collective = job.collective, .dtype = job.dtype, .op = job.op, .ranks = job.ranks, .peer = job.ranks - 1};
  if (job.collective == collective::Collective::kNeighborExchange) request.neighbors = AroundRing(job.ranks);
  return request;
}

std::vector<std::string> CollectiveNames(std::span<const Algorithm> table) {
  std::vector<std::string> names;
  for (const Algorithm& algorithm : table) {
    std::string name(Name(algorithm.collective));
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(std::move(name));
  }
  return names;
}

Status ChooseContenders(std::span<const Algorithm> table, const std::string& names, BenchJob* job) {
  const std::string collective(Name(job->collective));
  job->algorithms.clear();
  job->left_out.clear();
  std::vector<std::string> able, anywhere, unplaced;
  for (const Algorithm& algorithm : table) {
    if (algorithm.collective != job->collective) continue;
    const std::string why = WhyNotMeasured(algorithm, *job);
    if (why.empty()) {
      able.emplace_back(algorithm.name);
      if (GoesAnywhere(algorithm, *job))
        anywhere.emplace_back(algorithm.name);
      else
        unplaced.push_back(
            fmt::format("{}: it needs as many ranks on each machine as on the others; name it where that is so", algorithm.name));
    } else {
      job->left_out.push_back(fmt::format("{}: {}", algorithm.name, why));
    }
  }
  const std::string there_are =
      able.empty() ? "measure another collective, or by another --op or --dtype" : fmt::format("there are {}", fmt::join(able, ", "));
  if (names == "all") {
    if (able.empty())
      return Bad("none can be measured that does " + collective, fmt::format("{}", fmt::join(job->left_out, "; ")),
                 "measure another collective, or by another --op or --dtype");
    if (anywhere.empty()) return Bad("none can be measured wherever ranks stand", fmt::format("{}", fmt::join(unplaced, "; ")), there_are);
    job->algorithms = std::move(anywhere);
    job->left_out.insert(job->left_out.end(), unplaced.begin(), unplaced.end());
    return {};
  }
  std::vector<std::string> left_out;
  left_out.swap(job->left_out);  // only what would have taken part is left out
  for (std::size_t from = 0; from <= names.size();) {
    const std::size_t comma = std::min(names.find(',', from), names.size());
    const std::string name = names.substr(from, comma - from);
    from = comma + 1;
    if (!name.empty() && std::find(job->algorithms.begin(), job->algorithms.end(), name == "chosen" ? "" : name) != job->algorithms.end())
      return Bad("\"" + EscapeForLog(name, 100) + "\" is there twice", "each is measured once", "leave one out");
    if (std::find(able.begin(), able.end(), name) != able.end()) {
      job->algorithms.push_back(name);
      continue;
    }
    if (name == "chosen") {
      if (collective::Choose(RequestOf(*job), false, kSomeBytes, true, 0).algorithm.empty())
        return Bad("no algorithm is chosen for " + collective, "a communicator has no rule for it", there_are);
      job->algorithms.emplace_back();
      continue;
    }
    const std::string what = "\"" + EscapeForLog(name, 100) + "\" cannot be measured";
    for (const std::string& other : left_out)
      if (other.starts_with(name + ": ")) return Bad(what, other.substr(name.size() + 2), there_are);
    std::vector<std::string> known = able;
    known.insert(known.end(), {"chosen", "all"});
    const std::string near = NearestName(name, known);
    return Bad(what, name == "all" ? "it is not said beside others" : "no algorithm of that name does " + collective,
               near.empty() || name == "all" ? there_are : "did you mean \"" + near + "\"?");
  }
  return {};
}

}  // namespace ropewalk::measure
