// What the import of one node sees: its inputs, its attributes, and how it refuses.
//
// A function for an op (an Importer of the tables in ops.h) gives the operands of the node's outputs; those at the end that it has none for
// may be left out, and are missed only when another node uses them. Failures are sticky, as the builder's are.
//
// Thread rule: as the builder's.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "mlrunner/onnx/import.h"
#include "mlrunner/onnx/model.h"
#include "mlrunner/onnx/operand.h"

namespace ropewalk::mlrunner::onnx {

using Operands = std::vector<Operand>;

class NodeContext {
 public:
  // What the import as a whole does for a node.
  struct Session {
    Builder& b;
    std::string path;
    std::int64_t opset = 0;
    const ImportOptions& options;
    // A state for running statistics, where the name is one of an initializer; nothing where it is not.
    std::function<StateId(const std::string& name)> statistic;
    // The operands of some of a body's values, by name, where its nodes are run with `inputs` in the places of its inputs. What it names
    // from around it is found there; what those values do not need is not run.
    std::function<Operands(const GraphDef& body, const Operands& inputs, const std::vector<std::string>& outputs)> run_body;
    // What a name in a body stands for; null where nothing is known.
    std::function<Operand*(const std::string& name)> find;
    // In the body of a loop: the number of the round, a symbol, and how many there are.
    struct Round {
      Dim number, count;
    };
    std::optional<Round> round;
  };

  NodeContext(Session& session, const Node& node, std::vector<Operand*> inputs)
      : s(session), b(session.b), node(node), in_(std::move(inputs)) {}

  Session& s;
  Builder& b;
  const Node& node;

  bool ok() const { return b.status().ok(); }
  std::size_t NumInputs() const { return in_.size(); }
  bool Has(std::size_t i) const { return i < in_.size() && in_[i] != nullptr; }
  // Of an input that must be there; an empty one after a refusal.
  const Operand& At(std::size_t i);
  const Known* KnownAt(std::size_t i) const { return Has(i) ? in_[i]->known.get() : nullptr; }
  bool AllKnown() const;
  // Whether what is known of an input are whole numbers.
  bool IsWhole(std::size_t i) const { return KnownAt(i) != nullptr && !KnownAt(i)->IsReal(); }
  // The input in the graph, made there if need be. Not valid after a failure.
  Value Val(std::size_t i);
  Value Make(Operand& operand);

  // Numbers that must be known. `what` says in a refusal what they are ("the axes").
  std::vector<Dim> WholeAt(std::size_t i, const char* what);
  // Lengths among them: none less than 0, and none that no tensor has.
  std::vector<Dim> LengthsAt(std::size_t i, const char* what);
  std::vector<std::int64_t> NumbersAt(std::size_t i, const char* what);
  double RealAt(std::size_t i, const char* what);
  // Numbers that are an attribute in older opsets and input `i` in newer ones; empty where they are neither.
  std::vector<std::int64_t> Numbers(const char* attribute, std::size_t i);
  // From the front; refuses what the rank has not.
  std::vector<std::int64_t> Axes(std::vector<std::int64_t> axes, std::size_t rank);
  std::int64_t Axis(std::int64_t axis, std::size_t rank);

  const std::vector<SymbolInfo>& symbols() const { return b.graph().symbols; }
  std::string Show(const Shape& shape) const { return ToString(shape, symbols()); }
  // ONNX05, with the node's name and op.
  Operands Refuse(std::string why, std::string fix);
  // ONNX06: what is not known before a run.
  Operands NotKnown(const char* what);
  void Fail(const char* tag, std::string why, std::string fix);
  std::string Title() const;  // "model.onnx: node NAME (Op)"

 private:
  std::vector<Operand*> in_;
  Operand nothing_;
};

// A constant of the file's, or what is known, as a value.
Value MakeKnown(Builder& b, const Known& known);
// x[d] = a along `axis`, `low` times before and `high` times after it.
Value PadWith(const Value& x, int axis, const Dim& low, const Dim& high, double number);
// The axes of `x` in this order.
Value Permuted(const Value& x, const std::vector<std::int64_t>& order);

}  // namespace ropewalk::mlrunner::onnx
