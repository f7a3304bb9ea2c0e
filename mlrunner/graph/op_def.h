// OpDef: what the graph knows of one kind of op, as data: shape inference, gradient rule, primitive form. Kernels lie in the kernel table,
// keyed by (op, device, dtype).
//
// The ops of ops.h are constants of this type. A strategy adds ops of its own the same way, in its own folder: a constant OpDef and
// kernels;
// nothing here has to know of them.
//
// Thread rule: constants.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "mlrunner/graph/graph.h"

namespace ropewalk::mlrunner {

class Builder;
struct Value;
struct Gradient;

struct InferContext {
  const Op& op;
  std::vector<TensorType> in;
  const std::vector<SymbolInfo>& symbols;  // to print shapes
  std::string Show(std::size_t i) const { return ToString(in.at(i).shape, symbols); }
};

struct GradientContext {
  Builder& b;
  const Op& op;
  std::vector<Value> in, out;
  std::vector<Gradient> grads;  // of the outputs; not valid() where none arrives
};

struct OpDef {
  std::string_view name;  // unique; part of fingerprints and kernel keys
  int inputs = 1;         // -1: any number
  int outputs = 1;        // -1: what infer gives

  // Types of the outputs, or why the inputs do not fit.
  Result<std::vector<TensorType>> (*infer)(const InferContext&) = nullptr;
  // Gradients of the inputs, from those of the outputs; an entry that is not valid() means that none flows. Null: the op has no gradient
  // (its
  // outputs are no functions of floating-point inputs, or nobody may differentiate through it).
  std::vector<Gradient> (*gradient)(const GradientContext&) = nullptr;
  // The same function from primitive ops. Null for primitives. A fused op must have one; tests compare the two, and gradients with it.
  std::vector<Value> (*expand)(Builder&, const Op&, const std::vector<Value>&) = nullptr;

  struct Traits {
    bool elementwise = false;  // out[i] = f(in[i]...) after broadcasting: may be fused, may write over an input of the same type
    bool commutative = false;  // of two inputs
    bool random = false;       // draws Philox numbers: two such ops are equal only when their stable ids are
    bool view = false;         // output 0 is input 0 seen in another shape: no bytes move
    bool source = false;       // its value comes from outside (inputs, first versions): never folded or merged
    bool collective = false;   // communicates: needs a channel at run time, never merged, folded or reordered across its token
    int updates = 0;           // output i is input i with parts of it changed, for so many i: may write over that input
    int rule_outputs = 1;      // of a fused op: its gradient rule knows the gradients of so many outputs, the first ones
  } traits;
};

}  // namespace ropewalk::mlrunner
