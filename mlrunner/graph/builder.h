// Builder: writes a model graph so that the code reads like the maths.
//
//   Builder b;
//   Dim batch = b.NewSymbol("B", 1, 1024);
//   Value x = b.Input("x", Dtype::kF32, {batch, 784});
//   Parameter w = b.NewParameter("w", {784, 10}, Initializer::Normal(.02));
//   Value loss = Mean(CrossEntropy(MatMul(x, w), labels));
//
// The functions of the maths are in maths.h, Grad in grad.h. Errors are sticky: the first one is kept with the shapes and the user's source
// line, what follows gives values that are not valid(), and Finish() returns it. So the maths need no error handling in between.
//
// Owner: the builder owns the graph until Finish(). Values point to their builder and must not outlive it. Thread rule: one thread.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "mlrunner/graph/graph.h"
#include "mlrunner/graph/op_def.h"

namespace ropewalk::mlrunner {

class Builder;

// A value of a graph under construction. Not valid() after an error.
struct Value {
  Builder* builder = nullptr;
  ValueId id;
  bool valid() const { return builder != nullptr; }
  // Of a valid value; an empty type otherwise.
  const TensorType& type() const;
  Dtype dtype() const { return type().dtype; }
  const Shape& shape() const { return type().shape; }
  std::size_t rank() const { return shape().size(); }
  // 0 where there is no such axis, as of a value that is not valid: what is made of it is refused by its op.
  Dim dim(int axis) const {
    int at = axis < 0 ? static_cast<int>(rank()) + axis : axis;
    return at >= 0 && at < static_cast<int>(rank()) ? shape()[at] : Dim();
  }
};

// A parameter's value as of now, and the state that holds it.
struct Parameter : Value {
  StateId state;
};

// The gradient of a table of which only some rows were read: row i of `rows` (n, ...) belongs to row indices[i] (n) of a table with
// `num_rows` rows. Indices may repeat; the summands are added.
struct IndexedRows {
  Value indices, rows;
  Dim num_rows;
};

// A gradient is a tensor, or rows of one. As a Value it is dense.
struct Gradient {
  Gradient() = default;
  Gradient(Value dense) : dense_(dense) {}                  // NOLINT: ordinary values are gradients
  Gradient(IndexedRows rows) : sparse_(std::move(rows)) {}  // NOLINT
  bool valid() const { return dense_.valid() || sparse_.rows.valid(); }
  bool IsRows() const { return sparse_.rows.valid(); }
  const IndexedRows& rows() const { return sparse_; }
  Value Dense() const;                        // scatters rows into a tensor of zeros
  operator Value() const { return Dense(); }  // NOLINT

 private:
  Value dense_;
  IndexedRows sparse_;
};

// An argument of a function of the maths: a value or a number, and the line on which the caller wrote it.
struct Arg {
  Value value;
  double number = 0;
  bool is_number = false;
  Location where;
  Arg(const Value& v, const char* file = __builtin_FILE(), int line = __builtin_LINE()) : value(v), where{file, line} {}      // NOLINT
  Arg(const Parameter& v, const char* file = __builtin_FILE(), int line = __builtin_LINE()) : value(v), where{file, line} {}  // NOLINT
  Arg(const Gradient& v, const char* file = __builtin_FILE(), int line = __builtin_LINE())
      : value(v.Dense()), where{file, line} {}  // NOLINT
  Arg(double n, const char* file = __builtin_FILE(), int line = __builtin_LINE())
      : number(n), is_number(true), where{file, line} {}                                                                           // NOLINT
  Arg(int n, const char* file = __builtin_FILE(), int line = __builtin_LINE()) : number(n), is_number(true), where{file, line} {}  // NOLINT
};

// What ops that are made now get as their origin.
struct Scope {
  std::string module;
  Role role = Role::kCompute;
  Phase phase = Phase::kForward;
  std::int32_t layer = -1;
  RegionKind region = RegionKind::kForward;
  std::int32_t stage = 0;
  StateId parameter;  // of update regions
  std::uint32_t clone = 0;
};

class Builder {
 public:
  Builder();
  explicit Builder(Graph graph);  // goes on with a finished one
  Builder(const Builder&) = delete;
  Builder& operator=(const Builder&) = delete;

  // --- what comes from outside ---
  Dim NewSymbol(std::string name, std::int64_t min = 1, std::int64_t max = 0);
  Value Input(std::string name, Dtype dtype, Shape shape, const char* file = __builtin_FILE(), int line = __builtin_LINE());
  // `type` is that of the logical tensor, of which this rank holds what `sharding` gives it: lengths that are cut must divide by their mesh
  // axis. Names must differ.
  StateId NewState(std::string name, StateKind kind, TensorType type, Initializer init, StateId of = {}, ShardingSpec sharding = {},
                   Location where = {__builtin_FILE(), __builtin_LINE()});
  StateId NewChannel(std::string name, Location where = {__builtin_FILE(), __builtin_LINE()});
  // `dtype` of the master copy; `shape` and `sharding` as above.
  Parameter NewParameter(std::string name, Shape shape, Initializer init, Dtype dtype = Dtype::kF32, ShardingSpec sharding = {},
                         Location where = {__builtin_FILE(), __builtin_LINE()});

  // --- states ---
  Value Read(StateId state, Location where = {__builtin_FILE(), __builtin_LINE()});  // as of the last Assign
  void Assign(StateId state, Arg value);                                             // makes the next version
  // What is assigned until the end of the C++ scope is so only where `flag`, a scalar bool, is true: else the state keeps its value.
  class [[nodiscard]] GuardAssigns {
   public:
    GuardAssigns(Builder& b, Value flag) : builder_(b) { b.assign_if_ = flag; }
    ~GuardAssigns() { builder_.assign_if_ = {}; }
    GuardAssigns(const GuardAssigns&) = delete;
    GuardAssigns& operator=(const GuardAssigns&) = delete;

   private:
    Builder& builder_;
  };
  bool guards_assigns() const { return assign_if_.valid(); }
  Value Token(StateId state, Location where = {__builtin_FILE(), __builtin_LINE()});  // the present version
  void SetToken(StateId state, Value token);                                          // an op of a strategy made a new version

  // --- results ---
  void Output(std::string name, const Value& value, Location where = {__builtin_FILE(), __builtin_LINE()});
  void Tap(std::string name, const Value& value, Location where = {__builtin_FILE(), __builtin_LINE()});

  // --- ops ---
  // The general way to make an op. Results are as many as the definition says (at least one, not valid after an error). It lies in the
  // scope's region; outside of any scope, what is computed from a gradient lies in backward, and what is computed in an update stays there.
  std::vector<Value> Emit(const OpDef& def, const std::vector<Value>& inputs, Attributes attrs = {}, Location where = {},
                          std::vector<std::shared_ptr<const Graph>> bodies = {});
  Value EmitOne(const OpDef& def, const std::vector<Value>& inputs, Attributes attrs = {}, Location where = {}) {
    return Emit(def, inputs, std::move(attrs), where)[0];
  }
  Value Number(double value, Dtype dtype, Location where = {__builtin_FILE(), __builtin_LINE()});  // a scalar
  // Builds a function's body. `types` are its inputs; values of this builder that `write` uses become further inputs (`captures`). No graph
  // after an error.
  struct Body {
    std::shared_ptr<const Graph> graph;
    std::vector<Value> captures;
  };
  Body BuildBody(const std::vector<TensorType>& types, const std::function<std::vector<Value>(Builder&, const std::vector<Value>&)>& write,
                 Location where = {});
  // The builder of the body that is being written now, of this builder or of a body of it; this one where none is.
  Builder& Innermost() { return open_body_ == nullptr ? *this : open_body_->Innermost(); }
  // This one, or of a body that has been written the nearest around it that has not: what is made of its values belongs nowhere else.
  Builder& Living() { return is_written_ ? parent_->Living() : *this; }
  // Copies the ops of a body here; gives its outputs.
  std::vector<Value> Inline(const Graph& body, const std::vector<Value>& arguments);

  // --- gradients by hand ---
  using GradientFn = std::function<std::vector<Gradient>(const GradientContext&)>;
  // `outputs` as functions of `inputs`, whose gradients `fn` computes from those of the outputs; what lies between is not looked at.
  std::vector<Value> CustomGradient(const std::vector<Value>& inputs, const std::vector<Value>& outputs, GradientFn fn,
                                    Location where = {__builtin_FILE(), __builtin_LINE()});
  const GradientFn* CustomGradientOf(std::int64_t key) const;

  // --- where ops come from ---
  Scope& scope() { return scope_; }
  int depth() const { return parent_ == nullptr ? 0 : parent_->depth() + 1; }  // of nested bodies
  // Until the end of the C++ scope, ops belong to this module (and layer).
  class [[nodiscard]] ScopeGuard {
   public:
    ScopeGuard(Builder& b, Scope scope) : builder_(b), before_(b.scope_) { b.scope_ = std::move(scope); }
    ~ScopeGuard() { builder_.scope_ = before_; }
    ScopeGuard(const ScopeGuard&) = delete;
    ScopeGuard& operator=(const ScopeGuard&) = delete;

   private:
    Builder& builder_;
    Scope before_;
  };
  ScopeGuard Module(std::string_view name, std::int32_t layer = -1);
  ScopeGuard With(Scope scope) { return ScopeGuard(*this, std::move(scope)); }

  // --- the end ---
  void Fail(Status status);  // the first failure is kept
  const Status& status() const { return failure_; }
  const Graph& graph() const { return graph_; }
  Graph& mutable_graph() { return graph_; }
  Result<Graph> Finish();  // checks

 private:
  // The value as one of ours: itself, or what captures it from a graph around this one; not valid() where it is of neither.
  Value Own(const Value& value, Location where);
  Value Capture(const Value& value);
  bool Usable(const OpDef& def, const std::vector<Value>& inputs, Location where);
  // The scope's. Where that is forward and an input was made in backward or in an update, the input's: no forward can wait for it.
  RegionId RegionFor(const Op& op);

  Graph graph_;
  Builder* parent_ = nullptr;
  Builder* open_body_ = nullptr;
  bool is_written_ = false;  // of a body
  // Of bodies that have been written: a value of one is told by its builder, whose place no other one may have.
  std::vector<std::unique_ptr<Builder>> bodies_;
  std::vector<std::pair<ValueId, Value>> captured_;  // parent's value -> ours
  Status failure_;
  Scope scope_;
  Value assign_if_;  // valid: GuardAssigns
  std::map<std::string, std::uint32_t> occurrences_;
  std::shared_ptr<std::map<std::int64_t, GradientFn>> custom_gradients_;  // one for a builder and the builders of its bodies
};

}  // namespace ropewalk::mlrunner
