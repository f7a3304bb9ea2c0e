// Rewriter: copies a graph op by op, and lets a pass leave ops out, change them, or put others in their place.
//
// Thread rule: one thread.
#pragma once

#include <vector>

#include "mlrunner/graph/graph.h"

namespace ropewalk::mlrunner {

class Rewriter {
 public:
  // The tables of `from` are taken over; its ops are not.
  explicit Rewriter(const Graph& from);

  // The op with its inputs mapped, at the end of the new graph; its outputs keep their names, layouts and shardings.
  OpId Copy(const Op& op);
  // The same with other inputs (of the new graph) or attributes: `op` is as it shall be, `like` is the op whose outputs it replaces.
  OpId Put(Op op, const Op& like);
  // A new op without a counterpart.
  OpId Add(Op op, std::vector<TensorType> types) { return to_.Add(std::move(op), std::move(types)); }

  void Map(ValueId from, ValueId to) { map_[from.value] = to; }
  ValueId At(ValueId from) const { return map_.at(from.value); }
  Graph& graph() { return to_; }

  // Maps outputs, taps, inputs, versions and alias groups, and gives the graph.
  Graph Finish();

 private:
  const Graph& from_;
  Graph to_;
  std::vector<ValueId> map_;
};

}  // namespace ropewalk::mlrunner
