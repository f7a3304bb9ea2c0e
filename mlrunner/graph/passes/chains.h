// What passes that look for chains of ops share: makers, users, and who else sees a value.
//
// Owner: it must not outlive the graph. Thread rule: pure functions.
#pragma once

#include <optional>
#include <set>
#include <vector>

#include "mlrunner/graph/graph.h"

namespace ropewalk::mlrunner {

class Chains {
 public:
  explicit Chains(const Graph& graph);

  // The whole op that makes the value, where it is of that kind; null otherwise.
  const Op* Maker(ValueId value, const OpDef& def) const;
  // Ops that use it, in order.
  std::vector<const Op*> Users(ValueId value) const;
  // A result of a run, a tap, a state's last version, or placed by an alias group.
  bool IsVisible(ValueId value) const { return visible_.contains(value); }
  // The number that each element is, where that is known.
  std::optional<double> NumberOf(ValueId value) const;
  const TensorType& TypeOf(ValueId value) const { return graph_.value(value).type; }
  // Whether the two run at the same time: of one region, clone number and stream.
  static bool AreTogether(const Op& a, const Op& b) { return a.region == b.region && a.clone == b.clone && a.stream == b.stream; }

 private:
  const Graph& graph_;
  std::vector<std::vector<OpId>> users_;
  std::set<ValueId> visible_;
};

}  // namespace ropewalk::mlrunner
