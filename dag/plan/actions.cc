#include "dag/plan/actions.h"

namespace ropewalk::dag {

PlanNodePtr NewActionNode(const std::shared_ptr<PlanContext>& context, std::string op, Site site, std::uint64_t fingerprint) {
  return std::make_shared<PlanNode>(context, PlanNode::Options{.op = std::move(op), .site = site, .fingerprint = fingerprint});
}

Status CollectTooLarge(const Settings& settings, const std::string& op) {
  return Status(Code::kUserError, "DAG04", op + " of more than " + std::to_string(settings.collect_bytes_max >> 20) + " MiB",
                "its result is kept in the memory of main, in every executor", "write it with WriteText, or Take what is needed");
}

Status DamagedResult(const std::string& op) {
  return Status(Code::kInternal, "DAG05", "a result of " + op + " does not decode", "its bytes are damaged",
                "run the job again and report it");
}

}  // namespace ropewalk::dag
