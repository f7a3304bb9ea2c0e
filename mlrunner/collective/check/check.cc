#include "mlrunner/collective/check/check.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "mlrunner/collective/check/symbolic_machine.h"

namespace ropewalk::collective {

Status SymbolicMachine::PreparePost() {
  ASSIGN_OR_RETURN(Layout layout, Layout::Make(plan_.header, plan_.post, {}, options_.sizes));
  post_layout_ = std::move(layout);
  return {};
}

Result<CheckReport> Check(const Plan& plan, const CheckOptions& options) {
  const Request& request = plan.header.request;
  if (static_cast<std::int32_t>(plan.programs.size()) != request.ranks || request.ranks < 1)
    return Status(Code::kInvalid, "COLL02", plan.header.algorithm + ": as many programs as ranks are needed",
                  "the plan has " + std::to_string(plan.programs.size()) + " programs for " + std::to_string(request.ranks) + " ranks",
                  "check what BuildPlan() returned; a plan of one rank's program cannot be proved");
  if (plan.post.claims.empty())
    return Status(Code::kInvalid, "COLL02", plan.header.algorithm + ": the plan promises nothing",
                  "its postcondition has no claim, so any result would pass", "let the algorithm's `promise` say what it leaves where");
  for (std::int32_t rank = 0; rank < request.ranks; ++rank) {
    if (plan.programs[rank].rank != rank)
      return Status(Code::kInvalid, "COLL02", plan.header.algorithm + ": programs are not in the order of ranks",
                    "program " + std::to_string(rank) + " is that of rank " + std::to_string(plan.programs[rank].rank),
                    "put the program of rank r at place r, as BuildPlan() does");
    RETURN_IF_ERROR(CheckProgram(plan.header, plan.programs[rank]));
  }
  std::vector<Layout> layouts;
  for (const Program& program : plan.programs) {
    ASSIGN_OR_RETURN(Layout layout, Layout::Make(plan.header, program, options.sizes));
    layouts.push_back(std::move(layout));
  }

  SymbolicMachine machine(plan, options, &layouts);
  RETURN_IF_ERROR(machine.PreparePost());
  RETURN_IF_ERROR(machine.Run());
  RETURN_IF_ERROR(machine.CheckPost());
  return machine.report();
}

Status CheckAll(const Plan& plan) {
  const std::int32_t ranks = plan.header.request.ranks;
  const bool may_alias =
      std::any_of(plan.header.buffers.begin(), plan.header.buffers.end(), [](const Buffer& buffer) { return buffer.may_alias != kNone; });
  CheckOptions options;
  for (std::int64_t i = 0; i < std::int64_t{ranks} * ranks; ++i) options.sizes.table.push_back((i * 7 + 3) % 5);  // zeros among them
  for (std::int64_t count : std::set<std::int64_t>{0, 1, 7, std::max(1, ranks - 1), ranks, 1'000'003}) {
    options.sizes.count = count;
    for (bool in_place : {false, true}) {
      if (in_place && !may_alias) continue;
      options.in_place = in_place;
      auto report = Check(plan, options);
      if (!report.ok()) return report.status().WithContext(std::to_string(count) + " elements" + (in_place ? ", in place" : ""));
    }
  }
  return {};
}

}  // namespace ropewalk::collective
