#include "mlrunner/graph/passes/chains.h"

#include <cstring>

#include "mlrunner/graph/ops.h"

namespace ropewalk::mlrunner {

Chains::Chains(const Graph& graph) : graph_(graph), users_(graph.Users()) {
  for (ValueId value : graph.Roots()) visible_.insert(value);
  for (const AliasGroup& group : graph.alias_groups) visible_.insert(group.values.begin(), group.values.end());
}

const Op* Chains::Maker(ValueId value, const OpDef& def) const {
  const Op& op = graph_.op(graph_.value(value).producer);
  return op.def == &def && op.half == Half::kWhole ? &op : nullptr;
}

std::vector<const Op*> Chains::Users(ValueId value) const {
  std::vector<const Op*> users;
  for (OpId id : users_[value.value]) users.push_back(&graph_.op(id));
  return users;
}

std::optional<double> Chains::NumberOf(ValueId value) const {
  if (const Op* fill = Maker(value, kFill)) return fill->attrs.Double(Attr::kValue);
  const Op* constant = Maker(value, kConstant);
  const Literal* literal = constant == nullptr ? nullptr : constant->attrs.LiteralOf(Attr::kLiteral);
  if (literal == nullptr || literal->dtype != Dtype::kF32 || literal->bytes->size() != sizeof(float)) return std::nullopt;
  float number;
  std::memcpy(&number, literal->bytes->data(), sizeof number);
  return number;
}

}  // namespace ropewalk::mlrunner
