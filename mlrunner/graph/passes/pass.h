// Passes: a graph goes in, a graph comes out, and what it computes is the same. Each keeps provenance, stable ids, taps, outputs, the
// order of
// versions, and the difference between originals and recomputed clones; tests run random graphs with passes on and off.
//
// Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "base/status.h"
#include "mlrunner/graph/graph.h"

namespace ropewalk::mlrunner {

// Removes what no output, tap, or last version needs. Versions are needed: an Assign or a Send stays although nobody reads its token.
Graph RemoveDeadCode(const Graph& graph);

// Merges ops that compute the same from the same values. Never two of different clone numbers: a recomputed value that is merged with its
// original would keep the memory that recomputation is there to free. Never random ops of different stable ids, collectives, or writes.
Graph MergeEqual(const Graph& graph);

// Replaces ops all of whose inputs are constants by their value. `evaluate` computes the outputs of one op from literals, or nothing when
// it
// cannot; values of more than `bytes_max` bytes stay ops.
using EvaluateOp = std::function<std::vector<Literal>(const Graph& graph, const Op& op, const std::vector<Literal>& inputs)>;
Graph FoldConstants(const Graph& graph, const EvaluateOp& evaluate, std::int64_t bytes_max = 64 * 1024);

// Small algebra that never changes a bit: x * 1, x / 1, x - 0, neg(neg x), views of views, identities and custom-gradient markers. (x + 0
// is
// not among them: it turns -0 into 0.)
Graph Simplify(const Graph& graph);

// Replaces fused ops by their primitive forms (Map too). `only`: names of ops; empty: all that have one.
Result<Graph> Expand(const Graph& graph, const std::set<std::string>& only = {});

// Fuses chains of elementwise ops of one shape, in one region and of one clone number, into Map ops. An op joins its user's group when
// all of
// its users are in that group; taps and outputs stay visible.
Graph FuseElementwise(const Graph& graph);

// Turns floating-point values and states of type `from` into `to`: the float64 twin of a float32 graph.
Result<Graph> ChangeFloats(const Graph& graph, Dtype from, Dtype to);

// Mixed precision: products (MatMul and the three convolutions) take their operands in `low`, which is kBF16 or kF16, and sum in f32; what
// computes elementwise from their results, or only moves them, follows, and all else stays in f32, such as norms, softmax, losses, sums and
// updates. States keep their types: parameters are f32 masters, and each is cast once a step, in a region of its own that runs before
// forward (kForward with a parameter), not once a use or a micro-batch. A result that no product takes on is written in f32, gradients of
// parameters and the last logits among them. What is kept for backward of a value that has been rounded is the narrow one. Bodies of loops
// are left alone. Of f32 graphs, after MergeEqual and before FuseElementwise.
Graph Autocast(const Graph& graph, Dtype low);

// Splits an op into a start and a done half (hook of overlap). `delay` ops that follow and do not need the result are put between them.
Result<Graph> SplitStartDone(const Graph& graph, OpId op, std::size_t delay);

// Splits every op between ranks in halves that overlap with what lies around them: buckets and start halves go right behind the op that
// makes the last of what they wait for, done halves right before the first op that waits for them, and into its region. What backward
// computes for one parameter goes before what else could be computed then: the gradient of a layer's weights before that of its input. So
// the sum of a gradient bucket is on its way as soon as backward can fill it, and is waited for by the first update that reads it. Last of
// the passes: others may move ops.
Graph OverlapCollectives(const Graph& graph);

// Recomputation: backward ops that use forward values of `recomputed` (by predicate on forward ops) use clones instead, made in the
// backward
// region, clone number `clone`. Ops that write a version, and what runs once a step, are never cloned; random ops draw the same numbers
// again.
Graph Recompute(const Graph& graph, const std::function<bool(const Op&)>& recomputed, std::uint32_t clone = 1);

// Layouts. `preferred` gives for an op the layout that its kernel wants of each input and then of each output, where its inputs come in
// those of `have`; nothing where the kernel has no wish (an elementwise op then takes over the layout of its inputs, any other op gets
// row-major). Relayout ops are put where neighbours differ, once for each value and layout, and none between ops that agree. Outputs, taps
// and states are row-major. FuseElementwise comes before it: what then is one op has one layout.
using PreferredLayout = std::function<std::vector<Layout>(const Graph& graph, const Op& op, const std::vector<Layout>& have)>;
Graph AssignLayouts(const Graph& graph, const PreferredLayout& preferred);

}  // namespace ropewalk::mlrunner
